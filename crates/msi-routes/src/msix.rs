// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A device's MSI-X capability: the registers that the guest sees, and the routes that
//! follow from them.
//!
//! Registers and their meaning: PCI Local Bus 3.0, 6.8.2 (capability, table, PBA). The
//! guest's accesses change registers only; [`Msix::sync`] then stages the difference
//! between registers and routes. So a batch that was dropped or refused costs nothing: the
//! next `sync` stages the same again.

use crate::batch::Batch;
use crate::error::{RouteError, StateError};
use crate::foreign::EventFd;
use crate::message::MsiMessage;
use crate::route::Route;
use crate::source::Source;
use crate::vector::{Vector, LIVE};

/// Vectors that an MSI-X capability can have: its size field has 11 bits.
pub const MAX_VECTORS: usize = 2048;

const ENTRY_BYTES: u64 = 16;
const CONTROL_ENABLE: u16 = 1 << 15;
const CONTROL_FUNCTION_MASK: u16 = 1 << 14;
const VECTOR_MASKED: u32 = 1;
/// Address low, address high, data, vector control.
type Entry = [u32; 4];
const RESET: Entry = [0, 0, 0, VECTOR_MASKED];

/// A device's MSI-X capability.
#[derive(Debug)]
pub struct Msix {
    control: u16,
    devid: Option<u32>,
    table: Vec<Entry>,
    vectors: Vec<Vector>,
}

/// What migration saves of an MSI-X capability.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct MsixState {
    /// The message control register.
    pub control: u16,
    /// Each vector's four words.
    pub table: Vec<[u32; 4]>,
    /// Pending bits, vector 0 in bit 0 of the first word.
    pub pba: Vec<u64>,
}

impl MsixState {
    /// What another VMM saved.
    pub fn new(control: u16, table: Vec<[u32; 4]>, pba: Vec<u64>) -> Self {
        Self { control, table, pba }
    }
}

impl Msix {
    /// A capability as after reset: off, all vectors masked; one vector a source.
    ///
    /// `devid` goes into each message ([`MsiMessage::devid`]).
    ///
    /// # Errors
    /// No source, or more than [`MAX_VECTORS`].
    pub fn new(
        sources: impl IntoIterator<Item = Source>,
        devid: Option<u32>,
    ) -> Result<Self, StateError> {
        let vectors: Vec<Vector> = sources.into_iter().map(Vector::new).collect();
        let found = vectors.len();
        if !(1..=MAX_VECTORS).contains(&found) {
            let what = "MSI-X vectors (at least 1)";
            return Err(StateError { what, expected: MAX_VECTORS, found });
        }
        Ok(Self { control: 0, devid, table: vec![RESET; found], vectors })
    }

    /// How many vectors it has.
    pub fn vectors(&self) -> usize {
        self.vectors.len()
    }

    /// The message control register: the table's size, function mask, enable.
    pub fn control(&self) -> u16 {
        self.control | (self.vectors.len() - 1) as u16
    }

    /// The guest writes the message control register. True if [`Self::sync`] has to follow.
    #[must_use]
    pub fn set_control(&mut self, value: u16) -> bool {
        let new = value & (CONTROL_ENABLE | CONTROL_FUNCTION_MASK);
        std::mem::replace(&mut self.control, new) != new
    }

    fn is_enabled(&self) -> bool {
        self.control & CONTROL_ENABLE != 0
    }

    /// The message of a vector that may interrupt now.
    fn wanted(&self, vector: usize) -> Option<MsiMessage> {
        let [low, high, data, control] = *self.table.get(vector)?;
        let off = !self.is_enabled()
            || self.control & CONTROL_FUNCTION_MASK != 0
            || control & VECTOR_MASKED != 0;
        let address = u64::from(high) << 32 | u64::from(low);
        (!off).then_some(MsiMessage { address, data, devid: self.devid })
    }

    /// The guest reads the table: 4 or 8 aligned bytes; anything else reads as ones.
    pub fn read_table(&self, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        if let Some((vector, word)) = self.locate(offset, data.len()) {
            for (i, bytes) in data.chunks_exact_mut(4).enumerate() {
                bytes.copy_from_slice(&self.table[vector][word + i].to_le_bytes());
            }
        }
    }

    /// The guest writes the table: 4 or 8 aligned bytes; anything else is ignored. True if
    /// [`Self::sync_vector`] (or [`Self::sync`]) has to follow.
    #[must_use]
    pub fn write_table(&mut self, offset: u64, data: &[u8]) -> bool {
        let Some((vector, word)) = self.locate(offset, data.len()) else { return false };
        let before = self.wanted(vector);
        for (i, bytes) in data.chunks_exact(4).enumerate() {
            let value = bytes.try_into().map(u32::from_le_bytes).unwrap_or_default();
            let word = word + i;
            // All but the mask bit of vector control is reserved.
            let writable = if word == 3 { VECTOR_MASKED } else { u32::MAX };
            self.table[vector][word] = value & writable;
        }
        self.wanted(vector) != before
    }

    /// Vector and word of an access, if it is one that the specification allows.
    fn locate(&self, offset: u64, len: usize) -> Option<(usize, usize)> {
        let vector = usize::try_from(offset / ENTRY_BYTES).ok()?;
        let aligned = matches!(len, 4 | 8) && offset % len as u64 == 0;
        let word = (offset % ENTRY_BYTES / 4) as usize;
        (aligned && vector < self.table.len()).then_some((vector, word))
    }

    /// The vector that a table offset is in.
    pub fn vector_at(&self, offset: u64) -> Option<usize> {
        usize::try_from(offset / ENTRY_BYTES).ok().filter(|&vector| vector < self.table.len())
    }

    /// The guest reads the pending bit array.
    pub fn read_pba(&self, offset: u64, data: &mut [u8]) {
        for (at, byte) in (offset..).zip(data) {
            let first = usize::try_from(at.saturating_mul(8)).unwrap_or(usize::MAX);
            *byte = (0..8)
                .filter(|bit| self.is_pending(first.saturating_add(*bit)))
                .fold(0, |byte, bit| byte | 1 << bit);
        }
    }

    /// True if the vector's interrupt waits for it to be unmasked.
    pub fn is_pending(&self, vector: usize) -> bool {
        self.vectors.get(vector).is_some_and(Vector::is_pending)
    }

    /// A vector's source, to raise its interrupt.
    pub fn source(&self, vector: usize) -> Option<&Source> {
        self.vectors.get(vector).map(|v| &v.source)
    }

    /// Exchanges the eventfd of a vector whose source is [`Source::External`]: VFIO, or a vhost-user
    /// back end that has connected again, brings another one. [`Self::sync`] has to follow; its commit
    /// is as [`Batch::set_eventfd`].
    ///
    /// # Errors
    /// [`RouteError::NotExternal`]: the vector is a gate's, or there is none of this number;
    /// [`RouteError::Blocking`].
    pub fn set_eventfd(&mut self, vector: usize, eventfd: EventFd) -> Result<(), RouteError> {
        let slot = self.vectors.get_mut(vector).ok_or(RouteError::NotExternal)?;
        slot.set_eventfd(eventfd)
    }

    /// A vector's route, if it ever had one.
    pub fn route(&self, vector: usize) -> Option<&Route> {
        self.vectors.get(vector).and_then(|v| v.route.as_ref())
    }

    /// Stages whatever makes all routes as the registers say.
    ///
    /// # Errors
    /// The host's table is full. Staged so far stays in the batch.
    pub fn sync(&mut self, batch: &mut Batch) -> Result<(), RouteError> {
        batch.reserve(self.vectors.len());
        (0..self.vectors.len()).try_for_each(|vector| self.sync_vector(vector, batch))
    }

    /// The same for one vector.
    ///
    /// # Errors
    /// The host's table is full.
    pub fn sync_vector(&mut self, vector: usize, batch: &mut Batch) -> Result<(), RouteError> {
        let (want, enabled) = (self.wanted(vector), self.is_enabled());
        match self.vectors.get_mut(vector) {
            Some(slot) => slot.sync(want, enabled, batch),
            None => Ok(()),
        }
    }

    /// Stages a route for every vector ahead of its use, so that enabling them only edits
    /// entries that exist and can't run out of GSIs. Vectors keep these routes.
    ///
    /// # Errors
    /// The host's table is full.
    pub fn reserve(&mut self, batch: &mut Batch) -> Result<(), RouteError> {
        batch.reserve(self.vectors.len());
        self.vectors.iter_mut().try_for_each(|vector| vector.reserve(batch))
    }

    /// What migration saves. Take it while the device is stopped.
    pub fn state(&self) -> MsixState {
        let mut pba = vec![0; self.vectors.len().div_ceil(64)];
        for vector in 0..self.vectors.len() {
            pba[vector / 64] |= u64::from(self.is_pending(vector)) << (vector % 64);
        }
        MsixState { control: self.control(), table: self.table.clone(), pba }
    }

    /// The device is reset (function-level reset, reboot): interrupts are off, all vectors
    /// masked, no interrupt waits. Do it while the device raises none; [`Self::sync`] has to
    /// follow, and until its commit what is raised is delivered as before.
    pub fn reset(&mut self) {
        self.control = 0;
        self.table.fill(RESET);
        self.vectors.iter().for_each(|vector| vector.source.clear());
    }

    /// Loads a saved state into a device that has no live vector; pending interrupts are
    /// raised again, and are delivered with the commit that makes their vectors live; what
    /// was pending before is forgotten. [`Self::sync`] has to follow: of all devices, in one
    /// batch.
    ///
    /// # Errors
    /// The state is another device's, or a vector is live; nothing is loaded then.
    pub fn restore(&mut self, state: &MsixState) -> Result<(), StateError> {
        let check = |what, expected, found| {
            if expected == found {
                Ok(())
            } else {
                Err(StateError { what, expected, found })
            }
        };
        let vectors = self.vectors.len();
        check("MSI-X table entries", vectors, state.table.len())?;
        check("MSI-X vectors in message control", vectors, usize::from(state.control & 0x7ff) + 1)?;
        check("words of the pending bit array", vectors.div_ceil(64), state.pba.len())?;
        check(LIVE, 0, self.vectors.iter().filter(|vector| vector.is_live()).count())?;
        self.control = state.control & (CONTROL_ENABLE | CONTROL_FUNCTION_MASK);
        self.table.clone_from(&state.table);
        self.table.iter_mut().for_each(|entry| entry[3] &= VECTOR_MASKED);
        for (vector, slot) in self.vectors.iter().enumerate() {
            slot.source.clear();
            if state.pba[vector / 64] >> (vector % 64) & 1 == 1 {
                // An eventfd refuses only when its count is near 2^64: pending all the more.
                let _ = slot.source.raise();
            }
        }
        Ok(())
    }
}
