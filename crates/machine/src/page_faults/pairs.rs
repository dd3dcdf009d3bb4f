//! Faults from the stamps of their begins and ends, and the files whose pages they were of.

use std::collections::BTreeMap;
use std::ops::Range;

const PAGE: u64 = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A fault begins.
    Begins,
    /// One ends for which a page was read.
    Major,
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
    /// How long the thread waited for the page to be read, by itself or by somebody else, ns (a major fault);
    /// none if it did not, or if the fault failed.
    pub waited: Option<u64>,
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

/// The faults, and the major ones whose begin was not stamped. A begin without an end is a fault all the same.
fn paired(mut stamps: Vec<Stamp>) -> (Vec<Fault>, Vec<(u64, i32, u64)>) {
    // CPUs have buffers of their own; of two stamps of one moment a fault's begin is the first.
    stamps.sort_by_key(|stamp| (stamp.at, stamp.kind != Kind::Begins));
    let fault = |begin: Stamp, waited| Fault {
        at: begin.at,
        waited,
        process: begin.process,
        thread: begin.thread,
        address: begin.address,
    };
    let mut begun: BTreeMap<i32, Stamp> = BTreeMap::new();
    let (mut all, mut only_ended) = (Vec::new(), Vec::new());
    for stamp in stamps {
        if stamp.kind == Kind::Begins {
            all.extend(begun.insert(stamp.thread, stamp).map(|before| fault(before, None)));
            continue;
        }
        let begin = begun.remove(&stamp.thread);
        let own = begin.filter(|begin| begin.address / PAGE == stamp.address / PAGE);
        match own {
            Some(begin) => all.push(fault(begin, Some(stamp.at - begin.at))),
            None => {
                all.extend(begin.map(|before| fault(before, None)));
                only_ended.push((stamp.at, stamp.process, stamp.address));
            }
        }
    }
    all.extend(begun.into_values().map(|last| fault(last, None)));
    all.sort_by_key(|fault| fault.at);
    (all, only_ended)
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
