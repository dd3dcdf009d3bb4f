// SPDX-License-Identifier: Apache-2.0 OR MIT

//! irqfds of pins: what is not a message.

use crate::error::RouteError;
use crate::foreign::EventFd;
use crate::shared::Shared;
use std::sync::Arc;

/// An eventfd that raises a pin. Detached when dropped.
#[must_use = "dropping it detaches the eventfd from the pin"]
pub struct PinIrqfd {
    shared: Arc<Shared>,
    gsi: u32,
    eventfd: EventFd,
    resample: Option<EventFd>,
}

impl PinIrqfd {
    pub(crate) fn attach(
        shared: Arc<Shared>,
        gsi: u32,
        eventfd: EventFd,
        resample: Option<EventFd>,
    ) -> Result<Self, RouteError> {
        // The table's lock: no commit takes the route away meanwhile.
        let locked = shared.lock();
        if !shared.pool().is_routed(gsi) {
            return Err(RouteError::Gone { gsi });
        }
        let attached = match &resample {
            Some(resample) => shared.kernel.attach_resampled(&eventfd, resample, gsi),
            None => shared.kernel.attach(&eventfd, gsi),
        };
        drop(locked);
        attached.map_err(|source| RouteError::Irqfd { gsi, source })?;
        Ok(Self { shared, gsi, eventfd, resample })
    }

    /// Its GSI.
    pub fn gsi(&self) -> u32 {
        self.gsi
    }

    /// What raises it.
    pub fn eventfd(&self) -> &EventFd {
        &self.eventfd
    }

    /// What is written at the guest's end of interrupt, of a level-triggered pin.
    pub fn resample(&self) -> Option<&EventFd> {
        self.resample.as_ref()
    }
}

impl Drop for PinIrqfd {
    fn drop(&mut self) {
        // If it fails, the end of the VM or of the eventfd detaches it.
        let _ = self.shared.kernel.detach(&self.eventfd, self.gsi);
    }
}

impl std::fmt::Debug for PinIrqfd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PinIrqfd(GSI {}, resampled: {})", self.gsi, self.resample.is_some())
    }
}
