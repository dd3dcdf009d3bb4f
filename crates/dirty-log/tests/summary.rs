// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The simple bitmap: against a set of pages, and by threads at full speed.

use dirty_log::SummaryBitmap;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

fn harvested(log: &SummaryBitmap) -> Vec<usize> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    log.harvest_runs(|run| runs.push(run));
    assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start));
    runs.into_iter().flatten().collect()
}

#[derive(Debug, Clone)]
enum Step {
    Mark(usize),
    MarkBytes(usize, usize),
    Take(Range<usize>),
    Reset(usize, usize),
    Harvest,
}

/// Pages at most: several words of the top level. Miri is slow.
const MOST: usize = if cfg!(miri) { 9_000 } else { 600_000 };

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let page = 0..MOST;
    let step = prop_oneof![
        6 => page.clone().prop_map(Step::Mark),
        2 => (page.clone(), 0usize..30_000).prop_map(|(at, len)| Step::MarkBytes(at * 16, len)),
        1 => (page.clone(), 0usize..900).prop_map(|(at, len)| Step::Take(at..at + len)),
        1 => (page, 0usize..900).prop_map(|(at, len)| Step::Reset(at * 16 + 7, len)),
        2 => Just(Step::Harvest),
    ];
    prop::collection::vec(step, 0..60)
}

fn config() -> ProptestConfig {
    if cfg!(miri) {
        ProptestConfig { cases: 2, failure_persistence: None, ..Default::default() }
    } else {
        ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    /// Pages of 16 bytes.
    #[test]
    fn it_is_a_set_of_pages(pages in 1..MOST, steps in steps()) {
        let log = SummaryBitmap::new(pages * 16 - 3, 16.try_into().unwrap());
        let mut model = BTreeSet::new();
        let span = |at: usize, len: usize| match len {
            0 => 0..0,
            _ => at / 16..((at + len - 1) / 16 + 1).min(pages),
        };
        for step in steps {
            match step {
                Step::Mark(page) => {
                    log.set_bit(page);
                    model.extend(Some(page).filter(|&page| page < pages));
                }
                Step::MarkBytes(at, len) => {
                    log.set_addr_range(at, len);
                    model.extend(span(at, len));
                }
                Step::Take(range) => {
                    let mut taken = Vec::new();
                    log.take_range(range.clone(), |run| taken.extend(run));
                    let gone: Vec<usize> = model.range(range.clone()).copied().collect();
                    model.retain(|page| !range.contains(page));
                    prop_assert_eq!(taken, gone);
                }
                Step::Reset(at, len) => {
                    log.reset_addr_range(at, len);
                    model.retain(|page| !span(at, len).contains(page));
                }
                Step::Harvest => {
                    prop_assert_eq!(harvested(&log), std::mem::take(&mut model).into_iter().collect::<Vec<_>>());
                    prop_assert!(log.is_clean());
                }
            }
            prop_assert!(model.first().is_none_or(|&page| log.is_bit_set(page) && !log.is_clean()));
        }
        let words = log.get_and_reset();
        let set = |page: &usize| words[page / 64] >> (page % 64) & 1 == 1;
        prop_assert_eq!((0..pages).filter(set).collect::<Vec<_>>(), model.into_iter().collect::<Vec<_>>());
    }
}

/// Each write is in a harvest that began before its mark returned, or in the next: two
/// harvesters, three writers, memory compared at the end. Harvesters stop in the middle now and
/// then, and one comes after them.
#[test]
fn no_write_is_lost() {
    const PAGES: usize = if cfg!(miri) { 300 } else { 20_000 };
    const MARKS: u64 = if cfg!(miri) { 400 } else { 400_000 };
    let log = SummaryBitmap::new(PAGES * 4096, 4096.try_into().unwrap());
    let cells = || (0..3 * PAGES).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
    let (memory, copy) = (cells(), cells());
    let done = AtomicBool::new(false);
    let harvest = |most: usize| {
        let mut runs = 0;
        let _ = log.try_harvest_runs(|run| {
            runs += 1;
            if runs > most {
                return Err(());
            }
            for cell in run.flat_map(|page| page * 3..page * 3 + 3) {
                // Another harvester may have copied what is newer.
                copy[cell].fetch_max(memory[cell].load(Ordering::Relaxed), Ordering::Relaxed);
            }
            Ok(())
        });
    };
    std::thread::scope(|scope| {
        let harvesters = [(); 2].map(|()| {
            scope.spawn(|| {
                for most in [usize::MAX, 0, 3, 40].into_iter().cycle() {
                    if done.load(Ordering::Acquire) {
                        break;
                    }
                    harvest(most);
                }
            })
        });
        let writers = [0, 1, 2].map(|writer| {
            let (log, memory) = (&log, &memory);
            scope.spawn(move || {
                let mut random = 0x9e37_79b9 + writer as u64;
                for version in 1..=MARKS {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let page = random as usize % PAGES;
                    memory[page * 3 + writer].store(version, Ordering::Relaxed);
                    log.set_bit(page);
                }
            })
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        done.store(true, Ordering::Release);
        harvesters.into_iter().for_each(|harvester| harvester.join().unwrap());
    });
    harvest(usize::MAX);
    let same =
        |(a, b): (&AtomicU64, &AtomicU64)| a.load(Ordering::Relaxed) == b.load(Ordering::Relaxed);
    assert_eq!(memory.iter().zip(&copy).filter(|pair| !same(*pair)).count(), 0);
    assert!(log.is_clean());
}
