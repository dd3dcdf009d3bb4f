// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The pages of one memory slot, as writers see them.

use crate::bits::{Bits, BitsRef};
use crate::fence;
use crate::hazard::Switch;
use crate::last::Last;
use crate::shape::Shape;
use crate::sync::AtomicU64;
use crate::words::{mask, sure, surely};
use crate::writer;
use dirty_log::Runs;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Pages are a power of two of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("page size of {0} bytes: it must be a power of two, such as 4096 or 2097152")]
pub struct BadPageSize(pub usize);

/// The dirty pages of one memory slot: what vCPU and device threads mark.
///
/// Every method may be called from any number of threads at once, and none of those that
/// mark ever waits. Pages and bytes beyond the slot's end are ignored, as vm-memory does.
#[repr(C)]
pub struct Slot {
    switch: Switch<AtomicU64>,
    shape: Shape,
    /// Its logarithm.
    page_shift: u32,
    bytes: usize,
    side: Side,
}

/// The harvesting side, away from what writers read.
#[repr(align(128))]
struct Side {
    buffers: Mutex<Buffers>,
    /// The thread that has `buffers`; 0: none.
    holder: AtomicUsize,
    /// `limbo` has some that wait.
    any_in_limbo: AtomicBool,
    limbo: Mutex<Limbo>,
}

/// Bitmaps that were retired by harvests which could not wait for writers (a seccomp filter
/// that came late): the next harvest that can has what they hold.
#[derive(Debug, Default)]
struct Limbo {
    waiting: Vec<Waiting>,
    /// What is left of them: freed with the slot, as a look at whether it is clean may still
    /// be under way.
    kept: Vec<Bits>,
}

#[derive(Debug)]
struct Waiting(NonNull<AtomicU64>);

// SAFETY: it owns memory of atomics, which is bound to no thread.
unsafe impl Send for Waiting {}

/// What a harvest has to work with.
#[derive(Debug, Default)]
pub struct Buffers {
    /// The bitmap that writers do not use: clean, or in a caller's hands.
    pub(crate) spare: Option<Bits>,
    /// Words copied out.
    pub(crate) out: Vec<u64>,
    /// `out` is not all zero.
    pub(crate) out_is_dirty: bool,
}

/// The buffers, for one thread at a time.
pub struct Locked<'a> {
    buffers: MutexGuard<'a, Buffers>,
    holder: &'a AtomicUsize,
}

impl Deref for Locked<'_> {
    type Target = Buffers;

    fn deref(&self) -> &Buffers {
        &self.buffers
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Buffers {
        &mut self.buffers
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.holder.store(0, Ordering::Relaxed);
    }
}

/// A number that no other living thread has.
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here) as usize)
}

impl Slot {
    pub(crate) fn new(bytes: usize, page_size: usize) -> Result<Self, BadPageSize> {
        if !page_size.is_power_of_two() {
            return Err(BadPageSize(page_size));
        }
        writer::init();
        let shape = Shape::new(bytes.div_ceil(page_size));
        Ok(Self {
            switch: Switch::new(Bits::new(shape).into_raw()),
            shape,
            page_shift: page_size.trailing_zeros(),
            bytes,
            side: Side {
                buffers: Mutex::default(),
                holder: AtomicUsize::new(0),
                any_in_limbo: AtomicBool::new(false),
                limbo: Mutex::default(),
            },
        })
    }

    /// How many pages it has.
    pub fn pages(&self) -> usize {
        self.shape.pages
    }

    /// Words of 64 pages that it takes.
    pub fn word_count(&self) -> usize {
        self.shape.words()
    }

    /// Bytes in a page.
    pub fn page_size(&self) -> usize {
        1 << self.page_shift
    }

    /// Bytes of memory it covers.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Marks a page. Call it after writing to the page, and before
    /// telling anyone that the write is done. Not from a signal handler.
    #[inline]
    pub fn mark(&self, page: usize) {
        let quick = writer::with_quick(&self.switch, |base| self.bits(base).mark_unseen(page));
        if quick.is_none() {
            self.mark_and_look(page);
        }
    }

    #[inline(never)]
    fn mark_and_look(&self, page: usize) {
        writer::with(&self.switch, |base, unseen| self.bits(base).mark(page, unseen));
    }

    /// As [`Self::mark`], for a signal handler: allocates nothing, and may interrupt a
    /// mark. Slower.
    pub fn mark_in_signal_handler(&self, page: usize) {
        writer::with_counted(&self.switch, |base| self.bits(base).mark(page, &mut Last::default()));
    }

    /// Marks pages; returns how many were clean.
    pub fn mark_pages(&self, pages: Range<usize>) -> usize {
        self.each_word(pages, |bits, i, mask| bits.mark_word(i, mask))
    }

    /// Marks the pages of `len` bytes from `offset` on.
    #[inline]
    pub fn mark_bytes(&self, offset: usize, len: usize) {
        if len == 0 {
            return;
        }
        let first = offset >> self.page_shift;
        let last = offset.saturating_add(len - 1) >> self.page_shift;
        if first == last {
            self.mark(first);
        } else {
            self.mark_pages(first..last.saturating_add(1));
        }
    }

    /// Marks what is set in `words`, of which the first holds pages `64 * first_word` and
    /// on, lowest bit first: KVM's dirty log, or any other source. Returns how many pages
    /// were clean.
    pub fn mark_words(&self, first_word: usize, words: &[u64]) -> usize {
        let count = self.word_count();
        self.with(|bits| {
            let numbered = words.iter().enumerate();
            let placed = numbered.map_while(|(i, &word)| Some((first_word.checked_add(i)?, word)));
            placed
                .take_while(|&(i, _)| i < count)
                .filter(|&(_, word)| word != 0)
                .map(|(i, word)| bits.mark_word(i, word & self.valid(i)).count_ones() as usize)
                .sum()
        })
    }

    /// Is the page marked and not yet harvested?
    pub fn is_marked(&self, page: usize) -> bool {
        page < self.shape.pages && self.with(|bits| bits.word(page / 64) >> (page % 64) & 1 == 1)
    }

    /// Is the page at this byte marked and not yet harvested?
    pub fn is_marked_at(&self, offset: usize) -> bool {
        self.is_marked(offset >> self.page_shift)
    }

    /// Nothing was marked since the last harvest. Costs the same for every length.
    #[inline]
    pub fn is_clean(&self) -> bool {
        self.with(|bits| bits.is_clean())
    }

    /// The words as they are, without harvesting: what is marked stays marked.
    pub fn snapshot(&self) -> Vec<u64> {
        let mut words = vec![0; self.word_count()];
        self.with(|bits| bits.copy_dirty_to(&mut words));
        words
    }

    /// Forgets marks without harvesting them; returns how many there were. Read the pages
    /// after this returns, and whatever is written later is marked again.
    pub fn clear_pages(&self, pages: Range<usize>) -> usize {
        let cleared = self.each_word(pages, |bits, i, mask| bits.unmark_word(i, mask));
        if cleared > 0 {
            // A mark that just found its bit set has not written anything.
            fence::heavy();
        }
        cleared
    }

    /// Takes the marks of some pages: calls `f` with each run of those that were marked, in
    /// order, which are marked no more, and returns how many they were. Each mark is in
    /// exactly one harvest or one such range. Read the pages from `f` on.
    ///
    /// For a part that is sent now, when the rest is not: unlike a harvest it visits every
    /// word of the range, and takes no lock and no second bitmap.
    ///
    /// Should `f` panic, the run that it had and all that follow are marked again.
    ///
    /// # Panics
    /// As [`DirtyLog::harvest`](crate::DirtyLog::harvest).
    pub fn take_range(&self, pages: Range<usize>, f: impl FnMut(Range<usize>)) -> usize {
        surely(self.try_take_range(pages, sure(f)))
    }

    /// As [`Self::take_range`], until `f` fails: the run that it had and all that follow are
    /// marked again, as they are if it panics.
    ///
    /// # Errors
    /// That of `f`.
    ///
    /// # Panics
    /// As [`DirtyLog::harvest`](crate::DirtyLog::harvest).
    pub fn try_take_range<E>(
        &self,
        pages: Range<usize>,
        mut f: impl FnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<usize, E> {
        let mut taken = Taken { slot: self, words: Vec::new(), runs: Runs::default() };
        let count = self.each_word_mut(pages, |bits, i, mask| {
            let word = bits.unmark_word(i, mask);
            if word != 0 {
                taken.words.push((i, word));
            }
            word
        });
        if count > 0 {
            // As in `clear_pages`.
            fence::heavy();
        }
        let Taken { words, runs, .. } = &mut taken;
        words.iter().try_for_each(|&(i, word)| runs.push_word(i, word, &mut f))?;
        runs.finish(&mut f)?;
        words.clear();
        Ok(count)
    }

    fn each_word(&self, pages: Range<usize>, f: impl Fn(BitsRef<'_>, usize, u64) -> u64) -> usize {
        self.each_word_mut(pages, f)
    }

    /// Applies `f` to each word of a range with the mask of the range's pages in it.
    fn each_word_mut(
        &self,
        pages: Range<usize>,
        mut f: impl FnMut(BitsRef<'_>, usize, u64) -> u64,
    ) -> usize {
        let pages = pages.start..pages.end.min(self.shape.pages);
        if pages.is_empty() {
            return 0;
        }
        self.with(|bits| {
            let words = pages.start / 64..pages.end.div_ceil(64);
            words.map(|i| f(bits, i, mask(i, &pages)).count_ones() as usize).sum()
        })
    }

    /// The pages of a word that exist.
    fn valid(&self, word: usize) -> u64 {
        mask(word, &(0..self.shape.pages))
    }

    pub(crate) fn lock(&self) -> Locked<'_> {
        let (holder, me) = (&self.side.holder, this_thread());
        let own = holder.load(Ordering::Relaxed) == me;
        assert!(!own, "this thread has a harvest of this slot: drop it before the next one");
        // A caller that panicked while it looked at a harvest has left it in order.
        let buffers = self.side.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        holder.store(me, Ordering::Relaxed);
        Locked { buffers, holder }
    }

    /// A bitmap like the one in use.
    pub(crate) fn new_bits(&self) -> Bits {
        Bits::new(self.shape)
    }

    /// Is it clean, judged without hold of its bitmap? A mark that returned before is seen,
    /// or is another harvest's.
    ///
    /// # Safety
    /// No bitmap that the switch was given has been freed.
    #[inline]
    pub(crate) unsafe fn looks_clean(&self) -> bool {
        self.bits(self.switch.peek()).is_clean()
    }

    /// Gives writers `next` and returns what they used, and may use still.
    pub(crate) fn exchange(&self, next: Bits, _one_at_a_time: &mut Buffers) -> Retired<'_> {
        let old = self.switch.exchange(next.into_raw());
        Retired { slot: self, old }
    }

    fn limbo(&self) -> MutexGuard<'_, Limbo> {
        self.side.limbo.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A retired bitmap is not waited for now, but by a harvest to come.
    fn defer(&self, old: NonNull<AtomicU64>) {
        self.limbo().waiting.push(Waiting(old));
        self.side.any_in_limbo.store(true, Ordering::Release);
        // The slot does not look clean, so that the next harvest gets so far.
        self.with(|bits| bits.announce_any());
    }

    /// Adds what other harvests could not have to what this one has, which has waited.
    fn merge_limbo(&self, bits: &mut Bits) {
        if !self.side.any_in_limbo.load(Ordering::Acquire) {
            return;
        }
        let mut limbo = self.limbo();
        self.side.any_in_limbo.store(false, Ordering::Release);
        for Waiting(old) in std::mem::take(&mut limbo.waiting) {
            // SAFETY: of this slot's shape; it was retired before what was waited for, and
            // who is inside the switch is waited for whatever it holds.
            let mut old = unsafe { Bits::from_raw(old, self.shape) };
            old.for_each_dirty_word(|i, word| {
                bits.merge_word(i, word);
            });
            old.clear();
            limbo.kept.push(old);
        }
    }

    #[inline]
    fn with<R>(&self, f: impl FnOnce(BitsRef<'_>) -> R) -> R {
        writer::with(&self.switch, |base, last| {
            last.turn();
            f(self.bits(base))
        })
    }

    #[inline]
    fn bits(&self, base: NonNull<AtomicU64>) -> BitsRef<'_> {
        // SAFETY: every bitmap given to the switch has this shape, and the callers pass
        // what they have hold of.
        unsafe { BitsRef::new(base, &self.shape) }
    }
}

/// Marks that were taken, and that nobody has yet.
struct Taken<'a> {
    slot: &'a Slot,
    words: Vec<(usize, u64)>,
    runs: Runs,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if self.words.is_empty() {
            return;
        }
        for run in self.runs.not_taken() {
            self.slot.mark_pages(run);
        }
        let pages = self.runs.told_end()..usize::MAX;
        for &(i, word) in &self.words {
            self.slot.mark_words(i, &[word & mask(i, &pages)]);
        }
    }
}

/// A bitmap that writers can't get hold of any more, and may not have let go of.
pub(crate) struct Retired<'a> {
    slot: &'a Slot,
    old: NonNull<AtomicU64>,
}

/// The bitmaps, when no writer uses them any more: one wait for all.
/// `for_anybody`: with a full barrier on every CPU, needed or not.
pub(crate) fn when_unused<'a, R>(
    retired: R,
    for_anybody: bool,
) -> impl Iterator<Item = Bits> + use<'a, R>
where
    R: IntoIterator<Item = Retired<'a>> + AsRef<[Retired<'a>]>,
{
    let all = retired.as_ref();
    if !all.is_empty() {
        let switches = all.iter().map(|retired| &retired.slot.switch);
        writer::wait(switches, for_anybody);
    }
    // SAFETY: every bitmap given to a switch has its slot's shape; all access to it is by
    // `with` and `with_counted`, which was waited for, and by `looks_clean`, which reads an
    // atomic byte that its owner does not refer to otherwise.
    retired.into_iter().map(|retired| unsafe {
        let retired = ManuallyDrop::new(retired);
        let mut bits = Bits::from_raw(retired.old, retired.slot.shape);
        retired.slot.merge_limbo(&mut bits);
        bits
    })
}

/// Nobody waited for its writers: the barrier was refused.
impl Drop for Retired<'_> {
    fn drop(&mut self) {
        self.slot.defer(self.old);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // SAFETY: as in `replace`; nobody has hold of anything, as nobody else has the slot.
        drop(unsafe { Bits::from_raw(self.switch.last(), self.shape) });
        for Waiting(old) in std::mem::take(&mut self.limbo().waiting) {
            // SAFETY: as above.
            drop(unsafe { Bits::from_raw(old, self.shape) });
        }
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot")
            .field("pages", &self.shape.pages)
            .field("page_size", &self.page_size())
            .field("clean", &self.is_clean())
            .finish_non_exhaustive()
    }
}
