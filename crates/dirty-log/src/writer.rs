//! Each thread's own record: found by thread-local storage, given back at its end.

use crate::hazard::{Free, Record, Registry, Switch};
use crate::sync::AtomicPtr;
use std::cell::Cell;
use std::ptr::{self, NonNull};

/// One for the process: a record serves all bitmaps, as a thread marks one page at a time.
pub(crate) static REGISTRY: Registry = Registry { head: AtomicPtr::new(ptr::null_mut()) };

thread_local! {
    static RECORD: Cell<*const Record> = const { Cell::new(ptr::null()) };
    static END: End = const { End };
}

/// Gives the thread's record back when the thread ends.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        let record = RECORD.replace(ptr::null());
        // SAFETY: null, or a record of REGISTRY, which is never dropped.
        if let Some(record) = unsafe { record.as_ref() } {
            record.release();
        }
    }
}

/// Takes a record for this thread, so that its first mark does not. Marks do it by
/// themselves; a thread that must not allocate later calls this early.
pub fn register_thread() {
    if RECORD.get().is_null() && END.try_with(|_| ()).is_ok() {
        RECORD.set(REGISTRY.acquire());
    }
}

/// Tells harvests that this thread is not going to mark anything for a while, so that they
/// do not interrupt it: call it before entering a guest (KVM_RUN), or before blocking. The
/// next mark in each slot costs the thread a full fence, and harvests see it again.
///
/// Without it all is right as well, but a harvest that finds something makes the kernel run
/// a barrier on the CPU of each thread of the process that is running, and there may be a
/// virtual machine to be left for that.
pub fn rest() {
    if let Some(record) = own_record() {
        record.rest();
    }
}

/// This thread's record, if it has one.
pub(crate) fn own_record() -> Option<&'static Record> {
    // SAFETY: null, or a record of REGISTRY, which is never dropped.
    unsafe { RECORD.get().as_ref() }
}

/// Calls `f` with what is current in `switch`, which stays valid meanwhile, and with the
/// thread's number.
#[inline]
pub(crate) fn with<T, R>(switch: &Switch<T>, f: impl FnOnce(NonNull<T>, &mut Free) -> R) -> R {
    let record = RECORD.get();
    // SAFETY: null, or a record of REGISTRY, which is never dropped.
    if let Some(record) = unsafe { record.as_ref() } {
        // SAFETY: the record is this thread's, and the registry the one that every switch
        // outside of tests is replaced with.
        if let Some(mut hold) = unsafe { switch.hold(&record.cells[0]) } {
            return f(hold.target(), hold.free());
        }
    }
    with_second(switch, f)
}

/// The thread's first mark, or one inside another.
#[cold]
#[inline(never)]
fn with_second<T, R>(switch: &Switch<T>, f: impl FnOnce(NonNull<T>, &mut Free) -> R) -> R {
    register_thread();
    let record = RECORD.get();
    // SAFETY: as in `with`.
    for cell in unsafe { record.as_ref() }.iter().flat_map(|record| &record.cells) {
        // SAFETY: as in `with`.
        if let Some(hold) = unsafe { switch.hold(cell) } {
            return f(hold.target(), &mut Free::default());
        }
    }
    with_counted(switch, |target| f(target, &mut Free::default()))
}

/// As [`with`], for what is held while a page is marked: leaves the first cell free.
pub(crate) fn with_outer<T, R>(switch: &Switch<T>, f: impl FnOnce(NonNull<T>) -> R) -> R {
    register_thread();
    let record = RECORD.get();
    // SAFETY: as in `with`.
    if let Some(record) = unsafe { record.as_ref() } {
        // SAFETY: as in `with`.
        if let Some(hold) = unsafe { switch.hold(&record.cells[1]) } {
            return f(hold.target());
        }
    }
    with_counted(switch, f)
}

/// As [`with`], for a signal handler: takes no record and allocates nothing.
pub(crate) fn with_counted<T, R>(switch: &Switch<T>, f: impl FnOnce(NonNull<T>) -> R) -> R {
    let hold = switch.hold_counted();
    f(hold.target())
}
