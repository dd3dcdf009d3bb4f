// SPDX-License-Identifier: Apache-2.0 OR MIT

//! loom's atomics under the library's names.

pub(crate) use loom::hint::spin_loop;
pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU64, AtomicU8, AtomicUsize, Ordering};
pub(crate) use loom::sync::{RwLock, RwLockReadGuard};
pub(crate) use loom::thread::yield_now;

pub(crate) const ZERO_IS_NEW: bool = false;
/// Every two switches collide.
pub(crate) const KNOWN: usize = 1;

/// Not a load as loom counts them: it remembers but one last access to a cell, and a
/// thread's load of its own would hide that another thread looked at it before.
pub(crate) fn own(cell: &AtomicUsize) -> usize {
    // SAFETY: loom fails the model if another thread wrote to it meanwhile.
    unsafe { cell.unsync_load() }
}

/// loom fails the model if another thread's access is not ordered before this one.
pub(crate) fn put64(cell: &mut AtomicU64, value: u64) {
    cell.with_mut(|v| *v = value);
}

pub(crate) fn put8(cell: &mut AtomicU8, value: u8) {
    cell.with_mut(|v| *v = value);
}

pub(crate) fn first_set(flags: &[AtomicU8]) -> Option<usize> {
    // SAFETY: loom fails the model if a thread may still write to it.
    flags.iter().position(|flag| unsafe { flag.unsync_load() } != 0)
}

pub(crate) fn first_clear(flags: &[AtomicU8]) -> Option<usize> {
    // SAFETY: loom fails the model if a thread may still write to it.
    flags.iter().position(|flag| unsafe { flag.unsync_load() } == 0)
}

pub(crate) fn plain(words: &[AtomicU64]) -> Vec<u64> {
    // SAFETY: loom fails the model if a thread may still write to one.
    words.iter().map(|word| unsafe { word.unsync_load() }).collect()
}

/// No model forks.
pub(crate) fn forks() -> usize {
    0
}
