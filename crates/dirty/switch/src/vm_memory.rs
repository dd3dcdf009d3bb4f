// SPDX-License-Identifier: Apache-2.0 OR MIT

//! vm-memory's traits, for what `GuestMemoryMmap` pays for a mark.

use crate::strategy::{DirtyBitmap, Strategy};
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
        let page_size = dirty_log::host_page_size().get();
        Self::new(len, page_size).expect("the kernel's page size is a power of two")
    }
}

impl<S: Strategy> Default for DirtyBitmap<S> {
    /// Of no pages.
    fn default() -> Self {
        Self::with_len(0)
    }
}
