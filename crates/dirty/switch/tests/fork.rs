// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A child of a process whose threads are marking: it has one thread, and waits for none of
//! those that it has not. A test of its own, as it forks.

#![cfg(all(target_os = "linux", not(miri)))]

use std::sync::atomic::{AtomicBool, Ordering};
use vmeter_dirty_switch::DirtyBitmap;

const PAGES: usize = 1000;

/// What became of a child that marks, harvests and ends: 0 if all was right, else as waitpid(2) has
/// it; by a signal if it waited for ever.
fn status_of_a_child(log: &DirtyBitmap) -> libc::c_int {
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
    status
}

/// Makes children while threads mark, each by `marks` of its number over and over.
fn children(many: usize, threads: usize, log: &DirtyBitmap, marks: impl Fn(usize) + Sync) {
    let done = AtomicBool::new(false);
    let bad = std::thread::scope(|scope| {
        for first in 0..threads {
            let (marks, done) = (&marks, &done);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    marks(first);
                }
            });
        }
        while log.is_clean() {
            std::thread::yield_now();
        }
        let bad = (0..many).map(|_| status_of_a_child(log)).find(|status| *status != 0);
        done.store(true, Ordering::Relaxed);
        bad
    });
    let late = bad.is_some_and(|status| libc::WIFSIGNALED(status));
    assert!(!late, "a child waited for ever");
    assert_eq!(bad, None, "a child saw other marks than its own");
}

#[test]
fn a_child_does_not_wait_for_threads_that_it_has_not() {
    let log: DirtyBitmap = DirtyBitmap::new(PAGES * 4096, 4096).unwrap();
    children(100, 3, &log, |first| {
        (first..first + PAGES).for_each(|page| log.mark(page % PAGES));
    });
}

/// A thread's first mark, made while another forks, is in no record: it is counted.
#[test]
fn nor_for_those_that_had_just_begun() {
    let log: DirtyBitmap = DirtyBitmap::new(PAGES * 4096, 4096).unwrap();
    children(1000, 2, &log, |first| {
        std::thread::scope(|inner| {
            inner.spawn(|| (first..first + 100).for_each(|page| log.mark(page)));
        });
    });
}
