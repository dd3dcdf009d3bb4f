// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Words of 64 pages as runs: what a migration sends in one piece.

use std::convert::Infallible;
use std::num::NonZeroUsize;
use std::ops::Range;

/// Words that are looked at together.
const LINE: usize = 8;

/// Makes runs of words that come in order, across their ends. A run costs two instructions
/// to find, however long it is within a word; a word that continues a run costs one
/// comparison.
///
/// A run goes to a caller who may refuse it, or panic. What it is then is still
/// [known](Self::left).
#[derive(Debug, Default)]
pub(crate) struct Runs {
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
    /// Those that the caller was not told, or did not take.
    #[inline]
    pub(crate) fn left(&self) -> [Range<usize>; 2] {
        [self.handed.clone(), self.open.clone()]
    }

    /// Pages of words that were added are beyond this, if they were in no run yet.
    #[inline]
    pub(crate) fn end_of_told(&self) -> usize {
        self.open.end.max(self.handed.end)
    }

    /// Adds a word; runs that are known to be over go to `f`.
    #[inline]
    pub(crate) fn add<E>(
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

    /// Adds words that follow one another, the first of which has this index. Whole lines of
    /// them that are full or empty are found at once.
    pub(crate) fn add_all<E>(
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
                self.add_each(at, line, f)?;
            }
        }
        self.add_each(rest.0, rest.1, f)
    }

    #[inline]
    fn add_each<E>(
        &mut self,
        first: usize,
        words: &[u64],
        f: &mut impl FnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut numbered = words.iter().enumerate().filter(|(_, &word)| word != 0);
        numbered.try_for_each(|(i, &word)| self.add(first + i, word, f))
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

    /// There are no more words.
    #[inline]
    pub(crate) fn end<E>(
        &mut self,
        f: &mut impl FnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        let last = std::mem::take(&mut self.open);
        self.hand(last, f)
    }
}

/// The bytes of a page. Where they are a power of two, which page a byte is in costs a shift, else
/// a division.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn runs(words: &[(usize, u64)]) -> Vec<Range<usize>> {
        let (mut runs, mut found) = (Runs::default(), Vec::new());
        let mut push = sure(|run| found.push(run));
        words.iter().for_each(|&(i, word)| surely(runs.add(i, word, &mut push)));
        surely(runs.end(&mut push));
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
                surely(runs.add_all(0, &all[..split], &mut f));
                surely(runs.add_all(split, &all[split..], &mut f));
                surely(runs.end(&mut f));
                drop(f);
                prop_assert_eq!(&found_at_once, &found);
            }
        }
    }
}
