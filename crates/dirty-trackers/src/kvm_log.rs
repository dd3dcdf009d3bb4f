// SPDX-License-Identifier: Apache-2.0 OR MIT

//! KVM's dirty bitmaps (Documentation/virt/kvm/api.rst, 4.8, 4.117 and 7.18).

use crate::sys::{self, ClearDirtyLog};
use crate::{check_sets, TrackError, TrackedSlot, Tracker};
use dirty_log::PageSet;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

/// How KVM protects pages again after they were reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KvmLogMode {
    /// KVM_GET_DIRTY_LOG clears and protects the whole slot at once.
    Legacy,
    /// KVM_GET_DIRTY_LOG only reports; KVM_CLEAR_DIRTY_LOG protects, a chunk at a time,
    /// so that the MMU lock is never held for long (Linux 5.0).
    ManualProtect,
    /// The same, and all pages count as dirty at first, so that switching logging on
    /// protects nothing (Linux 5.7).
    InitiallySet,
}

/// Pages that one KVM_CLEAR_DIRTY_LOG protects, a multiple of 64: 64 MiB of guest memory in pages of
/// 4 KiB.
const CHUNK: usize = 16_384;

/// Those of a word's 64 pages that are in `pages`.
fn inside(word: usize, pages: &Range<usize>) -> u64 {
    let below = |page: usize| match page.saturating_sub(word * 64) {
        bit @ 0..64 => (1 << bit) - 1,
        _ => u64::MAX,
    };
    below(pages.end) & !below(pages.start)
}

/// KVM's dirty bitmap of each slot.
#[derive(Debug)]
pub struct KvmLog<'vm> {
    vm: BorrowedFd<'vm>,
    mode: KvmLogMode,
    slots: Vec<TrackedSlot>,
    /// Of each slot, what KVM reported last and may not have protected since.
    words: Vec<Vec<u64>>,
}

impl<'vm> KvmLog<'vm> {
    /// For slots that the VM has. Enables the capability that the mode needs; a VM keeps
    /// it, so a VM that had a tracker of one mode can have none of another.
    ///
    /// # Errors
    /// The VM's KVM has not got the mode; a slot is not made of whole pages.
    ///
    /// # Safety
    /// `vm` is a KVM VM, and `slots` are as it has them, mapped as long as it lives.
    pub unsafe fn new(
        vm: BorrowedFd<'vm>,
        mode: KvmLogMode,
        slots: Vec<TrackedSlot>,
    ) -> Result<Self, TrackError> {
        slots.iter().try_for_each(TrackedSlot::check)?;
        let flags = match mode {
            KvmLogMode::Legacy => 0,
            KvmLogMode::ManualProtect => 1,
            KvmLogMode::InitiallySet => 3,
        };
        if flags != 0 {
            let step = "KVM_ENABLE_CAP(KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2)";
            sys::enable_cap(vm, sys::KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2, flags, step)?;
        }
        let words = slots.iter().map(|slot| vec![0; slot.pages().div_ceil(64)]).collect();
        Ok(Self { vm, mode, slots, words })
    }

    /// Does this VM's KVM have the mode?
    pub fn is_supported(vm: BorrowedFd<'_>, mode: KvmLogMode) -> bool {
        let flags = sys::capability(vm, sys::KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2);
        match mode {
            KvmLogMode::Legacy => true,
            KvmLogMode::ManualProtect => flags & 1 != 0,
            KvmLogMode::InitiallySet => flags & 3 == 3,
        }
    }

    /// Reads a slot's bitmap into its words, and adds it to its set; returns how many pages
    /// that are.
    fn get(&mut self, slot: usize, set: &mut PageSet) -> Result<usize, TrackError> {
        let words = &mut self.words[slot];
        // SAFETY: promised to `new`.
        unsafe { sys::get_dirty_log(self.vm, &self.slots[slot], words) }?;
        set.merge_words_at(0, words);
        Ok(words.iter().map(|word| word.count_ones() as usize).sum())
    }

    /// Clears what a slot's words have set in a range of pages, in the chunks that have any;
    /// returns how many pages that were.
    fn clear(&mut self, slot: usize, pages: Range<usize>) -> Result<usize, TrackError> {
        let (tracked, words) = (self.slots[slot], &mut self.words[slot]);
        let pages = pages.start..pages.end.min(tracked.pages());
        let mut cleared = 0;
        let mut first = pages.start / CHUNK * CHUNK;
        while first < pages.end {
            let len = CHUNK.min(tracked.pages() - first);
            let chunk = first / 64..(first + len).div_ceil(64);
            // What is outside of the range stays for later.
            let taken = chunk.clone().map(|i| words[i] & inside(i, &pages));
            let taken: Vec<u64> = taken.collect();
            if taken.iter().any(|&word| word != 0) {
                let mut log = ClearDirtyLog {
                    slot: tracked.id,
                    // A multiple of 64, or up to the slot's end: KVM refuses others.
                    num_pages: len as u32,
                    first_page: first as u64,
                    bitmap: taken.as_ptr().expose_provenance() as u64,
                };
                let (fd, step) = (self.vm.as_raw_fd(), "KVM_CLEAR_DIRTY_LOG");
                // SAFETY: the request takes this structure, and reads a bit for each page.
                unsafe { sys::ioctl(fd, sys::KVM_CLEAR_DIRTY_LOG, &mut log, step) }?;
                words[chunk].iter_mut().zip(&taken).for_each(|(word, taken)| *word &= !taken);
                cleared += taken.iter().map(|word| word.count_ones() as usize).sum::<usize>();
            }
            first += CHUNK;
        }
        Ok(cleared)
    }

    fn set_logging(&self, on: bool) -> Result<(), TrackError> {
        // SAFETY: promised to `new`.
        self.slots.iter().try_for_each(|slot| unsafe { sys::set_logging(self.vm, slot, on) })
    }
}

impl Tracker for KvmLog<'_> {
    fn name(&self) -> &'static str {
        match self.mode {
            KvmLogMode::Legacy => "kvm-legacy",
            KvmLogMode::ManualProtect => "kvm-manual-protect",
            KvmLogMode::InitiallySet => "kvm-initially-set",
        }
    }

    fn sees_host_writes(&self) -> bool {
        false
    }

    fn starts_full(&self) -> bool {
        self.mode == KvmLogMode::InitiallySet
    }

    fn start(&mut self) -> Result<(), TrackError> {
        self.set_logging(true)
    }

    fn collect(&mut self, sets: &mut [PageSet]) -> Result<usize, TrackError> {
        check_sets(&self.slots, sets)?;
        let mut found = 0;
        for (slot, set) in sets.iter_mut().enumerate() {
            let dirty = self.get(slot, set)?;
            found += dirty;
            if self.mode != KvmLogMode::Legacy && dirty > 0 {
                self.clear(slot, 0..self.slots[slot].pages())?;
            }
        }
        Ok(found)
    }

    fn is_apart(&self) -> bool {
        self.mode != KvmLogMode::Legacy
    }

    fn report(&mut self, sets: &mut [PageSet]) -> Result<usize, TrackError> {
        if !self.is_apart() {
            return Err(TrackError::AtOnce { tracker: self.name() });
        }
        check_sets(&self.slots, sets)?;
        sets.iter_mut().enumerate().map(|(slot, set)| self.get(slot, set)).sum()
    }

    fn protect(&mut self, slot: usize, pages: Range<usize>) -> Result<usize, TrackError> {
        if !self.is_apart() {
            return Err(TrackError::AtOnce { tracker: self.name() });
        }
        if slot < self.slots.len() {
            self.clear(slot, pages)
        } else {
            Ok(0)
        }
    }

    fn stop(&mut self) -> Result<(), TrackError> {
        self.set_logging(false)
    }
}
