// SPDX-License-Identifier: Apache-2.0 OR MIT

//! One vector of a device: what the guest wants of it, and the route it has.

use crate::batch::Batch;
use crate::error::RouteError;
use crate::foreign::EventFd;
use crate::message::MsiMessage;
use crate::route::{Phase, Route};
use crate::source::Source;

/// What a device must not have while a state is loaded.
pub(crate) const LIVE: &str =
    "live vectors (before the state is loaded, turn the device's interrupts off and commit)";

#[derive(Debug)]
pub(crate) struct Vector {
    pub(crate) source: Source,
    pub(crate) route: Option<Route>,
    /// The route was made ahead: it is kept while the device's interrupts are off.
    reserved: bool,
}

impl Vector {
    pub(crate) fn new(source: Source) -> Self {
        Self { source, route: None, reserved: false }
    }

    /// Its interrupts come from another eventfd, once [`Self::sync`] was committed.
    pub(crate) fn set_eventfd(&mut self, eventfd: EventFd) -> Result<(), RouteError> {
        if self.source.is_gate() {
            return Err(RouteError::NotExternal);
        }
        let new = Source::external(eventfd)?;
        let old = std::mem::replace(&mut self.source, new);
        // Of an eventfd that is attached KVM takes what is written until the commit.
        let attached = |route: Route| route.is_attached() && route.source().is(&old);
        if !self.current().is_some_and(attached) {
            old.hand_over(&self.source);
        }
        Ok(())
    }

    /// True if an interrupt waits for the vector to be unmasked.
    pub(crate) fn is_pending(&self) -> bool {
        !self.is_live() && self.source.waits()
    }

    /// Its interrupts are delivered.
    pub(crate) fn is_live(&self) -> bool {
        self.route.as_ref().is_some_and(|route| route.phase() == Phase::Live)
    }

    /// The route, unless it is gone since (removed, dropped batch, failed commit).
    fn current(&mut self) -> Option<Route> {
        if self.route.as_ref().is_some_and(|route| route.phase() == Phase::Gone) {
            self.route = None;
            self.reserved = false;
        }
        self.route.clone()
    }

    /// Stages a route to nowhere, to be edited when the guest enables the vector.
    pub(crate) fn reserve(&mut self, batch: &mut Batch) -> Result<(), RouteError> {
        if self.current().is_none() {
            let address = if cfg!(target_arch = "x86_64") { 0xfee0_0000 } else { 0 };
            let nowhere = MsiMessage { address, ..MsiMessage::default() };
            self.route = Some(batch.add_masked(nowhere, self.source.clone())?);
        }
        self.reserved = true;
        Ok(())
    }

    /// Stages what makes the route as the guest wants it: `want` is its message unless it
    /// is masked; `enabled` is false if the device's interrupts are off altogether.
    ///
    /// Stages nothing if it is so already. Idempotent, whatever became of former batches.
    pub(crate) fn sync(
        &mut self,
        want: Option<MsiMessage>,
        enabled: bool,
        batch: &mut Batch,
    ) -> Result<(), RouteError> {
        let route = match (self.current(), want) {
            (Some(route), _) => route,
            (None, None) => return Ok(()),
            (None, Some(message)) => {
                self.route = Some(batch.add(message, self.source.clone())?);
                return Ok(());
            }
        };
        // What the kernel has says nothing if this batch is about to change it.
        if !route.source().is(&self.source) {
            batch.exchange(&route, self.source.clone())?;
        }
        let open = batch.has_touched(&route) || route.phase() == Phase::Staged || route.is_unsure();
        match want {
            Some(message) => {
                if open || route.message() != message {
                    batch.set_message(&route, message)?;
                }
                if open || route.phase() != Phase::Live {
                    batch.unmask(&route)?;
                }
            }
            None if !enabled && !self.reserved => batch.remove(&route)?,
            None => {
                if open || route.phase() != Phase::Masked {
                    batch.mask(&route)?;
                }
            }
        }
        Ok(())
    }
}
