// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What a harvest found.

use crate::bits::Bits;
use crate::slot::{Locked, Slot};
use crate::sync::plain;
use crate::words::{mask, sure, surely};
use dirty_log::Runs;
use std::fmt;
use std::ops::Range;

/// The pages that were dirty. Forgotten when dropped, unless [retained](Self::retain); dropped
/// by a panic, all of them are marked again, as nobody knows which were looked at.
///
/// While it lives, the next harvest of the same slot waits, and marks do not; unless it is
/// from `get_org`, or a clean one from `switch_opt`: those hold nothing. Where the next one
/// would wait, it panics if it is of the same thread, which would wait for itself.
#[must_use = "what it holds is no longer marked"]
pub struct Harvest<'a> {
    slot: &'a Slot,
    content: Content<'a>,
}

enum Content<'a> {
    Clean,
    Owned(Vec<u64>),
    /// In the buffers' `out`, which is all zero.
    Zeroes(Locked<'a>),
    /// In the buffers' `out`.
    Copied(Locked<'a>),
    /// In the buffers' `spare`, which nobody else has access to until this is dropped.
    Retired(Locked<'a>),
}

impl<'a> Harvest<'a> {
    #[inline]
    pub(crate) fn clean(slot: &'a Slot) -> Self {
        Self { slot, content: Content::Clean }
    }

    pub(crate) fn owned(slot: &'a Slot, words: Vec<u64>) -> Self {
        Self { slot, content: Content::Owned(words) }
    }

    pub(crate) fn zeroes(slot: &'a Slot, buffers: Locked<'a>) -> Self {
        Self { slot, content: Content::Zeroes(buffers) }
    }

    pub(crate) fn copied(slot: &'a Slot, buffers: Locked<'a>) -> Self {
        Self { slot, content: Content::Copied(buffers) }
    }

    pub(crate) fn retired(slot: &'a Slot, buffers: Locked<'a>) -> Self {
        Self { slot, content: Content::Retired(buffers) }
    }

    fn bits(&self) -> Option<&Bits> {
        match &self.content {
            Content::Retired(buffers) => buffers.spare.as_ref(),
            _ => None,
        }
    }

    /// All words of the slot, clean ones too, lowest page in the lowest bit; none at all
    /// if `switch_opt` found the slot clean: there is no bitmap to lend then.
    pub fn words(&self) -> &[u64] {
        match &self.content {
            Content::Clean => &[],
            Content::Owned(words) => words,
            Content::Copied(buffers) | Content::Zeroes(buffers) => &buffers.out,
            Content::Retired(_) => plain(self.bits().map_or(&[], Bits::words)),
        }
    }

    /// Calls `f` with the index of each word that is not 0, and the word, in order.
    #[inline]
    pub fn for_each_word(&self, mut f: impl FnMut(usize, u64)) {
        if self.is_known_clean() {
            return;
        }
        if let Some(bits) = self.bits() {
            return bits.for_each_dirty_word(f);
        }
        let numbered = self.words().iter().enumerate();
        numbered.filter(|(_, &word)| word != 0).for_each(|(i, &word)| f(i, word));
    }

    /// Calls `f` with each dirty page, in order.
    #[inline]
    pub fn for_each_page(&self, mut f: impl FnMut(usize)) {
        self.for_each_word(|i, word| {
            let mut left = word;
            while left != 0 {
                f(i * 64 + left.trailing_zeros() as usize);
                left &= left - 1;
            }
        });
    }

    /// Calls `f` with each run of dirty pages that follow one another, in order: what a
    /// migration sends in one piece. Costs the words that are dirty and the runs, not the
    /// pages.
    #[inline]
    pub fn for_each_run(&self, f: impl FnMut(Range<usize>)) {
        if self.is_known_clean() {
            return;
        }
        if let Some(bits) = self.bits() {
            return bits.for_each_run(f);
        }
        let (mut runs, mut f) = (Runs::default(), sure(f));
        surely(runs.push_words(0, self.words(), &mut f));
        surely(runs.finish(&mut f));
    }

    /// As [`Self::for_each_run`], and gives the bitmap back: it is cleared on the way, where
    /// dropping the harvest after a look at its runs goes through it a second time. Of a slot
    /// of hundreds of GiB it is memory that takes the time.
    ///
    /// Should `f` panic, the run that it had and all that follow are marked again.
    #[inline]
    pub fn into_runs(self, f: impl FnMut(Range<usize>)) {
        surely(self.try_into_runs(sure(f)));
    }

    /// As [`Self::into_runs`], until `f` fails: the run that it had and all that follow are
    /// marked again, as they are if it panics.
    ///
    /// # Errors
    /// That of `f`.
    pub fn try_into_runs<E>(
        self,
        mut f: impl FnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.is_known_clean() {
            return Ok(());
        }
        let mut consumed = Consumed { harvest: self, runs: Runs::default(), all: false };
        let Consumed { harvest, runs, .. } = &mut consumed;
        match &mut harvest.content {
            Content::Retired(buffers) => {
                if let Some(bits) = &mut buffers.spare {
                    bits.drain_runs(runs, f)?;
                }
            }
            _ => {
                runs.push_words(0, harvest.words(), &mut f)?;
                runs.finish(&mut f)?;
            }
        }
        consumed.all = true;
        Ok(())
    }

    /// Nobody has to look at its words.
    #[inline]
    fn is_known_clean(&self) -> bool {
        matches!(self.content, Content::Clean | Content::Zeroes(_))
    }

    /// The words that are not 0, with their index, in order.
    pub fn dirty_words(&self) -> Box<dyn Iterator<Item = (usize, u64)> + '_> {
        match self.bits() {
            _ if self.is_known_clean() => Box::new(std::iter::empty()),
            Some(bits) => Box::new(bits.dirty_words()),
            None => {
                let numbered = self.words().iter().copied().enumerate();
                Box::new(numbered.filter(|&(_, word)| word != 0))
            }
        }
    }

    /// The dirty pages, in order.
    pub fn pages(&self) -> impl Iterator<Item = usize> + '_ {
        self.dirty_words().flat_map(|(i, word)| {
            let next = move |left: &u64| Some(left & (left - 1)).filter(|&left| left != 0);
            std::iter::successors(Some(word), next)
                .map(move |left| i * 64 + left.trailing_zeros() as usize)
        })
    }

    /// How many pages are dirty.
    pub fn count(&self) -> usize {
        let mut count = 0;
        self.for_each_word(|_, word| count += word.count_ones() as usize);
        count
    }

    /// Is this page among them?
    pub fn contains(&self, page: usize) -> bool {
        let word = self.words().get(page / 64).copied().unwrap_or(0);
        page < self.slot.pages() && word >> (page % 64) & 1 == 1
    }

    /// No page is dirty.
    pub fn is_clean(&self) -> bool {
        self.dirty_words().next().is_none()
    }

    /// Marks those pages again for which `keep` is true: what could not be sent stays
    /// dirty. Returns how many.
    pub fn retain(self, mut keep: impl FnMut(usize) -> bool) -> usize {
        let mut kept = 0;
        self.for_each_word(|i, word| {
            let mut mask = 0;
            let mut left = word;
            while left != 0 {
                let bit = left & left.wrapping_neg();
                if keep(i * 64 + bit.trailing_zeros() as usize) {
                    mask |= bit;
                }
                left ^= bit;
            }
            if mask != 0 {
                self.slot.mark_words(i, &[mask]);
                kept += mask.count_ones() as usize;
            }
        });
        kept
    }
}

impl Harvest<'_> {
    /// Marks those pages again that are not below `first`.
    #[cold]
    fn mark_again(&self, first: usize) {
        let pages = first..usize::MAX;
        self.for_each_word(|i, word| {
            self.slot.mark_words(i, &[word & mask(i, &pages)]);
        });
    }
}

/// A harvest that a caller consumes run by run.
struct Consumed<'a> {
    harvest: Harvest<'a>,
    runs: Runs,
    all: bool,
}

impl Drop for Consumed<'_> {
    fn drop(&mut self) {
        if self.all {
            return;
        }
        for run in self.runs.not_taken() {
            self.harvest.slot.mark_pages(run);
        }
        self.harvest.mark_again(self.runs.told_end());
        // Else it is marked whole if this is a panic.
        self.harvest.forget();
    }
}

impl Harvest<'_> {
    fn forget(&mut self) {
        if let Content::Retired(buffers) = &mut self.content {
            if let Some(bits) = &mut buffers.spare {
                bits.clear();
            }
        }
        self.content = Content::Clean;
    }
}

impl Drop for Harvest<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.is_known_clean() {
            return;
        }
        if std::thread::panicking() {
            self.mark_again(0);
        }
        self.forget();
    }
}

impl fmt::Debug for Harvest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Harvest").field("dirty_pages", &self.count()).finish_non_exhaustive()
    }
}
