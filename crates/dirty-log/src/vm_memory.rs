// SPDX-License-Identifier: Apache-2.0 OR MIT

//! vm-memory's traits, and what its `AtomicBitmap` has beside them: a VMM that uses
//! `GuestMemoryMmap<AtomicBitmap>` changes the type and nothing else.

use crate::page_size::host_page_size;
use crate::summary::SummaryBitmap;
use vm_memory::bitmap::{Bitmap, NewBitmap, RefSlice, WithBitmapSlice};

impl<'a> WithBitmapSlice<'a> for SummaryBitmap {
    type S = RefSlice<'a, Self>;
}

impl Bitmap for SummaryBitmap {
    #[inline]
    fn mark_dirty(&self, offset: usize, len: usize) {
        self.set_addr_range(offset, len);
    }

    fn dirty_at(&self, offset: usize) -> bool {
        self.is_addr_set(offset)
    }

    fn slice_at(&self, offset: usize) -> RefSlice<'_, Self> {
        RefSlice::new(self, offset)
    }
}

impl NewBitmap for SummaryBitmap {
    /// In pages of the host's size.
    fn with_len(len: usize) -> Self {
        Self::new(len, host_page_size())
    }
}

impl Default for SummaryBitmap {
    /// Of no pages.
    fn default() -> Self {
        Self::with_len(0)
    }
}

/// What is marked in it is marked in the copy.
impl Clone for SummaryBitmap {
    fn clone(&self) -> Self {
        self.with_size(self.byte_size())
    }
}

impl SummaryBitmap {
    /// Harvests into a copy of all words, clean ones too.
    #[must_use = "the call returns the marked pages and clears their marks; to clear the marks \
        only, call `reset`"]
    pub fn get_and_reset(&self) -> Vec<u64> {
        let mut words = vec![0; self.len().div_ceil(64)];
        self.harvest_words(|i, word| words[i] = word);
        words
    }

    /// Harvests and forgets.
    pub fn reset(&self) {
        self.harvest_words(|_, _| {});
    }

    /// Forgets the mark of one page. Read the page after this returns: what is written later is
    /// marked again.
    pub fn reset_bit(&self, page: usize) {
        self.take_range(page..page.saturating_add(1), drop);
    }

    /// Forgets the marks of the pages that have any of `len` bytes from `start` on.
    pub fn reset_addr_range(&self, start: usize, len: usize) {
        self.take_range(self.pages_of(start, len), drop);
    }

    /// Makes it cover `additional_size` bytes more, in pages that are clean.
    pub fn enlarge(&mut self, additional_size: usize) {
        *self = self.with_size(self.byte_size() + additional_size);
    }

    /// A bitmap of so many bytes with the marks of this one.
    fn with_size(&self, bytes: usize) -> Self {
        let other = Self::new(bytes, self.nonzero_page_size());
        other.mark_words_at(0, &self.snapshot());
        other
    }
}
