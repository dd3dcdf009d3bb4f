// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A seccomp filter that comes after the first bitmap and refuses membarrier(2) with an errno:
//! the harvest panics, as it can't be right, and its pages are in the next one.

#![cfg(all(target_os = "linux", target_arch = "x86_64", not(miri)))]

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::mpsc::channel;
use vmeter_dirty_switch::{fences, DirtyBitmap, Fences, GetOpt, GetOrg, Strategy, SwitchOpt};

/// From here on membarrier(2) is EPERM for this thread.
fn refuse_membarrier() {
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        // The system call's number; is it membarrier's?
        step(0x20, 0, 0, 0),
        step(0x15, 0, 1, libc::SYS_membarrier as u32),
        step(0x06, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: a filter for this thread only, from a program that lives during the call.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
    }
}

fn nothing_is_lost<S: Strategy>() {
    let log: DirtyBitmap<S> = DirtyBitmap::new(1 << 24, 4096).unwrap();
    let (ready, wait) = (channel(), channel::<()>());
    std::thread::scope(|scope| {
        let log = &log;
        scope.spawn(move || {
            // Known to the slot, and alive.
            log.mark(5);
            log.mark(2000);
            ready.0.send(()).unwrap();
            let _ = wait.1.recv();
        });
        ready.1.recv().unwrap();
        let refused = scope.spawn(move || {
            refuse_membarrier();
            for page in [6, 7] {
                let harvest = AssertUnwindSafe(|| log.harvest().count());
                catch_unwind(harvest).unwrap_err();
                log.mark(page);
            }
        });
        refused.join().unwrap();
        assert!(!log.is_clean());
        let found: Vec<usize> = log.harvest().pages().collect();
        assert_eq!(found, [5, 6, 7, 2000], "what the refused harvests had");
        assert!(log.harvest().is_clean());
        drop(wait.0);
    });
}

#[test]
fn a_harvest_that_is_refused_its_barrier_loses_no_page() {
    nothing_is_lost_of_all();
}

fn nothing_is_lost_of_all() {
    let _: DirtyBitmap = DirtyBitmap::new(4096, 4096).unwrap();
    if fences() == Fences::Full {
        return println!("skipped: this host has no membarrier(2)");
    }
    nothing_is_lost::<SwitchOpt>();
    nothing_is_lost::<GetOpt>();
    nothing_is_lost::<GetOrg>();
}
