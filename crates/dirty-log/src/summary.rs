// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The simple way: atomic words with a summary above them, harvested by exchanging words for
//! zeroes. No second bitmap, no wait for writers, nothing of a thread's own, no system call,
//! and no `unsafe`: a fork's child, a signal handler and a process in any seccomp filter may
//! use it as any other.
//!
//! Three levels: a bit for each page; one for each word of those (64 pages); one for each word
//! of those (4096 pages). The top is looked through whole: a word for each GiB of 4 KiB pages.
//!
//! A mark sets its bit and then looks at each level above, from below, and sets what is not
//! set. A harvest exchanges each level for zeroes, from above. All of it is sequentially
//! consistent: a mark that finds a bit of the summary set before a harvest took that bit has
//! set its page's before the harvest comes to it; one that looks after it sets the bit again.
//! It looks at all levels, as who set the lower one may not have come to the upper one.
//!
//! A mark sets its page's bit even if that is set, where a switched bitmap's only looks: the
//! locked instruction is what makes visible, to who harvests the page, what was written to it.

use crate::runs::{aligned, sure, surely, PageSize, Runs};
use crate::sync::{AtomicU64, Ordering};
use std::num::NonZeroUsize;
use std::ops::Range;

/// A dirty bitmap that is marked and harvested without locks, by safe code.
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
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Words of 64 pages that it takes.
    pub fn word_count(&self) -> usize {
        self.levels[0].len()
    }

    /// Bytes of memory it covers.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes in a page.
    pub fn page_size(&self) -> usize {
        self.page_size.bytes().get()
    }

    pub(crate) fn size(&self) -> PageSize {
        self.page_size
    }

    /// Marks a page. Call it after writing to the page, and before telling anyone that the
    /// write is done. From anywhere, a signal handler too. Pages beyond the end are ignored.
    #[inline]
    pub fn mark(&self, page: usize) {
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

    /// Marks what is set in `words`, of which the first holds pages `64 * first_word` and
    /// on, lowest bit first: KVM's dirty log, or any other source. Returns how many pages
    /// were clean.
    pub fn mark_words(&self, first_word: usize, words: &[u64]) -> usize {
        self.mark_words_at(first_word.saturating_mul(64), words)
    }

    /// Marks what is set in `words`, of which the lowest bit of the first is page `first_page`: a log
    /// that begins in the middle of this bitmap, at any page. Returns how many pages were clean.
    pub fn mark_words_at(&self, first_page: usize, words: &[u64]) -> usize {
        let (all, count) = (0..self.pages, self.levels[0].len());
        let numbered = aligned(first_page, words).take_while(|&(i, _)| i < count);
        let valid = numbered.map(|(i, word)| (i, word & mask(i, &all)));
        valid
            .filter(|&(_, word)| word != 0)
            .map(|(i, word)| self.mark_word(i, word).count_ones() as usize)
            .sum()
    }

    /// Marks the pages of `len` bytes from `offset` on.
    #[inline]
    pub fn mark_bytes(&self, offset: usize, len: usize) {
        let pages = self.page_size.pages_of(offset, len);
        if pages.len() == 1 {
            self.mark(pages.start);
        } else {
            self.mark_pages(pages);
        }
    }

    /// Is the page marked and not yet harvested?
    pub fn is_marked(&self, page: usize) -> bool {
        page < self.pages
            && self.levels[0][page / 64].load(Ordering::SeqCst) >> (page % 64) & 1 == 1
    }

    /// Is the page at this byte marked and not yet harvested?
    pub fn is_marked_at(&self, offset: usize) -> bool {
        self.is_marked(self.page_size.page_of(offset))
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
    pub fn harvest(&self, mut f: impl FnMut(usize, u64)) {
        surely(self.try_harvest(|i, word| {
            f(i, word);
            Ok(())
        }));
    }

    /// As [`Self::harvest`], until `f` fails: the word that it had and all that follow are
    /// marked again when this returns, as they are if it panics. (Harvests that others make
    /// meanwhile have not got them.)
    ///
    /// # Errors
    /// That of `f`.
    #[inline]
    pub fn try_harvest<E>(&self, mut f: impl FnMut(usize, u64) -> Result<(), E>) -> Result<(), E> {
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

    /// As [`Self::harvest`], with each run of pages that follow one another.
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
    /// [3, 4, 700, 9000].into_iter().for_each(|page| log.mark(page));
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
                    held.runs.add_all(held.first, &held.words, &mut f)?;
                    held.count = 0;
                }
                while let Some(i) = held.next_word() {
                    let word = take(&self.levels[0][i]);
                    held.hold(i, word);
                    held.runs.add(i, word, &mut f)?;
                    held.count = 0;
                }
            }
        }
        held.runs.end(&mut f)
    }

    /// Nothing was marked since the last harvest.
    #[inline]
    pub fn is_clean(&self) -> bool {
        self.levels[2].iter().all(|word| word.load(Ordering::SeqCst) == 0)
    }

    /// Takes the marks of some pages, as [`Slot::take_range`](crate::Slot::take_range); returns
    /// how many there were.
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
                held.runs.add(i, word, &mut f)?;
                held.count = 0;
            }
        }
        held.runs.end(&mut f)?;
        Ok(count)
    }

    /// Forgets the marks of some pages; returns how many there were. Read the pages after this
    /// returns, and whatever is written later is marked again.
    pub fn clear_pages(&self, pages: Range<usize>) -> usize {
        self.take_range(pages, drop)
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

/// The lowest bit, taken out.
#[inline]
fn pop(bits: &mut u64) -> Option<usize> {
    let bit = (*bits != 0).then(|| bits.trailing_zeros() as usize)?;
    *bits &= *bits - 1;
    Some(bit)
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
        for run in self.runs.left() {
            self.log.mark_pages(run);
        }
        let left = self.runs.end_of_told()..usize::MAX;
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
        let told = self.runs.left().iter().all(Range::is_empty);
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

/// Those of a word's 64 pages that are in `pages`.
fn mask(word: usize, pages: &Range<usize>) -> u64 {
    let first = pages.start.saturating_sub(word * 64).min(64) as u32;
    let end = pages.end.saturating_sub(word * 64).min(64) as u32;
    let below = |bit: u32| 1u64.checked_shl(bit).map_or(u64::MAX, |b| b - 1);
    below(end) & !below(first)
}
