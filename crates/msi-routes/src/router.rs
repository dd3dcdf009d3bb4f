// SPDX-License-Identifier: Apache-2.0 OR MIT

//! One VM's routes.

use crate::batch::Batch;
use crate::commit;
use crate::demote;
use crate::error::RouteError;
use crate::foreign::EventFd;
use crate::kernel::Kernel;
use crate::message::FixedRoute;
use crate::pin::PinIrqfd;
use crate::pool::Pool;
use crate::promote;
use crate::report::{CommitError, Report};
use crate::route::Route;
use crate::shared::Shared;
use crate::table::Table;
#[cfg(feature = "kvm-ioctls")]
use kvm_bindings::kvm_irq_routing_entry;
use std::sync::Arc;

/// An x86 IO-APIC's pins: MSI routes stay off their GSIs even where no pin is routed. Elsewhere
/// they stay off those of fixed routes only.
const FIRST_MSI_GSI: u32 = if cfg!(target_arch = "x86_64") { 24 } else { 0 };

/// One VM's GSI routing table. Clones are handles of the same one; all threads may use it.
#[derive(Clone)]
pub struct Router(pub(crate) Arc<Shared>);

impl Router {
    /// A VM's table, which holds `existing` now: on x86 [`FixedRoute::pc_defaults`] after
    /// `KVM_CREATE_IRQCHIP`, on arm64 [`FixedRoute::gic_defaults`] where irqfds raise SPIs. It must be the only one to call `KVM_SET_GSI_ROUTING` from now
    /// on: the kernel has no way to add to a table, or to read it. Makes no system call but
    /// `KVM_CHECK_EXTENSION`.
    ///
    /// # Errors
    /// The host's table is too small for `existing`, or two of these exclude each other.
    pub fn new(
        kernel: impl Kernel + 'static,
        existing: impl IntoIterator<Item = FixedRoute>,
    ) -> Result<Self, RouteError> {
        Self::with_first_gsi(kernel, existing, FIRST_MSI_GSI)
    }

    /// The same; MSI routes get GSIs from `first` on (otherwise from 24 on x86, from
    /// 0 elsewhere; never one that `existing` has).
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_first_gsi(
        kernel: impl Kernel + 'static,
        existing: impl IntoIterator<Item = FixedRoute>,
        first: u32,
    ) -> Result<Self, RouteError> {
        let limit = kernel.route_limit();
        let mut pool = Pool::new(limit, first);
        let mut table = Table::new(limit)?;
        for route in existing {
            pool.reserve_fixed(&route)?;
            pool.settle_fixed(&route);
            table.push_fixed(&route);
        }
        table.keep();
        Ok(Self(Arc::new(Shared::new(Box::new(kernel), table, pool))))
    }

    /// Begins a batch of changes.
    pub fn batch(&self) -> Batch {
        Batch::new(self.0.clone(), self.0.next_batch())
    }

    /// Takes the entries of dropped routes out of the kernel's table now, rather than with
    /// the next commit that changes a route.
    ///
    /// # Errors
    /// The kernel refuses the table.
    pub fn sweep(&self) -> Result<Report, CommitError> {
        commit::sweep(&self.0)
    }

    /// Has a commit detach eventfds of others by so many threads at once (1 otherwise), which
    /// share what each would wait for: for devices of many vectors that are unplugged. They
    /// are started for it, and detach with no lock of this library held; where no thread can
    /// be started, the committing one does it.
    pub fn set_detach_threads(&self, threads: usize) {
        self.0.detach_threads.store(threads, std::sync::atomic::Ordering::Relaxed);
    }

    /// From now on a gate's route for which the table has no room delivers by `KVM_SIGNAL_MSI`,
    /// where the kernel has that. Otherwise it is [`RouteError::Full`], which is the default: a
    /// seccomp filter that does not allow this ioctl kills the VMM at its first interrupt.
    pub fn set_signals(&self, allowed: bool) {
        self.0.signals.store(allowed, std::sync::atomic::Ordering::Relaxed);
    }

    /// From now on a gate's route has no entry in the table, and delivers by `KVM_SIGNAL_MSI`,
    /// until [`Self::promote`]: a guest that enables vectors one by one, as it boots, makes no
    /// commit. Nothing changes where the kernel has no such thing. It includes
    /// [`Self::set_signals`]: a seccomp filter has to allow `KVM_SIGNAL_MSI`.
    pub fn set_lazy(&self, lazy: bool) {
        self.0.lazy.store(lazy, std::sync::atomic::Ordering::Relaxed);
    }

    /// Gives signalled routes entries and irqfds, in one commit: all that there is room for.
    /// When the guest has booted, say, or a device is gone from a full table. One whose message
    /// the kernel refuses in a table is named in the report, is signalled as before, and takes
    /// as many commits more as in a batch; so is one whose irqfd fails.
    ///
    /// # Errors
    /// The kernel refuses the table, whatever is left out; then nothing has changed.
    pub fn promote(&self) -> Result<Report, CommitError> {
        promote::promote(&self.0)
    }

    /// Gives up entries: the gates of these routes deliver by `KVM_SIGNAL_MSI` from now on, as those
    /// of [`Self::set_lazy`], so that a source that needs an entry (a VFIO vector that is plugged in)
    /// finds room. No commit: the GSIs are free at once, and the next commit that changes a route
    /// takes the entries out. What is raised meanwhile waits, and is delivered then.
    ///
    /// Routes that have no entry, or whose source is no gate, are passed over. `counts.detached` says
    /// how many gave up theirs. One whose irqfd can't be detached is named in the report, and stays
    /// as it was. [`Self::promote`] gives the entries back where there is room.
    ///
    /// # Errors
    /// [`RouteError::NoSignals`]; [`RouteError::OtherVm`]. Nothing has changed then.
    pub fn demote<'a>(
        &self,
        routes: impl IntoIterator<Item = &'a Route>,
    ) -> Result<Report, RouteError> {
        demote::demote(&self.0, &routes.into_iter().collect::<Vec<_>>())
    }

    /// Attaches an eventfd to a GSI of fixed routes: a pin of an irqchip, as legacy interrupts of
    /// passed-through devices have. With `resample` the line is level-triggered: it falls at
    /// the guest's end of interrupt, and `resample` is written then.
    ///
    /// # Errors
    /// [`RouteError::Gone`]: the table has no fixed route of the GSI; [`RouteError::Irqfd`].
    pub fn attach_pin(
        &self,
        gsi: u32,
        eventfd: EventFd,
        resample: Option<EventFd>,
    ) -> Result<PinIrqfd, RouteError> {
        PinIrqfd::attach(self.0.clone(), gsi, eventfd, resample)
    }

    /// The kernel's table, in its order.
    #[cfg(feature = "kvm-ioctls")]
    pub fn entries(&self) -> Vec<kvm_irq_routing_entry> {
        self.0.lock().table.entries().to_vec()
    }

    /// MSI routes that can still be added to the table: it has entries for them, and GSIs.
    pub fn free(&self) -> usize {
        self.0.pool().free()
    }

    /// MSI routes that have a GSI, staged ones among them.
    pub fn msi_routes(&self) -> usize {
        self.0.pool().msi()
    }

    /// The VM's ioctls.
    pub fn kernel(&self) -> &dyn Kernel {
        &*self.0.kernel
    }
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Router({} MSI routes, {} free)", self.msi_routes(), self.free())
    }
}
