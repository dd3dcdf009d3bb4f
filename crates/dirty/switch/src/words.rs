// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Words of 64 pages, and callers who refuse no run.

use std::convert::Infallible;
use std::ops::Range;

/// A caller who refuses nothing.
#[inline]
pub(crate) fn sure<T>(mut f: impl FnMut(T)) -> impl FnMut(T) -> Result<(), Infallible> {
    move |x| {
        f(x);
        Ok(())
    }
}

/// What comes of it.
#[inline]
pub(crate) fn surely<T>(result: Result<T, Infallible>) -> T {
    let Ok(value) = result;
    value
}

/// Those of a word's 64 pages that are in `pages`.
pub(crate) fn mask(word: usize, pages: &Range<usize>) -> u64 {
    let first = pages.start.saturating_sub(word * 64).min(64) as u32;
    let end = pages.end.saturating_sub(word * 64).min(64) as u32;
    let below = |bit: u32| 1u64.checked_shl(bit).map_or(u64::MAX, |b| b - 1);
    below(end) & !below(first)
}
