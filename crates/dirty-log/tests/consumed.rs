// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A caller who stops, or panics, in the middle of a harvest: what it took is taken, all else is
//! still marked, and nothing is both.

mod common;

use common::{check, config, marked, marks, third, Harvest, Stop, MOST};
use dirty_log::SummaryBitmap;
use proptest::prelude::*;

fn pages_of((i, word): (usize, u64)) -> impl Iterator<Item = usize> {
    (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| i * 64 + bit)
}

fn left(log: &SummaryBitmap) -> Vec<usize> {
    let mut left = Vec::new();
    log.harvest_runs(|run| left.extend(run));
    assert!(log.is_clean());
    left
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
    for harvest in summary {
        every().for_each(|page| log.set_bit(page));
        third(harvest);
        assert_eq!(left(&log), every().skip(2).collect::<Vec<_>>());
    }
}
