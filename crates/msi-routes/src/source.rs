// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Where a vector's interrupts come from, and where they wait while it is masked.
//!
//! KVM consumes an eventfd that is attached to a GSI without a committed route, and the
//! interrupt is lost. So an eventfd that anybody can write to is attached only after the
//! commit, and detached while masked: its counter is the pending bit then, and KVM injects
//! it when attaching. Detaching waits for the kernel (an SRCU grace period and a kworker).
//!
//! A device model inside the VMM can do better: its [`Gate`] keeps the pending bit itself,
//! so masking needs no system call, and its irqfd may be attached ahead of the route.

use crate::error::RouteError;
use crate::foreign::Errno;
use crate::foreign::EventFd;
use crate::kernel::Kernel;
use crate::message::MsiMessage;
use crate::route::Home;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Raises one vector's interrupt from inside the VMM. Clones are the same vector's.
///
/// It owns its eventfd and lets nobody else write to it.
#[derive(Debug, Clone)]
pub struct Gate(Arc<GateInner>);

#[derive(Debug)]
struct GateInner {
    eventfd: EventFd,
    state: Mutex<GateState>,
}

#[derive(Debug, Default)]
struct GateState {
    /// Of which route it is, and how it delivers; a gate may be one route's after another's.
    open: Option<(Owner, Way)>,
    pending: bool,
}

/// How an open gate delivers.
#[derive(Clone)]
pub(crate) enum Way {
    /// By its eventfd, whose irqfd is attached.
    Irqfd,
    /// By a message of its own: there is no route in the table.
    Signal(Arc<dyn Home>, MsiMessage),
}

impl Way {
    fn deliver(&self, eventfd: &EventFd) -> Result<(), Errno> {
        match self {
            Self::Irqfd => Ok(eventfd.write(1)?),
            Self::Signal(home, message) => home.signal(*message),
        }
    }
}

impl std::fmt::Debug for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Irqfd => "Irqfd",
            Self::Signal(..) => "Signal",
        })
    }
}

/// A route, by a number that no other one of this process has had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner(u64);

impl Owner {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl Gate {
    /// A closed gate.
    ///
    /// # Errors
    /// [`RouteError::EventFd`]: no file descriptor left.
    pub fn new(kernel: &dyn Kernel) -> Result<Self, RouteError> {
        let eventfd = kernel.eventfd().map_err(RouteError::EventFd)?;
        Ok(Self(Arc::new(GateInner { eventfd, state: Mutex::default() })))
    }

    fn state(&self) -> MutexGuard<'_, GateState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Raises the interrupt, or makes it pending while the vector is masked or its route is
    /// not committed yet: at any time, from any thread.
    ///
    /// One that the kernel refuses is pending, and is delivered by the next call, or when the
    /// vector is unmasked or promoted. [`Self::try_fire`] tells of it.
    pub fn fire(&self) {
        // One that is refused is pending.
        let _ = self.try_fire();
    }

    /// As [`Self::fire`].
    ///
    /// # Errors
    /// The kernel refuses the interrupt, which is pending then: `KVM_SIGNAL_MSI` does so where no
    /// local APIC has the destination that the guest wrote.
    pub fn try_fire(&self) -> Result<(), Errno> {
        // The write is under the lock: once `close` returns, none is under way.
        let mut state = self.state();
        // Should the kernel panic, it waits.
        state.pending = true;
        let delivered = state.open.as_ref().map(|(_, way)| way.deliver(&self.0.eventfd));
        state.pending = !matches!(delivered, Some(Ok(())));
        delivered.unwrap_or(Ok(()))
    }

    /// True if an interrupt waits for the vector to be unmasked, or was refused by the kernel.
    pub fn pending(&self) -> bool {
        self.state().pending
    }

    /// Forgets an interrupt that waits: what a reset of its device does.
    pub fn clear(&self) {
        self.state().pending = false;
    }

    fn open(&self, owner: Owner, way: Way) {
        let mut state = self.state();
        if state.pending {
            state.pending = way.deliver(&self.0.eventfd).is_err();
        }
        state.open = Some((owner, way));
    }

    /// Closes it, unless it is another route's by now.
    fn close(&self, owner: Owner) {
        let mut state = self.state();
        if state.open.as_ref().is_some_and(|(opened, _)| *opened == owner) {
            state.open = None;
        }
    }
}

/// Where a vector's interrupts come from.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Source {
    /// A device model in this process.
    Gate(Gate),
    /// An eventfd that others write to: VFIO, vhost, another process.
    External(Arc<EventFd>),
}

impl Source {
    /// A device model's.
    ///
    /// # Errors
    /// [`RouteError::EventFd`].
    pub fn gate(kernel: &dyn Kernel) -> Result<Self, RouteError> {
        Gate::new(kernel).map(Self::Gate)
    }

    /// Somebody else's eventfd (VFIO, vhost). Don't read it and don't attach it yourself.
    ///
    /// # Errors
    /// [`RouteError::Blocking`] if it is not `EFD_NONBLOCK`.
    pub fn external(eventfd: EventFd) -> Result<Self, RouteError> {
        // SAFETY: the descriptor is open as long as `eventfd` lives.
        let flags = unsafe { libc::fcntl(eventfd.as_raw_fd(), libc::F_GETFL) };
        match flags {
            -1 => Err(RouteError::EventFd(Errno::last())),
            _ if flags & libc::O_NONBLOCK == 0 => Err(RouteError::Blocking),
            _ => Ok(Self::External(Arc::new(eventfd))),
        }
    }

    /// Raises the interrupt, as the device would.
    ///
    /// # Errors
    /// The eventfd can't be written; those of [`Gate::try_fire`].
    pub fn raise(&self) -> Result<(), Errno> {
        match self {
            Self::Gate(gate) => gate.try_fire(),
            Self::External(eventfd) => Ok(eventfd.write(1)?),
        }
    }

    /// True if an interrupt waits in it. Of an eventfd this is only true of a vector that
    /// is not live: what KVM injects while attaching stays in the counter until the next
    /// write, or until it is detached.
    pub(crate) fn waits(&self) -> bool {
        match self {
            Self::Gate(gate) => gate.pending(),
            Self::External(eventfd) => readable(eventfd),
        }
    }

    pub(crate) fn eventfd(&self) -> &EventFd {
        match self {
            Self::Gate(gate) => &gate.0.eventfd,
            Self::External(eventfd) => eventfd,
        }
    }

    /// True if its irqfd may be attached while it is masked.
    pub(crate) fn is_gate(&self) -> bool {
        matches!(self, Self::Gate(_))
    }

    /// Forgets an interrupt that waits, if there is one: what a reset of its device does.
    /// An eventfd's count is read; one that is attached has none.
    pub fn clear(&self) {
        match self {
            Self::Gate(gate) => gate.clear(),
            // Empty, or made so; it does not block.
            Self::External(eventfd) => drop(eventfd.read()),
        }
    }

    /// It is the same gate, or the same eventfd.
    pub(crate) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Gate(Gate(own)), Self::Gate(Gate(other))) => Arc::ptr_eq(own, other),
            (Self::External(own), Self::External(other)) => Arc::ptr_eq(own, other),
            _ => false,
        }
    }

    /// An interrupt that waits here waits in `new` from now on, or is delivered if that is attached.
    pub(crate) fn hand_over(&self, new: &Self) {
        if self.waits() {
            self.clear();
            // An eventfd refuses only when its count is near 2^64: pending all the more.
            let _ = new.raise();
        }
    }

    pub(crate) fn open(&self, owner: Owner, way: Way) {
        if let Self::Gate(gate) = self {
            gate.open(owner, way);
        }
    }

    pub(crate) fn close(&self, owner: Owner) {
        if let Self::Gate(gate) = self {
            gate.close(owner);
        }
    }
}

fn readable(eventfd: &EventFd) -> bool {
    let mut poll = libc::pollfd { fd: eventfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one live pollfd is passed, and the count says one.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 && poll.revents & libc::POLLIN != 0 }
}
