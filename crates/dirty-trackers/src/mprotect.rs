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
//! about to protect it: the handler marks first and unprotects then, and a collection waits for
//! handlers that are in between.

use crate::fault::{self, Protected};
use crate::{check_sets, TrackError, TrackedSlot, Tracker};
use dirty_log::PageSet;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Which pages were written, by their protection.
#[derive(Debug)]
pub struct Mprotect {
    slots: Vec<TrackedSlot>,
    /// Entries of TABLE, in the slots' order; empty while not tracking.
    entries: Vec<&'static AtomicPtr<Protected>>,
    /// Of each entry, what a collection takes: empty in between.
    taken: Vec<PageSet>,
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
    /// changes that. No forked child uses it: threads that were in the handler at the fork would be
    /// waited for there.
    pub unsafe fn new(slots: Vec<TrackedSlot>) -> Result<Self, TrackError> {
        slots.iter().try_for_each(TrackedSlot::check)?;
        Ok(Self { slots, entries: Vec::new(), taken: Vec::new() })
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
        let new = Box::new(Protected::new(start..start + slot.bytes));
        let taken = new.new_set();
        self.entries.push(fault::publish(new).ok_or(wrong("64 slots are tracked already"))?);
        self.taken.push(taken);
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
        let mut found = 0;
        for ((entry, taken), set) in self.entries.iter().zip(&mut self.taken).zip(sets) {
            // SAFETY: as in `resolve`.
            let Some(slot) = (unsafe { entry.load(Ordering::Acquire).as_ref() }) else { continue };
            let protected = slot.collect(taken);
            found += taken.count();
            for (i, word) in taken.dirty_words() {
                set.merge_words_at(i * 64, &[word]);
            }
            taken.clear();
            protected?;
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
        self.taken.clear();
        Ok(())
    }
}

impl Drop for Mprotect {
    fn drop(&mut self) {
        // Nothing is to be done if the memory can't be made writable: it stays tracked.
        let _ = self.stop();
    }
}
