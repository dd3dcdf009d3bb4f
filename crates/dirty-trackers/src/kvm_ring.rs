// SPDX-License-Identifier: Apache-2.0 OR MIT

//! KVM's dirty rings (Documentation/virt/kvm/api.rst, 8.29): one for each vCPU, of page
//! numbers, so that a harvest costs what is dirty and not the slot's size.
//!
//! A ring that is full stops its vCPU with KVM_EXIT_DIRTY_RING_FULL until it was
//! collected. On hosts whose CPUs buffer dirty pages (Intel PML) the last few are in the
//! ring only after the vCPU left the guest: kick the vCPUs before a collection that must
//! be complete.
//!
//! A host whose CPUs order memory weakly (arm64) has rings whose flags are read by acquire and
//! written by release only (`KVM_CAP_DIRTY_LOG_RING_ACQ_REL`), which is done everywhere here.
//! There KVM also writes to guest memory without a vCPU, when an ITS' tables are saved, and
//! notes that in the slots' bitmaps (`KVM_CAP_DIRTY_LOG_RING_WITH_BITMAP`): those are read once,
//! by [`Tracker::collect_last`].

use crate::sys::{self, DirtyGfn};
use crate::{check_sets, TrackError, TrackedSlot, Tracker};
use dirty_log::PageSet;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Pages into a vCPU's file where its ring is (`KVM_DIRTY_LOG_PAGE_OFFSET`).
const RING_OFFSET: usize = 64;
/// Calls of KVM_RESET_DIRTY_RINGS in a row that reset nothing: somebody else resets, too.
const MOST_IN_VAIN: u32 = 10_000;
const DIRTY: u32 = 1;
const RESET: u32 = 2;

/// A vCPU's ring, mapped.
#[derive(Debug)]
pub struct VcpuRing {
    entries: NonNull<DirtyGfn>,
    count: usize,
    next: usize,
}

// SAFETY: it owns a mapping, which is bound to no thread.
unsafe impl Send for VcpuRing {}

impl VcpuRing {
    /// Maps the ring of a vCPU.
    ///
    /// # Errors
    /// The VM has no rings of `entries` entries.
    ///
    /// # Safety
    /// `vcpu` is a vCPU of a VM on which [`KvmRing::enable`] was called with `entries`.
    pub unsafe fn map(vcpu: BorrowedFd<'_>, entries: usize) -> Result<Self, TrackError> {
        let bytes = entries * size_of::<DirtyGfn>();
        let (access, fd) = (libc::PROT_READ | libc::PROT_WRITE, vcpu.as_raw_fd());
        let null = std::ptr::null_mut();
        let offset = (RING_OFFSET * super::page_size()) as libc::off_t;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(null, bytes, access, libc::MAP_SHARED, fd, offset) };
        let step = "mmap of a vCPU's dirty ring";
        if at == libc::MAP_FAILED {
            return Err(TrackError::hinted(step, "; enable rings before you create the vCPU"));
        }
        let entries_at = NonNull::new(at.cast()).ok_or_else(|| TrackError::last(step))?;
        Ok(Self { entries: entries_at, count: entries, next: 0 })
    }

    /// Takes one entry: (slot number, page in it).
    fn pop(&mut self) -> Option<(u32, u64)> {
        // SAFETY: inside the mapping, of `count` entries.
        let entry = unsafe { self.entries.add(self.next % self.count) }.as_ptr();
        // SAFETY: KVM writes the flags last and reads them first, atomically; they are
        // aligned, and nothing here refers to them otherwise.
        let flags = unsafe { AtomicU32::from_ptr(&raw mut (*entry).flags) };
        if flags.load(Ordering::Acquire) & DIRTY == 0 {
            return None;
        }
        // SAFETY: with DIRTY set the entry is this process's until RESET is stored.
        let (slot, offset) = unsafe { ((*entry).slot, (*entry).offset) };
        flags.store(RESET, Ordering::Release);
        self.next = (self.next + 1) % self.count;
        Some((slot, offset))
    }
}

impl Drop for VcpuRing {
    fn drop(&mut self) {
        let bytes = self.count * size_of::<DirtyGfn>();
        // SAFETY: the mapping that `map` made, used by nobody else.
        unsafe { libc::munmap(self.entries.as_ptr().cast(), bytes) };
    }
}

/// The rings of all vCPUs.
#[derive(Debug)]
pub struct KvmRing<'vm> {
    vm: BorrowedFd<'vm>,
    slots: Vec<TrackedSlot>,
    rings: Vec<VcpuRing>,
    /// Entries taken that KVM has not protected again: their pages are in no ring.
    unreset: usize,
    /// KVM writes without a vCPU, and notes that in the slots' bitmaps.
    with_bitmap: bool,
}

/// The rings that a VM may have.
#[derive(Debug, PartialEq, Eq)]
struct Rings {
    cap: u32,
    /// 0 if it may have none.
    max_bytes: usize,
    with_bitmap: bool,
}

impl Rings {
    /// By each capability's value.
    fn of(value: impl Fn(u32) -> usize) -> Self {
        // Hosts with strongly ordered memory have both since Linux 6.1, and only the second before.
        let caps = [sys::KVM_CAP_DIRTY_LOG_RING_ACQ_REL, sys::KVM_CAP_DIRTY_LOG_RING];
        let cap = caps.into_iter().find(|&cap| value(cap) > 0).unwrap_or(caps[0]);
        let with_bitmap = value(sys::KVM_CAP_DIRTY_LOG_RING_WITH_BITMAP) > 0;
        Self { cap, max_bytes: value(cap), with_bitmap }
    }
}

impl<'vm> KvmRing<'vm> {
    /// The most entries that a ring may have; 0 where there are no rings.
    pub fn max_entries(vm: BorrowedFd<'_>) -> usize {
        Rings::of(|cap| sys::capability(vm, cap)).max_bytes / size_of::<DirtyGfn>()
    }

    /// Gives each vCPU that is made from now on a ring of so many entries, a power of two; and
    /// each slot a bitmap of what KVM writes without a vCPU, where it does.
    ///
    /// # Errors
    /// KVM refuses: the VM has vCPUs, or (on arm64) slots, or the number is not one that it
    /// takes.
    pub fn enable(vm: BorrowedFd<'_>, entries: usize) -> Result<(), TrackError> {
        let rings = Rings::of(|cap| sys::capability(vm, cap));
        let bytes = entries.saturating_mul(size_of::<DirtyGfn>()) as u64;
        sys::enable_cap(vm, rings.cap, bytes, "KVM_ENABLE_CAP(KVM_CAP_DIRTY_LOG_RING)")?;
        if rings.with_bitmap {
            let step = "KVM_ENABLE_CAP(KVM_CAP_DIRTY_LOG_RING_WITH_BITMAP)";
            sys::enable_cap(vm, sys::KVM_CAP_DIRTY_LOG_RING_WITH_BITMAP, 0, step)?;
        }
        Ok(())
    }

    /// For slots that the VM has, and the rings of all its vCPUs.
    ///
    /// # Errors
    /// A slot is not made of whole pages.
    ///
    /// # Safety
    /// `vm` is a KVM VM, `slots` are as it has them, mapped as long as it lives.
    pub unsafe fn new(
        vm: BorrowedFd<'vm>,
        slots: Vec<TrackedSlot>,
        rings: Vec<VcpuRing>,
    ) -> Result<Self, TrackError> {
        slots.iter().try_for_each(TrackedSlot::check)?;
        let with_bitmap = Rings::of(|cap| sys::capability(vm, cap)).with_bitmap;
        Ok(Self { vm, slots, rings, unreset: 0, with_bitmap })
    }

    fn set_logging(&self, on: bool) -> Result<(), TrackError> {
        // SAFETY: promised to `new`.
        self.slots.iter().try_for_each(|slot| unsafe { sys::set_logging(self.vm, slot, on) })
    }
}

impl KvmRing<'_> {
    /// Takes what is in the rings; returns how many pages were not in the sets.
    fn take(&mut self, sets: &mut [PageSet]) -> usize {
        let mut found = 0;
        for ring in &mut self.rings {
            // At most once round: a vCPU that writes on must not hold this up.
            for _ in 0..ring.count {
                let Some((slot, page)) = ring.pop() else { break };
                self.unreset += 1;
                let of = |tracked: &TrackedSlot| tracked.id == slot;
                let Some(i) = self.slots.iter().position(of) else { continue };
                // A page comes twice if two vCPUs wrote to it.
                let new = usize::try_from(page).is_ok_and(|page| sets[i].insert(page));
                found += usize::from(new);
            }
        }
        found
    }

    /// Takes what KVM wrote without a vCPU; returns how many pages that were.
    fn take_bitmaps(&self, sets: &mut [PageSet]) -> Result<usize, TrackError> {
        let mut found = 0;
        for (slot, set) in self.slots.iter().zip(sets) {
            let mut words = vec![0; slot.pages().div_ceil(64)];
            // SAFETY: promised to `new`.
            match unsafe { sys::get_dirty_log(self.vm, slot, &mut words) } {
                // The user enabled rings without bitmaps.
                Err(TrackError::System { source, .. })
                    if source.raw_os_error() == Some(libc::ENXIO) =>
                {
                    return Ok(found);
                }
                taken => taken?,
            }
            set.merge_words_at(0, &words);
            found += words.iter().map(|word| word.count_ones() as usize).sum::<usize>();
        }
        Ok(found)
    }

    /// Has KVM protect the pages of all entries taken. It stops short where a signal is
    /// pending (Linux 6.16), and says how far it came; but up to 64 of the entries that it
    /// counts then are not protected, as it protects neighbours together and returns before
    /// it has (virt/kvm/dirty_ring.c, `kvm_dirty_ring_reset`: `mask`). To count is not
    /// enough: no signal may come meanwhile.
    fn reset(&mut self) -> Result<(), TrackError> {
        let _unsignalled = sys::Unsignalled::new();
        let mut in_vain = 0;
        while self.unreset > 0 {
            let step = "KVM_RESET_DIRTY_RINGS";
            let done = match sys::ioctl_number(self.vm, sys::KVM_RESET_DIRTY_RINGS, 0, step) {
                Err(TrackError::System { source, .. })
                    if source.kind() == ErrorKind::Interrupted =>
                {
                    0
                }
                done => done?,
            };
            self.unreset = self.unreset.saturating_sub(done);
            in_vain = if done == 0 { in_vain + 1 } else { 0 };
            if in_vain == MOST_IN_VAIN {
                let source = io::Error::from(ErrorKind::TimedOut);
                let hint =
                    "; KVM does not reset the entries that this tracker collected: is there \
                     another collector?";
                return Err(TrackError::System { step, source, hint });
            }
        }
        Ok(())
    }
}

impl Tracker for KvmRing<'_> {
    fn name(&self) -> &'static str {
        "kvm-ring"
    }

    fn sees_host_writes(&self) -> bool {
        false
    }

    fn start(&mut self) -> Result<(), TrackError> {
        self.set_logging(true)
    }

    fn collect(&mut self, sets: &mut [PageSet]) -> Result<usize, TrackError> {
        check_sets(&self.slots, sets)?;
        let found = self.take(sets);
        self.reset()?;
        Ok(found)
    }

    /// On arm64, also what KVM wrote when the state of an ITS was saved; a page that a vCPU
    /// wrote to as well is counted twice.
    fn collect_last(&mut self, sets: &mut [PageSet]) -> Result<usize, TrackError> {
        let found = self.collect(sets)?;
        Ok(found + if self.with_bitmap { self.take_bitmaps(sets)? } else { 0 })
    }

    fn stop(&mut self) -> Result<(), TrackError> {
        self.set_logging(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_size;

    /// A ring that no KVM has.
    fn ring(pages: &[(u32, u64)]) -> VcpuRing {
        let bytes = pages.len() * size_of::<DirtyGfn>();
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice, large enough for the
        // entries; `VcpuRing` unmaps it.
        unsafe {
            let at = libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0);
            let entries: NonNull<DirtyGfn> = NonNull::new(at.cast()).unwrap();
            for (n, &(slot, offset)) in pages.iter().enumerate() {
                entries.add(n).write(DirtyGfn { flags: DIRTY, slot, offset });
            }
            VcpuRing { entries, count: pages.len(), next: 0 }
        }
    }

    #[test]
    fn the_rings_that_a_host_has_are_found() {
        let host = |caps: &'static [(u32, usize)]| {
            let value = move |cap| caps.iter().find(|(c, _)| *c == cap).map_or(0, |(_, v)| *v);
            let Rings { cap, max_bytes, with_bitmap } = Rings::of(value);
            (cap, max_bytes, with_bitmap)
        };
        assert_eq!(host(&[(192, 1 << 20)]), (192, 1 << 20, false), "x86, Linux 5.11");
        assert_eq!(host(&[(192, 1 << 20), (223, 1 << 20)]), (223, 1 << 20, false), "x86, 6.1");
        assert_eq!(host(&[(223, 1 << 20), (225, 1)]), (223, 1 << 20, true), "arm64, 6.2");
        assert_eq!(host(&[]).1, 0);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no ioctl")]
    fn bitmaps_are_read_last_where_kvm_has_them() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let vm = std::os::fd::AsFd::as_fd(&file);
        let slot = TrackedSlot::new(0, 0, std::ptr::null_mut(), 64 * page_size());
        // SAFETY: nothing that is not a VM answers.
        let mut tracker = unsafe { KvmRing::new(vm, vec![slot], vec![]) }.unwrap();
        let mut sets = [PageSet::with_len(slot.bytes)];
        assert_eq!(tracker.collect_last(&mut sets).unwrap(), 0);
        tracker.with_bitmap = true;
        assert_eq!(tracker.collect(&mut sets).unwrap(), 0);
        let error = tracker.collect_last(&mut sets).unwrap_err();
        assert!(matches!(error, TrackError::System { step: "KVM_GET_DIRTY_LOG", .. }), "{error}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no signal masks")]
    fn address_spaces_are_kept_apart() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let slot = |id| TrackedSlot::new(id, 0, std::ptr::null_mut(), 64 * page_size());
        // Slot 3 of the ordinary address space, and of that of system management mode.
        let slots = vec![slot(3), slot(1 << 16 | 3)];
        let rings = vec![ring(&[(3, 5), (1 << 16 | 3, 6), (1 << 16 | 3, 7), (4, 8)])];
        let vm = std::os::fd::AsFd::as_fd(&file);
        // SAFETY: nothing is asked of KVM.
        let mut tracker = unsafe { KvmRing::new(vm, slots, rings) }.unwrap();
        let mut sets = [PageSet::with_len(64 * page_size()), PageSet::with_len(64 * page_size())];
        assert_eq!(tracker.take(&mut sets), 3);
        let seen = sets.map(|set| set.iter().collect::<Vec<_>>());
        assert_eq!((seen, tracker.unreset), ([vec![5], vec![6, 7]], 4));
        // What could not be reset is not forgotten.
        let mut sets = [PageSet::with_len(64 * page_size()), PageSet::with_len(64 * page_size())];
        for _ in 0..2 {
            tracker.collect(&mut sets).unwrap_err();
            assert_eq!(tracker.unreset, 4);
        }
    }
}
