// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Sets of pages: against a model, as the place where sources meet, and beside bitmaps of other pages.

use dirty_log::{host_page_size, PageSet, SummaryBitmap};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::num::NonZeroUsize;

const PAGE: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

fn set(pages: usize) -> PageSet {
    PageSet::new(pages * PAGE.get(), PAGE)
}

fn bitmap(pages: usize) -> SummaryBitmap {
    SummaryBitmap::new(pages * PAGE.get(), PAGE)
}

fn runs(set: &PageSet) -> Vec<std::ops::Range<usize>> {
    let mut runs = Vec::new();
    set.for_each_run(|run| runs.push(run));
    runs
}

#[test]
fn sources_are_merged() {
    // KVM's log comes as words; the VMM's own writes are marks.
    let kvm = [1 << 3 | 1 << 9, 0, 1 << 63, u64::MAX];
    let log = bitmap(200);
    log.set_bit(9);
    let mut set = set(200);
    assert_eq!(set.merge_words_at(0, &kvm), 11);
    assert_eq!(set.harvest(&log), Ok(0));
    set.extend([150, 9, 200]);
    assert_eq!((set.count(), set.contains(150), set.contains(200)), (12, true, false));
    log.set_bit(9);
    assert_eq!(log.mark_words_at(0, &kvm), 10);
    log.set_bit(150);
    let mut harvested = Vec::new();
    log.harvest_runs(|run| harvested.extend(run));
    assert_eq!(harvested, set.iter().collect::<Vec<_>>());
    // A run that a caller refuses ends it, and takes nothing out.
    let mut told = Vec::new();
    let refused = set.try_for_each_run(|run| {
        told.push(run.clone());
        if run.contains(&9) {
            Err(run.start)
        } else {
            Ok(())
        }
    });
    assert_eq!((refused, told, set.count()), (Err(9), vec![3..4, 9..10], 12));
    set.clear();
    assert!(set.is_empty() && set == self::set(200));
    // Beyond what can be numbered, and not around it.
    assert_eq!(set.merge_words_at(usize::MAX, &[1, 1]), 0);
    assert_eq!(set.merge_words_at(usize::MAX - 3, &[u64::MAX; 2]), 0);
}

/// A log of a part of the memory that begins at any page of it.
#[test]
fn words_may_begin_at_any_page() {
    let words = [1 | 1 << 63, 0, u64::MAX];
    for first in [0usize, 1, 63, 64, 65, 150, 199, 200, 5000] {
        let pages = |n: usize| words[n / 64] >> (n % 64) & 1 == 1;
        let expected: Vec<usize> =
            (0..192).filter(|&n| pages(n) && first + n < 200).map(|n| first + n).collect();
        let mut set = set(200);
        assert_eq!(set.merge_words_at(first, &words), expected.len());
        assert_eq!(set.iter().collect::<Vec<_>>(), expected);
        let log = bitmap(200);
        assert_eq!(log.mark_words_at(first, &words), expected.len());
        assert_eq!(set.harvest(&log), Ok(0));
        assert!(log.is_clean());
    }
}

/// As on arm64: the bitmap has the host's pages, and the set somebody's constant.
#[test]
fn a_set_takes_no_bitmap_of_other_pages() {
    let mut set = set(64);
    let log =
        SummaryBitmap::new(64 * PAGE.get(), PAGE.saturating_mul(NonZeroUsize::new(16).unwrap()));
    log.set_bit(1);
    let error = set.harvest(&log).unwrap_err();
    assert!(
        error.to_string().contains("4 pages of 65536 bytes, but the set has 64 pages of 4096"),
        "{error}"
    );
    assert!(set.is_empty() && log.is_bit_set(1));
}

/// As many pages of another size are other pages.
#[test]
fn as_many_pages_of_another_size_are_others() {
    let large = PAGE.saturating_mul(NonZeroUsize::new(4).unwrap());
    let log = SummaryBitmap::new(64 * large.get(), large);
    log.set_bit(9);
    let mut set = set(64);
    assert_eq!(set.pages(), log.len());
    assert!(set.harvest(&log).is_err() && log.is_bit_set(9));
    assert_ne!(set, PageSet::like(&log));
    let mut set = PageSet::like(&log);
    assert_eq!((set.page_size(), set.harvest(&log)), (large.get(), Ok(1)));
}

#[test]
fn the_page_size_is_the_hosts() {
    let page = host_page_size().get();
    let set = PageSet::with_len(10 * page + 1);
    assert_eq!((set.page_size(), set.pages()), (page, 11));
}

fn config() -> ProptestConfig {
    if cfg!(miri) {
        ProptestConfig { cases: 3, failure_persistence: None, ..Default::default() }
    } else {
        ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    /// Words of all ones, which are looked at together, among others; up to several words of the top.
    #[test]
    fn it_is_a_set_of_pages(
        pages in 0usize..600_000,
        words in prop::collection::vec((0usize..600_000, 1usize..200, any::<u64>()), 0..6),
        single in prop::collection::vec(0usize..600_000, 0..30),
    ) {
        let (mut set, mut model) = (set(pages), BTreeSet::new());
        for (first, ones, last) in words {
            let words: Vec<u64> = (0..ones).map(|_| u64::MAX).chain([last]).collect();
            let before = model.len();
            let bits = (0..words.len() * 64).filter(|i| words[i / 64] >> (i % 64) & 1 == 1);
            model.extend(bits.map(|i| first + i).filter(|&page| page < pages));
            prop_assert_eq!(set.merge_words_at(first, &words), model.len() - before);
        }
        for page in single {
            prop_assert_eq!(set.insert(page), page < pages && model.insert(page));
        }
        prop_assert_eq!((set.count(), set.is_empty()), (model.len(), model.is_empty()));
        prop_assert_eq!(set.iter().collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
        let runs = runs(&set);
        prop_assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start));
        prop_assert!(runs.into_iter().flatten().eq(model.iter().copied()));
        set.clear();
        prop_assert_eq!((set.count(), set.iter().count()), (0, 0));
    }
}
