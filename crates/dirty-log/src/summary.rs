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

use crate::runs::{pages_of, Runs};
use crate::slot::BadPageSize;
use crate::sync::{AtomicU64, Ordering};
use std::ops::Range;

/// A dirty bitmap that is marked and harvested without locks, by safe code.
#[derive(Debug)]
pub struct SummaryBitmap {
    /// Pages; words of those; words of those.
    levels: [Box<[AtomicU64]>; 3],
    pages: usize,
    page_shift: u32,
    bytes: usize,
}

fn words(bits: usize) -> Box<[AtomicU64]> {
    (0..bits.div_ceil(64)).map(|_| AtomicU64::new(0)).collect()
}

impl SummaryBitmap {
    /// All clean, for `bytes` of memory in pages of `page_size` bytes.
    ///
    /// # Errors
    /// The page size is not a power of two.
    pub fn new(bytes: usize, page_size: usize) -> Result<Self, BadPageSize> {
        if !page_size.is_power_of_two() {
            return Err(BadPageSize(page_size));
        }
        let pages = bytes.div_ceil(page_size);
        let bottom = words(pages);
        let middle = words(bottom.len());
        let top = words(middle.len());
        let page_shift = page_size.trailing_zeros();
        Ok(Self { levels: [bottom, middle, top], pages, page_shift, bytes })
    }

    /// How many pages it has.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Bytes of memory it covers.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes in a page.
    pub fn page_size(&self) -> usize {
        1 << self.page_shift
    }

    /// Marks a page. Call it after writing to the page, and before telling anyone that the
    /// write is done. From anywhere, a signal handler too. Pages beyond the end are ignored.
    #[inline]
    pub fn mark(&self, page: usize) {
        if page < self.pages {
            self.mark_word(page / 64, 1 << (page % 64));
        }
    }

    #[inline]
    fn mark_word(&self, index: usize, mask: u64) {
        self.levels[0][index].fetch_or(mask, Ordering::SeqCst);
        self.announce(index);
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

    /// Marks pages.
    pub fn mark_pages(&self, pages: Range<usize>) {
        let pages = pages.start..pages.end.min(self.pages);
        if !pages.is_empty() {
            let words = pages.start / 64..pages.end.div_ceil(64);
            words.for_each(|i| self.mark_word(i, mask(i, &pages)));
        }
    }

    /// Marks the pages of `len` bytes from `offset` on.
    #[inline]
    pub fn mark_bytes(&self, offset: usize, len: usize) {
        let pages = pages_of(offset, len, self.page_shift);
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

    /// Takes what was marked: calls `f` with the index of each word that is not 0, and the
    /// word, in order. Costs what is dirty, and a look at a word for each 262144 pages.
    ///
    /// Each mark is in exactly one harvest: in this one, or one that is under way meanwhile,
    /// if it returned before this began; in a later one if it began after this returned. What
    /// a thread wrote to a page before it marked it is visible once the page is in a harvest.
    #[inline]
    pub fn harvest(&self, mut f: impl FnMut(usize, u64)) {
        for (i, word) in self.levels[2].iter().enumerate() {
            each_bit(take(word), |bit| {
                let i = i * 64 + bit;
                each_bit(take(&self.levels[1][i]), |bit| {
                    let i = i * 64 + bit;
                    // 0 if an earlier harvest came between a mark's bit and its summary.
                    match take(&self.levels[0][i]) {
                        0 => {}
                        word => f(i, word),
                    }
                });
            });
        }
    }

    /// As [`Self::harvest`], with each run of pages that follow one another.
    #[inline]
    pub fn harvest_runs(&self, mut f: impl FnMut(Range<usize>)) {
        let mut runs = Runs::default();
        let mut all = [0; 64];
        for (i, word) in self.levels[2].iter().enumerate() {
            each_bit(take(word), |bit| {
                let i = i * 64 + bit;
                let first = i * 64;
                match take(&self.levels[1][i]) {
                    u64::MAX => {
                        let words = &self.levels[0][first..first + 64];
                        let taken = words.iter().map(|word| word.swap(0, Ordering::SeqCst));
                        all.iter_mut().zip(taken).for_each(|(to, word)| *to = word);
                        runs.add_all(first, &all, &mut f);
                    }
                    word => each_bit(word, |bit| {
                        let i = first + bit;
                        runs.add(i, take(&self.levels[0][i]), &mut f);
                    }),
                }
            });
        }
        runs.end(&mut f);
    }

    /// Nothing was marked since the last harvest.
    #[inline]
    pub fn is_clean(&self) -> bool {
        self.levels[2].iter().all(|word| word.load(Ordering::SeqCst) == 0)
    }

    /// Takes the marks of some pages, as [`Slot::take_range`](crate::Slot::take_range).
    pub fn take_range(&self, pages: Range<usize>, mut f: impl FnMut(Range<usize>)) {
        let pages = pages.start..pages.end.min(self.pages);
        if pages.is_empty() {
            return;
        }
        let mut runs = Runs::default();
        for i in pages.start / 64..pages.end.div_ceil(64) {
            let (word, mask) = (&self.levels[0][i], mask(i, &pages));
            if word.load(Ordering::SeqCst) & mask != 0 {
                runs.add(i, word.fetch_and(!mask, Ordering::SeqCst) & mask, &mut f);
            }
        }
        runs.end(&mut f);
    }

    /// Harvests into a copy of all words, clean ones too.
    pub fn get_and_reset(&self) -> Vec<u64> {
        let mut all = vec![0; self.levels[0].len()];
        self.harvest(|i, word| all[i] = word);
        all
    }

    /// Harvests and forgets.
    pub fn reset(&self) {
        self.harvest(|_, _| {});
    }

    /// Forgets the marks of those pages that have any of these bytes.
    pub fn reset_addr_range(&self, start: usize, len: usize) {
        self.take_range(pages_of(start, len, self.page_shift), drop);
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

#[inline]
fn each_bit(mut word: u64, mut f: impl FnMut(usize)) {
    while word != 0 {
        f(word.trailing_zeros() as usize);
        word &= word - 1;
    }
}

/// Those of a word's 64 pages that are in `pages`.
fn mask(word: usize, pages: &Range<usize>) -> u64 {
    let first = pages.start.saturating_sub(word * 64).min(64) as u32;
    let end = pages.end.saturating_sub(word * 64).min(64) as u32;
    let below = |bit: u32| 1u64.checked_shl(bit).map_or(u64::MAX, |b| b - 1);
    below(end) & !below(first)
}
