// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The contenders.

use dirty_log::SummaryBitmap;
use std::hint::black_box;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use vm_memory::bitmap::AtomicBitmap;
use vmeter_dirty_switch::{DirtyBitmap, SwitchOpt};

const PAGE: usize = 4096;

pub const NAMES: [&str; 6] =
    ["()", "AtomicBitmap", "skip clean words", "summary", "switch", "switch, full fences"];

pub trait Rival: Named + Sync {
    fn of(pages: usize) -> Self;
    fn mark(&self, page: usize);
    /// Takes all dirty pages and looks at each word that has some.
    fn harvest(&self) -> u64;
}

/// A vm-memory bitmap's column.
pub trait Named {
    const NAME: &'static str;
}

pub fn slots<R: Rival>(count: usize, pages: usize) -> Vec<R> {
    (0..count).map(|_| R::of(pages)).collect()
}

fn visit(sum: u64, index: usize, word: u64) -> u64 {
    sum.wrapping_add(word ^ index as u64)
}

/// The floor: nothing is marked.
pub struct Nothing;

impl Rival for Nothing {
    fn of(_: usize) -> Self {
        Self
    }

    #[inline]
    fn mark(&self, page: usize) {
        black_box(page);
    }

    fn harvest(&self) -> u64 {
        0
    }
}

impl Named for Nothing {
    const NAME: &'static str = "()";
}

impl Named for SkipClean {
    const NAME: &'static str = "skip clean words";
}

impl Named for () {
    const NAME: &'static str = "()";
}

/// vm-memory's as it is.
impl Rival for AtomicBitmap {
    fn of(pages: usize) -> Self {
        Self::new(pages * PAGE, NonZeroUsize::new(PAGE).unwrap())
    }

    #[inline]
    fn mark(&self, page: usize) {
        self.set_bit(page);
    }

    fn harvest(&self) -> u64 {
        let words = self.get_and_reset();
        let dirty = words.iter().enumerate().filter(|(_, &word)| word != 0);
        dirty.fold(0, |sum, (i, &word)| visit(sum, i, word))
    }
}

impl Named for AtomicBitmap {
    const NAME: &'static str = "AtomicBitmap";
}

/// The idea of taking only words that are not 0; allocates nothing.
pub struct SkipClean(Vec<AtomicU64>);

impl Rival for SkipClean {
    fn of(pages: usize) -> Self {
        Self((0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    #[inline]
    fn mark(&self, page: usize) {
        self.0[page / 64].fetch_or(1 << (page % 64), Ordering::SeqCst);
    }

    fn harvest(&self) -> u64 {
        let dirty = self.0.iter().enumerate().filter(|(_, w)| w.load(Ordering::SeqCst) != 0);
        dirty.fold(0, |sum, (i, word)| visit(sum, i, word.swap(0, Ordering::SeqCst)))
    }
}

impl Rival for SummaryBitmap {
    fn of(pages: usize) -> Self {
        Self::new(pages * PAGE, PAGE.try_into().unwrap())
    }

    #[inline]
    fn mark(&self, page: usize) {
        self.set_bit(page);
    }

    fn harvest(&self) -> u64 {
        let mut sum = 0;
        self.harvest_words(|i, word| sum = visit(sum, i, word));
        sum
    }
}

impl Named for SummaryBitmap {
    const NAME: &'static str = "summary";
}

impl Rival for DirtyBitmap<SwitchOpt> {
    fn of(pages: usize) -> Self {
        Self::new(pages * PAGE, PAGE).unwrap()
    }

    #[inline]
    fn mark(&self, page: usize) {
        vmeter_dirty_switch::Slot::mark(self, page);
    }

    fn harvest(&self) -> u64 {
        let mut sum = 0;
        Self::harvest(self).for_each_word(|i, word| sum = visit(sum, i, word));
        sum
    }
}

impl Named for DirtyBitmap<SwitchOpt> {
    const NAME: &'static str = "switch";
}
