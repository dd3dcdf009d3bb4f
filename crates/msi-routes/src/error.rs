// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What can go wrong, and what the user can do about it.

use crate::foreign::Errno;

/// A change can't be staged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// The host's table is full, or no GSI is left for an MSI vector.
    #[error(
        "KVM_CAP_IRQ_ROUTING allows this VM {limit} interrupt routes, and none is left ({fixed} fixed, {msi} MSI vectors; GSIs below {first} are reserved for pins): give its \
         devices fewer vectors"
    )]
    Full {
        /// Routes that the host allows.
        limit: usize,
        /// Irqchip pins and other routes that are not MSI.
        fixed: usize,
        /// MSI vectors that have a GSI.
        msi: usize,
        /// The lowest GSI that an MSI vector may have.
        first: u32,
    },
    /// A fixed route wants a GSI that has another route.
    #[error("GSI {gsi} has another route already: remove that one first, or use another GSI")]
    GsiTaken {
        /// The GSI.
        gsi: u32,
    },
    /// A fixed route wants a GSI that the host does not have.
    #[error("GSI {gsi} is out of range: this host takes 0 to {max}", max = limit.saturating_sub(1))]
    GsiRange {
        /// The GSI.
        gsi: u32,
        /// GSIs that the host has.
        limit: usize,
    },
    /// The route was removed, or its batch was dropped or failed.
    #[error("the route of GSI {gsi} exists no more: add a new one")]
    Gone {
        /// The GSI that it had.
        gsi: u32,
    },
    /// The route belongs to another [`Router`](crate::Router), that is, another VM.
    #[error("the route of GSI {gsi} belongs to another VM")]
    OtherVm {
        /// Its GSI there.
        gsi: u32,
    },
    /// An eventfd can't be attached to a pin.
    #[error("cannot attach an irqfd to the pin of GSI {gsi}: {source}")]
    Irqfd {
        /// The GSI.
        gsi: u32,
        /// The kernel's reason.
        source: Errno,
    },
    /// The vector's interrupts come from a gate, whose eventfd can't be exchanged.
    #[error(
        "the vector's interrupts come from a Gate, which has an eventfd of its own: there is no \
        external eventfd to replace"
    )]
    NotExternal,
    /// A gate can be given up only where its message may go to KVM by itself.
    #[error(
        "this Router does not use KVM_SIGNAL_MSI yet: if the kernel has this ioctl and the seccomp filter lets \
            it pass, call Router::set_signals(true) first"
    )]
    NoSignals,
    /// An eventfd that would block its reader.
    #[error("the eventfd blocks; make it with EFD_NONBLOCK, so that its count can be read safely")]
    Blocking,
    /// No eventfd could be made.
    #[error(
        "cannot make an eventfd: {0}; each vector needs one, and `ulimit -n` limits their \
        number"
    )]
    EventFd(#[source] Errno),
}

/// A saved device state that does not fit the device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: expected {expected}, found {found}; was the state saved by another device model?")]
#[non_exhaustive]
pub struct StateError {
    /// The part that does not fit.
    pub what: &'static str,
    /// What the device has.
    pub expected: usize,
    /// What the state has.
    pub found: usize,
}
