// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The atomics, in one place: `tests/loom.rs` compiles the protocol against loom's instead.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicU8, AtomicUsize, Ordering};
pub(crate) use std::sync::{RwLock, RwLockReadGuard};
pub(crate) use std::thread::yield_now;

/// Memory of zeroes is an array of atomics that are 0.
pub(crate) const ZERO_IS_NEW: bool = true;

/// Slots that a thread can mark in turn without a fence of its own; a power of two.
pub(crate) const KNOWN: usize = 64;

/// Reads what only this thread writes to.
#[inline]
pub(crate) fn own(cell: &AtomicUsize) -> usize {
    cell.load(Ordering::Relaxed)
}

/// Writes without an atomic operation: nobody else has access.
#[inline]
pub(crate) fn put64(cell: &mut AtomicU64, value: u64) {
    *cell.get_mut() = value;
}

/// As [`put64`], for a byte.
#[inline]
pub(crate) fn put8(cell: &mut AtomicU8, value: u8) {
    *cell.get_mut() = value;
}

/// Words that nobody can write to at present, as numbers.
pub(crate) fn plain(words: &[AtomicU64]) -> &[u64] {
    // SAFETY: AtomicU64 has u64's size and representation, and 8-byte alignment suffices
    // for both. Called for bitmaps with one owner, which is borrowed meanwhile.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len()) }
}

/// The first byte that is 0, of bytes that nobody can write to at present, each 0 or 1.
pub(crate) fn first_clear(flags: &[AtomicU8]) -> Option<usize> {
    const STEP: usize = 16;
    // SAFETY: as in `plain`.
    let bytes: &[u8] = unsafe { std::slice::from_raw_parts(flags.as_ptr().cast(), flags.len()) };
    let full = bytes.chunks_exact(STEP).take_while(|step| step.iter().all(|&byte| byte != 0));
    let full = full.count() * STEP;
    bytes[full..].iter().position(|&byte| byte == 0).map(|found| full + found)
}

/// The first byte that is not 0, of bytes that nobody can write to at present.
#[inline]
pub(crate) fn first_set(flags: &[AtomicU8]) -> Option<usize> {
    const STEP: usize = 16;
    // SAFETY: as in `plain`.
    let bytes: &[u8] = unsafe { std::slice::from_raw_parts(flags.as_ptr().cast(), flags.len()) };
    if *bytes.first()? != 0 {
        return Some(0);
    }
    let steps = bytes.chunks_exact(STEP);
    let rest = steps.remainder();
    for (i, step) in steps.enumerate() {
        let step = u128::from_le_bytes(step.try_into().unwrap_or_default());
        if step != 0 {
            return Some(i * STEP + step.trailing_zeros() as usize / 8);
        }
    }
    let found = rest.iter().position(|&byte| byte != 0)?;
    Some(bytes.len() - rest.len() + found)
}

static FORKS: AtomicUsize = AtomicUsize::new(0);

/// How many forks there were from the first process that used this to the calling one.
pub(crate) fn forks() -> usize {
    FORKS.load(Ordering::Relaxed)
}

/// To be called in a fork's child, before anything else.
#[cfg(all(unix, not(miri)))]
pub(crate) fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}
