//! Pages from several sources put together.

use crate::bits::{Bits, Shape};
use crate::harvest::Harvest;
use std::ops::Range;

/// A set of pages with the same summary above it, for one thread: where KVM's log, a
/// device's log and the VMM's own marks are merged.
#[derive(Debug)]
pub struct PageSet {
    bits: Bits,
    pages: usize,
    count: usize,
}

impl PageSet {
    /// Empty, for pages `0..pages`.
    pub fn new(pages: usize) -> Self {
        Self { bits: Bits::new(Shape::new(pages)), pages, count: 0 }
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
        let numbered = (first_word..).zip(words);
        numbered.map(|(i, &word)| self.merge_word(i, word)).sum()
    }

    /// Adds a harvest; returns how many were not in it.
    pub fn merge(&mut self, harvest: &Harvest<'_>) -> usize {
        let mut new = 0;
        harvest.for_each_word(|i, word| new += self.merge_word(i, word));
        new
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
        self.count == other.count && self.dirty_words().eq(other.dirty_words())
    }
}

impl Eq for PageSet {}
