//! Words of 64 pages as runs: what a migration sends in one piece.

use std::ops::Range;

/// Makes runs of words that come in order, across their ends. A run costs two instructions
/// to find, however long it is within a word; a word that continues a run costs one
/// comparison.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    open: Range<usize>,
}

impl Runs {
    /// Adds a word; runs that are known to be over go to `f`.
    #[inline]
    pub(crate) fn add(&mut self, index: usize, word: u64, f: &mut impl FnMut(Range<usize>)) {
        let first = index * 64;
        if word == u64::MAX && self.open.end == first && !self.open.is_empty() {
            self.open.end = first + 64;
            return;
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
            self.join(start..start + ones as usize, f);
        }
    }

    /// A run that does not begin before the open one ends.
    #[inline]
    fn join(&mut self, run: Range<usize>, f: &mut impl FnMut(Range<usize>)) {
        if run.start == self.open.end {
            self.open.end = run.end;
        } else {
            let over = std::mem::replace(&mut self.open, run);
            if !over.is_empty() {
                f(over);
            }
        }
    }

    /// There are no more words.
    #[inline]
    pub(crate) fn end(self, f: &mut impl FnMut(Range<usize>)) {
        if !self.open.is_empty() {
            f(self.open);
        }
    }
}

/// The pages that have any of `len` bytes from `offset` on; none for no bytes.
#[inline]
pub(crate) fn pages_of(offset: usize, len: usize, page_shift: u32) -> Range<usize> {
    if len == 0 {
        return 0..0;
    }
    let last = offset.saturating_add(len - 1) >> page_shift;
    offset >> page_shift..last.saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn runs(words: &[(usize, u64)]) -> Vec<Range<usize>> {
        let (mut runs, mut found) = (Runs::default(), Vec::new());
        words.iter().for_each(|&(i, word)| runs.add(i, word, &mut |run| found.push(run)));
        runs.end(&mut |run| found.push(run));
        found
    }

    proptest! {
        #[test]
        fn they_are_the_pages_without_gaps(
            words in proptest::collection::vec(
                prop_oneof![Just(0), Just(u64::MAX), any::<u64>(), (0u32..64).prop_map(|n| u64::MAX << n)],
                0..20,
            ),
        ) {
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
            prop_assert_eq!(runs(&dirty), found);
        }
    }
}
