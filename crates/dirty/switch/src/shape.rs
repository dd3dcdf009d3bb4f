// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Where the parts of a bitmap are in its one allocation.

use crate::sync::{AtomicU64, AtomicU8};
use std::alloc::Layout;
use std::ptr::NonNull;

pub(crate) const LINE_WORDS: usize = 8;
pub(crate) const LINE_PAGES: usize = 64 * LINE_WORDS;
pub(crate) const GROUP_LINES: usize = 64;
const CACHE_LINE: usize = 64;
/// Bitmaps of so many bytes ask for huge pages: that of 128 GiB in pages of 4 KiB.
const LARGE: usize = 4 << 20;

/// How many pages, and where the parts of a bitmap for them are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) pages: usize,
    pub(crate) lines: usize,
    /// Offsets from the words, bytes.
    pub(crate) flags_at: usize,
    pub(crate) groups_at: usize,
    pub(crate) any_at: usize,
    pub(crate) layout: Layout,
}

impl Shape {
    pub(crate) fn new(pages: usize) -> Self {
        let lines = pages.div_ceil(LINE_PAGES);
        let part = |whole: Layout, bytes: usize| {
            let bytes = Layout::array::<AtomicU8>(bytes).ok()?;
            whole.extend(bytes.align_to(CACHE_LINE).ok()?).ok()
        };
        let parts = || {
            let words = Layout::array::<AtomicU64>(lines * LINE_WORDS).ok()?;
            let (whole, flags_at) = part(words.align_to(CACHE_LINE).ok()?, lines)?;
            let (whole, groups_at) = part(whole, lines.div_ceil(GROUP_LINES))?;
            let (layout, any_at) = part(whole, 1)?;
            Some(Self { pages, lines, flags_at, groups_at, any_at, layout })
        };
        // usize::MAX pages are 2^61 words: their size in bytes is a usize.
        parts().expect("a bit for each page of an address space fits into it")
    }

    /// Words of 64 pages.
    pub(crate) fn words(&self) -> usize {
        self.pages.div_ceil(64)
    }

    pub(crate) fn groups(&self) -> usize {
        self.lines.div_ceil(GROUP_LINES)
    }
}

/// Has the kernel put huge pages under memory that nobody has touched yet, where it is large: a
/// harvest of hundreds of GiB looks up a page of addresses for each 4 KiB of bitmap otherwise. What
/// the host says to it does not matter.
pub(crate) fn ask_for_huge_pages(base: NonNull<u8>, bytes: usize) {
    const HUGE: usize = 2 << 20;
    if bytes < LARGE || cfg!(miri) {
        return;
    }
    let first = base.as_ptr().align_offset(HUGE);
    let whole = (bytes - first.min(bytes)) / HUGE * HUGE;
    #[cfg(target_os = "linux")]
    // SAFETY: whole pages inside an allocation of ours, whose contents it does not change.
    unsafe {
        libc::madvise(base.as_ptr().wrapping_add(first).cast(), whole, libc::MADV_HUGEPAGE);
    }
}
