// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What a thread's cell keeps between two marks.

/// The switch that a cell was last used for, if that knows it, and a number of its owner's,
/// which is another one after each use: in one word, as a mark can afford to write to two.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Last(pub(crate) usize);

impl Default for Last {
    fn default() -> Self {
        Self::NOT_KNOWN
    }
}

impl Last {
    /// So far apart are switches, which leaves room beside their addresses.
    pub(crate) const APART: usize = 128;
    const NOT_KNOWN: Self = Self(0);
    /// The largest number of marks to come.
    pub(crate) const MOST: usize = Self::APART / 2 - 1;

    /// Without the switch.
    pub(crate) fn number(self) -> Self {
        Self(self.0 % Self::APART)
    }

    /// It was this switch's.
    #[inline]
    pub(crate) fn is_of(self, switch: usize) -> bool {
        self.0.wrapping_sub(switch) < Self::APART
    }

    /// As [`Self::is_of`], and there are marks to come that need not look.
    #[inline]
    pub(crate) fn is_quick_in(self, switch: usize) -> bool {
        // One comparison for both.
        self.0.wrapping_sub(switch + 1) < Self::MOST
    }

    /// There are no marks to come. The number is found again when the cell is next used,
    /// for whatever switch: a hint.
    #[inline]
    pub(crate) fn is_zero(self) -> bool {
        self.0 & Self::MOST == 0
    }

    /// Makes a number that was 0 as large as it can be.
    #[inline]
    pub(crate) fn fill(&mut self) {
        self.0 = self.0 & !(Self::APART - 1) | Self::MOST;
    }

    /// Takes one from a number that is not 0.
    #[inline]
    pub(crate) fn count_down(&mut self) {
        self.0 -= 1;
    }

    /// Another turn with the same number.
    #[inline]
    pub(crate) fn turn(&mut self) {
        self.0 ^= Self::APART / 2;
    }
}
