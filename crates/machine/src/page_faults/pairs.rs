//! Faults from the stamps of their begins and ends, and the files whose pages they were of.

use std::collections::BTreeMap;
use std::ops::Range;

const PAGE: u64 = 4096;
/// A fault that takes so many times as long as a typical one, and this long, ns, is no typical one.
const TIMES: u64 = 10;
const LEAST: u64 = 50_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A fault begins.
    Begins,
    /// One ends for which a page was read.
    Major,
    /// One ends whose page was there, or was being read already.
    Minor,
    /// The thread leaves its CPU to wait for something; it loses it to another; it has one again.
    Sleeps,
    Preempted,
    Runs,
}

/// A stamp of one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub at: u64,
    pub process: i32,
    pub thread: i32,
    pub address: u64,
    pub kind: Kind,
}

/// Memory that a process mapped, or that it gave other rights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mapped {
    pub at: u64,
    pub process: i32,
    pub range: Range<u64>,
    /// Where in its file it begins, bytes.
    pub offset: u64,
    /// Number of the file, if it is one of those that were named.
    pub file: Option<usize>,
}

/// A page fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// When it began, ns of `CLOCK_MONOTONIC`.
    pub at: u64,
    /// How long it took where something had to be read, ns, without what the thread could have gone on in: of a major
    /// fault; of one that is minor for the kernel, but whose thread sleeps because another read brings its page, or
    /// that begins to read the pages that follow. None if the page was there, or if the fault failed.
    pub waited: Option<u64>,
    /// It is a major one.
    pub major: bool,
    /// Process.
    pub process: i32,
    /// Thread.
    pub thread: i32,
    /// The address.
    pub address: u64,
}

/// What was seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults {
    /// In order of their begin.
    pub all: Vec<Fault>,
    /// Process and address of each major fault that had begun before begins were stamped, and when it ended, ns.
    pub only_ended: Vec<(u64, i32, u64)>,
    /// From when on begins were stamped, ns; none if they never were.
    pub begun: Option<u64>,
    /// Records for which there was no room.
    pub lost: u64,
    pub(super) mapped: Vec<Mapped>,
}

impl Faults {
    /// From records in any order.
    pub(super) fn new(
        stamps: Vec<Stamp>,
        mut mapped: Vec<Mapped>,
        begun: Option<u64>,
        lost: u64,
    ) -> Self {
        mapped.sort_by_key(|one| one.at);
        let (all, only_ended) = paired(stamps);
        Faults { all, only_ended, begun, lost, mapped }
    }

    /// When a process first mapped one of the files, ns.
    pub fn first_mapped(&self, process: i32) -> Option<u64> {
        self.files(process).map(|one| one.at).next()
    }

    /// The file that a process had at an address at a time, and which page of it. A mapping that mremap(2) moved
    /// is not known.
    pub fn page(&self, at: u64, process: i32, address: u64) -> Option<(usize, u64)> {
        let there = |one: &Mapped| one.at <= at && one.range.contains(&address);
        // Most faults are in no file, and most mappings are of none.
        self.files(process).find(|one| there(one))?;
        let own = |one: &&Mapped| one.process == process && there(one);
        let last = self.mapped.iter().rev().find(own)?;
        Some((last.file?, (address - last.range.start + last.offset) / PAGE))
    }

    fn files(&self, process: i32) -> impl Iterator<Item = &Mapped> {
        self.mapped.iter().filter(move |one| one.file.is_some() && one.process == process)
    }
}

/// The fault that a thread has, since when it is off its CPU, and for how long it was in that fault: asleep, or
/// while it could have gone on.
#[derive(Debug, Clone, Copy, Default)]
struct Thread {
    begin: Option<Stamp>,
    off: Option<(u64, Kind)>,
    slept: u64,
    preempted: u64,
}

/// A minor fault that was over, and whose thread did not sleep: where it is among all faults, and how long it took.
type Busy = (usize, u64);

/// The faults, and the major ones whose begin was not stamped. A begin without an end is a fault all the same.
fn paired(mut stamps: Vec<Stamp>) -> (Vec<Fault>, Vec<(u64, i32, u64)>) {
    // CPUs have buffers of their own; of two stamps of one moment a fault's begin is the first.
    stamps.sort_by_key(|stamp| (stamp.at, stamp.kind != Kind::Begins));
    let fault = |begin: Stamp, waited, major| Fault {
        at: begin.at,
        waited,
        major,
        process: begin.process,
        thread: begin.thread,
        address: begin.address,
    };
    let mut threads: BTreeMap<i32, Thread> = BTreeMap::new();
    let (mut all, mut only_ended, mut busy) = (Vec::new(), Vec::new(), Vec::new());
    for stamp in stamps {
        let thread = threads.entry(stamp.thread).or_default();
        match stamp.kind {
            Kind::Begins => {
                all.extend(thread.begin.map(|before| fault(before, None, false)));
                *thread = Thread { begin: Some(stamp), ..Thread::default() };
            }
            Kind::Sleeps | Kind::Preempted => thread.off = Some((stamp.at, stamp.kind)),
            Kind::Runs => match thread.off.take() {
                Some((since, Kind::Sleeps)) => thread.slept += stamp.at - since,
                Some((since, _)) => thread.preempted += stamp.at - since,
                None => {}
            },
            Kind::Major | Kind::Minor => {
                let Thread { begin, slept, preempted, .. } = std::mem::take(thread);
                let own = begin.filter(|begin| begin.address / PAGE == stamp.address / PAGE);
                let Some(begin) = own else {
                    all.extend(begin.map(|before| fault(before, None, false)));
                    if stamp.kind == Kind::Major {
                        only_ended.push((stamp.at, stamp.process, stamp.address));
                    }
                    continue;
                };
                let (major, took) =
                    (stamp.kind == Kind::Major, (stamp.at - begin.at).saturating_sub(preempted));
                if !major && slept == 0 {
                    busy.push((all.len(), took));
                }
                all.push(fault(begin, (major || slept > 0).then_some(took), major));
            }
        }
    }
    let last = threads.into_values().filter_map(|thread| thread.begin);
    all.extend(last.map(|last| fault(last, None, false)));
    add_busy(busy, &mut all);
    all.sort_by_key(|fault| fault.at);
    (all, only_ended)
}

/// A minor fault that takes many times as long as most do had to begin a read, of pages that follow its own.
fn add_busy(busy: Vec<Busy>, all: &mut [Fault]) {
    let mut times: Vec<u64> = busy.iter().map(|(_, took)| *took).collect();
    times.sort_unstable();
    let Some(typical) = times.get(times.len() / 2).copied() else { return };
    for (at, took) in busy {
        if took > typical.saturating_mul(TIMES).max(LEAST) {
            all[at].waited = Some(took);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(at: u64, thread: i32, address: u64, kind: Kind) -> Stamp {
        Stamp { at, process: 1, thread, address, kind }
    }

    #[test]
    fn a_major_fault_is_from_its_begin_to_its_end_on_one_thread() {
        let stamps = vec![
            stamp(30, 1, 0x1010, Kind::Major),
            stamp(10, 1, 0x1010, Kind::Begins),
            // Of another thread, meanwhile.
            stamp(12, 2, 0x5000, Kind::Begins),
            stamp(14, 2, 0x6000, Kind::Begins),
            // A minor one, then a major one of a moment.
            stamp(40, 1, 0x9000, Kind::Begins),
            stamp(50, 1, 0x2000, Kind::Begins),
            stamp(50, 1, 0x2000, Kind::Major),
            // Two whose begins were before anybody looked, one of them after another page's begin.
            stamp(60, 3, 0x2000, Kind::Major),
            stamp(70, 2, 0x7000, Kind::Major),
        ];
        let (all, only_ended) = paired(stamps);
        let all: Vec<_> = all.iter().map(|f| (f.at, f.waited, f.thread, f.address)).collect();
        let expected = [
            (10, Some(20), 1, 0x1010),
            (12, None, 2, 0x5000),
            (14, None, 2, 0x6000),
            (40, None, 1, 0x9000),
            (50, Some(0), 1, 0x2000),
        ];
        assert_eq!(all, expected);
        assert_eq!(only_ended, [(60, 1, 0x2000), (70, 1, 0x7000)]);
    }

    #[test]
    fn a_minor_fault_waits_if_its_thread_sleeps_in_it_or_if_it_reads() {
        let mut stamps = vec![
            stamp(10, 1, 0x1000, Kind::Begins),
            stamp(11, 1, 0, Kind::Sleeps),
            stamp(31, 1, 0, Kind::Runs),
            // It could have gone on.
            stamp(32, 1, 0, Kind::Preempted),
            stamp(52, 1, 0, Kind::Runs),
            stamp(53, 1, 0x1000, Kind::Minor),
            // Between two faults a thread sleeps for other reasons.
            stamp(60, 1, 0, Kind::Sleeps),
            stamp(90, 1, 0, Kind::Runs),
            stamp(91, 1, 0x2000, Kind::Begins),
            stamp(92, 1, 0x2000, Kind::Minor),
            stamp(93, 1, 0x3000, Kind::Minor),
        ];
        let (all, only_ended) = paired(stamps.clone());
        let told: Vec<_> = all.iter().map(|f| (f.at, f.waited, f.major)).collect();
        assert_eq!(told, [(10, Some(23), false), (91, None, false)]);
        assert_eq!(only_ended, []);
        let fault = |at: u64, took: u64| {
            let address = at << 12;
            [stamp(at, 2, address, Kind::Begins), stamp(at + took, 2, address, Kind::Minor)]
        };
        stamps.extend((1..20).flat_map(|n| fault(n * 1_000_000, 6_000)));
        stamps.extend(fault(20_000_000, 50_000).into_iter().chain(fault(21_000_000, 61_000)));
        let (all, _) = paired(stamps);
        let waited: Vec<_> = all.iter().filter_map(|f| Some((f.at, f.waited?))).collect();
        assert_eq!(waited, [(10, 23), (21_000_000, 61_000)]);
    }

    #[test]
    fn a_fault_is_in_the_file_that_was_there_then() {
        let mapped = |at, process, range, offset, file| Mapped { at, process, range, offset, file };
        let all = vec![
            mapped(30, 1, 0x4000..0x8000, 0x1000, Some(1)),
            mapped(10, 1, 0x4000..0x6000, 0x9000, Some(0)),
            mapped(20, 1, 0x4000..0x5000, 0, None),
            mapped(5, 2, 0x4000..0x5000, 0, Some(0)),
        ];
        let faults = Faults::new(Vec::new(), all, None, 0);
        assert_eq!((faults.first_mapped(1), faults.first_mapped(3)), (Some(10), None));
        assert_eq!(faults.page(9, 1, 0x4000), None, "not yet");
        assert_eq!(faults.page(10, 1, 0x5fff), Some((0, 10)));
        assert_eq!(faults.page(10, 1, 0x6000), None, "behind it");
        assert_eq!(faults.page(25, 1, 0x4000), None, "other memory is in its place");
        assert_eq!(faults.page(25, 1, 0x5000), Some((0, 10)));
        assert_eq!(faults.page(30, 1, 0x7008), Some((1, 4)));
    }
}
