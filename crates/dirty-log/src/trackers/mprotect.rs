// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Page protection: works wherever there is mprotect(2) and SIGSEGV, at a signal for each
//! first write.
//!
//! Sees what this process's threads write with their own instructions. A system call or
//! KVM that writes on their behalf gets EFAULT instead of a signal: KVM_RUN then returns
//! EFAULT, with the address in the exit (KVM_EXIT_MEMORY_FAULT) where KVM tells it; the
//! VMM passes that to [`Mprotect::resolve`] and runs the vCPU again.
//!
//! A page is writable only while it is marked, or while a collection that has its mark is
//! about to protect it: the handler marks first, and unprotects while it still has hold of
//! the bitmap that it marked, for which a harvest waits.

use super::fault::{self, Protected};
use super::{check_sets, page_size, TrackError, TrackedSlot, Tracker};
use crate::page_set::PageSet;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Which pages were written, by their protection.
#[derive(Debug)]
pub struct Mprotect {
    slots: Vec<TrackedSlot>,
    /// Entries of TABLE, in the slots' order; empty while not tracking.
    entries: Vec<&'static AtomicPtr<Protected>>,
}

impl Mprotect {
    /// For mappings of this process. While tracking, it handles SIGSEGV for them, and
    /// passes what is not theirs to the handler that was there before.
    ///
    /// # Errors
    /// A slot is not made of whole pages.
    ///
    /// # Safety
    /// The slots are mapped, readable and writable, as long as this lives, and nobody else
    /// changes that.
    pub unsafe fn new(slots: Vec<TrackedSlot>) -> Result<Self, TrackError> {
        slots.iter().try_for_each(TrackedSlot::check)?;
        Ok(Self { slots, entries: Vec::new() })
    }

    /// Makes the page at a guest-physical address writable and counts it as written: what
    /// to do on KVM's memory faults. False if no slot has it.
    pub fn resolve(&self, gpa: u64) -> bool {
        for (slot, entry) in self.slots.iter().zip(&self.entries) {
            let Some(offset) = gpa.checked_sub(slot.gpa) else { continue };
            // SAFETY: published by `start`, and freed by `stop`, which has `&mut self`.
            let protected = unsafe { entry.load(Ordering::Acquire).as_ref() };
            if let (true, Some(protected)) = (offset < slot.bytes as u64, protected) {
                return protected.resolve(protected.memory.start + offset as usize);
            }
        }
        false
    }

    fn publish(&mut self, slot: &TrackedSlot) -> Result<(), TrackError> {
        let wrong = |what| TrackError::Slot { slot: slot.id, what };
        let start = slot.host.expose_provenance();
        let new = Protected::new(start..start + slot.bytes, page_size());
        let new = Box::new(new.map_err(|_| wrong("no page size"))?);
        self.entries.push(fault::publish(new).ok_or(wrong("64 slots are tracked already"))?);
        Ok(())
    }

    fn start_all(&mut self) -> Result<(), TrackError> {
        fault::install()?;
        for slot in self.slots.clone() {
            self.publish(&slot)?;
            if !fault::protect(slot.host.addr(), slot.bytes, libc::PROT_READ) {
                return Err(TrackError::last("mprotect of a slot"));
            }
        }
        Ok(())
    }
}

impl Tracker for Mprotect {
    fn name(&self) -> &'static str {
        "mprotect"
    }

    fn sees_host_writes(&self) -> bool {
        true
    }

    fn start(&mut self) -> Result<(), TrackError> {
        if !self.entries.is_empty() {
            return Err(TrackError::Started);
        }
        let started = self.start_all();
        if started.is_err() {
            // What was protected is writable again; the first error is the one to tell.
            let _ = self.stop();
        }
        started
    }

    fn collect(&mut self, sets: &mut [PageSet]) -> Result<usize, TrackError> {
        check_sets(&self.slots, sets)?;
        let (mut found, page_size) = (0, page_size());
        for (entry, set) in self.entries.iter().zip(sets) {
            // SAFETY: as in `resolve`.
            let Some(slot) = (unsafe { entry.load(Ordering::Acquire).as_ref() }) else { continue };
            let dirty = slot.log.harvest();
            let mut protected = true;
            dirty.for_each_run(|run| {
                let at = slot.memory.start + run.start * page_size;
                protected &= fault::protect(at, run.len() * page_size, libc::PROT_READ);
                found += run.len();
            });
            dirty.for_each_word(|i, word| {
                set.merge_word(i, word);
            });
            if !protected {
                return Err(TrackError::last("mprotect of pages that were written"));
            }
        }
        Ok(found)
    }

    fn stop(&mut self) -> Result<(), TrackError> {
        let mut writable = true;
        for slot in &self.slots[..self.entries.len()] {
            writable &= fault::protect(slot.host.addr(), slot.bytes, fault::WRITABLE);
        }
        if !writable {
            return Err(TrackError::last("mprotect of a slot"));
        }
        self.entries.drain(..).for_each(fault::withdraw);
        Ok(())
    }
}

impl Drop for Mprotect {
    fn drop(&mut self) {
        // Nothing is to be done if the memory can't be made writable: it stays tracked.
        let _ = self.stop();
    }
}
