//! From pages to events.
//!
//! A page is a u64 time stamp, a word with the length, and records; a record is
//! a u32 of which 5 bits are its type or length and 27 the time since the last
//! one (include/linux/ring_buffer.h). Page headers are of 16 bytes on 64-bit.

use super::probes::arguments;
use super::{EventFormat, FtraceDump};
use crate::btf::Field;
use crate::bytes::{text_until_nul, u32_at, u64_at};
use std::collections::HashMap;

/// Bytes before the first record of a page.
const PAGE_HEADER: usize = 16;
/// include/uapi/linux/sched.h
const CLONE_THREAD: u64 = 0x10000;
const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;
/// An absolute stamp has 59 bits; the top ones are those of the page's stamp.
const STAMP_TOP: u64 = 0xf8 << 56;

/// An event of the guest's trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FtraceEvent {
    /// Raw value of the trace clock: cycles of the guest's TSC for `x86-tsc`, else ns.
    pub ts: u64,
    /// vCPU.
    pub cpu: u32,
    /// Thread that it happened in.
    pub pid: i32,
    /// What it was.
    pub kind: FtraceKind,
}

/// What an event of the guest's trace is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FtraceKind {
    /// `initcall:initcall_start`.
    InitcallStart {
        /// Run-time address.
        address: u64,
        /// Name; `init_module [NAME]` for a module's, whose own names are freed by
        /// then; the address where it is not known.
        function: String,
        /// Module it belongs to.
        module: Option<String>,
    },
    /// `initcall:initcall_finish`.
    InitcallFinish {
        /// Run-time address.
        address: u64,
        /// Name, as at the start.
        function: String,
        /// Module it belongs to.
        module: Option<String>,
        /// What it returned.
        ret: i32,
    },
    /// `initcall:initcall_level`.
    InitcallLevel {
        /// Level.
        level: String,
    },
    /// `module:module_load`.
    ModuleLoad {
        /// Module.
        module: String,
    },
    /// `sched:sched_process_exec`.
    ProcessExec {
        /// Process.
        pid: i32,
        /// File.
        file: String,
    },
    /// `sched:sched_process_exit`.
    ProcessExit {
        /// Process.
        pid: i32,
        /// Command name.
        comm: String,
    },
    /// `task:task_newtask`: a thread began another.
    ProcessFork {
        /// The new thread.
        pid: i32,
        /// True if it is one more thread of the same process (`CLONE_THREAD`).
        thread: bool,
    },
    /// `sched:sched_process_wait`: a thread begins to wait for a child's end, or asks for it.
    ProcessWait {
        /// The child; 0 for any.
        pid: i32,
    },
    /// `cgroup:cgroup_attach_task`.
    ProcessGroup {
        /// Process.
        pid: i32,
        /// Path of the control group.
        path: String,
    },
    /// A new image's arguments ([`super::boot_probes`]).
    ProcessArguments {
        /// As many as there were, or as had room.
        arguments: Vec<String>,
    },
    /// An ended thread was taken away by the one that waited for it, or by itself
    /// ([`super::boot_probes`]).
    ProcessReap {
        /// The thread that is no more.
        pid: i32,
        /// How it ended, as wait(2) says it; none of kernels that were not asked.
        status: Option<i32>,
        /// CPU time that it had, ns.
        cpu_ns: u64,
        /// Last name of its control group's path.
        group: String,
    },
    /// `printk:console`: a record was added to the log.
    Console {
        /// Its text.
        text: String,
    },
    /// A line written to `trace_marker`.
    Marker {
        /// The line, without its end.
        text: String,
    },
}

impl FtraceKind {
    /// The function that the event is about.
    pub fn function_address(&self) -> Option<u64> {
        match self {
            FtraceKind::InitcallStart { address, .. }
            | FtraceKind::InitcallFinish { address, .. } => Some(*address),
            _ => None,
        }
    }
}

/// A decoded trace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decoded {
    /// Events in order of time, over all CPUs.
    pub events: Vec<FtraceEvent>,
    /// Events of kinds that are not decoded.
    pub others: u64,
    /// Events that the kernel overwrote or dropped, because its buffer was too small.
    pub lost: u64,
    /// Pages whose records did not add up, and were read only in part.
    pub damaged_pages: u64,
}

impl FtraceDump {
    /// The events in order of time.
    pub fn decode(&self) -> Decoded {
        let mut decoded = Decoded::default();
        for ring in &self.header.cpus {
            decoded.lost = decoded
                .lost
                .saturating_add(ring.overrun.max(ring.torn))
                .saturating_add(ring.dropped);
            for &(offset, length) in &ring.pages {
                let page = usize::try_from(offset).ok().and_then(|start| {
                    self.raw.get(start..start.checked_add(usize::try_from(length).ok()?)?)
                });
                let whole = page.is_some_and(|page| self.page(ring.cpu, page, &mut decoded));
                decoded.damaged_pages += u64::from(!whole);
            }
        }
        decoded.events.sort_by_key(|e| e.ts);
        self.name(&mut decoded.events);
        decoded
    }

    /// The least `trace_buf_size=`, bytes, with which no CPU would have overwritten a record, if those
    /// that are lost were of the others' size; none if none was lost.
    pub fn bytes_wanted(&self) -> Option<u64> {
        let of_ring = |ring: &super::CpuRing| {
            let size = ring.pages.iter().map(|(_, length)| *length).fold(0, u64::saturating_add);
            let lost = ring.overrun.saturating_add(ring.dropped);
            (lost > 0).then(|| crate::printk::wanted(size, lost, ring.entries))
        };
        self.header.cpus.iter().filter_map(of_ring).max()
    }

    /// Decodes a page; false when it does not add up.
    fn page(&self, cpu: u32, page: &[u8], decoded: &mut Decoded) -> bool {
        let Some(start) = u64_at(page, 0) else { return false };
        let mut ts = start;
        let mut at = PAGE_HEADER;
        while at < page.len() {
            let Some(word) = u32_at(page, at) else { return false };
            let (kind, delta) = (word & 0x1f, u64::from(word >> 5));
            let extra = u32_at(page, at + 4);
            let (data, next) = match (kind, extra) {
                (PADDING, _) if delta == 0 => return true,
                (TIME_EXTEND, Some(high)) => {
                    ts = ts.wrapping_add(u64::from(high) << 27 | delta);
                    at += 8;
                    continue;
                }
                (TIME_STAMP, Some(high)) => {
                    ts = (u64::from(high) << 27 | delta) | (start & STAMP_TOP);
                    at += 8;
                    continue;
                }
                (PADDING | 0, Some(length)) => (at + 8, at + 4 + length as usize),
                (1..=28, _) => (at + 4, at + 4 + 4 * kind as usize),
                _ => return false,
            };
            ts = ts.wrapping_add(delta);
            let Some(record) = page.get(data..next) else { return false };
            if kind != PADDING {
                match self.event(record) {
                    Some((pid, kind)) => decoded.events.push(FtraceEvent { ts, cpu, pid, kind }),
                    None => decoded.others += 1,
                }
            }
            at = next;
        }
        true
    }

    fn event(&self, record: &[u8]) -> Option<(i32, FtraceKind)> {
        let id = self.header.entry_type.get(record)?;
        let pid = self.header.entry_pid.get(record)? as i32;
        let (name, format) = self.header.events.iter().find(|(_, e)| e.id == id)?;
        let get = Fields { format, record };
        let kind = match name.as_str() {
            "initcall_start" => FtraceKind::InitcallStart {
                address: get.number("func")?,
                function: String::new(),
                module: None,
            },
            "initcall_finish" => FtraceKind::InitcallFinish {
                address: get.number("func")?,
                function: String::new(),
                module: None,
                ret: get.number("ret")? as i32,
            },
            "initcall_level" => {
                FtraceKind::InitcallLevel { level: get.located("__data_loc_level")? }
            }
            "module_load" => FtraceKind::ModuleLoad { module: get.located("__data_loc_name")? },
            "sched_process_exec" => FtraceKind::ProcessExec {
                pid: get.number("pid")? as i32,
                file: get.located("__data_loc_filename")?,
            },
            "sched_process_exit" => {
                FtraceKind::ProcessExit { pid: get.number("pid")? as i32, comm: get.text("comm")? }
            }
            "sched_process_wait" => FtraceKind::ProcessWait { pid: get.number("pid")? as i32 },
            "task_newtask" => FtraceKind::ProcessFork {
                pid: get.number("pid")? as i32,
                thread: get.number("clone_flags")? & CLONE_THREAD != 0,
            },
            "cgroup_attach_task" => FtraceKind::ProcessGroup {
                pid: get.number("pid")? as i32,
                path: get.located("__data_loc_dst_path")?,
            },
            "vmeter_exec" => FtraceKind::ProcessArguments {
                arguments: arguments(get.number("argc")?, get.bytes("argv")?),
            },
            "vmeter_reap" => FtraceKind::ProcessReap {
                pid: get.number("pid")? as i32,
                status: get.number("status").map(|status| status as i32),
                cpu_ns: get.number("cpu")?,
                group: get.located("__data_loc_group").unwrap_or_default(),
            },
            "console" => FtraceKind::Console { text: get.located("__data_loc_msg")? },
            "trace_marker" => {
                FtraceKind::Marker { text: get.rest("buf")?.trim_end_matches('\n').to_owned() }
            }
            _ => return None,
        };
        Some((pid, kind))
    }

    /// Names functions: by the table saved with the trace; a module's as the module that its
    /// thread has just loaded, or else by the address of its init function. That is freed
    /// when it has returned, and another module's may be there next.
    fn name(&self, events: &mut [FtraceEvent]) {
        let mut threads: HashMap<i32, Thread> = HashMap::new();
        for event in events {
            let thread = threads.entry(event.pid).or_default();
            let (address, function, module, begins) = match &mut event.kind {
                FtraceKind::ModuleLoad { module } => {
                    thread.loading = Some(module.clone());
                    continue;
                }
                FtraceKind::InitcallStart { address, function, module } => {
                    (*address, function, module, true)
                }
                FtraceKind::InitcallFinish { address, function, module, .. } => {
                    (*address, function, module, false)
                }
                _ => continue,
            };
            if let Some(name) = self.header.functions.get(&address) {
                function.clone_from(name);
                continue;
            }
            let known = if begins {
                thread.loading.take()
            } else {
                thread.running.take().filter(|(of, _)| *of == address).map(|(_, name)| name)
            };
            *module = known.or_else(|| self.header.modules.get(&address).cloned());
            *function = match module {
                Some(name) => format!("init_module [{name}]"),
                None => format!("{address:#x}"),
            };
            if begins {
                thread.running = module.clone().map(|name| (address, name));
            }
        }
    }
}

/// A thread that loads modules.
#[derive(Debug, Default)]
struct Thread {
    /// Loaded, and its initcall has not begun.
    loading: Option<String>,
    /// The address of the initcall that it runs, and whose it is.
    running: Option<(u64, String)>,
}

/// The fields of a record.
struct Fields<'a> {
    format: &'a EventFormat,
    record: &'a [u8],
}

impl<'a> Fields<'a> {
    fn place(&self, name: &str) -> Option<Field> {
        self.format.fields.get(name).copied()
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.place(name)?.get(self.record)
    }

    fn text(&self, name: &str) -> Option<String> {
        self.bytes(name).map(text_until_nul)
    }

    fn bytes(&self, name: &str) -> Option<&'a [u8]> {
        let field = self.place(name)?;
        let start = field.offset() as usize;
        let end = start.checked_add(field.size() as usize)?;
        self.record.get(start..end)
    }

    /// A text whose place (offset in the low half, length in the high) is in the field.
    fn located(&self, name: &str) -> Option<String> {
        let place = self.number(name)?;
        let start = (place & 0xffff) as usize;
        let length = (place >> 16 & 0xffff) as usize;
        Some(text_until_nul(self.record.get(start..start + length)?))
    }

    /// A text that goes on to the record's end.
    fn rest(&self, name: &str) -> Option<String> {
        let start = self.place(name)?.offset() as usize;
        Some(text_until_nul(self.record.get(start..)?))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CpuRing, Header, KIND};
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn field(offset: u32, size: u32) -> Field {
        Field { bit: offset * 8, bits: size * 8 }
    }

    fn format(id: u64, fields: &[(&str, Field)]) -> EventFormat {
        EventFormat { id, fields: fields.iter().map(|&(n, f)| (n.to_owned(), f)).collect() }
    }

    fn dump(page: &[u8]) -> FtraceDump {
        let events = [
            ("initcall_start", format(10, &[("func", field(8, 8))])),
            ("initcall_finish", format(11, &[("func", field(8, 8)), ("ret", field(16, 4))])),
            ("module_load", format(12, &[("__data_loc_name", field(8, 4))])),
            ("trace_marker", format(5, &[("buf", field(16, 0))])),
        ];
        let header = Header {
            kind: KIND.into(),
            kernel: "6.1.0".into(),
            clock: "x86-tsc".into(),
            kaslr_offset: 0,
            entry_type: field(0, 2),
            entry_pid: field(4, 4),
            events: events.into_iter().map(|(n, e)| (n.to_owned(), e)).collect(),
            cpus: vec![CpuRing {
                cpu: 0,
                entries: 0,
                overrun: 3,
                dropped: 1,
                torn: 0,
                pages: vec![(0, page.len() as u64)],
            }],
            modules: BTreeMap::new(),
            functions: BTreeMap::from([(0x1000, "acpi_init".to_owned())]),
        };
        FtraceDump { header, raw: page.to_vec() }
    }

    fn event(delta: u32, id: u16, rest: &[u8]) -> Vec<u8> {
        let mut data = u32::from(id).to_le_bytes().to_vec();
        data.extend(7u32.to_le_bytes());
        data.extend(rest);
        data.resize(data.len().next_multiple_of(4), 0);
        let mut record = ((data.len() / 4) as u32 | delta << 5).to_le_bytes().to_vec();
        record.extend(data);
        record
    }

    /// Starts at 1000 and has one of each kind of record.
    fn page() -> Vec<u8> {
        let mut page = 1000u64.to_le_bytes().to_vec();
        page.extend(0u64.to_le_bytes());
        page.extend(event(5, 10, &0x1000u64.to_le_bytes()));
        let finish = [&0x1000u64.to_le_bytes()[..], &(-19i32).to_le_bytes()].concat();
        page.extend(event(10, 11, &finish));
        // Time extend by 1 << 27, then a discarded record of 4 bytes.
        page.extend([TIME_EXTEND.to_le_bytes(), 1u32.to_le_bytes()].concat());
        page.extend([(PADDING | 1 << 5).to_le_bytes(), 4u32.to_le_bytes()].concat());
        let load = [&(12u32 | 7 << 16).to_le_bytes()[..], b"virtio\0"].concat();
        page.extend(event(1, 12, &load));
        page.extend(event(1, 10, &0xc000_0000u64.to_le_bytes()));
        // An absolute stamp, then a long record whose length is a word of its own.
        page.extend([(TIME_STAMP | 9 << 5).to_le_bytes(), 3u32.to_le_bytes()].concat());
        let marker = event(0, 5, b"\0\0\0\0\0\0\0\0a line\n\0").split_off(4);
        page.extend([0u32.to_le_bytes(), (marker.len() as u32 + 4).to_le_bytes()].concat());
        page.extend(marker);
        page.extend(event(2, 99, b""));
        page.extend(PADDING.to_le_bytes());
        page.extend([0xff; 40]);
        page
    }

    #[test]
    fn every_kind_of_record_is_read() {
        let decoded = dump(&page()).decode();
        assert_eq!((decoded.lost, decoded.others, decoded.damaged_pages), (4, 1, 0));
        let extended = 1015 + (1 << 27);
        let init = |address, function: &str, module: Option<&str>| FtraceKind::InitcallStart {
            address,
            function: function.into(),
            module: module.map(str::to_owned),
        };
        let expected = [
            (1005, init(0x1000, "acpi_init", None)),
            (
                1015,
                FtraceKind::InitcallFinish {
                    address: 0x1000,
                    function: "acpi_init".into(),
                    module: None,
                    ret: -19,
                },
            ),
            (extended + 2, FtraceKind::ModuleLoad { module: "virtio".into() }),
            (extended + 3, init(0xc000_0000, "init_module [virtio]", Some("virtio"))),
            (3 << 27 | 9, FtraceKind::Marker { text: "a line".into() }),
        ];
        let found: Vec<_> = decoded.events.iter().map(|e| (e.ts, e.kind.clone())).collect();
        assert_eq!(found, expected);
        assert!(decoded.events.iter().all(|e| e.pid == 7));
    }

    #[test]
    fn two_modules_may_begin_at_one_address() {
        let begun = |function: &str| FtraceKind::InitcallStart {
            address: 0xc000_0000,
            function: function.into(),
            module: None,
        };
        let ended = || FtraceKind::InitcallFinish {
            address: 0xc000_0000,
            function: String::new(),
            module: None,
            ret: 0,
        };
        let load = |module: &str| FtraceKind::ModuleLoad { module: module.into() };
        // The last that was there is what the guest's list of modules says.
        let mut dump = dump(&page());
        dump.header.modules.insert(0xc000_0000, "loop".into());
        let kinds = [load("fuse"), begun(""), ended(), load("loop"), begun(""), ended(), begun("")];
        let mut events: Vec<FtraceEvent> = kinds
            .into_iter()
            .zip(1..)
            .map(|(kind, ts)| FtraceEvent { ts, cpu: 0, pid: 7, kind })
            .collect();
        dump.name(&mut events);
        let names: Vec<String> = events
            .into_iter()
            .filter_map(|event| match event.kind {
                FtraceKind::InitcallStart { module, .. }
                | FtraceKind::InitcallFinish { module, .. } => module,
                _ => None,
            })
            .collect();
        assert_eq!(names, ["fuse", "fuse", "loop", "loop", "loop"]);
    }

    proptest! {
        #[test]
        fn damaged_pages_never_panic(at in 0usize..200, value: u8, cut in 0usize..220) {
            let mut page = page();
            let length = page.len();
            page[at % length] = value;
            page.truncate(cut);
            let dump = dump(&page);
            let _ = dump.decode();
            let _ = FtraceDump::from_bytes(&dump.to_bytes().unwrap()).unwrap().decode();
        }

        #[test]
        fn garbage_is_no_dump(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(FtraceDump::from_bytes(&bytes).is_err());
        }
    }
}
