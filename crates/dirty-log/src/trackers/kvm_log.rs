//! KVM's dirty bitmaps (Documentation/virt/kvm/api.rst, 4.8, 4.117 and 7.18).

use super::sys::{self, ClearDirtyLog, DirtyLog};
use super::{check_sets, TrackError, TrackedSlot, Tracker};
use crate::page_set::PageSet;
use std::os::fd::{AsRawFd, BorrowedFd};

/// How KVM protects pages again after they were reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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

/// Pages that one KVM_CLEAR_DIRTY_LOG protects, a multiple of 64: 64 MiB of guest memory.
const CHUNK: usize = 16_384;

/// KVM's dirty bitmap of each slot.
#[derive(Debug)]
pub struct KvmLog<'vm> {
    vm: BorrowedFd<'vm>,
    mode: KvmLogMode,
    slots: Vec<TrackedSlot>,
    /// As large as the largest slot.
    words: Vec<u64>,
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
        let largest = slots.iter().map(|slot| slot.pages().div_ceil(64)).max();
        Ok(Self { vm, mode, slots, words: vec![0; largest.unwrap_or(0)] })
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

    /// Reads a slot's bitmap into `words`.
    fn get(&mut self, slot: &TrackedSlot) -> Result<(), TrackError> {
        let bitmap = self.words.as_mut_ptr().expose_provenance() as u64;
        let mut log = DirtyLog { slot: slot.id, padding: 0, bitmap };
        let (fd, step) = (self.vm.as_raw_fd(), "KVM_GET_DIRTY_LOG");
        // SAFETY: the request takes this structure, and writes a bit for each of the slot's
        // pages, in whole u64s, to `bitmap`, which `new` made large enough.
        unsafe { sys::ioctl(fd, sys::KVM_GET_DIRTY_LOG, &mut log, step) }.map(drop)
    }

    /// Clears what `words` has set, in the chunks that have any.
    fn clear(&mut self, slot: &TrackedSlot) -> Result<(), TrackError> {
        let words = slot.pages().div_ceil(64);
        for (i, chunk) in self.words[..words].chunks(CHUNK / 64).enumerate() {
            if chunk.iter().all(|&word| word == 0) {
                continue;
            }
            let first = i * CHUNK;
            let mut log = ClearDirtyLog {
                slot: slot.id,
                // A multiple of 64, or up to the slot's end: KVM refuses others.
                num_pages: CHUNK.min(slot.pages() - first) as u32,
                first_page: first as u64,
                bitmap: chunk.as_ptr().expose_provenance() as u64,
            };
            let (fd, step) = (self.vm.as_raw_fd(), "KVM_CLEAR_DIRTY_LOG");
            // SAFETY: the request takes this structure, and reads a bit for each page.
            unsafe { sys::ioctl(fd, sys::KVM_CLEAR_DIRTY_LOG, &mut log, step) }?;
        }
        Ok(())
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
        for (slot, set) in self.slots.clone().iter().zip(sets) {
            self.get(slot)?;
            let words = &self.words[..slot.pages().div_ceil(64)];
            let dirty: usize = words.iter().map(|word| word.count_ones() as usize).sum();
            set.merge_words(0, words);
            found += dirty;
            if self.mode != KvmLogMode::Legacy && dirty > 0 {
                self.clear(slot)?;
            }
        }
        Ok(found)
    }

    fn stop(&mut self) -> Result<(), TrackError> {
        self.set_logging(false)
    }
}
