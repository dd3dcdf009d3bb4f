// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The bits of one slot, with a summary above them.
//!
//! Three levels: 64-bit words, eight to a cache line; a byte for each such line (512
//! pages); a byte for each 64 of those (32768 pages); and one byte for all. The summary is
//! made of bytes and not of bits so that it is set by plain stores: only the word itself
//! costs a locked instruction, and only when its bit is not yet set.
//!
//! Order matters. A mark sets its bit, and then looks whether the line is known; it need
//! not look before, as a harvest waits for marks that are under way, and looking after a
//! locked instruction costs less than before one. What a harvest does *not* wait for
//! is a slot that looks clean, so no mark may return before `any` is set: a mark that
//! finds its bit set makes sure of it, as the one that set the bit may not have come so
//! far; and a line's byte is set after the group's, and that after `any`, so that who
//! finds a line known need look no further. No summary is ever cleared while writers have
//! access: a bitmap is cleared after it was retired, by its only owner.
//!
//! All of it is one allocation that starts with the words, so that a writer's pointer is
//! the pointer to them: one dependent load less in each mark.

use crate::last::Last;
use crate::shape::{ask_for_huge_pages, Shape, GROUP_LINES, LINE_PAGES, LINE_WORDS};
use crate::sync::{
    first_clear, first_set, plain, put64, put8, AtomicU64, AtomicU8, Ordering, ZERO_IS_NEW,
};
use crate::words::{sure, surely};
use dirty_log::Runs;
use std::alloc::{alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;

/// Lines that are read and cleared by turns: they stay in the first cache in between.
const DRAINED: usize = 64;
/// A bitmap that writers may share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BitsRef<'a> {
    base: NonNull<AtomicU64>,
    shape: &'a Shape,
}

impl<'a> BitsRef<'a> {
    /// # Safety
    /// `base` is from [`Bits::into_raw`] of the same shape and valid for `'a`.
    #[inline]
    pub(crate) unsafe fn new(base: NonNull<AtomicU64>, shape: &'a Shape) -> Self {
        Self { base, shape }
    }

    /// A word; the index must be below the lines' end.
    #[inline]
    fn cell(self, index: usize) -> &'a AtomicU64 {
        debug_assert!(index < self.shape.lines * LINE_WORDS);
        // SAFETY: inside the allocation, which starts with lines * LINE_WORDS words.
        unsafe { self.base.add(index).as_ref() }
    }

    #[inline]
    fn byte(self, offset: usize) -> &'a AtomicU8 {
        // SAFETY: offsets are those of the shape, plus an index that the callers checked.
        unsafe { self.base.byte_add(offset).cast::<AtomicU8>().as_ref() }
    }

    #[inline]
    fn flag(self, line: usize) -> &'a AtomicU8 {
        debug_assert!(line < self.shape.lines);
        self.byte(self.shape.flags_at + line * size_of::<AtomicU8>())
    }

    #[inline]
    fn group(self, group: usize) -> &'a AtomicU8 {
        debug_assert!(group < self.shape.groups());
        self.byte(self.shape.groups_at + group * size_of::<AtomicU8>())
    }

    #[inline]
    fn any(self) -> &'a AtomicU8 {
        self.byte(self.shape.any_at)
    }

    /// Sets a page's bit. Pages beyond the end are ignored. `unseen` is
    /// the number of this thread's next marks that set their bit without looking at the word
    /// first; its value affects only speed.
    ///
    /// To look at a word before setting a bit in it costs up to half as much again as the
    /// locked instruction: it is a load right after one, and a branch that nobody can
    /// foresee where half of the pages are dirty. To set a bit that is set already costs
    /// the locked instruction, and takes the cache line from the CPU that has it. So a
    /// mark that looked and found its page clean lets the next few do without. Pages that
    /// are marked over and over are written to a few times, and then no more.
    #[inline]
    pub(crate) fn mark(self, page: usize, unseen: &mut Last) {
        if page >= self.shape.pages {
            return;
        }
        let word = self.cell(page / 64);
        let bit = 1 << (page % 64);
        if unseen.is_zero() {
            if word.load(Ordering::Acquire) & bit != 0 {
                unseen.turn();
                return self.announce_any();
            }
            unseen.fill();
        } else {
            unseen.count_down();
        }
        word.fetch_or(bit, Ordering::AcqRel);
        self.announce(page / LINE_PAGES);
    }

    /// As [`Self::mark`], without a look.
    #[inline]
    pub(crate) fn mark_unseen(self, page: usize) {
        if page >= self.shape.pages {
            return;
        }
        self.cell(page / 64).fetch_or(1 << (page % 64), Ordering::AcqRel);
        self.announce(page / LINE_PAGES);
    }

    /// Sets those of a word's 64 bits that are set in `mask`; returns the ones that were
    /// not set before. Words beyond the end are ignored.
    #[inline]
    pub(crate) fn mark_word(self, index: usize, mask: u64) -> u64 {
        if index >= self.shape.words() || mask == 0 {
            return 0;
        }
        if mask & !self.word(index) == 0 {
            self.announce_any();
            return 0;
        }
        let before = self.cell(index).fetch_or(mask, Ordering::AcqRel);
        self.announce(index / LINE_WORDS);
        mask & !before
    }

    /// Takes bits out of a word; returns those that were set. The summary stays.
    pub(crate) fn unmark_word(self, index: usize, mask: u64) -> u64 {
        if index >= self.shape.words() || self.word(index) & mask == 0 {
            return 0;
        }
        self.cell(index).fetch_and(!mask, Ordering::AcqRel) & mask
    }

    /// Makes a line known in which a bit was set.
    #[inline]
    fn announce(self, line: usize) {
        if self.flag(line).load(Ordering::Acquire) == 0 {
            self.announce_first(line);
        }
    }

    #[cold]
    fn announce_first(self, line: usize) {
        let group = self.group(line / GROUP_LINES);
        if group.load(Ordering::Acquire) == 0 {
            self.any().store(1, Ordering::Release);
            group.store(1, Ordering::Release);
        }
        self.flag(line).store(1, Ordering::Release);
    }

    /// What a mark owes that found its bit set.
    #[inline]
    pub(crate) fn announce_any(self) {
        if self.any().load(Ordering::Acquire) == 0 {
            self.any().store(1, Ordering::Release);
        }
    }

    /// A word as it is now; the index must be below the words' end.
    #[inline]
    pub(crate) fn word(self, index: usize) -> u64 {
        self.cell(index).load(Ordering::Acquire)
    }

    /// No bit is set, nor was any since it was cleared.
    #[inline]
    pub(crate) fn is_clean(self) -> bool {
        self.any().load(Ordering::Acquire) == 0
    }

    /// Copies the words that may have bits set to their places in `out`, which is zero.
    pub(crate) fn copy_dirty_to(self, out: &mut [u64]) {
        for line in (0..self.shape.lines).filter(|&l| self.flag(l).load(Ordering::Acquire) != 0) {
            let words = out.iter_mut().enumerate().skip(line * LINE_WORDS);
            words.take(LINE_WORDS).for_each(|(i, to)| *to = self.word(i));
        }
    }
}

/// A bitmap that one owner has to itself.
#[derive(Debug)]
pub struct Bits {
    base: NonNull<AtomicU64>,
    shape: Shape,
    owns: PhantomData<AtomicU64>,
}

// SAFETY: it owns memory of atomics, and nothing in it is bound to a thread.
unsafe impl Send for Bits {}
// SAFETY: as above; through `&Bits` everything is atomic or read.
unsafe impl Sync for Bits {}

impl Bits {
    /// All clean.
    pub(crate) fn new(shape: Shape) -> Self {
        let layout = shape.layout;
        let allocate = if ZERO_IS_NEW { alloc_zeroed } else { alloc };
        // SAFETY: the layout is not empty, as it ends in `any`.
        let memory = unsafe { allocate(layout) };
        let Some(base) = NonNull::new(memory) else { handle_alloc_error(layout) };
        ask_for_huge_pages(base, layout.size());
        let new = Self { base: base.cast(), shape, owns: PhantomData };
        if !ZERO_IS_NEW {
            new.each_part(
                // SAFETY: each part is written once, and is part of the allocation.
                |word| unsafe { word.write(AtomicU64::new(0)) },
                // SAFETY: as above.
                |byte| unsafe { byte.write(AtomicU8::new(0)) },
            );
        }
        new
    }

    /// Calls `word` with each word and `byte` with each byte of the summary.
    fn each_part(&self, word: impl Fn(*mut AtomicU64), byte: impl Fn(*mut AtomicU8)) {
        let Shape { lines, flags_at, groups_at, any_at, .. } = self.shape;
        (0..lines * LINE_WORDS).for_each(|i| word(self.base.as_ptr().wrapping_add(i)));
        let parts = [(flags_at, lines), (groups_at, self.shape.groups()), (any_at, 1)];
        for (at, count) in parts {
            let first: *mut AtomicU8 = self.base.as_ptr().wrapping_byte_add(at).cast();
            (0..count).for_each(|i| byte(first.wrapping_add(i)));
        }
    }

    /// Lets go of it, for writers to share.
    pub(crate) fn into_raw(self) -> NonNull<AtomicU64> {
        std::mem::ManuallyDrop::new(self).base
    }

    /// # Safety
    /// `base` is from [`Self::into_raw`] of the same shape, and nobody has access to it.
    pub(crate) unsafe fn from_raw(base: NonNull<AtomicU64>, shape: Shape) -> Self {
        Self { base, shape, owns: PhantomData }
    }

    pub(crate) fn shared(&self) -> BitsRef<'_> {
        BitsRef { base: self.base, shape: &self.shape }
    }

    pub(crate) fn words_mut(&mut self) -> &mut [AtomicU64] {
        // SAFETY: the allocation starts with so many words, and `&mut self` is exclusive.
        unsafe { slice::from_raw_parts_mut(self.base.as_ptr(), self.shape.lines * LINE_WORDS) }
    }

    fn summary_mut(&mut self, at: usize, count: usize) -> &mut [AtomicU8] {
        // SAFETY: called with the shape's offsets and counts; `&mut self` is exclusive.
        unsafe { slice::from_raw_parts_mut(self.base.byte_add(at).cast().as_ptr(), count) }
    }

    fn summary(&self, at: usize, count: usize) -> &[AtomicU8] {
        // SAFETY: as above, shared.
        unsafe { slice::from_raw_parts(self.base.byte_add(at).cast().as_ptr(), count) }
    }

    /// The words. Not one of them changes while the owner is borrowed.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the allocation starts with at least so many words.
        unsafe { slice::from_raw_parts(self.base.as_ptr(), self.shape.words()) }
    }

    /// As [`Self::words`], to the end of the last line.
    fn all_words(&self) -> &[AtomicU64] {
        // SAFETY: the allocation starts with so many words.
        unsafe { slice::from_raw_parts(self.base.as_ptr(), self.shape.lines * LINE_WORDS) }
    }

    /// The first line from `from` on that may have bits set.
    fn next_line(&self, from: usize) -> Option<usize> {
        let Shape { lines, flags_at, groups_at, .. } = self.shape;
        let flags = self.summary(flags_at, lines);
        let find = |group: usize, from: usize| {
            let end = lines.min((group + 1) * GROUP_LINES);
            first_set(&flags[from..end]).map(|found| from + found)
        };
        if from >= lines {
            return None;
        }
        let here = from / GROUP_LINES;
        if let Some(line) = find(here, from) {
            return Some(line);
        }
        let groups = self.summary(groups_at, self.shape.groups());
        let mut next = here + 1;
        loop {
            // A group's byte may be set without any below it: a mark was taken back.
            next += first_set(groups.get(next..)?)?;
            if let Some(line) = find(next, next * GROUP_LINES) {
                return Some(line);
            }
            next += 1;
        }
    }

    /// Lines that may have bits set, those that follow one another together.
    fn stretches(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let Shape { lines, flags_at, .. } = self.shape;
        let flags = self.summary(flags_at, lines);
        let mut from = if self.shared().is_clean() { lines } else { 0 };
        std::iter::from_fn(move || {
            let first = self.next_line(from)?;
            from = first_clear(&flags[first..]).map_or(lines, |found| first + found);
            Some(first..from)
        })
    }

    /// Calls `f` with each run of pages that are set, in order.
    pub(crate) fn for_each_run(&self, f: impl FnMut(Range<usize>)) {
        surely(self.try_for_each_run(sure(f)));
    }

    /// As [`Self::for_each_run`], until `f` fails.
    pub(crate) fn try_for_each_run<E>(
        &self,
        mut f: impl FnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut runs = Runs::default();
        for lines in self.stretches() {
            let words = lines.start * LINE_WORDS..lines.end * LINE_WORDS;
            runs.push_words(words.start, plain(&self.all_words()[words]).as_ref(), &mut f)?;
        }
        runs.finish(&mut f)
    }

    fn lines(&self) -> impl Iterator<Item = usize> + '_ {
        let mut from = if self.shared().is_clean() { self.shape.lines } else { 0 };
        std::iter::from_fn(move || {
            let line = self.next_line(from)?;
            from = line + 1;
            Some(line)
        })
    }

    /// The words that are not 0, as (index of the word, word), in order. Costs what is
    /// dirty, and one byte for each 32768 pages.
    pub(crate) fn dirty_words(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let indices = self.lines().flat_map(|line| line * LINE_WORDS..(line + 1) * LINE_WORDS);
        let read = |i| (i, self.shared().cell(i).load(Ordering::Relaxed));
        indices.map(read).filter(|&(_, word)| word != 0)
    }

    /// Calls `f` with each word that is not 0: as [`Self::dirty_words`], faster.
    #[inline]
    pub(crate) fn for_each_dirty_word(&self, mut f: impl FnMut(usize, u64)) {
        for line in self.lines() {
            for i in line * LINE_WORDS..(line + 1) * LINE_WORDS {
                let word = self.shared().cell(i).load(Ordering::Relaxed);
                if word != 0 {
                    f(i, word);
                }
            }
        }
    }

    /// Clears what may be set; costs what is.
    pub(crate) fn clear(&mut self) {
        surely(self.drain(|_, _| Ok(())));
    }

    /// As [`Self::for_each_run`], and clears them on the way: each line of the bitmap comes
    /// into the cache once. Should `f` refuse a run, or panic, what it was not told, or did
    /// not take, is in `runs`, and of pages [beyond those](Runs::told_end) still here.
    pub(crate) fn drain_runs<E>(
        &mut self,
        runs: &mut Runs,
        mut f: impl FnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.drain(|first, words| runs.push_words(first, plain(words).as_ref(), &mut f))?;
        runs.finish(&mut f)
    }

    /// Calls `see` with words that may be set, and the index of the first of them, and clears
    /// them. Should it fail, or panic, what is left is still known to be set.
    #[inline]
    fn drain<E, F>(&mut self, mut see: F) -> Result<(), E>
    where
        F: FnMut(usize, &[AtomicU64]) -> Result<(), E>,
    {
        if self.shared().is_clean() {
            return Ok(());
        }
        let Shape { lines, flags_at, groups_at, .. } = self.shape;
        let mut from = 0;
        while let Some(first) = self.next_line(from) {
            let flags = self.summary(flags_at, lines);
            from = first_clear(&flags[first..]).map_or(lines, |found| first + found);
            for line in (first..from).step_by(DRAINED) {
                let words = line * LINE_WORDS..from.min(line + DRAINED) * LINE_WORDS;
                see(line * LINE_WORDS, &self.all_words()[words.clone()])?;
                self.words_mut()[words].iter_mut().for_each(|word| put64(word, 0));
            }
            self.summary_mut(flags_at, lines)[first..from]
                .iter_mut()
                .for_each(|flag| put8(flag, 0));
        }
        let groups = self.shape.groups();
        self.summary_mut(groups_at, groups).iter_mut().for_each(|group| put8(group, 0));
        // Atomic: a harvest that begins may look at it at any time.
        self.shared().any().store(0, Ordering::Release);
        Ok(())
    }

    /// Sets bits without atomic operations; returns how many were not set before. Words
    /// beyond the end are ignored.
    pub(crate) fn merge_word(&mut self, index: usize, mask: u64) -> u32 {
        if index >= self.shape.words() || mask & !self.shared().word(index) == 0 {
            return 0;
        }
        let before = self.shared().word(index);
        let Shape { lines, flags_at, groups_at, .. } = self.shape;
        let (line, groups) = (index / LINE_WORDS, self.shape.groups());
        put64(&mut self.words_mut()[index], before | mask);
        put8(&mut self.summary_mut(flags_at, lines)[line], 1);
        put8(&mut self.summary_mut(groups_at, groups)[line / GROUP_LINES], 1);
        self.shared().any().store(1, Ordering::Release);
        (mask & !before).count_ones()
    }
}

impl Drop for Bits {
    fn drop(&mut self) {
        if !ZERO_IS_NEW {
            self.each_part(
                // SAFETY: each part was initialised by `new` and is dropped once.
                |word| unsafe { word.drop_in_place() },
                // SAFETY: as above.
                |byte| unsafe { byte.drop_in_place() },
            );
        }
        // SAFETY: allocated by `new` with the same layout.
        unsafe { dealloc(self.base.as_ptr().cast(), self.shape.layout) };
    }
}
