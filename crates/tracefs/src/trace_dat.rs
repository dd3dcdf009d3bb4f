//! A recording as a `trace.dat` file of version 6.
//!
//! The layout is that of trace-cmd.dat.v6(5): magic, the kernel's own format texts,
//! options, and for each CPU the offset and length of its ring buffer pages as the
//! kernel made them. trace-cmd and KernelShark read it, and so does vmeter.

use crate::reader::Pages;
use crate::Error;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Texts of tracefs are far smaller than this, bytes.
const MAX_TEXT: usize = 1 << 18;
/// Option with the trace clock (trace-cmd.dat.v6(5), `TRACECLOCK`).
const OPTION_CLOCK: u16 = 4;

/// Everything that a `trace.dat` says before the pages.
#[derive(Debug, Default)]
pub(crate) struct Head {
    pub clock: String,
    pub page_size: usize,
    root: PathBuf,
    header_page: String,
    header_event: String,
    /// `system:name` and format text.
    formats: Vec<(String, String)>,
    /// Lines `TID NAME`.
    threads: String,
    /// `/proc/kallsyms`, if asked for.
    symbols: String,
}

/// The lines of `/proc/kallsyms` with `part` in their names. An address has the name of the
/// symbol at or below it, so what follows each of them in memory stays, too.
fn symbols_of(kallsyms: &str, part: &str) -> String {
    let line = |line| {
        let (address, named) = str::split_once(line, ' ')?;
        Some((u64::from_str_radix(address, 16).ok()?, named.contains(part), line))
    };
    let mut lines: Vec<(u64, bool, &str)> = kallsyms.lines().filter_map(line).collect();
    lines.sort_by_key(|(address, ..)| *address);
    let mut kept = String::new();
    let mut open = None;
    for (address, named, line) in lines {
        let ends = open.is_some_and(|begin| address > begin);
        if named || ends {
            kept.push_str(line);
            kept.push('\n');
        }
        if named {
            open = Some(address);
        } else if ends {
            open = None;
        }
    }
    kept
}

impl Head {
    pub fn new(
        root: &Path,
        instance: &Path,
        clock: String,
        formats: Vec<(String, String)>,
    ) -> Result<Self, Error> {
        let text = |name: &str| text(&root.join("events").join(name));
        Ok(Head {
            clock,
            page_size: page_size(instance),
            root: root.to_owned(),
            header_page: text("header_page")?,
            header_event: text("header_event")?,
            formats,
            threads: String::new(),
            symbols: String::new(),
        })
    }

    /// Takes the kernel's symbols with `part` in their names. To others than root all
    /// addresses are zero.
    pub fn note_symbols(&mut self, part: &str) {
        // Without them functions are addresses.
        let all = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
        self.symbols = if part.is_empty() { all } else { symbols_of(&all, part) };
    }

    /// Takes the names of the threads that were seen.
    pub fn note_threads(&mut self) {
        // Without names a trace is still a trace.
        self.threads = text(&self.root.join("saved_cmdlines")).unwrap_or_default();
    }

    fn write(&self, out: &mut Vec<u8>, cpus: u32) {
        let put = |out: &mut Vec<u8>, text: &str| {
            out.extend((text.len() as u64).to_le_bytes());
            out.extend(text.as_bytes());
        };
        out.extend(b"\x17\x08\x44tracing6\0");
        // Little-endian, longs of 8 bytes.
        out.extend([0, 8]);
        out.extend((self.page_size as u32).to_le_bytes());
        out.extend(b"header_page\0");
        put(out, &self.header_page);
        out.extend(b"header_event\0");
        put(out, &self.header_event);
        // ftrace's own events: none are recorded.
        out.extend(0u32.to_le_bytes());
        let mut systems: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (event, format) in &self.formats {
            let system = event.split(':').next().unwrap_or_default();
            systems.entry(system).or_default().push(format);
        }
        out.extend((systems.len() as u32).to_le_bytes());
        for (system, formats) in systems {
            out.extend(system.as_bytes());
            out.push(0);
            out.extend((formats.len() as u32).to_le_bytes());
            formats.iter().for_each(|format| put(out, format));
        }
        out.extend((self.symbols.len() as u32).to_le_bytes());
        out.extend(self.symbols.as_bytes());
        // No printk formats.
        out.extend(0u32.to_le_bytes());
        put(out, &self.threads);
        out.extend(cpus.to_le_bytes());
        let clock = format!("[{}]\0", self.clock);
        out.extend(b"options  \0");
        out.extend(OPTION_CLOCK.to_le_bytes());
        out.extend((clock.len() as u32).to_le_bytes());
        out.extend(clock.as_bytes());
        out.extend(0u16.to_le_bytes());
    }
}

/// Bytes of a ring buffer page, which 6.8 made a setting.
fn page_size(instance: &Path) -> usize {
    let kib = fs::read_to_string(instance.join("buffer_subbuf_size_kb"))
        .ok()
        .and_then(|text| text.trim().parse::<usize>().ok())
        .filter(|kib| (1..=1024).contains(kib));
    kib.map_or_else(rustix::param::page_size, |kib| kib * 1024)
}

/// Some of these files give what they have to the first `read` alone, so it has to
/// be a large one.
fn text(path: &Path) -> Result<String, Error> {
    let mut buffer = vec![0; MAX_TEXT];
    let mut length = 0;
    let mut file = File::open(path).map_err(Error::at(path))?;
    loop {
        match file.read(&mut buffer[length..]).map_err(Error::at(path))? {
            0 => return Ok(String::from_utf8_lossy(&buffer[..length]).into_owned()),
            n => length += n,
        }
    }
}

/// A finished recording; its instance is gone.
#[derive(Debug)]
pub struct Recorded {
    head: Head,
    pages: Pages,
}

impl Recorded {
    pub(crate) fn new(head: Head, pages: Pages) -> Self {
        Recorded { head, pages }
    }

    /// Bytes of ring buffer pages.
    pub fn bytes(&self) -> u64 {
        self.pages.cpus.iter().map(|cpu| cpu.bytes).sum()
    }

    /// True if the limit was reached and what came after is missing.
    pub fn is_limited(&self) -> bool {
        self.pages.limited
    }

    /// The trace clock, e.g. `mono`.
    pub fn clock(&self) -> &str {
        &self.head.clock
    }

    /// Writes it as `trace.dat`.
    ///
    /// # Errors
    /// [`Error::Io`] with any error of the file system.
    pub fn save(mut self, path: &Path) -> Result<(), Error> {
        self.write_to(path).map_err(Error::at(path))
    }

    fn write_to(&mut self, path: &Path) -> io::Result<()> {
        let page = self.head.page_size as u64;
        // The table has a line for every CPU up to the last, with pages or without.
        let cpus = self.pages.cpus.last().map_or(0, |cpu| cpu.cpu + 1);
        let mut head = Vec::new();
        self.head.write(&mut head, cpus);
        head.extend(b"flyrecord\0");
        let clock = format!("[{}]", self.head.clock);
        let table = head.len() as u64 + u64::from(cpus) * 16 + 8 + clock.len() as u64;
        let start = table.next_multiple_of(page);
        let mut at = start;
        for cpu in 0..cpus {
            let bytes = self.pages.cpus.iter().find(|c| c.cpu == cpu).map_or(0, |c| c.bytes);
            head.extend(at.to_le_bytes());
            head.extend(bytes.to_le_bytes());
            at += bytes;
        }
        head.extend((clock.len() as u64).to_le_bytes());
        head.extend(clock.as_bytes());
        head.resize(start as usize, 0);
        let mut out = BufWriter::new(File::create(path)?);
        out.write_all(&head)?;
        out.flush()?;
        let mut out = out.into_inner().map_err(|e| e.into_error())?;
        for cpu in &mut self.pages.cpus {
            cpu.file.seek(SeekFrom::Start(0))?;
            io::copy(&mut (&cpu.file).take(cpu.bytes), &mut out)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_by_name_end_where_the_next_begins() {
        let all = "30 t after\n10 T call_srcu\n10 T alias\n20 t other\n08 t before\n\
                   40 t process_srcu\t[rcu]\n50 t srcu_end\n60 t last\n70 t far\nno line\n";
        let kept =
            "10 T call_srcu\n20 t other\n40 t process_srcu\t[rcu]\n50 t srcu_end\n60 t last\n";
        assert_eq!(symbols_of(all, "srcu"), kept);
        assert_eq!(symbols_of("", "srcu"), "");
    }
}
