// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The simple bitmap's own source against loom: marks and harvests in the orders that the
//! memory model allows. loom gives sequentially consistent accesses no more than the strength
//! of acquire and release, so each is between two fences here.

#![allow(dead_code)]

mod sync {
    use loom::sync::atomic::fence;
    pub(crate) use loom::sync::atomic::Ordering;

    /// An atomic whose accesses are sequentially consistent, as loom can be told so.
    #[derive(Debug)]
    pub(crate) struct AtomicU64(loom::sync::atomic::AtomicU64);

    impl AtomicU64 {
        pub(crate) fn new(value: u64) -> Self {
            Self(loom::sync::atomic::AtomicU64::new(value))
        }

        fn fenced<T>(&self, f: impl FnOnce(&loom::sync::atomic::AtomicU64) -> T) -> T {
            fence(Ordering::SeqCst);
            let result = f(&self.0);
            fence(Ordering::SeqCst);
            result
        }

        pub(crate) fn load(&self, _: Ordering) -> u64 {
            self.fenced(|a| a.load(Ordering::SeqCst))
        }

        pub(crate) fn swap(&self, value: u64, _: Ordering) -> u64 {
            self.fenced(|a| a.swap(value, Ordering::SeqCst))
        }

        pub(crate) fn fetch_or(&self, value: u64, _: Ordering) -> u64 {
            self.fenced(|a| a.fetch_or(value, Ordering::SeqCst))
        }

        pub(crate) fn fetch_and(&self, value: u64, _: Ordering) -> u64 {
            self.fenced(|a| a.fetch_and(value, Ordering::SeqCst))
        }
    }
}

#[path = "../src/page_size.rs"]
mod page_size;
#[path = "../src/runs.rs"]
mod runs;
#[path = "../src/summary.rs"]
mod summary;

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::Arc;
use loom::thread;
use summary::SummaryBitmap;

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(2));
    builder.check(model);
}

/// Two writers write and mark; a harvest goes on meanwhile, and one follows: each write is
/// visible in the last harvest that has its page.
fn two_writers(pages: [usize; 2]) {
    let log = Arc::new(SummaryBitmap::new(5000, 1.try_into().unwrap()));
    let written = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let writers: Vec<_> = (0..2)
        .map(|i| {
            let (log, written) = (log.clone(), written.clone());
            thread::spawn(move || {
                written[i].store(1, Ordering::Relaxed);
                log.set_bit(pages[i]);
            })
        })
        .collect();
    let mut seen: Vec<(usize, [usize; 2])> = Vec::new();
    let mut harvest = || {
        log.harvest_runs(|run| {
            let look = || [0, 1].map(|i: usize| written[i].load(Ordering::Relaxed));
            run.for_each(|page| seen.push((page, look())));
        });
    };
    harvest();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    harvest();
    harvest();
    for (i, page) in pages.into_iter().enumerate() {
        let last = seen.iter().rev().find(|seen| seen.0 == page).expect("the page is lost");
        assert_eq!(last.1[i], 1, "a write is lost: {seen:?}");
    }
    assert!(log.is_clean());
}

#[test]
fn no_mark_is_lost() {
    check(|| two_writers([3, 4100]));
    check(|| two_writers([3, 70]));
}

#[test]
fn no_write_to_a_dirty_page_is_lost() {
    check(|| two_writers([5, 5]));
}

/// What a harvest does not consume is in the next one, with all that was marked meanwhile.
fn a_caller_who_stops(pages: [usize; 2], other: usize) {
    let log = Arc::new(SummaryBitmap::new(5000, 1.try_into().unwrap()));
    let written = Arc::new(AtomicUsize::new(0));
    pages.into_iter().for_each(|page| log.set_bit(page));
    let writer = {
        let (log, written) = (log.clone(), written.clone());
        thread::spawn(move || {
            written.store(1, Ordering::Relaxed);
            log.set_bit(other);
        })
    };
    let mut taken = Vec::new();
    let stopped = log.try_harvest_runs(|run| {
        if taken.is_empty() {
            taken.extend(run.map(|page| (page, written.load(Ordering::Relaxed))));
            return Ok(());
        }
        Err(())
    });
    writer.join().unwrap();
    let mut left = Vec::new();
    log.harvest_runs(|run| left.extend(run.map(|page| (page, written.load(Ordering::Relaxed)))));
    let all = |page: usize| taken.iter().chain(&left).rev().find(|seen| seen.0 == page).copied();
    assert!(
        stopped.is_err() && pages.iter().all(|&page| all(page).is_some()),
        "{taken:?} {left:?}"
    );
    assert_eq!(all(other), Some((other, 1)), "a write is lost: {taken:?} {left:?}");
    assert!(log.is_clean());
}

#[test]
fn what_was_not_consumed_is_not_lost() {
    check(|| a_caller_who_stops([3, 4100], 4102));
    check(|| a_caller_who_stops([3, 70], 70));
}

/// A mark that returned before a harvest began is in it, whoever else is marking beside it.
#[test]
fn a_mark_that_is_done_is_in_the_next_harvest() {
    check(|| {
        let log = Arc::new(SummaryBitmap::new(100, 1.try_into().unwrap()));
        let other = {
            let log = log.clone();
            thread::spawn(move || log.set_bit(1))
        };
        log.set_bit(0);
        let mut seen = Vec::new();
        log.harvest_runs(|run| seen.extend(run));
        assert!(seen.contains(&0), "{seen:?}");
        other.join().unwrap();
    });
}
