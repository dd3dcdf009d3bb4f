// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A caller who stops, or panics, in the middle of a harvest: what it took is taken, all else is
//! still marked, and nothing is both.

use dirty_log::SummaryBitmap;
use proptest::prelude::*;
use std::ops::Range;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};

/// Pages at most: several words of the summary's top level. Miri is slow.
const MOST: usize = if cfg!(miri) { 9_000 } else { 300_000 };

#[derive(Debug, Clone, Copy)]
enum Stop {
    Fails,
    Panics,
}

impl Stop {
    /// Takes pages until so many calls were made, and calls `harvest` with that.
    fn after<T>(
        self,
        calls: usize,
        taken: &mut Vec<usize>,
        harvest: impl FnOnce(&mut dyn FnMut(&mut dyn Iterator<Item = usize>) -> Result<(), ()>) -> T,
    ) -> Option<T> {
        let mut left = calls;
        let mut take = |pages: &mut dyn Iterator<Item = usize>| {
            if left == 0 {
                return match self {
                    Stop::Fails => Err(()),
                    // Without the hook's message.
                    Stop::Panics => resume_unwind(Box::new("the caller")),
                };
            }
            left -= 1;
            taken.extend(pages);
            Ok(())
        };
        catch_unwind(AssertUnwindSafe(|| harvest(&mut take))).ok()
    }
}

fn pages_of((i, word): (usize, u64)) -> impl Iterator<Item = usize> {
    (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| i * 64 + bit)
}

/// Calls a caller for each run, or word.
type Harvest<'a> = dyn Fn(&mut dyn FnMut()) + 'a;

/// What was taken and what is left are what was marked.
fn check(marked: &[usize], mut taken: Vec<usize>, left: Vec<usize>) {
    assert!(taken.windows(2).all(|pair| pair[0] < pair[1]), "out of order");
    assert!(taken.last() < left.first() || left.is_empty() || taken.is_empty());
    taken.extend(left);
    assert_eq!(taken, marked);
}

fn marks() -> impl Strategy<Value = Vec<Range<usize>>> {
    let length = prop_oneof![4 => 1usize..4, 2 => 1usize..200, 1 => 1usize..9000];
    let run = (0..MOST, length).prop_map(|(at, len)| at..(at + len).min(MOST));
    prop::collection::vec(run, 1..20)
}

fn marked(runs: &[Range<usize>], mut mark: impl FnMut(Range<usize>)) -> Vec<usize> {
    runs.iter().cloned().for_each(&mut mark);
    let mut pages: Vec<usize> = runs.iter().cloned().flatten().collect();
    pages.sort_unstable();
    pages.dedup();
    pages
}

fn left(log: &SummaryBitmap) -> Vec<usize> {
    let mut left = Vec::new();
    log.harvest_runs(|run| left.extend(run));
    assert!(log.is_clean());
    left
}

fn config() -> ProptestConfig {
    if cfg!(miri) {
        ProptestConfig { cases: 2, failure_persistence: None, ..Default::default() }
    } else {
        ProptestConfig { cases: 48, ..Default::default() }
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_summarys_harvest_gives_back_what_was_not_taken(
        runs in marks(),
        calls in 0usize..40,
        stop in prop_oneof![Just(Stop::Fails), Just(Stop::Panics)],
    ) {
        let log = SummaryBitmap::new(MOST, 1.try_into().unwrap());
        let mark = |run| {
            log.mark_pages(run);
        };
        let (pages, mut taken) = (marked(&runs, mark), Vec::new());
        let _ = stop.after(calls, &mut taken, |f| log.try_harvest_runs(|mut run| f(&mut run)));
        check(&pages, taken, left(&log));
        let (pages, mut taken) = (marked(&runs, mark), Vec::new());
        let each = |f: &mut dyn FnMut(&mut dyn Iterator<Item = usize>) -> Result<(), ()>| {
            log.try_harvest_words(|i, word| f(&mut pages_of((i, word))))
        };
        let _ = stop.after(calls, &mut taken, each);
        check(&pages, taken, left(&log));
        let (pages, mut taken) = (marked(&runs, mark), Vec::new());
        let part = 0..MOST;
        let _ = stop.after(calls, &mut taken, |f| log.try_take_range(part, |mut run| f(&mut run)));
        check(&pages, taken, left(&log));
    }
}

/// The forms that can't fail, which a caller's own bug ends.
#[test]
fn a_panic_loses_no_page() {
    let log = SummaryBitmap::new(1 << 30, 4096.try_into().unwrap());
    let every = || (0..1 << 18).step_by(1000);
    let summary: [&Harvest<'_>; 3] =
        [&|f| log.harvest_words(|_, _| f()), &|f| log.harvest_runs(|_| f()), &|f| {
            log.take_range(0..1 << 18, |_| f());
        }];
    let third = |harvest: &Harvest<'_>| {
        let mut calls = 0;
        let mut f = || {
            calls += 1;
            if calls == 3 {
                resume_unwind(Box::new("the caller"));
            }
        };
        assert!(catch_unwind(AssertUnwindSafe(|| harvest(&mut f))).is_err());
    };
    for harvest in summary {
        every().for_each(|page| log.set_bit(page));
        third(harvest);
        assert_eq!(left(&log), every().skip(2).collect::<Vec<_>>());
    }
}
