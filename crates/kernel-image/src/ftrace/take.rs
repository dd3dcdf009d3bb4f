//! From `global_trace` to the pages.
//!
//! Layout: `kernel/trace/trace.h` and `kernel/trace/ring_buffer.c`. A CPU's ring
//! is a circle of pages linked through `buffer_page.list`, and one page outside
//! it, the reader page. The two low bits of a `next` pointer are flags; bit 0
//! marks the link to the oldest page. What is in use, in order: the reader page,
//! then the circle from the oldest page to the one that commits go to.

use super::{CpuRing, EventFormat, FtraceDump, Header, KIND};
use crate::bytes::u64_at;
use crate::error::{Error, Result};
use crate::guest::Guest;
use crate::ram::PAGE;
use std::collections::BTreeMap;

/// Events that are decoded, with the fields of each; the name of the symbol is
/// `event_NAME`, that of the structure `trace_event_raw_NAME`.
const EVENTS: &[(&str, &[&str])] = &[
    ("initcall_start", &["func"]),
    ("initcall_finish", &["func", "ret"]),
    ("initcall_level", &["__data_loc_level"]),
    ("module_load", &["__data_loc_name"]),
    ("sched_process_exec", &["__data_loc_filename", "pid"]),
    ("sched_process_exit", &["comm", "pid"]),
    ("sched_process_wait", &["pid"]),
    ("task_newtask", &["pid", "clone_flags"]),
    ("cgroup_attach_task", &["pid", "__data_loc_dst_path"]),
    ("console", &["__data_loc_msg"]),
];
/// Bounds on what a damaged guest can make this read.
const MAX_CPUS: u64 = 4096;
const MAX_PAGES: u64 = 1 << 18;
const MAX_RAW: usize = 256 << 20;
const MAX_MODULES: usize = 4096;
const MAX_SUBBUF_ORDER: u64 = 7;
/// The flags in the low bits of a `next` pointer, and the one that marks the oldest page.
const LINK_FLAGS: u64 = 3;
const LINK_HEAD: u64 = 1;
/// The bits of a data page's `commit` that are its length.
const COMMIT_LENGTH: u64 = 0xf_ffff;

impl FtraceDump {
    /// Copies the trace out of a guest.
    ///
    /// # Errors
    /// [`Error::Missing`] when the kernel has no tracing, no types or no such
    /// symbols; [`Error::Ram`] when RAM does not hold a trace.
    pub fn take(guest: &Guest<'_>) -> Result<Self> {
        let trace = guest.symbol("global_trace")?;
        let buffer = guest.field(trace, "trace_array.array_buffer.buffer")?;
        if buffer == 0 {
            return Err(Error::Ram(
                "the kernel had not allocated its trace buffer: the guest ended before trace_init"
                    .into(),
            ));
        }
        let info = guest.info();
        let mut taker = Taker {
            guest,
            page_size: page_size(guest, buffer)?,
            raw: Vec::new(),
            copied: Vec::new(),
        };
        let header = Header {
            kind: KIND.into(),
            kernel: info.version.clone(),
            clock: clock_name(guest, trace)?,
            kaslr_offset: guest.place().kaslr_offset,
            entry_type: info.field("trace_entry.type")?,
            entry_pid: info.field("trace_entry.pid")?,
            events: events(guest)?,
            cpus: taker.cpus(buffer)?,
            modules: modules(guest).unwrap_or_default(),
            functions: BTreeMap::new(),
        };
        Ok(FtraceDump { header, raw: taker.raw })
    }
}

/// Bytes of a page of the ring: more than one page of memory since 6.8, if asked for.
fn page_size(guest: &Guest<'_>, buffer: u64) -> Result<u64> {
    let order = guest.optional_field(buffer, "trace_buffer.subbuf_order")?.unwrap_or(0);
    if order > MAX_SUBBUF_ORDER {
        return Err(Error::Ram(format!("the page order of the trace buffer is invalid: {order}")));
    }
    Ok(PAGE << order)
}

/// The clock's name, from the kernel's table of clocks (`trace_clocks`), whose
/// entries are a function, a name and a flag of one word each.
fn clock_name(guest: &Guest<'_>, trace: u64) -> Result<String> {
    const ENTRY: u64 = 24;
    let id = guest.field(trace, "trace_array.clock_id")?;
    if id > 64 {
        return Err(Error::Ram(format!("the number of the trace clock is invalid: {id}")));
    }
    let entry = guest.symbol("trace_clocks")?.wrapping_add(id * ENTRY);
    guest.text(guest.u64(entry.wrapping_add(8))?, 32)
}

/// Numbers and fields of the events that this kernel has.
fn events(guest: &Guest<'_>) -> Result<BTreeMap<String, EventFormat>> {
    let info = guest.info();
    let mut events = BTreeMap::new();
    for &(name, wanted) in EVENTS {
        let Ok(call) = guest.symbol(&format!("event_{name}")) else { continue };
        let id = guest.field(call, "trace_event_call.event.type")?;
        let mut fields = BTreeMap::new();
        for &field in wanted {
            if let Ok(place) = info.field(&format!("trace_event_raw_{name}.{field}")) {
                fields.insert(field.to_owned(), place);
            }
        }
        if id != 0 {
            events.insert(name.to_owned(), EventFormat { id, fields });
        }
    }
    if let (Some(id), Ok(buf)) = (info.trace_print, info.field("print_entry.buf")) {
        let fields = BTreeMap::from([("buf".to_owned(), buf)]);
        events.insert("trace_marker".into(), EventFormat { id: u64::from(id), fields });
    }
    // Without them the trace is as good as it was.
    events.extend(super::probes::probes(guest).unwrap_or_default());
    Ok(events)
}

/// Loaded modules by the address of their init function, which stays in
/// `struct module` after the function itself is freed.
fn modules(guest: &Guest<'_>) -> Result<BTreeMap<u64, String>> {
    let list = guest.symbol("modules")?;
    let link = guest.info().field("module.list")?.offset();
    let name = guest.info().field("module.name")?;
    let mut modules = BTreeMap::new();
    let mut next = guest.u64(list)?;
    while next != list && modules.len() < MAX_MODULES {
        let module = next.wrapping_sub(link);
        let init = guest.field(module, "module.init")?;
        let text = guest.text(module.wrapping_add(name.offset()), name.size() as usize)?;
        if modules.insert(init, text).is_some() && init != 0 {
            break;
        }
        next = guest.u64(next)?;
    }
    modules.remove(&0);
    Ok(modules)
}

struct Taker<'a> {
    guest: &'a Guest<'a>,
    page_size: u64,
    raw: Vec<u8>,
    /// Of each page that was copied, its address and where its copy is.
    copied: Vec<(u64, u64)>,
}

impl Taker<'_> {
    fn cpus(&mut self, buffer: u64) -> Result<Vec<CpuRing>> {
        let array = self.guest.field(buffer, "trace_buffer.buffers")?;
        let count = match self.guest.symbol("nr_cpu_ids") {
            Ok(address) => u64::from(self.guest.u64(address)? as u32),
            Err(_) => 1,
        };
        if !(1..=MAX_CPUS).contains(&count) {
            return Err(Error::Ram(format!("nr_cpu_ids is {count}")));
        }
        let mut rings = Vec::new();
        for cpu in 0..count {
            let ring = self.guest.u64(array.wrapping_add(cpu * 8))?;
            if ring != 0 {
                rings.push(self.ring(cpu as u32, ring)?);
            }
        }
        Ok(rings)
    }

    fn ring(&mut self, cpu: u32, ring: u64) -> Result<CpuRing> {
        let guest = self.guest;
        let number = |name: &str| guest.field(ring, &format!("ring_buffer_per_cpu.{name}"));
        let (reader, commit) = (number("reader_page")?, number("commit_page")?);
        let mut pages = Vec::new();
        self.page(reader, &mut pages)?;
        if reader != commit {
            let count = number("nr_pages")?.min(MAX_PAGES);
            let mut page = self.oldest(number("head_page")?, count)?;
            for _ in 0..count {
                self.page(page, &mut pages)?;
                if page == commit {
                    break;
                }
                page = guest.field(page, "buffer_page.list.next")? & !LINK_FLAGS;
            }
        }
        let (entries, kept) = (number("entries")?, self.kept(&pages)?);
        let torn = pages.len() - kept;
        pages.drain(..torn);
        Ok(CpuRing {
            cpu,
            entries,
            torn: torn as u64,
            // What was overwritten meanwhile is among these.
            overrun: number("overrun")?,
            dropped: number("commit_overrun")?.saturating_add(number("dropped_events")?),
            pages,
        })
    }

    /// How many of a ring's last pages are what they were when they were copied. A guest that runs
    /// overwrites the oldest first; a page that it used anew has another stamp, or less in it.
    fn kept(&self, pages: &[(u64, u64)]) -> Result<usize> {
        let guest = self.guest;
        guest.forget();
        let start = guest.info().field("buffer_data_page.data")?.offset();
        let commit = guest.info().field("buffer_data_page.commit")?.offset() as usize;
        let same = |&(offset, length): &(u64, u64)| {
            let (address, _) = self.copied.iter().rfind(|(_, copy)| *copy == offset)?;
            let mut header = [0; 64];
            guest.read(*address, &mut header).ok()?;
            let stamp = u64_at(&header, 0)? == u64_at(&self.raw, usize::try_from(offset).ok()?)?;
            let there = (u64_at(&header, commit)? & COMMIT_LENGTH).saturating_add(start);
            Some(stamp && there >= length)
        };
        let torn = pages.iter().rposition(|page| same(page) != Some(true));
        Ok(pages.len() - torn.map_or(0, |torn| torn + 1))
    }

    /// The oldest page of the circle: the one whose predecessor's link says so.
    /// `head_page` may be behind it, while the ring is being written to.
    fn oldest(&self, head_page: u64, count: u64) -> Result<u64> {
        let mut page = head_page;
        for _ in 0..=count {
            let previous = self.guest.field(page, "buffer_page.list.prev")? & !LINK_FLAGS;
            let link = self.guest.field(previous, "buffer_page.list.next")?;
            if link & LINK_FLAGS == LINK_HEAD && link & !LINK_FLAGS == page {
                return Ok(page);
            }
            page = self.guest.field(page, "buffer_page.list.next")? & !LINK_FLAGS;
        }
        // The head page is being swapped, so no link has the HEAD flag: use the page that the
        // CPU's buffer names.
        Ok(head_page)
    }

    /// Copies what is committed of a page, with its header.
    fn page(&mut self, page: u64, pages: &mut Vec<(u64, u64)>) -> Result<()> {
        let guest = self.guest;
        let data = guest.field(page, "buffer_page.page")?;
        let start = guest.info().field("buffer_data_page.data")?.offset();
        let commit = guest.info().field("buffer_data_page.commit")?.offset();
        let mut header = [0; 64];
        let length = guest
            .read(data, &mut header)
            .ok()
            .and_then(|()| u64_at(&header, commit as usize))
            .map(|c| (c & COMMIT_LENGTH).saturating_add(start))
            .filter(|&l| l <= self.page_size)
            .ok_or_else(|| Error::Ram(format!("the trace page at {data:#x} is damaged")))?;
        if length == start {
            return Ok(());
        }
        let offset = self.raw.len();
        if offset + length as usize > MAX_RAW {
            return Err(Error::Ram(format!("the trace is larger than {MAX_RAW} bytes")));
        }
        self.raw.resize(offset + length as usize, 0);
        guest.read(data, &mut self.raw[offset..])?;
        self.copied.push((data, offset as u64));
        pages.push((offset as u64, length));
        Ok(())
    }
}
