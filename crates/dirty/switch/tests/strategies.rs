// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What all three strategies have in common, by one test for all.

use proptest::prelude::*;
use std::collections::BTreeSet;
use std::ops::Range;
use vm_memory::bitmap::NewBitmap;
use vmeter_dirty_switch::{
    harvest_all, DirtyBitmap, DirtyLog, GetOpt, GetOrg, StrategyKind, SwitchOpt,
};

const PAGE: usize = 4096;

fn each(pages: usize, test: impl Fn(&dyn DirtyLog)) {
    for kind in StrategyKind::ALL {
        let log = kind.bitmap(pages * PAGE, PAGE).unwrap();
        assert_eq!((log.strategy(), log.pages(), log.page_size()), (kind, pages, PAGE));
        test(&*log);
    }
}

fn harvested(log: &dyn DirtyLog) -> Vec<usize> {
    log.harvest().pages().collect()
}

#[test]
fn what_is_marked_is_harvested_once() {
    const PAGES: usize = if cfg!(miri) { 40_000 } else { 917_248 };
    each(PAGES, |log| {
        assert!(log.is_clean() && log.harvest().is_clean());
        let pages = [0, 63, 64, 511, 512, 32_767, 32_768, 33_500, PAGES - 1];
        pages.iter().for_each(|&page| log.mark(page));
        assert!(pages.iter().all(|&page| log.is_marked(page)) && !log.is_marked(1));
        let harvest = log.harvest();
        assert_eq!(harvest.pages().collect::<Vec<_>>(), pages);
        assert_eq!(
            (harvest.count(), harvest.contains(511), harvest.contains(510)),
            (9, true, false)
        );
        assert_eq!(harvest.words().len(), log.word_count());
        drop(harvest);
        assert_eq!(harvested(log), [0; 0]);
        log.mark(7);
        assert_eq!(harvested(log), [7]);
    });
}

#[test]
fn what_is_beyond_the_end_is_ignored() {
    each(100, |log| {
        log.mark(100);
        log.mark(usize::MAX);
        log.mark_in_signal_handler(128);
        assert_eq!(log.mark_pages(100..5000), 0);
        assert_eq!(log.mark_words(1, &[u64::MAX; 9]), 36);
        assert_eq!(log.mark_words(usize::MAX, &[1]), 0);
        log.mark_bytes(usize::MAX, usize::MAX);
        log.mark_bytes(99 * PAGE, usize::MAX);
        assert!(!log.is_marked(100) && !log.is_marked(usize::MAX));
        assert_eq!(harvested(log), (64..100).collect::<Vec<_>>());
        assert_eq!(log.clear_pages(0..usize::MAX), 0);
    });
    each(0, |log| {
        log.mark(0);
        assert_eq!((log.mark_pages(0..1), log.harvest().count()), (0, 0));
    });
}

#[test]
fn bytes_are_pages() {
    each(16, |log| {
        log.mark_bytes(5 * PAGE - 1, 2);
        log.mark_bytes(9 * PAGE, 0);
        log.mark_bytes(12 * PAGE, 1);
        assert!(log.is_marked_at(4 * PAGE + 9) && !log.is_marked_at(9 * PAGE));
        let mut runs = Vec::new();
        log.harvest().for_each_run(|run| runs.push(run));
        assert_eq!(runs, [4..6, 12..13]);
    });
    let huge = StrategyKind::SwitchOpt.bitmap(5 << 21, 2 << 20).unwrap();
    huge.mark_bytes((2 << 20) - 1, 2);
    assert_eq!((huge.pages(), harvested(&*huge)), (5, vec![0, 1]));
    assert!(StrategyKind::GetOpt.bitmap(4096, 3000).is_err());
}

#[test]
fn what_is_retained_is_harvested_again() {
    each(2000, |log| {
        log.mark_pages(10..30);
        log.mark(1999);
        assert_eq!(log.harvest().retain(|page| page % 2 == 1), 11);
        log.mark(10);
        let expected: Vec<usize> = [10].into_iter().chain((11..30).step_by(2)).collect();
        assert_eq!(log.harvest().retain(|_| true), 12);
        assert_eq!(harvested(log), [&expected[..], &[1999]].concat());
        assert!(log.is_clean());
    });
}

#[test]
fn a_snapshot_changes_nothing_and_a_clear_forgets() {
    each(300, |log| {
        log.mark_pages(60..70);
        let words = log.snapshot();
        assert_eq!((words[0], words[1], words.len()), (0xf << 60, 0x3f, 5));
        assert_eq!(log.clear_pages(0..65), 5);
        assert_eq!(harvested(log), (65..70).collect::<Vec<_>>());
        log.mark(299);
        assert_eq!(log.clear_pages(0..300), 1);
        assert_eq!(harvested(log), [0; 0]);
    });
}

#[test]
fn a_harvest_inside_a_harvest_of_the_same_thread_is_an_error() {
    each(300, |log| {
        log.mark(7);
        let first = log.harvest();
        log.mark(8);
        let nested = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(log.harvest())));
        drop(first);
        // `get_org` holds nothing.
        let next = if nested.is_err() { vec![8] } else { Vec::new() };
        assert_eq!(
            (harvested(log), nested.is_ok()),
            (next, log.strategy() == StrategyKind::GetOrg)
        );
    });
}

#[test]
fn a_get_org_harvest_does_not_hold_up_the_next() {
    let log = DirtyBitmap::<GetOrg>::new(PAGE, PAGE).unwrap();
    log.mark(0);
    let first = log.harvest();
    log.mark(0);
    assert_eq!((first.count(), log.harvest().count()), (1, 1));
    let opt = DirtyBitmap::<GetOpt>::default();
    assert_eq!((opt.pages(), opt.harvest().count()), (0, 0));
    assert!(format!("{:?}", DirtyBitmap::<SwitchOpt>::with_len(1)).contains("pages: 1"));
}

#[test]
fn a_caller_that_panics_leaves_it_in_order() {
    each(64, |log| {
        log.mark(1);
        let panics = std::panic::AssertUnwindSafe(|| {
            let _harvest = log.harvest();
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(std::panic::catch_unwind(panics).is_err());
        log.mark(2);
        assert_eq!(harvested(log), [1, 2], "nobody knows what was looked at");
        log.mark_pages(10..12);
        log.mark(63);
        let panics = std::panic::AssertUnwindSafe(|| {
            log.harvest().into_runs(|_| std::panic::resume_unwind(Box::new(())));
        });
        assert!(std::panic::catch_unwind(panics).is_err());
        log.mark(3);
        assert_eq!(harvested(log), [3, 10, 11, 63]);
    });
}

#[derive(Debug, Clone)]
enum Step {
    Mark(usize),
    MarkPages(Range<usize>),
    MarkWords(usize, Vec<u64>),
    Clear(Range<usize>),
    Take(Range<usize>),
    Retain(usize),
    Harvest,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let page = 0usize..3000;
    let range = (page.clone(), 0usize..400).prop_map(|(start, len)| start..start + len);
    let step = prop_oneof![
        6 => page.clone().prop_map(Step::Mark),
        2 => range.clone().prop_map(Step::MarkPages),
        1 => (0usize..50, prop::collection::vec(any::<u64>(), 0..5))
            .prop_map(|(i, words)| Step::MarkWords(i, words)),
        1 => range.clone().prop_map(Step::Clear),
        1 => range.prop_map(Step::Take),
        1 => (1usize..5).prop_map(Step::Retain),
        2 => Just(Step::Harvest),
    ];
    prop::collection::vec(step, 0..60)
}

/// Applies a step to the log and to a set of pages, and checks that they say the same.
fn apply(log: &dyn DirtyLog, model: &mut BTreeSet<usize>, step: &Step) {
    let inside = |range: &Range<usize>| range.start..range.end.min(log.pages());
    let before = model.len();
    match step {
        Step::Mark(page) => {
            log.mark(*page);
            model.extend(inside(&(*page..page + 1)));
        }
        Step::MarkPages(range) => {
            model.extend(inside(range));
            assert_eq!(log.mark_pages(range.clone()), model.len() - before);
        }
        Step::MarkWords(first, words) => {
            let bits = (0..words.len() * 64).filter(|i| words[i / 64] >> (i % 64) & 1 == 1);
            model.extend(bits.map(|i| first * 64 + i).filter(|&page| page < log.pages()));
            assert_eq!(log.mark_words(*first, words), model.len() - before);
        }
        Step::Clear(range) => {
            model.retain(|page| !range.contains(page));
            assert_eq!(log.clear_pages(range.clone()), before - model.len());
        }
        Step::Take(range) => {
            let mut taken = Vec::new();
            let count = log.take_range(range.clone(), |run| taken.push(run));
            let gone = model.iter().copied().filter(|page| range.contains(page));
            assert_eq!(
                taken.iter().cloned().flatten().collect::<Vec<_>>(),
                gone.collect::<Vec<_>>()
            );
            model.retain(|page| !range.contains(page));
            assert_eq!(count, before - model.len());
        }
        Step::Retain(n) => {
            model.retain(|page| page % n == 0);
            assert_eq!(log.harvest().retain(|page| page % n == 0), model.len());
        }
        Step::Harvest if before % 2 == 0 => {
            let mut runs = Vec::new();
            match before % 4 {
                0 => log.harvest().for_each_run(|run| runs.push(run)),
                _ => log.harvest().into_runs(|run| runs.push(run)),
            }
            assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start));
            let pages: Vec<usize> = runs.into_iter().flatten().collect();
            assert_eq!(pages, std::mem::take(model).into_iter().collect::<Vec<_>>());
        }
        Step::Harvest => {
            assert_eq!(harvested(log), std::mem::take(model).into_iter().collect::<Vec<_>>());
        }
    }
    assert!(model.is_empty() || !log.is_clean());
}

/// Miri is slow, and may not look for a file of regressions.
fn config() -> ProptestConfig {
    if cfg!(miri) {
        ProptestConfig { cases: 3, failure_persistence: None, ..Default::default() }
    } else {
        ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]
    #[test]
    fn it_is_a_set_of_pages(pages in 0usize..3000, steps in steps()) {
        each(pages, |log| {
            let mut model = BTreeSet::new();
            steps.iter().for_each(|step| apply(log, &mut model, step));
            let words = log.snapshot();
            assert!((0..pages).all(|page| {
                let expected = model.contains(&page);
                let in_words = words[page / 64] >> (page % 64) & 1 == 1;
                log.is_marked(page) == expected && in_words == expected
            }));
            assert_eq!(harvested(log), model.into_iter().collect::<Vec<_>>());
        });
    }
}

fn several_at_once<S: vmeter_dirty_switch::Strategy>() {
    let logs: Vec<DirtyBitmap<S>> =
        (1..5).map(|n| DirtyBitmap::new(n * 1000 * PAGE, PAGE).unwrap()).collect();
    logs[1].mark(7);
    logs[3].mark(3999);
    // Any order, and one of them twice.
    let harvests = harvest_all([3, 0, 1, 2, 1].map(|i| &logs[i]));
    let found: Vec<Vec<usize>> = harvests.iter().map(|h| h.pages().collect()).collect();
    assert_eq!(found, [vec![3999], vec![], vec![7], vec![], vec![]]);
    drop(harvests);
    assert!(harvest_all(&logs).iter().all(|harvest| harvest.is_clean()));
    assert!(harvest_all(std::iter::empty::<&DirtyBitmap<S>>()).is_empty());
}

#[test]
fn several_slots_are_harvested_with_one_wait() {
    several_at_once::<GetOrg>();
    several_at_once::<GetOpt>();
    several_at_once::<SwitchOpt>();
}

/// Two threads harvest the same slots in opposite orders while a third marks: nobody waits
/// for ever, and each mark is in one harvest.
#[test]
fn harvests_of_several_slots_do_not_wait_for_one_another() {
    const MARKS: usize = if cfg!(miri) { 50 } else { 20_000 };
    let logs: [DirtyBitmap; 3] = [(); 3].map(|()| DirtyBitmap::new(MARKS * PAGE, PAGE).unwrap());
    let seen = |order: [usize; 3]| {
        let harvests = harvest_all(order.map(|i| &logs[i]));
        harvests.iter().map(|harvest| harvest.count()).sum::<usize>()
    };
    let done = std::sync::atomic::AtomicBool::new(false);
    let total = std::thread::scope(|scope| {
        let harvesters = [[0, 1, 2], [2, 1, 0]].map(|order| {
            let (seen, done) = (&seen, &done);
            scope.spawn(move || {
                let mut sum = 0;
                while !done.load(std::sync::atomic::Ordering::Acquire) {
                    sum += seen(order);
                }
                sum
            })
        });
        (0..MARKS).for_each(|page| logs.iter().for_each(|log| log.mark(page)));
        done.store(true, std::sync::atomic::Ordering::Release);
        harvesters.map(|harvester| harvester.join().unwrap()).iter().sum::<usize>()
    });
    assert_eq!(total + seen([0, 1, 2]), 3 * MARKS);
}

#[test]
fn pages_that_change_are_counted() {
    each(1000, |log| {
        let counts = [
            log.mark_pages(10..30),
            log.mark_pages(20..40),
            log.mark_words(0, &[1 << 5 | 1 << 20]),
            log.clear_pages(0..11),
            log.take_range(0..20, drop),
        ];
        assert_eq!((counts, log.snapshot()[0]), ([20, 10, 1, 2, 9], (1 << 40) - (1 << 20)));
    });
}
