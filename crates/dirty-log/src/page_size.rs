// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Bytes in a page, and which page a byte is in.

use std::num::NonZeroUsize;
use std::ops::Range;

/// Bytes in a page of this host, as the kernel says: KVM's dirty logs and rings count in these.
///
/// # Panics
/// sysconf(3) does not know it, which no Unix allows.
pub fn host_page_size() -> NonZeroUsize {
    // SAFETY: sysconf takes an integer and touches no memory of ours.
    let found = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let found = usize::try_from(found).ok().and_then(NonZeroUsize::new);
    found.expect("sysconf(3) should return the size of a page")
}

/// The bytes of a page. If they are a power of two, the page of a byte is found by a shift, else
/// by a division.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageSize {
    bytes: NonZeroUsize,
    shift: Option<u32>,
}

impl PageSize {
    pub(crate) fn new(bytes: NonZeroUsize) -> Self {
        let shift = bytes.is_power_of_two().then_some(bytes.trailing_zeros());
        Self { bytes, shift }
    }

    pub(crate) fn bytes(self) -> NonZeroUsize {
        self.bytes
    }

    /// The page that has a byte.
    #[inline]
    pub(crate) fn page_of(self, offset: usize) -> usize {
        match self.shift {
            Some(shift) => offset >> shift,
            None => offset / self.bytes,
        }
    }

    /// The pages that have any of `len` bytes from `offset` on; none for no bytes.
    #[inline]
    pub(crate) fn pages_of(self, offset: usize, len: usize) -> Range<usize> {
        if len == 0 {
            return 0..0;
        }
        let last = self.page_of(offset.saturating_add(len - 1));
        self.page_of(offset)..last.saturating_add(1)
    }
}
