// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A device's MSI capability: 1 to 32 vectors that share one message.
//!
//! Registers and their meaning: PCI Local Bus 3.0, 6.8.1. Used like [`Msix`](crate::Msix):
//! register writes, then [`Msi::sync`].

use crate::batch::Batch;
use crate::error::{RouteError, StateError};
use crate::foreign::EventFd;
use crate::message::MsiMessage;
use crate::route::Route;
use crate::source::Source;
use crate::vector::{Vector, LIVE};

const MAX_VECTORS: usize = 32;
const CONTROL_ENABLE: u16 = 1;
/// Multiple message enable: log2 of the vectors that the guest allocated.
const CONTROL_MULTIPLE_SHIFT: u16 = 4;
const CONTROL_MULTIPLE: u16 = 7 << CONTROL_MULTIPLE_SHIFT;
const CONTROL_64_BIT: u16 = 1 << 7;
const CONTROL_MASKABLE: u16 = 1 << 8;

/// A device's MSI capability, 64-bit and with per-vector masking.
#[derive(Debug)]
pub struct Msi {
    registers: MsiState,
    devid: Option<u32>,
    vectors: Vec<Vector>,
}

/// What migration saves of an MSI capability.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct MsiState {
    /// The message control register.
    pub control: u16,
    /// The message address.
    pub address: u64,
    /// The message data of vector 0.
    pub data: u16,
    /// A bit a vector: masked.
    pub mask: u32,
    /// A bit a vector: pending.
    pub pending: u32,
}

impl MsiState {
    /// What another VMM saved; nothing masked or pending.
    pub fn new(control: u16, address: u64, data: u16) -> Self {
        Self { control, address, data, mask: 0, pending: 0 }
    }
}

impl Msi {
    /// A capability as after reset: off, nothing masked; one vector a source.
    ///
    /// # Errors
    /// Not 1, 2, 4, 8, 16 or 32 sources.
    pub fn new(
        sources: impl IntoIterator<Item = Source>,
        devid: Option<u32>,
    ) -> Result<Self, StateError> {
        let vectors: Vec<Vector> = sources.into_iter().map(Vector::new).collect();
        let found = vectors.len();
        if !found.is_power_of_two() || found > MAX_VECTORS {
            let expected = found.next_power_of_two().min(MAX_VECTORS);
            return Err(StateError { what: "MSI vectors (a power of two)", expected, found });
        }
        Ok(Self { registers: MsiState::default(), devid, vectors })
    }

    /// The message control register.
    pub fn control(&self) -> u16 {
        let capable = self.vectors.len().trailing_zeros() as u16;
        self.registers.control | capable << 1 | CONTROL_64_BIT | CONTROL_MASKABLE
    }

    /// The guest writes the message control register; more vectors than the device has
    /// become as many as it has. True if [`Self::sync`] has to follow.
    #[must_use]
    pub fn set_control(&mut self, value: u16) -> bool {
        let capable = self.vectors.len().trailing_zeros() as u16;
        let multiple = ((value & CONTROL_MULTIPLE) >> CONTROL_MULTIPLE_SHIFT).min(capable);
        let new = value & CONTROL_ENABLE | multiple << CONTROL_MULTIPLE_SHIFT;
        std::mem::replace(&mut self.registers.control, new) != new
    }

    /// The guest writes message address and data. True if [`Self::sync`] has to follow.
    #[must_use]
    pub fn set_message(&mut self, address: u64, data: u16) -> bool {
        let before = self.wanted(0);
        (self.registers.address, self.registers.data) = (address, data);
        self.wanted(0) != before || self.is_enabled()
    }

    /// The guest writes the mask bits. True if [`Self::sync`] has to follow.
    #[must_use]
    pub fn set_mask(&mut self, mask: u32) -> bool {
        std::mem::replace(&mut self.registers.mask, mask) != mask && self.is_enabled()
    }

    /// The pending bits.
    pub fn pending(&self) -> u32 {
        let pending = |(n, v): (usize, &Vector)| u32::from(v.is_pending()) << n;
        self.vectors.iter().enumerate().map(pending).sum()
    }

    fn is_enabled(&self) -> bool {
        self.registers.control & CONTROL_ENABLE != 0
    }

    /// The message of a vector that may interrupt now: the vector's number replaces the
    /// data's low bits, as many as vectors are allocated.
    fn wanted(&self, vector: usize) -> Option<MsiMessage> {
        let MsiState { control, address, data, mask, .. } = self.registers;
        let allocated = 1usize << ((control & CONTROL_MULTIPLE) >> CONTROL_MULTIPLE_SHIFT);
        if !self.is_enabled() || vector >= allocated || mask >> vector & 1 == 1 {
            return None;
        }
        let data = u32::from(data) & !(allocated as u32 - 1) | vector as u32;
        Some(MsiMessage { address, data, devid: self.devid })
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
        let enabled = self.is_enabled();
        for vector in 0..self.vectors.len() {
            let want = self.wanted(vector);
            self.vectors[vector].sync(want, enabled, batch)?;
        }
        Ok(())
    }

    /// What migration saves. Take it while the device is stopped.
    pub fn state(&self) -> MsiState {
        MsiState { control: self.control(), pending: self.pending(), ..self.registers }
    }

    /// The device is reset, like [`Msix::reset`](crate::Msix::reset).
    pub fn reset(&mut self) {
        self.registers = MsiState::default();
        self.vectors.iter().for_each(|vector| vector.source.clear());
    }

    /// Loads a saved state, like [`Msix::restore`](crate::Msix::restore).
    ///
    /// # Errors
    /// The state is another device's, or a vector is live; nothing is loaded then.
    pub fn restore(&mut self, state: &MsiState) -> Result<(), StateError> {
        let found = 1usize << (state.control >> 1 & 7);
        let expected = self.vectors.len();
        if found != expected {
            return Err(StateError { what: "MSI vectors in message control", expected, found });
        }
        let found = self.vectors.iter().filter(|vector| vector.is_live()).count();
        if found != 0 {
            return Err(StateError { what: LIVE, expected: 0, found });
        }
        let _ = self.set_control(state.control);
        let control = self.registers.control;
        self.registers = MsiState { control, pending: 0, ..*state };
        for (vector, slot) in self.vectors.iter().enumerate() {
            slot.source.clear();
            if state.pending >> vector & 1 == 1 {
                // An eventfd refuses only when its count is near 2^64: pending all the more.
                let _ = slot.source.raise();
            }
        }
        Ok(())
    }
}
