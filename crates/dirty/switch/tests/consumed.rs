// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A caller who stops, or panics, in the middle of a harvest: what it took is taken, all else is
//! still marked, and nothing is both.

#[path = "../../../dirty-log/tests/common/mod.rs"]
mod common;

use common::{check, config, marked, marks, third, Stop, MOST};
use proptest::prelude::*;
use std::ops::Range;
use vmeter_dirty_switch::{DirtyBitmap, GetOpt, GetOrg, Strategy as Harvests, SwitchOpt};

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
    let log: DirtyBitmap = DirtyBitmap::new(1 << 30, 4096).unwrap();
    every().for_each(|page| log.mark(page));
    third(&|f| log.harvest().into_runs(|_| f()));
    assert_eq!(log.harvest().pages().collect::<Vec<_>>(), every().skip(2).collect::<Vec<_>>());
    assert!(log.is_clean());
}
