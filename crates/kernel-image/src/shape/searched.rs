//! What searches of a guest's RAM have looked at already.
//!
//! A guest that boots touches its RAM bit by bit. What is new in it is in pages that were not there at the last search,
//! or in pages that came a moment before and are being filled (a huge page comes whole): [`New`] skips the others.

use crate::ram::HostMemory;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

/// So many searches look at a page before it is skipped.
const ROUNDS: usize = 3;
/// Most stretches that are kept of one search; what else is there is looked at again.
const MOST: usize = 1 << 16;

/// Stretches of addresses: the end of each, by its start.
#[derive(Debug, Clone, Default)]
struct Stretches(BTreeMap<u64, u64>);

impl Stretches {
    /// Adds a stretch, joined to the one that it goes on.
    fn add(&mut self, stretch: Range<u64>) {
        let before = self.0.range_mut(..=stretch.start).next_back();
        if let Some((_, end)) = before.filter(|(_, end)| **end >= stretch.start) {
            *end = stretch.end.max(*end);
        } else if self.0.len() < MOST {
            self.0.insert(stretch.start, stretch.end);
        }
    }

    /// The first part of a stretch that is in none of these; empty if all of it is.
    fn outside(&self, stretch: Range<u64>) -> Range<u64> {
        let end_at = |address: u64| {
            let (_, end) = self.0.range(..=address).next_back()?;
            (*end > address).then_some(*end)
        };
        let mut start = stretch.start;
        while let Some(end) = end_at(start).filter(|_| start < stretch.end) {
            start = end;
        }
        let start = start.min(stretch.end);
        let next = self.0.range(start..stretch.end).next().map(|(start, _)| *start);
        start..next.unwrap_or(stretch.end)
    }
}

/// What was there at each of the last searches.
#[derive(Debug, Default)]
pub(super) struct Searched {
    rounds: [Stretches; ROUNDS],
    all: bool,
}

impl Searched {
    /// A memory of which only what is new is there, by its `next_there`.
    pub(super) fn new_in<'a, H: HostMemory + ?Sized>(&'a self, host: &'a H) -> New<'a, H> {
        let known = self.rounds.first().filter(|_| !self.all);
        New { host, known, there: RefCell::default() }
    }

    /// After a search: what was there in it.
    pub(super) fn add(&mut self, there: There) {
        self.all = false;
        self.rounds.rotate_left(1);
        self.rounds[ROUNDS - 1] = there.0;
    }

    /// Has the next search look at everything.
    pub(super) fn all(&mut self) {
        self.all = true;
    }
}

/// What was there in a search.
pub(super) struct There(Stretches);

/// A memory, of which what was looked at is left out.
pub(super) struct New<'a, H: ?Sized> {
    host: &'a H,
    known: Option<&'a Stretches>,
    there: RefCell<Stretches>,
}

impl<H: ?Sized> New<'_, H> {
    /// What was there.
    pub(super) fn there(self) -> There {
        There(self.there.into_inner())
    }
}

impl<H: HostMemory + ?Sized> HostMemory for New<'_, H> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.host.read(address, buffer)
    }

    fn read_heads(&self, address: u64, length: usize, heads: &mut [u8]) -> io::Result<()> {
        self.host.read_heads(address, length, heads)
    }

    fn changes(&self) -> bool {
        self.host.changes()
    }

    fn next_there(&self, mut address: u64, end: u64) -> Range<u64> {
        loop {
            let found = self.host.next_there(address, end);
            if found.is_empty() {
                return found;
            }
            self.there.borrow_mut().add(found.clone());
            address = found.end;
            let new = self.known.map_or(found.clone(), |known| known.outside(found));
            if !new.is_empty() {
                return new;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Of 64 places those are there whose bit is set.
    struct Places(u64);

    impl HostMemory for Places {
        fn read(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
            Ok(())
        }

        fn next_there(&self, address: u64, end: u64) -> Range<u64> {
            let there = |at: &u64| self.0 >> at & 1 == 1;
            let start = (address..end).find(there).unwrap_or(end);
            start..(start..end).find(|at| !there(at)).unwrap_or(end)
        }
    }

    fn search(searched: &mut Searched, there: u64) -> u64 {
        let places = Places(there);
        let new = searched.new_in(&places);
        let (mut at, mut seen) = (0, 0);
        loop {
            let found = new.next_there(at, 64);
            if found.is_empty() {
                break;
            }
            found.clone().for_each(|place| seen |= 1 << place);
            at = found.end;
        }
        let there = new.there();
        searched.add(there);
        seen
    }

    proptest! {
        #[test]
        fn each_search_sees_what_is_there_but_what_the_third_before_it_saw(all in proptest::collection::vec(any::<u64>(), 1..9)) {
            let mut searched = Searched::default();
            for (n, there) in all.iter().enumerate() {
                let known = n.checked_sub(ROUNDS).map_or(0, |n| all[n]);
                prop_assert_eq!(search(&mut searched, *there), there & !known);
            }
            searched.all();
            prop_assert_eq!(search(&mut searched, all[0]), all[0]);
        }
    }
}
