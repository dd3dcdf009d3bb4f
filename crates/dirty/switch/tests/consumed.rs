// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A caller who stops, or panics, in the middle of a harvest: what it took is taken, all else is
//! still marked, and nothing is both.

use proptest::prelude::*;
use std::ops::Range;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use vmeter_dirty_switch::{DirtyBitmap, GetOpt, GetOrg, Strategy as Harvests, SwitchOpt};

/// Pages at most: several groups of the summary. Miri is slow.
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

fn switch<S: Harvests>(runs: &[Range<usize>], calls: usize, stop: Stop) {
    let log = DirtyBitmap::<S>::new(MOST, 1).unwrap();
    let mark = |run| {
        log.mark_pages(run);
    };
    let left = || log.harvest().pages().collect::<Vec<_>>();
    // Consumed run by run.
    let (pages, mut taken) = (marked(runs, mark), Vec::new());
    let _ = stop.after(calls, &mut taken, |f| log.harvest().try_into_runs(|mut run| f(&mut run)));
    check(&pages, taken, left());
    // A part of it.
    let (pages, mut taken) = (marked(runs, mark), Vec::new());
    let _ = stop.after(calls, &mut taken, |f| log.try_take_range(0..MOST, |mut run| f(&mut run)));
    check(&pages, taken, left());
    // Only looked at: a panic leaves nobody who could know.
    let (pages, mut taken) = (marked(runs, mark), Vec::new());
    let ended = Stop::Panics.after(calls, &mut taken, |f| {
        log.harvest().for_each_run(|mut run| {
            let _ = f(&mut run);
        });
    });
    match ended {
        Some(()) => check(&pages, taken, left()),
        None => assert_eq!(left(), pages),
    }
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
    fn a_switchs_harvest_gives_back_what_was_not_taken(
        runs in marks(),
        calls in 0usize..40,
        stop in prop_oneof![Just(Stop::Fails), Just(Stop::Panics)],
    ) {
        switch::<SwitchOpt>(&runs, calls, stop);
        switch::<GetOpt>(&runs, calls, stop);
        switch::<GetOrg>(&runs, calls, stop);
    }
}

/// The forms that can't fail, which a caller's own bug ends.
#[test]
fn a_panic_loses_no_page() {
    let every = || (0..1 << 18).step_by(1000);
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
    let log: DirtyBitmap = DirtyBitmap::new(1 << 30, 4096).unwrap();
    every().for_each(|page| log.mark(page));
    third(&|f| log.harvest().into_runs(|_| f()));
    assert_eq!(log.harvest().pages().collect::<Vec<_>>(), every().skip(2).collect::<Vec<_>>());
    assert!(log.is_clean());
}
