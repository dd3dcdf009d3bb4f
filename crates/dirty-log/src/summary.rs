// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Atomic words with a summary above them, harvested by exchanging words for zeroes. There is no
//! second bitmap, no wait for writers, no thread-local state, no system call and no `unsafe`: a
//! forked child, a signal handler and a process in any seccomp filter may use it as any other.
//!
//! Three levels: a bit for each page; one for each word of those (64 pages); one for each word
//! of those (4096 pages). The top is looked through whole: a word for each GiB of 4 KiB pages.
//!
//! A mark sets its bit and then looks at each level above, from below, and sets what is not
//! set. A harvest exchanges each level for zeroes, from above. All of it is sequentially
//! consistent: a mark that finds a bit of the summary set before a harvest took that bit has
//! set its page's before the harvest comes to it; one that looks after it sets the bit again.
//! It looks at all levels, because the thread that set the lower one may not have come to the
//! upper one yet.
//!
//! A mark sets its page's bit even if that is set already: the locked instruction is what makes
//! the write to the page visible to whoever harvests the bit.

use crate::page_size::PageSize;
use crate::runs::{aligned, mask, pop, sure, surely, Runs};
use crate::sync::{AtomicU64, Ordering};
use std::num::NonZeroUsize;
use std::ops::Range;

/// A dirty bitmap that is marked and harvested without locks, by safe code.
///
/// What vm-memory's `AtomicBitmap` has, this has under the same names. Any number of threads may call
/// every method at once. Pages and bytes beyond the end are ignored, as vm-memory does.
#[derive(Debug)]
pub struct SummaryBitmap {
    /// Pages; words of those; words of those.
    levels: [Box<[AtomicU64]>; 3],
    pages: usize,
    page_size: PageSize,
    bytes: usize,
}

fn words(bits: usize) -> Box<[AtomicU64]> {
    (0..bits.div_ceil(64)).map(|_| AtomicU64::new(0)).collect()
}

impl SummaryBitmap {
    /// All clean, for `bytes` of memory in pages of `page_size` bytes, as `AtomicBitmap::new`. Of a
    /// size that is no power of two each mark by address costs a division.
    pub fn new(bytes: usize, page_size: NonZeroUsize) -> Self {
        let pages = bytes.div_ceil(page_size.get());
        let bottom = words(pages);
        let middle = words(bottom.len());
        let top = words(middle.len());
        let page_size = PageSize::new(page_size);
        Self { levels: [bottom, middle, top], pages, page_size, bytes }
    }

    /// How many pages it has.
    pub fn len(&self) -> usize {
        self.pages
    }

    /// It has no pages. (Whether none is marked, [`Self::is_clean`] says.)
    pub fn is_empty(&self) -> bool {
        self.pages == 0
    }

    /// Bytes of memory it covers.
    pub fn byte_size(&self) -> usize {
        self.bytes
    }

    /// Bytes in a page.
    pub fn page_size(&self) -> usize {
        self.page_size.bytes().get()
    }

    pub(crate) fn nonzero_page_size(&self) -> NonZeroUsize {
        self.page_size.bytes()
    }

    pub(crate) fn pages_of(&self, offset: usize, len: usize) -> Range<usize> {
        self.page_size.pages_of(offset, len)
    }

    /// Marks a page. Call it after writing to the page, and before telling anyone that the
    /// write is done. From anywhere, a signal handler too. Pages beyond the end are ignored.
    #[inline]
    pub fn set_bit(&self, page: usize) {
        if page < self.pages {
            self.mark_word(page / 64, 1 << (page % 64));
        }
    }

    /// Returns those bits that were not set before.
    #[inline]
    fn mark_word(&self, index: usize, mask: u64) -> u64 {
        let before = self.levels[0][index].fetch_or(mask, Ordering::SeqCst);
        self.announce(index);
        mask & !before
    }

    /// A word was marked: the levels above say so.
    #[inline]
    fn announce(&self, mut index: usize) {
        for level in &self.levels[1..] {
            let bit = 1 << (index % 64);
            index /= 64;
            if level[index].load(Ordering::SeqCst) & bit == 0 {
                level[index].fetch_or(bit, Ordering::SeqCst);
            }
        }
    }

    /// Marks pages; returns how many were clean.
    pub fn mark_pages(&self, pages: Range<usize>) -> usize {
        let pages = pages.start..pages.end.min(self.pages);
        if pages.is_empty() {
            return 0;
        }
        let words = pages.start / 64..pages.end.div_ceil(64);
        words.map(|i| self.mark_word(i, mask(i, &pages)).count_ones() as usize).sum()
    }

    /// Marks what is set in `words`, of which the lowest bit of the first is page `first_page`: KVM's
    /// dirty log of a slot that begins at any page of this bitmap, or another source. Pages beyond
    /// the end are ignored. Returns how many pages were clean.
    pub fn mark_words_at(&self, first_page: usize, words: &[u64]) -> usize {
        let (all, count) = (0..self.pages, self.levels[0].len());
        let numbered = aligned(first_page, words).take_while(|&(i, _)| i < count);
        let valid = numbered.map(|(i, word)| (i, word & mask(i, &all)));
        valid
            .filter(|&(_, word)| word != 0)
            .map(|(i, word)| self.mark_word(i, word).count_ones() as usize)
            .sum()
    }

    /// Marks the pages that have any of `len` bytes from `offset` on, as [`Self::set_bit`].
    #[inline]
    pub fn set_addr_range(&self, offset: usize, len: usize) {
        let pages = self.page_size.pages_of(offset, len);
        if pages.len() == 1 {
            self.set_bit(pages.start);
        } else {
            self.mark_pages(pages);
        }
    }

    /// Is the page marked and not yet harvested?
    pub fn is_bit_set(&self, page: usize) -> bool {
        page < self.pages
            && self.levels[0][page / 64].load(Ordering::SeqCst) >> (page % 64) & 1 == 1
    }

    /// Is the page at this byte marked and not yet harvested?
    pub fn is_addr_set(&self, offset: usize) -> bool {
        self.is_bit_set(self.page_size.page_of(offset))
    }

    /// Takes what was marked: calls `f` with the index of each word that is not 0, and the
    /// word, in order. Costs what is dirty, and a look at a word for each 262144 pages.
    ///
    /// Each mark is in exactly one harvest: in this one, or one that is under way meanwhile,
    /// if it returned before this began; in a later one if it began after this returned. What
    /// a thread wrote to a page before it marked it is visible once the page is in a harvest.
    ///
    /// Should `f` panic, the word that it had and all that follow are marked again.
    #[inline]
    pub fn harvest_words(&self, mut f: impl FnMut(usize, u64)) {
        surely(self.try_harvest_words(|i, word| {
            f(i, word);
            Ok(())
        }));
    }

    /// As [`Self::harvest_words`], until `f` fails: the word that it had and all that follow are
    /// marked again when this returns, as they are if it panics. (Harvests that others make
    /// meanwhile have not got them.)
    ///
    /// # Errors
    /// That of `f`.
    #[inline]
    pub fn try_harvest_words<E>(
        &self,
        mut f: impl FnMut(usize, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut held = Held::<1>::new(self);
        for (i, word) in self.levels[2].iter().enumerate() {
            held.top = (i, take(word));
            while held.next_middle() {
                while let Some(i) = held.next_word() {
                    // 0 if an earlier harvest came between a mark's bit and its summary.
                    let word = take(&self.levels[0][i]);
                    if word != 0 {
                        held.hold(i, word);
                        f(i, word)?;
                        held.count = 0;
                    }
                }
            }
        }
        Ok(())
    }

    /// As [`Self::harvest_words`], with each run of pages that follow one another.
    #[inline]
    pub fn harvest_runs(&self, f: impl FnMut(Range<usize>)) {
        surely(self.try_harvest_runs(sure(f)));
    }

    /// As [`Self::harvest_runs`], until `f` fails: the run that it had and all that follow are
    /// marked again when this returns, as they are if it panics. (Harvests that others make
    /// meanwhile have not got them.)
    ///
    /// ```
    /// # use dirty_log::SummaryBitmap;
    /// let log = SummaryBitmap::new(1 << 30, 4096.try_into()?);
    /// [3, 4, 700, 9000].into_iter().for_each(|page| log.set_bit(page));
    /// // What does not fit any more is sent another time.
    /// let mut room = 2;
    /// let full = log.try_harvest_runs(|run| {
    ///     room = usize::checked_sub(room, run.len()).ok_or("full")?;
    ///     Ok(())
    /// });
    /// assert_eq!(full, Err("full"));
    /// let mut left = Vec::new();
    /// log.harvest_runs(|run| left.push(run));
    /// assert_eq!(left, [700..701, 9000..9001]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// That of `f`.
    #[inline]
    pub fn try_harvest_runs<E>(
        &self,
        mut f: impl FnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut held = Held::<64>::new(self);
        for (i, word) in self.levels[2].iter().enumerate() {
            held.top = (i, take(word));
            while held.next_middle() {
                if held.middle.1 == u64::MAX {
                    held.hold_all();
                    held.runs.push_words(held.first, &held.words, &mut f)?;
                    held.count = 0;
                }
                while let Some(i) = held.next_word() {
                    let word = take(&self.levels[0][i]);
                    held.hold(i, word);
                    held.runs.push_word(i, word, &mut f)?;
                    held.count = 0;
                }
            }
        }
        held.runs.finish(&mut f)
    }

    /// Nothing was marked since the last harvest.
    #[inline]
    pub fn is_clean(&self) -> bool {
        self.levels[2].iter().all(|word| word.load(Ordering::SeqCst) == 0)
    }

    /// Takes the marks of some pages: calls `f` with each run of those that were marked, in order,
    /// which are marked no more. Returns how many there were. Each mark is in exactly one harvest or
    /// one such range. Read the pages from `f` on.
    ///
    /// It is for a part that is sent now, when the rest is not. Unlike a harvest it visits every word
    /// of the range.
    ///
    /// Should `f` panic, the run that it had and all that follow are marked again.
    pub fn take_range(&self, pages: Range<usize>, f: impl FnMut(Range<usize>)) -> usize {
        surely(self.try_take_range(pages, sure(f)))
    }

    /// As [`Self::take_range`], until `f` fails: the run that it had and all that follow are
    /// marked again, as they are if it panics.
    ///
    /// # Errors
    /// That of `f`.
    pub fn try_take_range<E>(
        &self,
        pages: Range<usize>,
        mut f: impl FnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<usize, E> {
        let pages = pages.start..pages.end.min(self.pages);
        if pages.is_empty() {
            return Ok(0);
        }
        let (mut held, mut count) = (Held::<1>::new(self), 0);
        for i in pages.start / 64..pages.end.div_ceil(64) {
            let (word, mask) = (&self.levels[0][i], mask(i, &pages));
            if word.load(Ordering::SeqCst) & mask != 0 {
                let word = word.fetch_and(!mask, Ordering::SeqCst) & mask;
                count += word.count_ones() as usize;
                held.hold(i, word);
                held.runs.push_word(i, word, &mut f)?;
                held.count = 0;
            }
        }
        held.runs.finish(&mut f)?;
        Ok(count)
    }

    /// The words as they are, without harvesting: what is marked stays marked.
    pub fn snapshot(&self) -> Vec<u64> {
        self.levels[0].iter().map(|word| word.load(Ordering::SeqCst)).collect()
    }
}

/// What a harvest has taken and nobody has yet: marked again when it is dropped.
struct Held<'a, const WORDS: usize> {
    log: &'a SummaryBitmap,
    /// A word of the top level, and of its bits those that are still to be looked below.
    top: (usize, u64),
    /// The same of the middle one.
    middle: (usize, u64),
    /// Words of pages that are being told, and the index of the first.
    first: usize,
    words: [u64; WORDS],
    count: usize,
    runs: Runs,
}

impl<'a, const WORDS: usize> Held<'a, WORDS> {
    #[inline]
    fn new(log: &'a SummaryBitmap) -> Self {
        let (words, runs) = ([0; WORDS], Runs::default());
        Self { log, top: (0, 0), middle: (0, 0), first: 0, words, count: 0, runs }
    }

    /// Takes the next word of the middle level that this one of the top tells of.
    #[inline]
    fn next_middle(&mut self) -> bool {
        let Some(bit) = pop(&mut self.top.1) else { return false };
        let i = self.top.0 * 64 + bit;
        self.middle = (i, take(&self.log.levels[1][i]));
        true
    }

    /// The index of the next word of pages.
    #[inline]
    fn next_word(&mut self) -> Option<usize> {
        Some(self.middle.0 * 64 + pop(&mut self.middle.1)?)
    }

    /// A word was taken.
    #[inline]
    fn hold(&mut self, i: usize, word: u64) {
        (self.first, self.words[0], self.count) = (i, word, 1);
    }

    /// Takes all words that the one of the middle level tells of.
    fn hold_all(&mut self) {
        self.first = self.middle.0 * 64;
        let words = &self.log.levels[0][self.first..self.first + WORDS];
        let taken = words.iter().map(|word| word.swap(0, Ordering::SeqCst));
        self.words.iter_mut().zip(taken).for_each(|(to, word)| *to = word);
        (self.middle.1, self.count) = (0, WORDS);
    }

    /// From below, so that who finds a bit of the summary finds what it tells of.
    #[cold]
    fn mark_again(&self) {
        for run in self.runs.not_taken() {
            self.log.mark_pages(run);
        }
        let left = self.runs.told_end()..usize::MAX;
        for (i, word) in (self.first..).zip(&self.words[..self.count]) {
            self.log.mark_word(i, word & mask(i, &left));
        }
        let (middle, bits) = self.middle;
        if bits != 0 {
            self.log.levels[1][middle].fetch_or(bits, Ordering::SeqCst);
            self.log.levels[2][middle / 64].fetch_or(1 << (middle % 64), Ordering::SeqCst);
        }
        let (top, bits) = self.top;
        if bits != 0 {
            self.log.levels[2][top].fetch_or(bits, Ordering::SeqCst);
        }
    }
}

impl<const WORDS: usize> Drop for Held<'_, WORDS> {
    #[inline]
    fn drop(&mut self) {
        let told = self.runs.not_taken().iter().all(Range::is_empty);
        if !told || self.count != 0 || self.middle.1 | self.top.1 != 0 {
            self.mark_again();
        }
    }
}

/// A word that is 0 is only looked at, which takes its cache line from nobody.
#[inline]
fn take(word: &AtomicU64) -> u64 {
    match word.load(Ordering::SeqCst) {
        0 => 0,
        _ => word.swap(0, Ordering::SeqCst),
    }
}
