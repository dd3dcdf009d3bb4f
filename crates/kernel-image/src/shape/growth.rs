//! A log that grows, watched from outside: when each of its records came, whatever clock stamps them.
//!
//! What counts up by one like the infos of a log is followed; a kernel has two such arrays where it moved its
//! log into a larger one. Whether one was its log the log itself tells later: number and stamp of each
//! record are those that it has then.

use super::array::{self, Array, Kind};
use super::searched::Searched;
use super::{each_page, outermost, MAX_FOUND};
use crate::bytes::u64_at;
use crate::locate::Candidate;
use crate::ram::HostMemory;

/// Most records that one look reads of an array; the next look reads on.
const AT_ONCE: usize = 4096;

/// A record that came: its number and its stamp, ns of the guest's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Came {
    /// Its number.
    pub seq: u64,
    /// Its stamp, ns.
    pub ts_ns: u64,
}

/// Arrays that may be a log's.
#[derive(Debug, Default)]
pub struct Growth {
    arrays: Vec<Ring>,
    searched: Searched,
}

impl Growth {
    /// Has the next search look at all of guest RAM, and not only at what is new in it.
    pub fn search_all(&mut self) {
        self.searched.all();
    }

    /// Looks through what is new in guest RAM since the last searches, the first time through all of it, for arrays
    /// that are not known yet; what they hold. A search of much RAM takes a while: `meanwhile` is called at each
    /// page, so that what is known is looked at in between.
    pub fn search<H: HostMemory + ?Sized>(
        &mut self,
        candidates: &[Candidate],
        host: &H,
        mut meanwhile: impl FnMut(&mut Self),
    ) -> Vec<Came> {
        let mut came = Vec::new();
        let searched = std::mem::take(&mut self.searched);
        let new = searched.new_in(host);
        for block in outermost(candidates) {
            each_page(block, &new, |at, window| {
                meanwhile(self);
                for kind in Kind::INFOS {
                    let found = array::starts(window, kind).map(|offset| at + offset as u64);
                    let new = found.filter(|at| !self.arrays.iter().any(|ring| ring.contains(*at)));
                    if let Some(array) = new.and_then(|at| Array::around(host, at, kind)) {
                        self.meet(&array, &mut came);
                    }
                }
                self.arrays.len() < MAX_FOUND
            });
        }
        let there = new.there();
        self.searched = searched;
        self.searched.add(there);
        came
    }

    /// Takes up an array that a search found, and what it holds.
    fn meet(&mut self, array: &Array, came: &mut Vec<Came>) {
        // One that has grown since it was looked at is no other.
        if let Some(ring) = self.arrays.iter_mut().find(|ring| array.contains(ring.address)) {
            ring.seen = ring.seen.max(array.numbers.len() as u64);
            return;
        }
        came.extend((0..array.numbers.len()).filter_map(|place| {
            let ts_ns = u64_at(array.element(place), 8)?;
            Some(Came { seq: array.numbers[place], ts_ns })
        }));
        self.arrays.extend(Ring::of(array));
    }

    /// What came since the last look. An array that can't be read any more is forgotten.
    pub fn look<H: HostMemory + ?Sized>(&mut self, host: &H) -> Vec<Came> {
        let mut came = Vec::new();
        self.arrays.retain_mut(|ring| ring.look(host, &mut came).is_some());
        came
    }
}

/// The place that an array has come to.
#[derive(Debug)]
struct Ring {
    kind: Kind,
    /// Its first element's address in the host.
    address: u64,
    /// The newest record's place and number.
    place: u64,
    number: u64,
    /// Elements that were seen of it.
    seen: u64,
}

impl Ring {
    fn of(array: &Array) -> Option<Self> {
        let (place, number) =
            array.numbers.iter().enumerate().max_by_key(|(_, number)| **number)?;
        let seen = array.numbers.len() as u64;
        let kind = array.kind;
        Some(Ring { kind, address: array.address, place: place as u64, number: *number, seen })
    }

    fn contains(&self, address: u64) -> bool {
        (self.address..self.address + self.seen * self.kind.size() as u64).contains(&address)
    }

    fn look<H: HostMemory + ?Sized>(&mut self, host: &H, came: &mut Vec<Came>) -> Option<()> {
        let own = self.element(host, self.place)?;
        // Another kernel has this RAM now, or it was no log.
        (own.seq == self.number).then_some(())?;
        for _ in 0..AT_ONCE {
            let next = self.number.wrapping_add(1);
            let is_next = |came: &Came| came.seq == next;
            let behind = self.element(host, self.place + 1).filter(is_next);
            let anew = || self.element(host, 0).filter(is_next).map(|came| (0, came));
            let Some((place, record)) = behind.map(|came| (self.place + 1, came)).or_else(anew)
            else {
                break;
            };
            came.push(record);
            (self.place, self.number) = (place, next);
            self.seen = self.seen.max(place + 1);
        }
        Some(())
    }

    fn element<H: HostMemory + ?Sized>(&self, host: &H, place: u64) -> Option<Came> {
        let size = self.kind.size();
        let mut element = vec![0; size];
        host.read(self.address + place * size as u64, &mut element).ok()?;
        let seq = self.kind.number(&element)?;
        Some(Came { seq, ts_ns: u64_at(&element, 8)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ram::PAGE;
    use proptest::prelude::*;
    use std::cell::RefCell;
    use std::io;

    const INFO: usize = 88;

    struct Ram(RefCell<Vec<u8>>);

    impl Ram {
        fn put(&self, at: usize, seq: u64, ts_ns: u64) {
            let mut ram = self.0.borrow_mut();
            let element = &mut ram[at..at + INFO];
            element.fill(0);
            element[..8].copy_from_slice(&seq.to_ne_bytes());
            element[8..16].copy_from_slice(&ts_ns.to_ne_bytes());
            element[16] = 20;
        }
    }

    impl HostMemory for Ram {
        fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
            let ram = self.0.borrow();
            let from = usize::try_from(address).map_err(|_| io::ErrorKind::InvalidInput)?;
            let part = ram.get(from..from + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
            buffer.copy_from_slice(part);
            Ok(())
        }
    }

    #[test]
    fn what_comes_is_told_once_through_the_rings_end_and_into_a_larger_one() {
        let page = PAGE as usize;
        let ram = Ram(RefCell::new(vec![0; 64 * page]));
        let all = [Candidate { address: 0, length: 64 * PAGE }];
        let (small, large) = (4 * page, 20 * page);
        let mut growth = Growth::default();
        assert_eq!(growth.search(&all, &ram, |_| ()), []);
        (0..5).for_each(|n| ram.put(small + n * INFO, n as u64, 0));
        assert_eq!(growth.search(&all, &ram, |_| ()).len(), 5);
        assert_eq!(growth.search(&all, &ram, |_| ()), [], "it is known");
        assert_eq!(growth.look(&ram), []);
        (5..20).for_each(|n| ram.put(small + n % 16 * INFO, n as u64, 7 * n as u64));
        let came = growth.look(&ram);
        assert_eq!(came.len(), 15);
        assert_eq!(came[14], Came { seq: 19, ts_ns: 133 });
        (4..25).for_each(|n| ram.put(large + (n - 4) * INFO, n as u64, 7 * n as u64));
        assert_eq!(growth.look(&ram), [], "the old one does not go on");
        assert_eq!(growth.search(&all, &ram, |_| ()), [], "there is nothing new to search");
        growth.search_all();
        let came = growth.search(&all, &ram, |_| ());
        assert_eq!((came.len(), came[20]), (21, Came { seq: 24, ts_ns: 168 }));
        ram.put(large + 21 * INFO, 25, 175);
        assert_eq!(growth.look(&ram), [Came { seq: 25, ts_ns: 175 }]);
        ram.0.borrow_mut().fill(0);
        assert_eq!(growth.look(&ram), []);
    }

    /// Where the log of 16 records begins that [`Ram::says`] writes.
    const LOG: usize = 4 * PAGE as usize;

    impl Ram {
        fn says(&self, records: std::ops::Range<usize>) {
            records.for_each(|n| self.put(LOG + n % 16 * INFO, n as u64, 7 * n as u64));
        }
    }

    proptest! {
        #[test]
        fn each_record_is_told_once_and_in_order(steps in proptest::collection::vec(1usize..16, 1..40)) {
            let ram = Ram(RefCell::new(vec![0; 64 * PAGE as usize]));
            let all = [Candidate { address: 0, length: 64 * PAGE }];
            let mut growth = Growth::default();
            ram.says(0..3);
            let mut came = growth.search(&all, &ram, |_| ());
            let mut said = 3;
            for step in steps {
                ram.says(said..said + step);
                said += step;
                // What a search comes across meanwhile is told by the next look.
                prop_assert_eq!(growth.search(&all, &ram, |_| ()), []);
                came.extend(growth.look(&ram));
            }
            let expected = (0..said as u64).map(|seq| Came { seq, ts_ns: 7 * seq });
            prop_assert_eq!(came, expected.collect::<Vec<_>>());
        }

        #[test]
        fn whatever_a_guest_writes_a_look_has_an_end(
            words in proptest::collection::vec((0usize..0x1_0000, 0u64..40), 0..300),
            said in 3usize..60,
        ) {
            let ram = Ram(RefCell::new(vec![0; 0x4_0000]));
            let all = [Candidate { address: 0, length: 0x4_0000 }];
            let mut growth = Growth::default();
            for (n, (place, word)) in words.into_iter().enumerate() {
                ram.0.borrow_mut()[place * 4..place * 4 + 8.min(0x4_0000 - place * 4)]
                    .iter_mut()
                    .zip(word.to_ne_bytes())
                    .for_each(|(byte, new)| *byte = new);
                if n % 7 == 0 {
                    ram.says(said..said + n % 5);
                    prop_assert!(growth.look(&ram).len() <= MAX_FOUND * AT_ONCE);
                }
                if n % 31 == 0 {
                    growth.search(&all, &ram, |_| ());
                }
            }
        }
    }
}
