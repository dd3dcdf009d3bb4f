// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Pages from several sources put together.

use crate::bits::{Bits, Shape};
use crate::harvest::Harvest;
use crate::runs::aligned;
use crate::summary::SummaryBitmap;
use std::num::NonZeroUsize;
use std::ops::Range;

/// A bitmap of other pages than the set that is to have its marks: it covers other memory, or the
/// same in pages of another size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the bitmap has {bitmap} pages of {page_size} bytes, the set {set} of {set_page_size}: make the \
     set with the bitmap's `bytes()` and `page_size()`"
)]
#[non_exhaustive]
pub struct OtherPages {
    /// Pages of the bitmap.
    pub bitmap: usize,
    /// Bytes in a page of the bitmap.
    pub page_size: usize,
    /// Pages of the set.
    pub set: usize,
    /// Bytes in a page of the set.
    pub set_page_size: usize,
}

/// A set of pages with the same summary above it, for one thread: where KVM's log, a
/// device's log and the VMM's own marks are merged.
#[derive(Debug)]
pub struct PageSet {
    bits: Bits,
    pages: usize,
    page_size: NonZeroUsize,
    count: usize,
}

impl PageSet {
    /// Empty, for `bytes` of memory in pages of `page_size` bytes, as the bitmaps.
    pub fn new(bytes: usize, page_size: NonZeroUsize) -> Self {
        let pages = bytes.div_ceil(page_size.get());
        Self { bits: Bits::new(Shape::new(pages)), pages, page_size, count: 0 }
    }

    /// Empty, for the pages of a bitmap.
    pub fn like(bitmap: &SummaryBitmap) -> Self {
        Self::new(bitmap.bytes(), bitmap.size().bytes())
    }

    /// Bytes in a page.
    pub fn page_size(&self) -> usize {
        self.page_size.get()
    }

    /// How many pages there can be.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// How many are in it.
    pub fn count(&self) -> usize {
        self.count
    }

    /// None is in it.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a page; true if it was not in it. Pages beyond the end are ignored.
    pub fn insert(&mut self, page: usize) -> bool {
        page < self.pages && self.merge_word(page / 64, 1 << (page % 64)) == 1
    }

    /// Is the page in it?
    pub fn contains(&self, page: usize) -> bool {
        page < self.pages && self.bits.shared().word(page / 64) >> (page % 64) & 1 == 1
    }

    /// Adds the pages of one word; returns how many were not in it.
    pub fn merge_word(&mut self, index: usize, word: u64) -> usize {
        let Some(valid) = index.checked_mul(64).and_then(|first| self.pages.checked_sub(first))
        else {
            return 0;
        };
        let valid = if valid < 64 { (1 << valid) - 1 } else { u64::MAX };
        if word & valid == 0 {
            return 0;
        }
        let new = self.bits.merge_word(index, word & valid) as usize;
        self.count += new;
        new
    }

    /// Adds what is set in `words`, of which the first holds pages `64 * first_word` and
    /// on; returns how many were not in it.
    pub fn merge_words(&mut self, first_word: usize, words: &[u64]) -> usize {
        self.merge_words_at(first_word.saturating_mul(64), words)
    }

    /// Adds what is set in `words`, of which the lowest bit of the first is page `first_page`;
    /// returns how many were not in it.
    pub fn merge_words_at(&mut self, first_page: usize, words: &[u64]) -> usize {
        let count = self.pages.div_ceil(64);
        let numbered = aligned(first_page, words).take_while(|&(i, _)| i < count);
        numbered.map(|(i, word)| self.merge_word(i, word)).sum()
    }

    /// Adds a harvest; returns how many were not in it.
    ///
    /// # Errors
    /// The bitmap has other pages; nothing is added then.
    pub fn merge(&mut self, harvest: &Harvest<'_>) -> Result<usize, OtherPages> {
        self.check(harvest.bitmap_pages(), harvest.page_size())?;
        let mut new = 0;
        harvest.for_each_word(|i, word| new += self.merge_word(i, word));
        Ok(new)
    }

    /// Harvests a bitmap into it; returns how many were not in it.
    ///
    /// # Errors
    /// The bitmap has other pages; it keeps its marks then.
    pub fn harvest(&mut self, bitmap: &SummaryBitmap) -> Result<usize, OtherPages> {
        self.check(bitmap.pages(), bitmap.page_size())?;
        let mut new = 0;
        bitmap.harvest(|i, word| new += self.merge_word(i, word));
        Ok(new)
    }

    fn check(&self, bitmap: usize, page_size: usize) -> Result<(), OtherPages> {
        let (set, set_page_size) = (self.pages, self.page_size());
        let other = OtherPages { bitmap, page_size, set, set_page_size };
        ((bitmap, page_size) == (set, set_page_size)).then_some(()).ok_or(other)
    }

    /// The words that are not 0, with their index, in order.
    pub fn dirty_words(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.bits.dirty_words()
    }

    /// The pages in it, in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.dirty_words().flat_map(|(i, word)| {
            let next = move |left: &u64| Some(left & (left - 1)).filter(|&left| left != 0);
            std::iter::successors(Some(word), next)
                .map(move |left| i * 64 + left.trailing_zeros() as usize)
        })
    }

    /// Calls `f` with each run of pages that follow one another, in order; see
    /// [`Harvest::for_each_run`].
    pub fn for_each_run(&self, mut f: impl FnMut(Range<usize>)) {
        self.bits.for_each_run(&mut f);
    }

    /// As [`Self::for_each_run`], until `f` fails. The set stays as it is.
    ///
    /// # Errors
    /// That of `f`.
    pub fn try_for_each_run<E>(
        &self,
        f: impl FnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.bits.try_for_each_run(f)
    }

    /// Empties it; costs what is in it.
    pub fn clear(&mut self) {
        self.bits.clear();
        self.count = 0;
    }
}

impl Extend<usize> for PageSet {
    fn extend<I: IntoIterator<Item = usize>>(&mut self, pages: I) {
        for page in pages {
            self.insert(page);
        }
    }
}

impl PartialEq for PageSet {
    fn eq(&self, other: &Self) -> bool {
        (self.pages, self.page_size, self.count) == (other.pages, other.page_size, other.count)
            && self.dirty_words().eq(other.dirty_words())
    }
}

impl Eq for PageSet {}
