// SPDX-License-Identifier: Apache-2.0 OR MIT

//! vm-memory's traits: `GuestMemoryMmap<DirtyBitmap>` instead of `<AtomicBitmap>`.

use crate::strategy::{DirtyBitmap, Strategy};
use crate::summary::SummaryBitmap;
use vm_memory::bitmap::{Bitmap, NewBitmap, RefSlice, WithBitmapSlice};

impl<'a, S: Strategy> WithBitmapSlice<'a> for DirtyBitmap<S> {
    type S = RefSlice<'a, Self>;
}

impl<S: Strategy> Bitmap for DirtyBitmap<S> {
    #[inline]
    fn mark_dirty(&self, offset: usize, len: usize) {
        self.mark_bytes(offset, len);
    }

    fn dirty_at(&self, offset: usize) -> bool {
        self.is_marked_at(offset)
    }

    fn slice_at(&self, offset: usize) -> RefSlice<'_, Self> {
        RefSlice::new(self, offset)
    }
}

impl<S: Strategy> NewBitmap for DirtyBitmap<S> {
    /// In pages of the host's size.
    fn with_len(len: usize) -> Self {
        Self::of_host_pages(len)
    }
}

impl<'a> WithBitmapSlice<'a> for SummaryBitmap {
    type S = RefSlice<'a, Self>;
}

impl Bitmap for SummaryBitmap {
    #[inline]
    fn mark_dirty(&self, offset: usize, len: usize) {
        self.mark_bytes(offset, len);
    }

    fn dirty_at(&self, offset: usize) -> bool {
        self.is_marked_at(offset)
    }

    fn slice_at(&self, offset: usize) -> RefSlice<'_, Self> {
        RefSlice::new(self, offset)
    }
}

impl NewBitmap for SummaryBitmap {
    /// In pages of the host's size.
    fn with_len(len: usize) -> Self {
        Self::of_host_pages(len)
    }
}

impl Default for SummaryBitmap {
    /// Of no pages.
    fn default() -> Self {
        Self::of_host_pages(0)
    }
}
