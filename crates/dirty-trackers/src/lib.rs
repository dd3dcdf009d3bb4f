// SPDX-License-Identifier: Apache-2.0 OR MIT

#![doc = include_str!("../README.md")]
#![cfg(target_os = "linux")]

mod fault;
mod kvm_log;
mod kvm_ring;
mod mprotect;
mod pagemap;
mod sys;

use dirty_log::{host_page_size, PageSet};
use std::fmt::Debug;
use std::io;
use std::ops::Range;

pub use kvm_log::{KvmLog, KvmLogMode};
pub use kvm_ring::{KvmRing, VcpuRing};
pub use mprotect::Mprotect;
pub use pagemap::PagemapScan;

/// Bytes in a page of all trackers: the host's, as KVM's logs and rings, page tables and mprotect(2)
/// all count in those.
pub fn page_size() -> usize {
    host_page_size().get()
}

/// A tracker could not do its work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrackError {
    /// The kernel refused a step.
    #[error("{step} failed: {source}{hint}")]
    System {
        /// The call, such as `KVM_GET_DIRTY_LOG`.
        step: &'static str,
        /// Its errno.
        source: io::Error,
        /// What would mend it, if that is known.
        hint: &'static str,
    },
    /// A slot that can't be tracked.
    #[error("slot {slot}: {what}")]
    Slot {
        /// Its number.
        slot: u32,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The sets to collect into are not those of the slots.
    #[error(
        "got {found} page sets for {expected} slots: expected one for each slot, in the \
        order of the slots"
    )]
    Sets {
        /// Slots tracked.
        expected: usize,
        /// Sets given.
        found: usize,
    },
    /// A set is another slot's, or from before its slot was resized: pages would be lost.
    #[error("got a page set of {found} pages for slot {slot}, but the slot has {expected} pages")]
    SetSize {
        /// The slot's number.
        slot: u32,
        /// Pages that it has.
        expected: usize,
        /// Pages of the set.
        found: usize,
    },
    /// Started twice.
    #[error("the tracker has been started: stop it first")]
    Started,
    /// It can't report without protecting, or can't protect a part.
    #[error(
        "{tracker} cannot report and protect in separate steps: use collect, which does both \
        in one"
    )]
    AtOnce {
        /// Its name.
        tracker: &'static str,
    },
}

impl TrackError {
    fn last(step: &'static str) -> Self {
        Self::hinted(step, "")
    }

    fn hinted(step: &'static str, hint: &'static str) -> Self {
        Self::System { step, source: io::Error::last_os_error(), hint }
    }
}

/// KVM's flags of a slot (include/uapi/linux/kvm.h).
const KVM_MEM_LOG_DIRTY_PAGES: u32 = 1 << 0;
const KVM_MEM_GUEST_MEMFD: u32 = 1 << 2;

/// A slot whose writes are tracked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrackedSlot {
    /// KVM's number for it: the slot in the lower 16 bits, its address space above (x86: 1
    /// is system management mode).
    pub id: u32,
    /// Guest-physical address of its first byte.
    pub gpa: u64,
    /// Where this process has it mapped.
    pub host: *mut u8,
    /// Size, bytes.
    pub bytes: usize,
    /// KVM's flags of it (`KVM_MEM_*`), which switching its log on and off keeps.
    pub flags: u32,
}

// SAFETY: the pointer is an address given to the kernel; nothing is read through it here.
unsafe impl Send for TrackedSlot {}
// SAFETY: as above.
unsafe impl Sync for TrackedSlot {}

impl TrackedSlot {
    /// A slot without flags.
    pub fn new(id: u32, gpa: u64, host: *mut u8, bytes: usize) -> Self {
        Self { id, gpa, host, bytes, flags: 0 }
    }

    /// The same with KVM's flags of it, such as `KVM_MEM_READONLY`.
    #[must_use]
    pub fn with_flags(self, flags: u32) -> Self {
        Self { flags, ..self }
    }

    /// How many pages it has.
    pub fn pages(&self) -> usize {
        self.bytes / page_size()
    }

    fn check(&self) -> Result<(), TrackError> {
        self.check_in(page_size())
    }

    /// On a host with pages of this size.
    fn check_in(&self, page_size: usize) -> Result<(), TrackError> {
        let wrong = |what| Err(TrackError::Slot { slot: self.id, what });
        if self.bytes == 0 || self.bytes % page_size != 0 {
            return wrong("its size is not a multiple of the host's page size");
        }
        if self.host.addr() % page_size != 0 || self.gpa % page_size as u64 != 0 {
            return wrong("its addresses are not multiples of the host's page size");
        }
        if self.bytes / page_size > u32::MAX as usize {
            return wrong("it has more pages than KVM_CLEAR_DIRTY_LOG can count");
        }
        if self.flags & KVM_MEM_GUEST_MEMFD != 0 {
            return wrong("KVM logs no slot with KVM_MEM_GUEST_MEMFD");
        }
        Ok(())
    }
}

/// Tells which pages were written.
pub trait Tracker: Debug {
    /// Its name, as on a command line.
    fn name(&self) -> &'static str;

    /// Are writes by this process's own threads seen, and by system calls on its behalf?
    fn sees_host_writes(&self) -> bool;

    /// Does the first [`Self::collect`] report every page, written or not?
    fn starts_full(&self) -> bool {
        false
    }

    /// Begins to track.
    ///
    /// # Errors
    /// The kernel refuses.
    fn start(&mut self) -> Result<(), TrackError>;

    /// Adds the pages written since the last call (since [`Self::start`]) to the slots'
    /// sets, in the slots' order, and forgets them: a write that comes after this returns
    /// is in the next call's. Returns how many pages that were.
    ///
    /// # Errors
    /// The kernel refuses, or `sets` are not one for each slot.
    fn collect(&mut self, sets: &mut [PageSet]) -> Result<usize, TrackError>;

    /// The last [`Self::collect`]: when no vCPU runs any more and the devices' states are saved.
    /// Some trackers tell then what no vCPU wrote ([`KvmRing`]).
    ///
    /// # Errors
    /// As [`Self::collect`].
    fn collect_last(&mut self, sets: &mut [PageSet]) -> Result<usize, TrackError> {
        self.collect(sets)
    }

    /// Can it [report](Self::report) and [protect](Self::protect) apart?
    fn is_apart(&self) -> bool {
        false
    }

    /// Adds the pages that were written since they were last protected to the slots' sets,
    /// and goes on as before: a page is reported again and again until [`Self::protect`].
    /// Returns how many pages that were.
    ///
    /// # Errors
    /// As [`Self::collect`]; [`TrackError::AtOnce`] where [`Self::is_apart`] is false.
    fn report(&mut self, _sets: &mut [PageSet]) -> Result<usize, TrackError> {
        Err(TrackError::AtOnce { tracker: self.name() })
    }

    /// Protects those pages of a slot (by its place) that the last [`Self::report`] found:
    /// to be called before they are read, so that what is written to them from then on is in
    /// the next report. Returns how many pages were protected.
    ///
    /// # Errors
    /// The kernel refuses; [`TrackError::AtOnce`].
    fn protect(&mut self, _slot: usize, _pages: Range<usize>) -> Result<usize, TrackError> {
        Err(TrackError::AtOnce { tracker: self.name() })
    }

    /// Ends tracking.
    ///
    /// # Errors
    /// The kernel refuses.
    fn stop(&mut self) -> Result<(), TrackError>;
}

fn check_sets(slots: &[TrackedSlot], sets: &[PageSet]) -> Result<(), TrackError> {
    if slots.len() != sets.len() {
        return Err(TrackError::Sets { expected: slots.len(), found: sets.len() });
    }
    let is_wrong = |slot: &TrackedSlot, set: &PageSet| {
        (slot.pages(), page_size()) != (set.pages(), set.page_size())
    };
    let wrong = slots.iter().zip(sets).find(|(slot, set)| is_wrong(slot, set));
    wrong.map_or(Ok(()), |(slot, set)| {
        let (slot, expected, found) = (slot.id, slot.pages(), set.pages());
        Err(TrackError::SetSize { slot, expected, found })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_whole_pages_of_the_host() {
        let host = std::ptr::without_provenance_mut(0x30_0000);
        let slot = TrackedSlot::new(1, 0x10_0000, host, 0x1000 * 17);
        assert!(slot.check_in(4096).is_ok());
        for page_size in [16_384, 65_536] {
            assert!(slot.check_in(page_size).is_err(), "17 pages of 4 KiB");
        }
        assert!(slot.with_flags(KVM_MEM_GUEST_MEMFD).check_in(4096).is_err());
    }
}
