//! The head of a trace.dat: versions 6 and 7, as trace-cmd.dat.v6(5) and
//! trace-cmd.dat.v7(5) describe them.
//!
//! Every size in the file is untrusted: reads are clipped to the file, and what is kept
//! or unpacked to the file's [`vmeter_base::bounds::Budget`].

use super::fields::{parse_field, parse_format};
use super::parts::{Buffer, CpuData, PageHead, MAGIC, NO_KIND};
use super::recover::recover;
use super::sections::{Packing, Parse, Sections};
use crate::event::EventType;
use crate::hash::FastMap;
use crate::input::RandomAccess;
use crate::symbols::Symbols;
use std::sync::Arc;
use vmeter_base::CpuList;

/// More names than this are a damaged file's.
const MAX_NAMES: usize = 1 << 16;

/// `common_type` has 16 bits.
const TYPES: usize = 1 << 16;
/// Most CPUs of a buffer, as Linux has them.
pub(super) const MAX_CPUS: u32 = CpuList::LIMIT as u32;
/// Most things told to be missing.
const MAX_MISSING: usize = 64;
/// A type's description takes so many times its text, and so much beside it, bytes.
const KIND: u64 = 512;

/// Everything before the pages.
#[derive(Default)]
pub struct Header {
    pub(super) page: PageHead,
    pub(in crate::formats) kinds: Vec<EventType>,
    /// Index into `kinds` by `common_type`.
    pub(in crate::formats) by_type: Vec<u32>,
    pub(in crate::formats) symbols: Arc<Symbols>,
    pub(super) threads: FastMap<i32, String>,
    pub(super) buffers: Vec<Buffer>,
    pub(super) clock: String,
    /// Multiplier and shift that turn TSC stamps into ns.
    pub(super) tsc_to_ns: Option<(u32, u32)>,
    /// Added to every stamp.
    pub(super) offset: i64,
    pub(super) guests: Vec<(String, u32, i32)>,
    pub(in crate::formats) missing: Vec<String>,
}

impl Header {
    /// Notes what is missing; what there are too many of is not told any more.
    pub(in crate::formats) fn miss(&mut self, what: String) {
        if self.missing.len() < MAX_MISSING {
            self.missing.push(what);
        }
    }

    /// Reads the next format text.
    fn add_format(&mut self, s: &mut Sections<'_>, system: &str) -> Parse<()> {
        let size = s.u64()?;
        s.item(size.saturating_add(KIND + system.len() as u64), "event formats")?;
        let text = s.bytes(size, "event formats")?;
        let Some((id, mut kind)) = parse_format(system, &String::from_utf8_lossy(&text)) else {
            self.miss(format!("an event of {system} has an invalid format description"));
            return Ok(());
        };
        kind.id = self.kinds.len() as u32;
        self.by_type[id as usize] = kind.id;
        self.kinds.push(kind);
        Ok(())
    }

    /// Reads the kernel's symbols.
    fn add_symbols(&mut self, s: &mut Sections<'_>) -> Parse<()> {
        let size = s.u32()?;
        let text = s.bytes(u64::from(size), "symbols")?;
        let lines = memchr::memchr_iter(b'\n', &text).count() as u64 + 1;
        s.item(lines * Symbols::INDEX_BYTES, "symbols")?;
        self.symbols = Arc::new(Symbols::parse(text));
        Ok(())
    }

    /// Reads the names of threads.
    fn add_threads(&mut self, s: &mut Sections<'_>) -> Parse<()> {
        let size = s.u64()?;
        let text = s.bytes(size, "names of threads")?;
        for line in text.split(|&byte| byte == b'\n') {
            let line = line.trim_ascii_start();
            let Some(space) = memchr::memchr(b' ', line) else { continue };
            let tid = std::str::from_utf8(&line[..space]).ok().and_then(|tid| tid.parse().ok());
            if let Some(tid) = tid.filter(|_| self.threads.len() < MAX_NAMES) {
                s.item(line.len() as u64, "names of threads")?;
                let name = String::from_utf8_lossy(&line[space + 1..]).into_owned();
                self.threads.insert(tid, name);
            }
        }
        Ok(())
    }

    fn set_page_head(&mut self, text: &[u8]) {
        let text = String::from_utf8_lossy(text);
        for field in
            text.lines().filter_map(|l| parse_field(l.trim_start().strip_prefix("field:")?))
        {
            match field.name.as_str() {
                "commit" if matches!(field.size, 4 | 8) => {
                    self.page.commit = field.offset;
                    self.page.commit_size = field.size;
                }
                "data" => self.page.data = field.offset,
                _ => {}
            }
        }
    }
}

/// Reads the head after the magic; `Err` says what was expected and found.
pub fn read(file: &RandomAccess) -> Parse<Header> {
    let mut header = Header { by_type: vec![NO_KIND; TYPES], ..Header::default() };
    let mut s = Sections::new(file, 10);
    let version = s.string()?;
    let endian = s.u8()?;
    if endian != 0 {
        return Err(
            "the trace comes from a big-endian machine, and vmeter reads only little-endian \
                traces; convert it to text, which vmeter reads, with `trace-cmd report -R`"
                .into(),
        );
    }
    let _long_size = s.u8()?;
    let page_size = s.u32()?;
    match version.as_str() {
        "6" => read_v6(&mut s, &mut header, page_size)?,
        "7" => read_v7(&mut s, &mut header, page_size)?,
        other => {
            return Err(format!(
                "its version is {other:?}, and vmeter reads only versions 6 and 7; try \
                 `trace-cmd convert --file-version 7`"
            ))
        }
    }
    Ok(header)
}

/// Reads the format texts of a perf.data file, which stand there as in a trace.dat.
///
/// `Err` says what was expected and found.
pub fn tracing_data(file: &RandomAccess, at: u64, size: u64) -> Parse<Header> {
    let mut header = Header { by_type: vec![NO_KIND; TYPES], ..Header::default() };
    let mut s = Sections::of_part(file, at, size)?;
    if s.array::<10>()? != MAGIC {
        return Err(format!("there are no event formats at byte {at}"));
    }
    let _version = s.string()?;
    if s.u8()? != 0 {
        return Err("it was recorded on a big-endian machine, and vmeter reads only \
                    traces of little-endian machines"
            .into());
    }
    let _long_size = s.u8()?;
    let _page_size = s.u32()?;
    read_header_info(&mut s, &mut header)?;
    read_ftrace_formats(&mut s, &mut header)?;
    read_event_formats(&mut s, &mut header)?;
    header.add_symbols(&mut s)?;
    Ok(header)
}

fn read_v6(s: &mut Sections<'_>, header: &mut Header, page_size: u32) -> Parse<()> {
    read_header_info(s, header)?;
    read_ftrace_formats(s, header)?;
    read_event_formats(s, header)?;
    header.add_symbols(s)?;
    // Format texts of `trace_printk`.
    let size = s.u32()?;
    s.skip(u64::from(size))?;
    header.add_threads(s)?;
    let mut cpus = s.u32()?;
    let mut others = Vec::new();
    let mut kind = s.array::<10>()?;
    if kind == *b"options  \0" {
        read_v6_options(s, header, &mut cpus, &mut others)?;
        kind = s.array()?;
    }
    let mut places = vec![(s.position(), kind, String::new())];
    for (at, name) in others {
        let mut there = Sections::new(s.file, at);
        match there.array() {
            Ok(kind) => places.push((there.position(), kind, name)),
            Err(e) => header.miss(format!("buffer {name:?}: {e}")),
        }
    }
    for (at, kind, name) in places {
        if kind == *b"flyrecord\0" {
            let buffer = Buffer { name, page_size, ..Buffer::default() };
            read_v6_table(s.file, header, at, buffer, cpus)?;
        } else {
            let kind = String::from_utf8_lossy(&kind);
            let what =
                format!("buffer {name:?} holds {kind:?}, but vmeter reads only \"flyrecord\"");
            header.miss(what);
        }
    }
    Ok(())
}

/// Options up to the one that ends them; other buffers as (offset, name).
fn read_v6_options(
    s: &mut Sections<'_>,
    header: &mut Header,
    cpus: &mut u32,
    buffers: &mut Vec<(u64, String)>,
) -> Parse<()> {
    loop {
        let id = s.u16()?;
        if id == 0 {
            return Ok(());
        }
        let size = s.u32()?;
        let data = s.bytes(u64::from(size), "options")?;
        match (id, data.as_slice()) {
            (3, [a, b, c, d, e, f, g, h, name @ ..]) => {
                let at = u64::from_le_bytes([*a, *b, *c, *d, *e, *f, *g, *h]);
                buffers.push((at, c_string(name)));
            }
            (8, &[a, b, c, d]) => *cpus = u32::from_le_bytes([a, b, c, d]),
            _ => read_option(s, header, id, &data)?,
        }
    }
}

/// A buffer's table: offset and size of each CPU's data.
fn read_v6_table(
    file: &RandomAccess,
    header: &mut Header,
    at: u64,
    mut buffer: Buffer,
    cpus: u32,
) -> Parse<()> {
    check_cpus(cpus)?;
    let mut table = Sections::new(file, at);
    for cpu in 0..cpus {
        let (Ok(offset), Ok(size)) = (table.u64(), table.u64()) else {
            header.miss(format!(
                "the table of CPUs ends before CPU {cpu}: the data of this and all later CPUs \
                are missing"
            ));
            break;
        };
        table.item(STREAM, "CPUs")?;
        buffer.cpus.push(CpuData { cpu, offset, size, packing: Packing::None });
    }
    header.buffers.push(buffer);
    Ok(())
}

/// What a CPU's stream takes beside its pages, bytes.
const STREAM: u64 = 1024;

fn check_cpus(cpus: u32) -> Parse<()> {
    if cpus <= MAX_CPUS {
        return Ok(());
    }
    Err(format!("the file claims {cpus} CPUs, but Linux supports at most {MAX_CPUS}"))
}

fn read_v7(s: &mut Sections<'_>, header: &mut Header, page_size: u32) -> Parse<()> {
    let name = s.string()?;
    let _version = s.string()?;
    let packing = match name.as_str() {
        "none" => Packing::None,
        "zstd" => Packing::Zstd,
        "zlib" => Packing::Zlib,
        other => {
            return Err(format!(
                "the file is compressed with {other:?}; vmeter supports only \
            zstd and zlib"
            ))
        }
    };
    let mut next = s.u64()?;
    let after_head = s.position();
    let mut seen = Vec::new();
    while next != 0 && seen.len() < 64 && !seen.contains(&next) {
        seen.push(next);
        match read_options(s.file, next, packing, page_size, header) {
            Ok(offset) => next = offset,
            Err(e) => {
                header.miss(format!("options at {next}: {e}"));
                break;
            }
        }
    }
    if header.buffers.is_empty() && s.file.budget().exceeded().is_none() {
        let know_formats = !header.kinds.is_empty();
        let cpus = recover(s.file, after_head, packing, page_size, |id, at| {
            if (16..=21).contains(&id) && !know_formats {
                if let Err(e) = read_section(s.file, id, at, packing, header) {
                    header.miss(format!("the section at {at}: {e}"));
                }
            }
        });
        if let Some(cpus) = cpus {
            header.miss(format!(
                "the options at the end of the file are missing or damaged; vmeter searched the \
                    file for trace pages instead, found the data of {} CPUs, and numbered the \
                    CPUs in the order of the file",
                cpus.len()
            ));
            header.buffers.push(Buffer { page_size, cpus, ..Buffer::default() });
        }
    }
    if header.buffers.is_empty() && header.kinds.is_empty() {
        return Err(format!("nothing in it can be read: {}", header.missing.join("; ")));
    }
    Ok(())
}

/// Reads one options section and what it points to; gives the next one's offset.
fn read_options(
    file: &RandomAccess,
    at: u64,
    packing: Packing,
    page_size: u32,
    header: &mut Header,
) -> Parse<u64> {
    let mut s = Sections::new(file, at);
    s.enter(at, packing)?;
    while s.rest() >= 6 {
        let id = s.u16()?;
        let size = s.u32()?;
        let data = s.bytes(u64::from(size), "options")?;
        let number = data.get(..8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
        match (id, number) {
            (0, next) => return Ok(next.unwrap_or(0)),
            (3, Some(_)) => match read_buffer(file, data, packing, page_size) {
                Ok(buffer) => header.buffers.push(buffer),
                Err(e) => header.miss(format!("a buffer: {e}")),
            },
            (16..=21, Some(section)) => {
                if let Err(e) = read_section(file, id, section, packing, header) {
                    header.miss(format!("the section of option {id}: {e}"));
                }
            }
            _ => read_option(&s, header, id, &data)?,
        }
    }
    Ok(0)
}

fn read_section(
    file: &RandomAccess,
    id: u16,
    at: u64,
    packing: Packing,
    header: &mut Header,
) -> Parse<()> {
    let mut s = Sections::new(file, at);
    s.enter(at, packing)?;
    match id {
        16 => read_header_info(&mut s, header),
        17 => read_ftrace_formats(&mut s, header),
        18 => read_event_formats(&mut s, header),
        19 => header.add_symbols(&mut s),
        21 => header.add_threads(&mut s),
        _ => Ok(()),
    }
}

fn read_header_info(s: &mut Sections<'_>, header: &mut Header) -> Parse<()> {
    if s.string()? != "header_page" {
        return Err("no header_page was found where it belongs".into());
    }
    let size = s.u64()?;
    let text = s.bytes(size, "page header")?;
    header.set_page_head(&text);
    if s.string()? != "header_event" {
        return Err("no header_event was found where it belongs".into());
    }
    let size = s.u64()?;
    s.skip(size)
}

fn read_ftrace_formats(s: &mut Sections<'_>, header: &mut Header) -> Parse<()> {
    for _ in 0..s.u32()? {
        header.add_format(s, "ftrace")?;
    }
    Ok(())
}

fn read_event_formats(s: &mut Sections<'_>, header: &mut Header) -> Parse<()> {
    for _ in 0..s.u32()? {
        let system = s.string()?;
        s.item(0, "systems")?;
        for _ in 0..s.u32()? {
            header.add_format(s, &system)?;
        }
    }
    Ok(())
}

fn read_buffer(
    file: &RandomAccess,
    data: Vec<u8>,
    packing: Packing,
    page_size: u32,
) -> Parse<Buffer> {
    let mut s = Sections::of_bytes(file, data)?;
    let section = s.u64()?;
    let mut buffer = Buffer { name: s.string()?, clock: s.string()?, page_size, cpus: Vec::new() };
    buffer.page_size = s.u32()?;
    let flags = file.read_vec(section.saturating_add(2), 2).map_err(|e| e.to_string())?;
    let packing = match flags.as_slice() {
        [low, _] if low & 1 != 0 => packing,
        [_, _] => Packing::None,
        _ => return Err(format!("its section at byte {section} is past the end of the file")),
    };
    let cpus = s.u32()?;
    check_cpus(cpus)?;
    for _ in 0..cpus {
        let (cpu, offset, size) = (s.u32()?, s.u64()?, s.u64()?);
        s.item(STREAM, "CPUs")?;
        buffer.cpus.push(CpuData { cpu, offset, size, packing });
    }
    Ok(buffer)
}

/// Options that mean the same in both versions.
fn read_option(s: &Sections<'_>, header: &mut Header, id: u16, data: &[u8]) -> Parse<()> {
    let word = |at: usize| {
        let bytes = data.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    match id {
        4 => header.clock = selected_clock(&c_string(data)),
        7 => header.offset = c_string(data).trim().parse().unwrap_or(0),
        13 => read_guest(s, header, data)?,
        14 => {
            if let (Some(mult), Some(shift @ 0..=63)) = (word(0), word(4)) {
                header.tsc_to_ns = (mult != 0).then_some((mult, shift));
            }
        }
        _ => {}
    }
    Ok(())
}

fn read_guest(s: &Sections<'_>, header: &mut Header, data: &[u8]) -> Parse<()> {
    let name = c_string(data);
    let Some(rest) = data.get(name.len() + 1 + 8 + 4..) else { return Ok(()) };
    for pair in rest.chunks_exact(8) {
        let number =
            |at: usize| u32::from_le_bytes([pair[at], pair[at + 1], pair[at + 2], pair[at + 3]]);
        s.item(name.len() as u64, "guests")?;
        header.guests.push((name.clone(), number(0), number(4) as i32));
    }
    Ok(())
}

/// `local global [x86-tsc]` names the clock in brackets; a bare name is itself.
fn selected_clock(text: &str) -> String {
    let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or(text.trim(), |(name, _)| name).to_string()
}

fn c_string(data: &[u8]) -> String {
    let end = memchr::memchr(0, data).unwrap_or(data.len());
    String::from_utf8_lossy(&data[..end]).into_owned()
}
