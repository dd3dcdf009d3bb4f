//! Who tells which pages were written: the kernel, in five ways, or page protection.
//!
//! | tracker | guest's writes | VMM's writes | cost when on |
//! |---|---|---|---|
//! | [`KvmLog`] legacy | yes | no | a fault for each first write; a harvest protects all again |
//! | [`KvmLog`] manual protect | yes | no | the same; protects in chunks, when asked to |
//! | [`KvmLog`] initially set | yes | no | protects nothing before the first clear |
//! | [`KvmRing`] | yes | no | as above; a harvest costs what is dirty, not the slot's size |
//! | [`PagemapScan`] | yes | yes | a fault for each first write, resolved in the kernel |
//! | [`Mprotect`] | only as KVM's memory faults | yes | a signal for each first write |
//!
//! All are behind [`Tracker`]. None needs a KVM crate: they take file descriptors. What
//! KVM does not see, marks in a [`crate::DirtyBitmap`] do; a [`PageSet`] joins them.
//!
//! x86-64 and other hosts with 4 KiB pages.

mod kvm_log;
mod kvm_ring;
mod mprotect;
mod pagemap;
mod sys;

use crate::page_set::PageSet;
pub use kvm_log::{KvmLog, KvmLogMode};
pub use kvm_ring::{KvmRing, VcpuRing};
pub use mprotect::Mprotect;
pub use pagemap::PagemapScan;
use std::fmt::Debug;
use std::io;

/// Page size of all trackers, bytes.
pub const PAGE_SIZE: usize = 4096;

/// A tracker could not do its work.
#[derive(Debug, thiserror::Error)]
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
    #[error("{found} page sets for {expected} slots: one for each, in their order")]
    Sets {
        /// Slots tracked.
        expected: usize,
        /// Sets given.
        found: usize,
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

/// A slot whose writes are tracked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrackedSlot {
    /// KVM's number for it.
    pub id: u32,
    /// Guest-physical address of its first byte.
    pub gpa: u64,
    /// Where this process has it mapped.
    pub host: *mut u8,
    /// Size, bytes.
    pub bytes: usize,
}

// SAFETY: the pointer is an address given to the kernel; nothing is read through it here.
unsafe impl Send for TrackedSlot {}
// SAFETY: as above.
unsafe impl Sync for TrackedSlot {}

impl TrackedSlot {
    /// How many pages it has.
    pub fn pages(&self) -> usize {
        self.bytes / PAGE_SIZE
    }

    fn check(&self) -> Result<(), TrackError> {
        let wrong = |what| Err(TrackError::Slot { slot: self.id, what });
        if self.bytes == 0 || self.bytes % PAGE_SIZE != 0 {
            return wrong("its size is not a whole number of 4096-byte pages");
        }
        if self.host.addr() % PAGE_SIZE != 0 || self.gpa % PAGE_SIZE as u64 != 0 {
            return wrong("its addresses are not multiples of 4096");
        }
        if self.pages() > u32::MAX as usize {
            return wrong("it has more pages than KVM_CLEAR_DIRTY_LOG can count");
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

    /// Ends tracking.
    ///
    /// # Errors
    /// The kernel refuses.
    fn stop(&mut self) -> Result<(), TrackError>;
}

fn check_sets(slots: &[TrackedSlot], sets: &[PageSet]) -> Result<(), TrackError> {
    if slots.len() == sets.len() {
        Ok(())
    } else {
        Err(TrackError::Sets { expected: slots.len(), found: sets.len() })
    }
}
