// SPDX-License-Identifier: Apache-2.0 OR MIT

//! One vector's route: a handle that never outlives its GSI.

use crate::foreign::Errno;
use crate::kernel::Kernel;
use crate::message::MsiMessage;
use crate::on_panic::on_panic;
use crate::source::{Owner, Source, Way};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How far a route is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum Phase {
    /// In a batch that is not committed.
    Staged,
    /// In the kernel's table; interrupts become pending.
    Masked,
    /// Interrupts are delivered.
    Live,
    /// Removed, or never committed.
    Gone,
}

/// What a route tells the VM that it belongs to, when it is no more.
pub(crate) trait Home: Send + Sync {
    /// Its GSI is free; its entry, if there is one, is to be swept out of the table.
    fn release(&self, gsi: u32);

    /// Injects a message without a route.
    fn signal(&self, message: MsiMessage) -> Result<(), Errno>;

    /// Detaches its irqfd. False if that failed: its GSI stays taken until a sweep manages.
    fn detach(&self, source: &Source, gsi: u32) -> bool;

    /// A sweep detaches its irqfd, and frees its GSI then.
    fn detach_later(&self, source: &Source, gsi: u32);
}

/// A vector's route. Clones are the same route.
///
/// Dropping the last clone detaches its irqfd; the entry leaves the kernel's table with the
/// next commit, or is overwritten by it. To remove many at once, use
/// [`Batch::remove`](crate::Batch::remove).
#[derive(Clone)]
#[must_use = "dropping the handle removes the route, detaches its irqfd, and ends delivery through its `Gate`"]
pub struct Route(pub(crate) Arc<RouteInner>);

pub(crate) struct RouteInner {
    gsi: AtomicU32,
    /// It has no GSI of the table, but delivers by messages.
    signalled: AtomicBool,
    source: Mutex<Source>,
    owner: Owner,
    phase: AtomicU8,
    /// The kernel has its irqfd. Held while it is asked to take it or to give it back, which
    /// may be without the table's lock.
    attached: Mutex<bool>,
    /// The kernel panicked when it was last asked: whether it has the irqfd is not known.
    unsure: AtomicBool,
    /// The batch that touched it last.
    pub(crate) batch: AtomicU64,
    message: Mutex<MsiMessage>,
    home: Arc<dyn Home>,
}

impl Route {
    pub(crate) fn new(
        (gsi, signalled): (u32, bool),
        message: MsiMessage,
        source: Source,
        home: Arc<dyn Home>,
    ) -> Self {
        Self(Arc::new(RouteInner {
            gsi: AtomicU32::new(gsi),
            signalled: AtomicBool::new(signalled),
            source: Mutex::new(source),
            owner: Owner::new(),
            phase: AtomicU8::new(Phase::Staged as u8),
            attached: Mutex::new(false),
            unsure: AtomicBool::new(false),
            batch: AtomicU64::new(0),
            message: Mutex::new(message),
            home,
        }))
    }

    /// Its GSI, which is another route's once this one is [`Phase::Gone`].
    ///
    /// Of a route that [is signalled](Self::is_signalled), a number above those that the host
    /// has, and another one once it is promoted.
    pub fn gsi(&self) -> u32 {
        self.0.gsi()
    }

    /// It is not in the table: its gate delivers by `KVM_SIGNAL_MSI`.
    pub fn is_signalled(&self) -> bool {
        self.0.signalled.load(Ordering::Acquire)
    }

    /// It has a GSI of the table, with its irqfd, from now on.
    pub(crate) fn promoted(&self, gsi: u32) {
        *self.attached() = true;
        self.0.gsi.store(gsi, Ordering::Release);
        self.0.signalled.store(false, Ordering::Release);
    }

    /// It has a number above those of the table from now on, and no irqfd.
    pub(crate) fn demoted(&self, number: u32) {
        self.0.gsi.store(number, Ordering::Release);
        self.0.signalled.store(true, Ordering::Release);
    }

    /// How far it is.
    pub fn phase(&self) -> Phase {
        self.0.phase()
    }

    /// The message in the kernel's table; while staged, the one it began with.
    pub fn message(&self) -> MsiMessage {
        *self.0.message.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where its interrupts come from.
    pub fn source(&self) -> Source {
        self.0.source()
    }

    /// Its interrupts come from another source from now on, in which waits what waited in the one
    /// before. Returns that. Neither is attached.
    pub(crate) fn exchange(&self, new: Source) -> Source {
        self.source().hand_over(&new);
        self.set_source(new)
    }

    /// The same without what waits.
    pub(crate) fn set_source(&self, new: Source) -> Source {
        let mut source = self.0.source.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut source, new)
    }

    /// True if it is a route of this VM.
    pub(crate) fn is_of(&self, home: &Arc<impl Home>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.0.home), Arc::as_ptr(home))
    }

    pub(crate) fn set_message(&self, message: MsiMessage) {
        *self.0.message.lock().unwrap_or_else(PoisonError::into_inner) = message;
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        self.0.phase.store(phase as u8, Ordering::Release);
    }

    /// Its source delivers from now on.
    pub(crate) fn open(&self) {
        self.source().open(self.0.owner, Way::Irqfd);
    }

    /// The same, by a message.
    pub(crate) fn open_signalled(&self, message: MsiMessage) {
        let way = Way::Signal(self.0.home.clone(), message);
        self.source().open(self.0.owner, way);
    }

    /// What its source raises waits from now on.
    pub(crate) fn close(&self) {
        self.source().close(self.0.owner);
    }

    fn attached(&self) -> MutexGuard<'_, bool> {
        self.0.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel has its irqfd.
    pub(crate) fn is_attached(&self) -> bool {
        *self.attached()
    }

    /// Whether the kernel has its irqfd is not known: it is detached before anything else.
    pub(crate) fn is_unsure(&self) -> bool {
        self.0.unsure.load(Ordering::Acquire)
    }

    /// The kernel has its irqfd, may have it, or had it until it was detached ahead of a commit. A
    /// masked route has one if the kernel panicked in the commit that attached it.
    pub(crate) fn may_be_attached(&self) -> bool {
        self.is_attached() || self.may_deliver()
    }

    /// It is live, or may be as far as is known.
    pub(crate) fn may_deliver(&self) -> bool {
        self.phase() == Phase::Live || self.is_unsure()
    }

    /// Calls the kernel about its irqfd. Should it panic, the route is unsure, and masked.
    fn ask<T>(&self, call: impl FnOnce() -> T) -> T {
        let lost = || {
            self.0.unsure.store(true, Ordering::Release);
            self.mask_live();
        };
        on_panic(lost, call)
    }

    /// Masked, if it was live.
    pub(crate) fn mask_live(&self) {
        if self.phase() == Phase::Live {
            self.set_phase(Phase::Masked);
        }
    }

    /// Attaches its irqfd; false if it was.
    pub(crate) fn attach(&self, kernel: &dyn Kernel) -> Result<bool, Errno> {
        let mut attached = self.attached();
        if self.is_unsure() {
            self.detach_now(kernel, &mut attached)?;
        }
        let new = !*attached;
        if new {
            self.ask(|| kernel.attach(self.source().eventfd(), self.gsi()))?;
            *attached = true;
        }
        Ok(new)
    }

    /// Detaches its irqfd; false if it was not attached.
    pub(crate) fn detach(&self, kernel: &dyn Kernel) -> Result<bool, Errno> {
        let mut attached = self.attached();
        let was = *attached || self.is_unsure();
        if was {
            self.detach_now(kernel, &mut attached)?;
        }
        Ok(was)
    }

    fn detach_now(&self, kernel: &dyn Kernel, attached: &mut bool) -> Result<(), Errno> {
        self.ask(|| kernel.detach(self.source().eventfd(), self.gsi()))?;
        *attached = false;
        self.0.unsure.store(false, Ordering::Release);
        Ok(())
    }

    /// It is gone from now on: the GSI that is to be given back, unless it was.
    pub(crate) fn go(&self) -> Option<u32> {
        self.0.go()
    }

    /// Nothing of it is in the kernel but perhaps its table entry: gives its GSI back; if it is
    /// unsure, once a sweep has detached it.
    pub(crate) fn retire(&self) {
        self.0.retire();
    }
}

impl RouteInner {
    fn gsi(&self) -> u32 {
        self.gsi.load(Ordering::Acquire)
    }

    fn source(&self) -> Source {
        self.source.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Staged,
            1 => Phase::Masked,
            2 => Phase::Live,
            _ => Phase::Gone,
        }
    }

    fn go(&self) -> Option<u32> {
        let was = self.phase.swap(Phase::Gone as u8, Ordering::AcqRel);
        (was != Phase::Gone as u8).then(|| self.gsi())
    }

    fn retire(&self) {
        match self.go() {
            Some(gsi) if self.unsure.swap(false, Ordering::AcqRel) => {
                self.home.detach_later(&self.source(), gsi);
            }
            Some(gsi) => self.home.release(gsi),
            None => {}
        }
    }
}

impl Drop for RouteInner {
    fn drop(&mut self) {
        let source = self.source();
        source.close(self.owner);
        let attached = *self.attached.get_mut().unwrap_or_else(PoisonError::into_inner);
        let unsure = std::mem::take(self.unsure.get_mut());
        if !(attached || unsure) || self.home.detach(&source, self.gsi()) {
            self.retire();
        }
    }
}

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Route(GSI {}, {:?})", self.gsi(), self.phase())
    }
}
