// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The slots of a whole guest, found by guest-physical address, while slots come and go.
//!
//! The table of slots is replaced by the same protocol as the bitmaps: marks look it up
//! without a lock, and a slot that was removed is out of every mark's reach when `remove`
//! returns, so that its last harvest is complete.

use crate::hazard::Switch;
use crate::slot::BadPageSize;
use crate::strategy::{DirtyBitmap, Strategy, SwitchOpt};
use crate::writer;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A slot that can't be added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SlotError {
    /// See there.
    #[error(transparent)]
    PageSize(#[from] BadPageSize),
    /// The number is in use.
    #[error("there is a slot {0} already: remove it first, or choose another number")]
    InUse(u32),
    /// Memory that another slot has.
    #[error("slot {id} at {gpa:#x} of {bytes:#x} bytes overlaps slot {other} at {other_gpa:#x}")]
    Overlap {
        /// The new slot.
        id: u32,
        /// Its guest-physical address.
        gpa: u64,
        /// Its size.
        bytes: u64,
        /// The slot that has this memory.
        other: u32,
        /// Where that one begins.
        other_gpa: u64,
    },
    /// It ends beyond what 64 bits can address, or beyond this host's memory.
    #[error("slot {id} at {gpa:#x} of {bytes:#x} bytes ends beyond the address space")]
    TooHigh {
        /// The new slot.
        id: u32,
        /// Its guest-physical address.
        gpa: u64,
        /// Its size.
        bytes: u64,
    },
}

/// A memory slot of a guest: where it is, and its dirty bitmap.
#[derive(Debug)]
pub struct MemorySlot<S: Strategy = SwitchOpt> {
    id: u32,
    gpa: u64,
    log: DirtyBitmap<S>,
}

impl<S: Strategy> MemorySlot<S> {
    /// Its number, as KVM knows it.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Guest-physical address of its first byte.
    pub fn gpa(&self) -> u64 {
        self.gpa
    }

    /// Guest-physical address behind its last byte.
    pub fn end(&self) -> u64 {
        self.gpa + self.log.bytes() as u64
    }
}

impl<S: Strategy> Deref for MemorySlot<S> {
    type Target = DirtyBitmap<S>;

    fn deref(&self) -> &DirtyBitmap<S> {
        &self.log
    }
}

/// Slots by address.
type Table<S> = Vec<Arc<MemorySlot<S>>>;

/// All dirty bitmaps of a guest.
pub struct MemoryLog<S: Strategy = SwitchOpt> {
    table: Switch<Table<S>>,
    /// Who changes the table, or needs it to stay.
    changing: Mutex<()>,
}

impl<S: Strategy> Default for MemoryLog<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: Strategy> MemoryLog<S> {
    /// Without slots.
    pub fn new() -> Self {
        writer::init();
        Self { table: Switch::new(leak(Vec::new())), changing: Mutex::default() }
    }

    /// Adds a slot, while marks and harvests of others go on.
    ///
    /// # Errors
    /// The number or the memory is another slot's; the page size is not a power of two.
    pub fn add(
        &self,
        id: u32,
        gpa: u64,
        bytes: u64,
        page_size: usize,
    ) -> Result<Arc<MemorySlot<S>>, SlotError> {
        let too_high = SlotError::TooHigh { id, gpa, bytes };
        let end = gpa.checked_add(bytes).ok_or(too_high.clone())?;
        let size = usize::try_from(bytes).map_err(|_| too_high)?;
        let guard = self.lock();
        let mut slots = self.slots();
        for other in &slots {
            if other.id == id {
                return Err(SlotError::InUse(id));
            }
            if gpa < other.end() && other.gpa < end {
                let (other, other_gpa) = (other.id, other.gpa);
                return Err(SlotError::Overlap { id, gpa, bytes, other, other_gpa });
            }
        }
        let slot = Arc::new(MemorySlot { id, gpa, log: DirtyBitmap::new(size, page_size)? });
        slots.insert(slots.partition_point(|other| other.gpa < gpa), slot.clone());
        self.change(slots, guard);
        Ok(slot)
    }

    /// Removes a slot. When this returns, no [`Self::mark`] reaches it any more: one
    /// harvest of what is returned is the last.
    #[must_use = "what it was marked with goes with it; harvest it once more"]
    pub fn remove(&self, id: u32) -> Option<Arc<MemorySlot<S>>> {
        let guard = self.lock();
        let mut slots = self.slots();
        let found = slots.iter().position(|slot| slot.id == id)?;
        let removed = slots.remove(found);
        self.change(slots, guard);
        Some(removed)
    }

    /// Marks the pages of `len` bytes at a guest-physical address, in as many slots as
    /// that takes; what is in no slot is ignored.
    pub fn mark(&self, gpa: u64, len: u64) {
        self.with(|slots| {
            let end = gpa.saturating_add(len);
            let first = slots.partition_point(|slot| slot.end() <= gpa);
            for slot in slots[first..].iter().take_while(|slot| slot.gpa < end) {
                let from = gpa.max(slot.gpa);
                // Both fit: a slot's size is a usize.
                let (offset, len) = (from - slot.gpa, end.min(slot.end()) - from);
                slot.mark_bytes(offset as usize, len as usize);
            }
        });
    }

    /// A slot by its number.
    pub fn slot(&self, id: u32) -> Option<Arc<MemorySlot<S>>> {
        self.with(|slots| slots.iter().find(|slot| slot.id == id).cloned())
    }

    /// The slots that there are now, by address. A slot that is removed meanwhile stays
    /// usable; nothing is marked in it any more.
    pub fn slots(&self) -> Vec<Arc<MemorySlot<S>>> {
        self.with(Clone::clone)
    }

    fn with<R>(&self, f: impl FnOnce(&Table<S>) -> R) -> R {
        // SAFETY: made by `leak`, and valid until `change` gets it back from the switch,
        // which waits for this call.
        writer::with_outer(&self.table, |table| f(unsafe { table.as_ref() }))
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, slots: Table<S>, _one_at_a_time: MutexGuard<'_, ()>) {
        let old = self.table.exchange(leak(slots));
        writer::wait(std::iter::once(&self.table), false);
        // SAFETY: made by `leak`, and no mark uses it any more.
        drop(unsafe { Box::from_raw(old.as_ptr()) });
    }
}

fn leak<T>(value: T) -> NonNull<T> {
    NonNull::from(Box::leak(Box::new(value)))
}

impl<S: Strategy> Drop for MemoryLog<S> {
    fn drop(&mut self) {
        // SAFETY: made by `leak`, and nobody else has the switch.
        drop(unsafe { Box::from_raw(self.table.last().as_ptr()) });
    }
}

// SAFETY: the table is shared by reference only, and is of Arcs of what threads share.
unsafe impl<S: Strategy> Send for MemoryLog<S> {}
// SAFETY: as above.
unsafe impl<S: Strategy> Sync for MemoryLog<S> {}

impl<S: Strategy> fmt::Debug for MemoryLog<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.slots()).finish()
    }
}
