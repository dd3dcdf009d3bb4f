//! The plugin's stamps to events.

use super::stamps::{listed, Listed, Stamp, Stamps};
use super::virtual_time::VirtualTime;
use super::{ERROR_NS, NAME};
use std::collections::BTreeMap;
use vmeter_model::{Event, EventKind, Ns};

/// What puts stamps on the run's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Clock {
    /// The host's, which the stamps have: `CLOCK_MONOTONIC` at the exec, and how long
    /// the run was, ns.
    Host {
        /// `CLOCK_MONOTONIC` at the exec.
        exec_ns: Ns,
        /// Length of the run.
        total_ns: Ns,
    },
    /// The guest's, in a run whose time is its instructions.
    Virtual(VirtualTime),
}

impl Clock {
    /// When a stamp was, and its error.
    fn at(&self, stamp: &Stamp) -> (Ns, Ns) {
        match self {
            Clock::Host { exec_ns, .. } => {
                let at = Ns::try_from(stamp.at).unwrap_or(Ns::MAX);
                (at.saturating_sub(*exec_ns), ERROR_NS)
            }
            Clock::Virtual(time) => time.at(stamp.instructions),
        }
    }

    /// When the run was over.
    fn end(&self, insns: u64) -> Ns {
        match self {
            Clock::Host { total_ns, .. } => *total_ns,
            Clock::Virtual(time) => time.at(insns).0,
        }
    }
}

/// Stamps to events on the run's clock, by the list they were made with.
///
/// An initcall begins when its function is entered from `do_one_initcall`, and
/// ends when that is returned to; a function that is entered from elsewhere is
/// no initcall. The return is paired by vCPU, or, as a thread may have moved to
/// another meanwhile, with the initcall that began last.
pub fn events(stamps: &Stamps, list: &str, clock: &Clock) -> Vec<Event> {
    let names = listed(list);
    let header = &stamps.header;
    let mut initcalls = Initcalls::default();
    let mut events = Vec::new();
    for stamp in &stamps.stamps {
        let Some(address) = names.get(&stamp.id) else { continue };
        let Some(what) = initcalls.what(stamp, address) else { continue };
        let (at, error_ns) = clock.at(stamp);
        let insns = header.counted.then_some(stamp.instructions);
        events.push(Event { at, error_ns, source: NAME.into(), insns, what });
    }
    let all = match clock {
        Clock::Host { .. } => {
            header.instructions.iter().fold(0u64, |sum, n| sum.saturating_add(*n))
        }
        // After its last act a guest runs on until its VMM's main loop gets to stop it.
        Clock::Virtual(_) => stamps.stamps.last().map_or(0, |stamp| stamp.instructions),
    };
    let end =
        |insns, what| Event { at: clock.end(all), error_ns: 0, source: NAME.into(), insns, what };
    let note = |text| end(None, EventKind::Note { text });
    events.extend(notes(stamps, &names, clock).into_iter().map(note));
    if header.counted && header.unhooked_ns.is_none() {
        let what = EventKind::Count { name: "guest_insns".into(), value: all };
        events.push(end(Some(all), what));
    }
    events
}

/// What is worth knowing of the recording itself.
fn notes(stamps: &Stamps, names: &BTreeMap<u32, Listed<'_>>, clock: &Clock) -> Vec<String> {
    let header = &stamps.header;
    let mut notes = Vec::new();
    if header.lost > 0 {
        notes.push(format!(
            "{} time stamps of the TCG plugin were lost, because its buffer was \
            full",
            header.lost
        ));
    }
    if header.unhooked_ns.is_some() && !stamps.stamps.iter().any(|s| is_last(names, s)) {
        notes.push(format!(
            "the guest did not reach start_kernel within {} translated blocks: the firmware is \
                large, or the guest does not boot the given kernel",
            header.blocks
        ));
    }
    if matches!(clock, Clock::Virtual(time) if time.is_unknown()) {
        notes.push(
            "without the guest's trace, virtual time counts only the guest's instructions, not \
                its idle time"
                .to_owned(),
        );
    }
    notes
}

fn is_last(names: &BTreeMap<u32, Listed<'_>>, stamp: &Stamp) -> bool {
    names.get(&stamp.id).is_some_and(|address| address.flags.contains('l'))
}

/// Initcalls that have begun, and where one is about to.
#[derive(Default)]
struct Initcalls {
    /// vCPUs inside `do_one_initcall`, before its indirect call.
    calling: Vec<u32>,
    /// (vCPU, function).
    running: Vec<(u32, String)>,
}

/// More initcalls than this are not under way at once: the returns were not seen.
const MAX_RUNNING: usize = 64;

impl Initcalls {
    fn what(&mut self, stamp: &Stamp, address: &Listed<'_>) -> Option<EventKind> {
        let calling = self.calling.iter().position(|vcpu| *vcpu == stamp.vcpu);
        if stamp.returned {
            // From a function that is not listed: a module's.
            if let Some(at) = calling {
                self.calling.remove(at);
                return None;
            }
            let here = self.running.iter().rposition(|(vcpu, _)| *vcpu == stamp.vcpu);
            let at = here.or(self.running.len().checked_sub(1))?;
            let (_, function) = self.running.remove(at);
            return Some(EventKind::InitcallEnd { function, pid: None, ret: None });
        }
        if address.flags.contains('c') {
            if calling.is_none() {
                self.calling.push(stamp.vcpu);
            }
            return None;
        }
        if address.flags == "-" {
            return None;
        }
        if !address.flags.contains('i') {
            return Some(EventKind::Reached { symbol: address.name.into() });
        }
        self.calling.remove(calling?);
        if self.running.len() == MAX_RUNNING {
            self.running.remove(0);
        }
        self.running.push((stamp.vcpu, address.name.into()));
        Some(EventKind::InitcallStart { function: address.name.into(), module: None, pid: None })
    }
}

#[cfg(test)]
mod tests {
    use super::super::format::*;
    use super::*;
    use proptest::prelude::*;
    use vmeter_kernel_image::ftrace::{Decoded, FtraceEvent, FtraceKind};

    const LIST: &str = "fffffff0 0 o 0 reset-vector\n\
        ffffffff81002460 1 c 220 do_one_initcall\n\
        ffffffff82000000 2 t 800 thunks\n\
        ffffffff83000000 3 i 0 acpi_init\n\
        ffffffff83000040 4 i 0 pci_init\n\
        ffffffff83000080 5 ol 0 start_kernel\n";

    /// (ns, instructions, id, vCPU).
    fn file(records: &[(u64, u64, u32, u32)]) -> Vec<u8> {
        let vcpus = 2;
        let start = HEADER + vcpus * LINE;
        let mut bytes = vec![0; start + records.len() * RECORD];
        let mut put = |at: usize, data: &[u8]| bytes[at..at + data.len()].copy_from_slice(data);
        put(0, &MAGIC);
        for (at, value) in [(8, VERSION), (FLAGS, 1), (CLOCK, MONOTONIC), (COUNTERS, 2)] {
            put(at, &value.to_le_bytes());
        }
        let count = records.len() as u64;
        for (at, value) in [
            (TICKS, 1_000_000_000),
            (RECORDS_AT, start as u64),
            (ROOM, count),
            (WANTED, count + 1),
            (HEADER, 700),
            (HEADER + LINE, 77),
        ] {
            put(at, &value.to_le_bytes());
        }
        for (i, (ns, insns, id, vcpu)) in records.iter().enumerate() {
            let at = start + i * RECORD;
            put(at, &ns.to_le_bytes());
            put(at + 8, &insns.to_le_bytes());
            put(at + 16, &id.to_le_bytes());
            put(at + 20, &vcpu.to_le_bytes());
        }
        bytes
    }

    fn decoded(records: &[(u64, u64, u32, u32)]) -> Vec<String> {
        let stamps = Stamps::parse(&file(records)).unwrap();
        let events = events(&stamps, LIST, &Clock::Host { exec_ns: 100, total_ns: 5_000 });
        let told = |e: &Event| {
            let what = match &e.what {
                EventKind::Reached { symbol } => symbol.clone(),
                EventKind::InitcallStart { function, .. } => format!("+{function}"),
                EventKind::InitcallEnd { function, .. } => format!("-{function}"),
                EventKind::Count { name, value } => format!("{name}={value}"),
                other => format!("{other:?}"),
            };
            format!("{} {what} {}", e.at, e.insns.unwrap_or(0))
        };
        events.iter().map(told).collect()
    }

    #[test]
    fn pairs_initcalls_also_when_the_thread_moves() {
        let told = decoded(&[
            (150, 0, 0, 0),
            (200, 5, 1, 0),
            (210, 6, 3, 0),
            (300, 7, 4, 1), // called by another function: no initcall
            (320, 8, 1, 1), // a module's initcall on another vCPU
            (330, 8, 1 | RETURNED, 1),
            (400, 9, 1, 0),
            (410, 9, 4, 0),
            (0, 0, 4, 0), // unfinished
            (500, 10, 1 | RETURNED, 1),
            (510, 11, 1 | RETURNED, 0),
            (520, 12, 999, 0),
        ]);
        let initcalls =
            ["110 +acpi_init 6", "310 +pci_init 9", "400 -pci_init 10", "410 -acpi_init 11"];
        assert_eq!(
            (&*told[0], &told[1..5]),
            ("50 reset-vector 0", &initcalls.map(String::from)[..])
        );
        assert!(told[5].contains("1 time stamps of the TCG plugin were lost"), "{told:?}");
        assert_eq!(told[6..], ["5000 guest_insns=777 777"]);
    }

    #[test]
    fn says_what_is_not_a_file_of_stamps() {
        assert!(Stamps::parse(b"").unwrap_err().contains("did not load the plugin"));
        assert!(Stamps::parse(&MAGIC).unwrap_err().contains("cut short"));
        let mut other = file(&[]);
        other[8] = 9;
        assert!(Stamps::parse(&other).unwrap_err().contains("expected version 1, found 9"));
    }

    #[test]
    fn a_file_cut_short_keeps_what_is_there() {
        let whole = file(&[(150, 0, 0, 0), (200, 0, 5, 0)]);
        let stamps = Stamps::parse(&whole[..whole.len() - 1]).unwrap();
        assert_eq!(stamps.stamps.len(), 1);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(
            damage in proptest::collection::vec((0usize..400, any::<u8>()), 0..40),
            records in proptest::collection::vec((any::<u64>(), any::<u64>(), 0u32..8, 0u32..3), 0..40),
            list in "([0-9a-f]{1,16} [0-9]{1,3} [-olmkict]{1,2} [0-9a-f]{1,3} [a-z ]{0,9}\n){0,9}",
            cut in 0usize..1500,
            times in proptest::collection::vec(any::<u64>(), 0..9),
            lost in 0u64..2,
        ) {
            let mut bytes = file(&records);
            for (at, value) in damage {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
            bytes.truncate(cut.max(HEADER));
            if let Ok(stamps) = Stamps::parse(&bytes) {
                prop_assert!(stamps.stamps.len() <= bytes.len() / RECORD);
                for exec_ns in [i64::MAX, i64::MIN] {
                    let _ = events(&stamps, &list, &Clock::Host { exec_ns, total_ns: 0 });
                }
                let kind = FtraceKind::Marker { text: String::new() };
                let record = |ts| FtraceEvent { ts, cpu: 0, pid: 1, kind: kind.clone() };
                let trace = times.into_iter().map(record).collect();
                let trace = Decoded { events: trace, lost, ..Decoded::default() };
                let list = LIST.replace("acpi_init", "tracing_mark_write");
                let time = VirtualTime::learn(&stamps, &list, &trace, 0);
                let _ = events(&stamps, &list, &Clock::Virtual(time));
            }
        }
    }
}
