//! A child of a process whose threads are marking: it has one thread, and waits for none of
//! those that it has not. A test of its own, as it forks.

#![cfg(all(target_os = "linux", not(miri)))]

use dirty_log::DirtyBitmap;
use std::sync::atomic::{AtomicBool, Ordering};

const PAGES: usize = 1000;

/// What a child does in its place: marks, harvests, ends. True if it had to be ended.
fn child_waits_for_ever(log: &DirtyBitmap) -> bool {
    // SAFETY: the child only marks, harvests and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child if it waits for ever.
        unsafe { libc::alarm(20) };
        log.mark(7);
        let seen = log.harvest().contains(7);
        let again = (log.is_clean(), log.mark(8), log.harvest().count());
        let right = seen && again == (true, (), 1);
        // SAFETY: ends the child without the test harness's ends.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    let mut status = 0;
    // SAFETY: our child, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    if !libc::WIFSIGNALED(status) {
        assert_eq!(libc::WEXITSTATUS(status), 0);
    }
    libc::WIFSIGNALED(status)
}

#[test]
fn a_child_does_not_wait_for_threads_that_it_has_not() {
    let log: DirtyBitmap = DirtyBitmap::new(PAGES * 4096, 4096).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for first in 0..3 {
            let (log, done) = (&log, &done);
            scope.spawn(move || {
                let marks = (first..).take_while(|_| !done.load(Ordering::Relaxed));
                marks.for_each(|page| log.mark(page % PAGES));
            });
        }
        while log.is_clean() {
            std::thread::yield_now();
        }
        let late = (0..100).any(|_| child_waits_for_ever(&log));
        done.store(true, Ordering::Relaxed);
        assert!(!late, "a child waited for ever");
    });
}

/// A thread's first mark, made while another forks, is in no record: it is counted.
#[test]
fn nor_for_those_that_had_just_begun() {
    let log: DirtyBitmap = DirtyBitmap::new(PAGES * 4096, 4096).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for first in 0..2 {
            let (log, done) = (&log, &done);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    std::thread::scope(|inner| {
                        inner.spawn(|| (first..first + 100).for_each(|page| log.mark(page)));
                    });
                }
            });
        }
        let late = (0..1000).any(|_| child_waits_for_ever(&log));
        done.store(true, Ordering::Relaxed);
        assert!(!late, "a child waited for ever");
    });
}
