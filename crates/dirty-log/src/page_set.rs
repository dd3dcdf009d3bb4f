// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Pages from several sources put together.

use crate::page_size::host_page_size;
use crate::runs::{aligned, bits, mask, sure, surely, Runs};
use crate::summary::SummaryBitmap;
use std::num::NonZeroUsize;
use std::ops::Range;

/// A bitmap of other pages than the set that is to have its marks: it covers other memory, or the
/// same in pages of another size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the bitmap has {bitmap} pages of {page_size} bytes, but the set has {set} pages of \
     {set_page_size} bytes: create the set from the bitmap with `PageSet::like`"
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

/// A set of pages for one thread: where KVM's log, a device's log and the VMM's own marks are
/// merged. As [`SummaryBitmap`] it has a summary, so a set of few pages is read and cleared fast.
#[derive(Debug, Clone)]
pub struct PageSet {
    /// Pages; words of those; words of those.
    levels: [Vec<u64>; 3],
    pages: usize,
    page_size: NonZeroUsize,
    count: usize,
}

impl PageSet {
    /// Empty, for `bytes` of memory in pages of `page_size` bytes.
    pub fn new(bytes: usize, page_size: NonZeroUsize) -> Self {
        let pages = bytes.div_ceil(page_size.get());
        let words = |bits: usize| vec![0; bits.div_ceil(64)];
        let bottom = words(pages);
        let middle = words(bottom.len());
        let top = words(middle.len());
        Self { levels: [bottom, middle, top], pages, page_size, count: 0 }
    }

    /// Empty, for `bytes` of memory in pages of the host's size, as KVM counts them.
    pub fn with_len(bytes: usize) -> Self {
        Self::new(bytes, host_page_size())
    }

    /// Empty, for the pages of a bitmap.
    pub fn like(bitmap: &SummaryBitmap) -> Self {
        Self::new(bitmap.byte_size(), bitmap.nonzero_page_size())
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
        page < self.pages && self.levels[0][page / 64] >> (page % 64) & 1 == 1
    }

    /// Adds what is set in `words`, of which the lowest bit of the first is page `first_page`: KVM's
    /// log of a slot, or of a part. Pages beyond the end are ignored. Returns how many were not in
    /// it.
    pub fn merge_words_at(&mut self, first_page: usize, words: &[u64]) -> usize {
        let (all, count) = (0..self.pages, self.levels[0].len());
        let numbered = aligned(first_page, words).take_while(|&(i, _)| i < count);
        numbered.map(|(i, word)| self.merge_word(i, word & mask(i, &all))).sum()
    }

    /// Adds pages of one word, all of which there are; returns how many were not in it.
    fn merge_word(&mut self, mut index: usize, word: u64) -> usize {
        let before = self.levels[0][index];
        let new = (word & !before).count_ones() as usize;
        self.count += new;
        self.levels[0][index] = before | word;
        if before == 0 && word != 0 {
            for level in &mut self.levels[1..] {
                let bit = 1 << (index % 64);
                index /= 64;
                level[index] |= bit;
            }
        }
        new
    }

    /// Harvests a bitmap into it; returns how many pages were not in it.
    ///
    /// # Errors
    /// The bitmap has other pages. It keeps its marks then.
    pub fn harvest(&mut self, bitmap: &SummaryBitmap) -> Result<usize, OtherPages> {
        let other = OtherPages {
            bitmap: bitmap.len(),
            page_size: bitmap.page_size(),
            set: self.pages,
            set_page_size: self.page_size(),
        };
        if (other.bitmap, other.page_size) != (other.set, other.set_page_size) {
            return Err(other);
        }
        let mut new = 0;
        bitmap.harvest_words(|i, word| new += self.merge_word(i, word));
        Ok(new)
    }

    /// Words of the middle level that are not 0, with their index.
    fn middle(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let [_, middle, top] = &self.levels;
        let indices =
            top.iter().enumerate().flat_map(|(i, &word)| bits(word).map(move |b| i * 64 + b));
        indices.map(|i| (i, middle[i]))
    }

    /// The words that are not 0, with their index, in order.
    pub fn dirty_words(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let indices = self.middle().flat_map(|(i, word)| bits(word).map(move |b| i * 64 + b));
        indices.map(|i| (i, self.levels[0][i]))
    }

    /// The pages in it, in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.dirty_words().flat_map(|(i, word)| bits(word).map(move |b| i * 64 + b))
    }

    /// Calls `f` with each run of pages that follow one another, in order.
    pub fn for_each_run(&self, f: impl FnMut(Range<usize>)) {
        surely(self.try_for_each_run(sure(f)));
    }

    /// As [`Self::for_each_run`], until `f` fails. The set stays as it is.
    ///
    /// # Errors
    /// That of `f`.
    pub fn try_for_each_run<E>(
        &self,
        mut f: impl FnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut runs = Runs::default();
        for (i, words) in self.middle() {
            if words == u64::MAX {
                runs.push_words(i * 64, &self.levels[0][i * 64..(i + 1) * 64], &mut f)?;
            } else {
                let mut indices = bits(words).map(|b| i * 64 + b);
                indices.try_for_each(|i| runs.push_word(i, self.levels[0][i], &mut f))?;
            }
        }
        runs.finish(&mut f)
    }

    /// Empties it; costs what is in it.
    pub fn clear(&mut self) {
        let [bottom, middle, top] = &mut self.levels;
        for (i, word) in top.iter_mut().enumerate() {
            for i in bits(std::mem::take(word)).map(|b| i * 64 + b) {
                bits(std::mem::take(&mut middle[i])).for_each(|b| bottom[i * 64 + b] = 0);
            }
        }
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
