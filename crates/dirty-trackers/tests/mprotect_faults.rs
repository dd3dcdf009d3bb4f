// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Faults that the mprotect tracker's handler gets and that are not, or no longer, its own:
//! each in a process of its own, as some end it. One test, which forks.

#![cfg(target_os = "linux")]

use dirty_log::PageSet;
use dirty_trackers::{page_size, Mprotect, TrackedSlot, Tracker};
use std::sync::atomic::{AtomicBool, Ordering};

const PAGES: usize = 8;

struct Memory(*mut u8);

// SAFETY: a mapping is bound to no thread.
unsafe impl Sync for Memory {}

impl Memory {
    fn new() -> Self {
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let bytes = PAGES * page_size();
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self(at.cast())
    }

    fn tracker(&self) -> Mprotect {
        let slot = TrackedSlot::new(0, 0, self.0, PAGES * page_size());
        // SAFETY: mapped for ever.
        unsafe { Mprotect::new(vec![slot]) }.unwrap()
    }

    fn write(&self, page: usize) {
        // SAFETY: inside the mapping, which nobody refers to.
        unsafe { self.0.add(page % PAGES * page_size()).write_volatile(1) };
    }
}

/// Runs `body` in a child; the signal that ended it, if one did.
fn in_child(body: impl FnOnce()) -> Option<i32> {
    // SAFETY: the child of a test with one thread that runs.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        // SAFETY: ends the child without the test harness's ends.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    let mut status = 0;
    // SAFETY: our child, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    if libc::WIFSIGNALED(status) {
        return Some(libc::WTERMSIG(status));
    }
    assert_eq!(libc::WEXITSTATUS(status), 0, "the child panicked");
    None
}

fn handler() -> usize {
    // SAFETY: plain data, and a valid pointer to it.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGSEGV, std::ptr::null(), &mut now);
        now.sa_sigaction
    }
}

/// Threads write while tracking starts and stops (a migration that is given up and tried
/// again): a handler that comes late neither ends the process nor takes itself away.
fn late_handlers() {
    let memory = Memory::new();
    let mut tracker = memory.tracker();
    let done = AtomicBool::new(false);
    let mut uninstalled = 0;
    std::thread::scope(|scope| {
        for first in 0..3 {
            let (memory, done) = (&memory, &done);
            scope.spawn(move || {
                (first..)
                    .take_while(|_| !done.load(Ordering::Relaxed))
                    .for_each(|n| memory.write(n))
            });
        }
        let own = {
            tracker.start().unwrap();
            handler()
        };
        for _ in 0..3_000 {
            tracker.collect(&mut [PageSet::with_len(PAGES * page_size())]).unwrap();
            tracker.stop().unwrap();
            uninstalled += usize::from(handler() != own);
            tracker.start().unwrap();
        }
        tracker.stop().unwrap();
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(uninstalled, 0, "the handler was gone");
}

/// Somebody reset the signal since: `start` installs the handler again.
fn handler_taken_away() {
    let memory = Memory::new();
    let mut tracker = memory.tracker();
    tracker.start().unwrap();
    tracker.stop().unwrap();
    // SAFETY: the default action.
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
    tracker.start().unwrap();
    memory.write(3);
    let mut set = [PageSet::with_len(PAGES * page_size())];
    assert_eq!(tracker.collect(&mut set).unwrap(), 1);
}

/// A handler keeps errno.
fn errno_is_kept() {
    let memory = Memory::new();
    let mut tracker = memory.tracker();
    tracker.start().unwrap();
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() = 77 };
    memory.write(1);
    // SAFETY: as above.
    assert_eq!(unsafe { *libc::__errno_location() }, 77);
}

/// A SIGSEGV of this thread's making, as the kernel would describe it.
fn queue(code: i32, address: usize) {
    // SAFETY: a signal with an address as its value, to this thread.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        info.si_signo = libc::SIGSEGV;
        info.si_code = code;
        (&raw mut info).cast::<usize>().add(2).write(address);
        let (process, thread) = (libc::getpid(), libc::gettid());
        let sent = libc::syscall(
            libc::SYS_rt_tgsigqueueinfo,
            process,
            thread,
            libc::SIGSEGV,
            &raw const info,
        );
        assert_eq!(sent, 0);
    }
}

/// The same as the race, for certain: a fault on a page that was writable by the time that
/// its handler ran.
fn late_for_certain() {
    const SEGV_ACCERR: i32 = 2;
    let memory = Memory::new();
    let mut tracker = memory.tracker();
    tracker.start().unwrap();
    tracker.stop().unwrap();
    queue(SEGV_ACCERR, memory.0.addr());
    tracker.start().unwrap();
    memory.write(2);
    assert_eq!(tracker.collect(&mut [PageSet::with_len(PAGES * page_size())]).unwrap(), 1);
}

/// A signal that somebody sent is no write.
fn sent_by_kill() {
    let memory = Memory::new();
    let mut tracker = memory.tracker();
    tracker.start().unwrap();
    queue(libc::SI_QUEUE, memory.0.addr());
    // The default action: the write is not tracked any more, and ends the process.
    memory.write(2);
}

/// A fault in memory that was tracked once, and is nobody's by now, ends the process.
fn fault_of_others() {
    let memory = Memory::new();
    let mut tracker = memory.tracker();
    tracker.start().unwrap();
    tracker.stop().unwrap();
    // SAFETY: our mapping.
    unsafe { libc::mprotect(memory.0.cast(), page_size(), libc::PROT_READ) };
    memory.write(0);
}

/// The memory can't be made writable: that ends the process, and does not fault for ever.
fn cannot_be_resolved() {
    let memory = Memory::new();
    let mut tracker = memory.tracker();
    // A file that is open for reading only, in the tracked memory's place.
    tracker.start().unwrap();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    let bytes = PAGES * page_size();
    // SAFETY: over our own mapping.
    unsafe {
        let kind = libc::MAP_SHARED | libc::MAP_FIXED;
        let at = libc::mmap(memory.0.cast(), bytes, libc::PROT_READ, kind, fd, 0);
        assert_eq!(at, memory.0.cast());
        libc::alarm(20);
    }
    memory.write(0);
}

#[test]
fn faults_are_ours_or_passed_on() {
    assert_eq!(in_child(late_handlers), None);
    assert_eq!(in_child(late_for_certain), None);
    assert_eq!(in_child(handler_taken_away), None);
    assert_eq!(in_child(errno_is_kept), None);
    assert_eq!(in_child(sent_by_kill), Some(libc::SIGSEGV));
    assert_eq!(in_child(fault_of_others), Some(libc::SIGSEGV));
    assert_eq!(in_child(cannot_be_resolved), Some(libc::SIGSEGV));
}
