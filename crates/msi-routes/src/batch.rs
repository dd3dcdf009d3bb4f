// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Changes that are committed together or not at all.

use crate::ahead::Ahead;
use crate::commit;
use crate::error::RouteError;
use crate::fixed::FixedOp;
use crate::foreign::EventFd;
use crate::message::{FixedRoute, MsiMessage};
use crate::ops::{Op, Ops};
use crate::report::{CommitError, Report};
use crate::route::{Phase, Route};
use crate::shared::Shared;
use crate::source::Source;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Changes to a VM's routes, of which the kernel hears nothing before [`Self::commit`].
/// Dropping it forgets them. Of two changes to the same route the later one counts, and any
/// change after a removal takes the removal back.
///
/// Threads may stage batches at the same time; their commits take turns.
#[must_use = "a batch that is not committed changes nothing"]
pub struct Batch {
    shared: Arc<Shared>,
    ops: Ops,
    pub(crate) id: u64,
}

impl Batch {
    pub(crate) fn new(shared: Arc<Shared>, id: u64) -> Self {
        Self { shared, ops: Ops::new(), id }
    }

    /// Adds a route, live once committed. What the source raised before is delivered then.
    /// Where the table has no room, a [`Gate`](crate::Gate)'s route
    /// [is signalled](Route::is_signalled), if
    /// [`Router::set_signals`](crate::Router::set_signals) allows that and the kernel can.
    ///
    /// # Errors
    /// [`RouteError::Full`].
    pub fn add(&mut self, message: MsiMessage, source: Source) -> Result<Route, RouteError> {
        self.stage_add(message, source, true)
    }

    /// Adds a route that stays masked.
    ///
    /// A [`Gate`](crate::Gate)'s irqfd is attached already, so that unmasking is no system
    /// call beyond the commit of the message that it really has.
    ///
    /// # Errors
    /// [`RouteError::Full`].
    pub fn add_masked(&mut self, message: MsiMessage, source: Source) -> Result<Route, RouteError> {
        self.stage_add(message, source, false)
    }

    fn stage_add(
        &mut self,
        message: MsiMessage,
        source: Source,
        live: bool,
    ) -> Result<Route, RouteError> {
        let number = self.shared.number(&source)?;
        let route = Route::new(number, message, source, self.shared.clone());
        route.0.batch.store(self.id, Ordering::Relaxed);
        if route.is_signalled() {
            self.shared.note(&route);
        }
        self.ops.push(Op::Add(route.clone(), message, live));
        Ok(route)
    }

    fn touch(&self, route: &Route) -> Result<Route, RouteError> {
        let gsi = route.gsi();
        if !route.is_of(&self.shared) {
            return Err(RouteError::OtherVm { gsi });
        }
        if route.phase() == Phase::Gone {
            return Err(RouteError::Gone { gsi });
        }
        route.0.batch.store(self.id, Ordering::Relaxed);
        Ok(route.clone())
    }

    /// True if this batch has a change to the route.
    pub(crate) fn has_touched(&self, route: &Route) -> bool {
        route.0.batch.load(Ordering::Relaxed) == self.id
    }

    /// Changes a route's message. An interrupt raised meanwhile goes to one of the two.
    ///
    /// # Errors
    /// [`RouteError::Gone`], [`RouteError::OtherVm`].
    pub fn set_message(&mut self, route: &Route, message: MsiMessage) -> Result<(), RouteError> {
        let route = self.touch(route)?;
        self.ops.push(Op::Message(route, message));
        Ok(())
    }

    /// Makes the route's interrupts wait. No system call for a [`Gate`](crate::Gate); for an
    /// external eventfd, one `KVM_IRQFD` that waits for an SRCU grace period.
    ///
    /// # Errors
    /// [`RouteError::Gone`], [`RouteError::OtherVm`].
    pub fn mask(&mut self, route: &Route) -> Result<(), RouteError> {
        let route = self.touch(route)?;
        self.ops.push(Op::Mask(route));
        Ok(())
    }

    /// Delivers the route's interrupts again, with one that has waited.
    ///
    /// # Errors
    /// [`RouteError::Gone`], [`RouteError::OtherVm`].
    pub fn unmask(&mut self, route: &Route) -> Result<(), RouteError> {
        let route = self.touch(route)?;
        self.ops.push(Op::Unmask(route));
        Ok(())
    }

    /// Exchanges the eventfd of a route whose source is [`Source::External`]: the table stays as it
    /// is, and costs no commit. What waits in the one before waits in the new one then.
    ///
    /// Have the device write to the new one before the commit: what it writes to the one before
    /// afterwards is lost.
    ///
    /// # Errors
    /// [`RouteError::Gone`], [`RouteError::OtherVm`]; [`RouteError::NotExternal`] of a
    /// [`Gate`](crate::Gate), whose eventfd is its own; [`RouteError::Blocking`].
    pub fn set_eventfd(&mut self, route: &Route, eventfd: EventFd) -> Result<(), RouteError> {
        if route.source().is_gate() {
            return Err(RouteError::NotExternal);
        }
        self.exchange(route, Source::external(eventfd)?)
    }

    /// Stages another external source.
    pub(crate) fn exchange(&mut self, route: &Route, source: Source) -> Result<(), RouteError> {
        let route = self.touch(route)?;
        self.ops.push(Op::Exchange(route, source));
        Ok(())
    }

    /// Removes a route. What its source raises afterwards waits there for another route.
    ///
    /// # Errors
    /// [`RouteError::Gone`], [`RouteError::OtherVm`].
    pub fn remove(&mut self, route: &Route) -> Result<(), RouteError> {
        let route = self.touch(route)?;
        self.ops.push(Op::Remove(route));
        Ok(())
    }

    /// Adds a route with a GSI of the VMM's choice; after [`Self::remove_fixed`] or
    /// [`Self::set_fixed`] of that GSI in the same batch, to what those leave.
    ///
    /// # Errors
    /// [`RouteError::GsiTaken`] (only pins of different irqchips share a GSI),
    /// [`RouteError::GsiRange`], [`RouteError::Full`].
    pub fn add_fixed(&mut self, route: FixedRoute) -> Result<(), RouteError> {
        if let Some((at, mut routes)) = self.staged_fixed(route.gsi()) {
            let before = (at, routes.len());
            routes.push(route);
            return self.stage_fixed(route.gsi(), routes, Some(before));
        }
        self.shared.pool().reserve_fixed(&route)?;
        self.ops.push(Op::Fixed(Box::new(FixedOp::Add(route))));
        Ok(())
    }

    /// Makes these the only fixed routes of a GSI, in place of what the table has at the
    /// commit: a pin's route changes without a moment in which there is none. That is what a
    /// user-space IO-APIC needs, whose pins are messages ([`FixedRoute::msi`]). Without
    /// routes it is [`Self::remove_fixed`], for a GSI that may have none.
    ///
    /// # Errors
    /// [`RouteError::GsiTaken`] (the GSI is an MSI vector's; routes exclude each other, or are
    /// another GSI's), [`RouteError::GsiRange`], [`RouteError::Full`].
    pub fn set_fixed(
        &mut self,
        gsi: u32,
        routes: impl IntoIterator<Item = FixedRoute>,
    ) -> Result<(), RouteError> {
        let before = self.staged_fixed(gsi).map(|(at, routes)| (at, routes.len()));
        self.stage_fixed(gsi, routes.into_iter().collect(), before)
    }

    /// Removes all fixed routes of a GSI that the table has at the commit.
    ///
    /// # Errors
    /// [`RouteError::Gone`] if the GSI has no fixed route.
    pub fn remove_fixed(&mut self, gsi: u32) -> Result<(), RouteError> {
        if !self.shared.pool().has_fixed(gsi) {
            return Err(RouteError::Gone { gsi });
        }
        self.set_fixed(gsi, [])
    }

    /// The change of a GSI's fixed routes that this batch has staged: where, and to what.
    fn staged_fixed(&self, gsi: u32) -> Option<(usize, Vec<FixedRoute>)> {
        self.ops.iter().enumerate().find_map(|(at, op)| match op {
            Op::Fixed(op) => match &**op {
                FixedOp::Set(of, routes) if *of == gsi => Some((at, routes.clone())),
                _ => None,
            },
            _ => None,
        })
    }

    /// `before`: where this batch has staged that before, and how many routes.
    fn stage_fixed(
        &mut self,
        gsi: u32,
        routes: Vec<FixedRoute>,
        before: Option<(usize, usize)>,
    ) -> Result<(), RouteError> {
        self.shared.pool().reserve_change(gsi, &routes, before.map(|(_, routes)| routes))?;
        let op = Op::Fixed(Box::new(FixedOp::Set(gsi, routes)));
        match before {
            Some((at, _)) => self.ops[at] = op,
            None => self.ops.push(op),
        }
        Ok(())
    }

    /// Begins a batch inside this one: its commit adds its changes to this batch, and
    /// dropping it forgets only its own.
    pub fn nested(&mut self) -> Nested<'_> {
        let inner = Batch::new(self.shared.clone(), self.id);
        Nested { outer: self, inner }
    }

    /// Makes room for that many further changes.
    pub(crate) fn reserve(&mut self, changes: usize) {
        self.ops.reserve(changes);
    }

    /// True if nothing was staged.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Hands the changes to the kernel: masks, then one `KVM_SET_GSI_ROUTING` if any route
    /// changed, then irqfds.
    ///
    /// # Errors
    /// The table was refused, whatever of the batch was left out; then nothing has changed.
    /// Vectors and fixed routes that the kernel refuses, and vectors whose irqfd failed, are
    /// as before one by one, and named in the report.
    pub fn commit(mut self) -> Result<Report, CommitError> {
        let ahead = Ahead::of(&self.shared, &self.ops);
        let ops = std::mem::take(&mut self.ops);
        commit::commit(&self.shared, &ahead, ops)
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("ops", &self.ops).field("id", &self.id).finish()
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if !self.ops.is_empty() {
            commit::forget(&self.shared, self.ops.drain(..));
        }
    }
}

/// A batch inside a batch.
#[derive(Debug)]
#[must_use = "a batch that is not committed changes nothing"]
pub struct Nested<'outer> {
    outer: &'outer mut Batch,
    inner: Batch,
}

impl Nested<'_> {
    /// Adds its changes to the outer batch; the kernel hears of them when that one commits.
    pub fn commit(mut self) {
        self.outer.ops.append(&mut self.inner.ops);
    }
}

impl Deref for Nested<'_> {
    type Target = Batch;

    fn deref(&self) -> &Batch {
        &self.inner
    }
}

impl DerefMut for Nested<'_> {
    fn deref_mut(&mut self) -> &mut Batch {
        &mut self.inner
    }
}
