// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Each thread's own record, in its thread-local storage, and the registry of them.

use crate::fence;
use crate::hazard::{HazardCell, Record, Registry, Switch, Whom, UNREGISTERED};
use crate::last::Last;
use crate::sync::{AtomicUsize, RwLock, KNOWN};
use std::ptr::NonNull;

/// One for the process: a record serves all bitmaps, as a thread marks one page at a time.
static REGISTRY: Registry = Registry { threads: RwLock::new(Vec::new()) };

thread_local! {
    /// It has no destructor: valid as long as the thread runs any code.
    static RECORD: Record = const { Record { cells: [const { new_cell() }; 2] } };
    static END: End = const { End };
}

const fn new_cell() -> HazardCell {
    HazardCell {
        inside: AtomicUsize::new(UNREGISTERED),
        last: AtomicUsize::new(0),
        known: [const { AtomicUsize::new(0) }; KNOWN],
    }
}

/// Takes the thread's record out of the registry when the thread ends.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        RECORD.with(|record| REGISTRY.remove(record));
    }
}

/// A fork's child has one thread: the records of the others are forgotten there, as what they
/// point to is stacks that nobody runs on.
#[cfg(all(unix, not(miri)))]
mod forks {
    use super::{RECORD, REGISTRY};
    use crate::hazard::Registered;
    use crate::sync::forked;
    use std::cell::UnsafeCell;
    use std::sync::{Once, PoisonError, RwLockWriteGuard};

    struct Held(UnsafeCell<Option<RwLockWriteGuard<'static, Vec<Registered>>>>);

    // SAFETY: only the thread that forks gets at it, while it holds the lock for writing.
    unsafe impl Sync for Held {}

    static HELD: Held = Held(UnsafeCell::new(None));

    extern "C" fn prepare() {
        let threads = REGISTRY.threads.write().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: this thread has the lock.
        unsafe { *HELD.0.get() = Some(threads) };
    }

    fn take() -> Option<RwLockWriteGuard<'static, Vec<Registered>>> {
        // SAFETY: called by the thread that `prepare` ran in, or by its copy.
        unsafe { (*HELD.0.get()).take() }
    }

    extern "C" fn parent() {
        drop(take());
    }

    extern "C" fn child() {
        forked();
        if let Some(mut threads) = take() {
            RECORD.with(|own| threads.retain(|record| record.is(own)));
        }
    }

    pub(super) fn watch() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: three functions that stay. Should there be no memory for it, a child
            // is as it would be without.
            let _ = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
        });
    }
}

#[cfg(not(all(unix, not(miri))))]
mod forks {
    pub(super) fn watch() {}
}

/// To be called before a bitmap can be shared between threads, or with a child.
pub(crate) fn init() {
    fence::init();
    forks::watch();
}

/// Makes harvests look at this thread's record, unless it is about to end.
fn register(may_wait: bool) {
    forks::watch();
    // To get at END is to have it dropped at the thread's end.
    if END.try_with(|_| ()).is_ok() {
        // SAFETY: it stays in thread-local storage, which END leaves for END to remove it.
        RECORD.with(|record| unsafe { REGISTRY.add(record, may_wait) });
    }
}

/// Makes this thread known to harvests, so that its first mark does not. Marks do it by
/// themselves; a thread that must not allocate later calls this early.
pub fn register_thread() {
    register(true);
}

/// Tells harvests that this thread is not going to mark anything for a while: call it before
/// entering a guest (KVM_RUN), or before blocking. The next mark in each slot costs the thread
/// a full fence, and harvests see it again.
///
/// A harvest that finds something makes the kernel run a barrier (membarrier(2)) if *any*
/// other thread has marked in that slot and has not rested since; and the kernel runs it on
/// the CPU of *every* thread of the process that is running, rested or not. So it spares vCPUs
/// the interruption only if all threads that mark in the slot rest: one virtio thread that
/// does not is enough for each of its slot's harvests to take every vCPU out of its guest.
pub fn rest() {
    RECORD.with(Record::rest);
}

/// The wait of a harvest for those inside these switches. `for_anybody`: with a full
/// barrier on every CPU, needed or not.
pub(crate) fn wait<'a, T: 'a>(
    switches: impl Iterator<Item = &'a Switch<T>> + Clone,
    for_anybody: bool,
) {
    RECORD.with(|own| {
        let whom = if for_anybody { Whom::Anybody } else { Whom::KnownBut(own) };
        REGISTRY.wait(switches, whom);
    });
}

/// As [`with`], if the thread's next mark there need not look.
#[inline]
pub(crate) fn with_quick<T, R>(switch: &Switch<T>, f: impl FnOnce(NonNull<T>) -> R) -> Option<R> {
    RECORD.with(|record| {
        // SAFETY: as in `with`.
        let hold = unsafe { switch.hold_quick(&record.cells[0]) }?;
        Some(f(hold.target()))
    })
}

/// Calls `f` with what is current in `switch`, which stays valid meanwhile, and with the
/// thread's number.
#[inline]
pub(crate) fn with<T, R>(switch: &Switch<T>, f: impl FnOnce(NonNull<T>, &mut Last) -> R) -> R {
    RECORD.with(|record| {
        // SAFETY: the record is this thread's, and the registry the one that every switch
        // outside of tests is replaced with.
        match unsafe { switch.hold(&record.cells[0]) } {
            Some(mut hold) => f(hold.target(), hold.last()),
            None => with_second(switch, f),
        }
    })
}

/// The thread's first mark, or one inside another.
#[cold]
#[inline(never)]
fn with_second<T, R>(switch: &Switch<T>, f: impl FnOnce(NonNull<T>, &mut Last) -> R) -> R {
    register(false);
    RECORD.with(|record| {
        for cell in &record.cells {
            // SAFETY: as in `with`.
            if let Some(mut hold) = unsafe { switch.hold(cell) } {
                return f(hold.target(), hold.last());
            }
        }
        with_counted(switch, |target| f(target, &mut Last::default()))
    })
}

/// As [`with`], for what is held while a page is marked: leaves the first cell free.
pub(crate) fn with_outer<T, R>(switch: &Switch<T>, f: impl FnOnce(NonNull<T>) -> R) -> R {
    register(false);
    RECORD.with(|record| {
        // SAFETY: as in `with`.
        if let Some(mut hold) = unsafe { switch.hold(&record.cells[1]) } {
            hold.last().turn();
            return f(hold.target());
        }
        with_counted(switch, f)
    })
}

/// As [`with`], for a signal handler: takes no record and allocates nothing.
pub(crate) fn with_counted<T, R>(switch: &Switch<T>, f: impl FnOnce(NonNull<T>) -> R) -> R {
    let hold = switch.hold_counted();
    f(hold.target())
}
