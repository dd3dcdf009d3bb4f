// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Words of 64 pages as runs: what a migration sends in one piece.

use std::convert::Infallible;
use std::ops::Range;

/// Words that are looked at together.
const LINE: usize = 8;

/// Makes runs of pages from words of a bitmap that come in order, across their ends. A run costs
/// two instructions to find, however long it is within a word; a word that continues a run costs
/// one comparison. [`SummaryBitmap::harvest_runs`](crate::SummaryBitmap::harvest_runs) and
/// [`PageSet::for_each_run`](crate::PageSet::for_each_run) use it; it is for bitmaps of other kinds.
///
/// A run goes to a callback that may fail, or panic. [`Self::not_taken`] knows it then.
///
/// ```
/// # use dirty_log::Runs;
/// let (mut runs, mut found) = (Runs::default(), Vec::new());
/// let mut f = |run| {
///     found.push(run);
///     Ok::<(), std::convert::Infallible>(())
/// };
/// runs.push_words(0, &[1 << 3 | 1 << 63, 0b11], &mut f)?;
/// runs.push_word(40, 1, &mut f)?;
/// runs.finish(&mut f)?;
/// assert_eq!(found, [3..4, 63..66, 2560..2561]);
/// # Ok::<(), std::convert::Infallible>(())
/// ```
#[derive(Debug, Default)]
pub struct Runs {
    open: Range<usize>,
    /// In the caller's hands.
    handed: Range<usize>,
}

/// A caller who refuses nothing.
#[inline]
pub(crate) fn sure<T>(mut f: impl FnMut(T)) -> impl FnMut(T) -> Result<(), Infallible> {
    move |x| {
        f(x);
        Ok(())
    }
}

/// What comes of it.
#[inline]
pub(crate) fn surely<T>(result: Result<T, Infallible>) -> T {
    match result {
        Ok(value) => value,
    }
}

impl Runs {
    /// Runs that the callback was not told, or did not take.
    #[inline]
    pub fn not_taken(&self) -> [Range<usize>; 2] {
        [self.handed.clone(), self.open.clone()]
    }

    /// Pages of the pushed words that were in no run yet are not below this page.
    #[inline]
    pub fn told_end(&self) -> usize {
        self.open.end.max(self.handed.end)
    }

    /// Adds a word, whose lowest bit is page `64 * index`. Runs that are known to be over go to `f`.
    ///
    /// # Errors
    /// That of `f`.
    #[inline]
    pub fn push_word<E>(
        &mut self,
        index: usize,
        word: u64,
        f: &mut impl FnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        let first = index * 64;
        if word == u64::MAX && self.open.end == first && !self.open.is_empty() {
            self.open.end = first + 64;
            return Ok(());
        }
        let (mut left, mut at) = (word, 0);
        while left != 0 {
            let gap = left.trailing_zeros();
            left >>= gap;
            let ones = left.trailing_ones();
            // A whole word of ones can't be shifted out at once.
            left = left.checked_shr(ones).unwrap_or(0);
            let start = first + (at + gap) as usize;
            at += gap + ones;
            self.join(start..start + ones as usize, f)?;
        }
        Ok(())
    }

    /// Adds words that follow one another, the first of which has this index. Eight words at a time
    /// are looked at together, so full and empty parts cost little.
    ///
    /// # Errors
    /// That of `f`.
    pub fn push_words<E>(
        &mut self,
        first: usize,
        words: &[u64],
        f: &mut impl FnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        let lines = words.chunks_exact(LINE);
        let rest = (first + words.len() - lines.remainder().len(), lines.remainder());
        for (i, line) in lines.enumerate() {
            let at = first + i * LINE;
            if line.iter().fold(u64::MAX, |all, word| all & word) == u64::MAX {
                self.join(at * 64..(at + LINE) * 64, f)?;
            } else if line.iter().fold(0, |any, word| any | word) != 0 {
                self.push_each(at, line, f)?;
            }
        }
        self.push_each(rest.0, rest.1, f)
    }

    #[inline]
    fn push_each<E>(
        &mut self,
        first: usize,
        words: &[u64],
        f: &mut impl FnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut numbered = words.iter().enumerate().filter(|(_, &word)| word != 0);
        numbered.try_for_each(|(i, &word)| self.push_word(first + i, word, f))
    }

    /// A run that does not begin before the open one ends.
    #[inline]
    fn join<E>(
        &mut self,
        run: Range<usize>,
        f: &mut impl FnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        if run.start == self.open.end && !self.open.is_empty() {
            self.open.end = run.end;
            return Ok(());
        }
        let over = std::mem::replace(&mut self.open, run);
        self.hand(over, f)
    }

    #[inline]
    fn hand<E>(
        &mut self,
        run: Range<usize>,
        f: &mut impl FnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        if !run.is_empty() {
            self.handed = run.clone();
            f(run)?;
            self.handed = 0..0;
        }
        Ok(())
    }

    /// There are no more words: the last run goes to `f`.
    ///
    /// # Errors
    /// That of `f`.
    #[inline]
    pub fn finish<E>(
        &mut self,
        f: &mut impl FnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        let last = std::mem::take(&mut self.open);
        self.hand(last, f)
    }
}

/// Words of which the first holds pages from `first_page` on, moved to where words begin, with
/// their indices. None that lies beyond what can be numbered.
pub(crate) fn aligned(first_page: usize, words: &[u64]) -> impl Iterator<Item = (usize, u64)> + '_ {
    let (first, shift) = (first_page / 64, first_page % 64);
    (0..words.len() + usize::from(shift > 0)).map_while(move |i| {
        let low = words.get(i).map_or(0, |word| word << shift);
        let high = if shift > 0 && i > 0 { words[i - 1] >> (64 - shift) } else { 0 };
        Some((first.checked_add(i)?, low | high))
    })
}

/// Those of a word's 64 pages that are in `pages`.
pub(crate) fn mask(word: usize, pages: &Range<usize>) -> u64 {
    let first = pages.start.saturating_sub(word * 64).min(64) as u32;
    let end = pages.end.saturating_sub(word * 64).min(64) as u32;
    let below = |bit: u32| 1u64.checked_shl(bit).map_or(u64::MAX, |b| b - 1);
    below(end) & !below(first)
}

/// Takes the lowest bit out.
#[inline]
pub(crate) fn pop(bits: &mut u64) -> Option<usize> {
    let bit = (*bits != 0).then(|| bits.trailing_zeros() as usize)?;
    *bits &= *bits - 1;
    Some(bit)
}

/// The bits that are set, lowest first.
#[inline]
pub(crate) fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || pop(&mut word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn runs(words: &[(usize, u64)]) -> Vec<Range<usize>> {
        let (mut runs, mut found) = (Runs::default(), Vec::new());
        let mut push = sure(|run| found.push(run));
        words.iter().for_each(|&(i, word)| surely(runs.push_word(i, word, &mut push)));
        surely(runs.finish(&mut push));
        drop(push);
        found
    }

    proptest! {
        #[test]
        fn they_are_the_pages_without_gaps(
            words in proptest::collection::vec(
                prop_oneof![3 => Just(0), 12 => Just(u64::MAX), 1 => any::<u64>(), 1 => (0u32..64).prop_map(|n| u64::MAX << n)],
                0..80,
            ),
        ) {
            let all = words.clone();
            for first in [0, 1, 63, 64, 100, usize::MAX - 70] {
                let pages = |words: &mut dyn Iterator<Item = (usize, u64)>| -> Vec<_> {
                    words.flat_map(|(i, w)| (0..64).filter(move |b| w >> b & 1 == 1)
                        .filter_map(move |b| i.checked_mul(64)?.checked_add(b))).collect()
                };
                let mut plain = words.iter().copied().enumerate();
                let moved = pages(&mut plain).into_iter().filter_map(|page| first.checked_add(page));
                prop_assert_eq!(pages(&mut aligned(first, &words)), moved.collect::<Vec<_>>());
            }
            let words: Vec<(usize, u64)> = words.into_iter().enumerate().collect();
            let bits = |&(i, word): &(usize, u64)| {
                (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| i * 64 + bit)
            };
            let pages: Vec<usize> = words.iter().flat_map(bits).collect();
            let found = runs(&words);
            prop_assert_eq!(found.iter().cloned().flatten().collect::<Vec<_>>(), pages);
            prop_assert!(found.windows(2).all(|pair| pair[0].end < pair[1].start));
            // Words that are 0 need not be told.
            let dirty: Vec<_> = words.into_iter().filter(|&(_, word)| word != 0).collect();
            prop_assert_eq!(&runs(&dirty), &found);
            // Nor need words be told one by one.
            for split in [0, all.len() / 3, all.len()] {
                let (mut runs, mut found_at_once) = (Runs::default(), Vec::new());
                let mut f = sure(|run| found_at_once.push(run));
                surely(runs.push_words(0, &all[..split], &mut f));
                surely(runs.push_words(split, &all[split..], &mut f));
                surely(runs.finish(&mut f));
                drop(f);
                prop_assert_eq!(&found_at_once, &found);
            }
        }
    }
}
