//! One VM's routes.

use crate::batch::Batch;
use crate::commit;
use crate::error::{CommitError, RouteError};
use crate::kernel::Kernel;
use crate::message::FixedRoute;
use crate::pool::Pool;
use crate::report::Report;
use crate::source::Source;
use crate::table::Table;
use kvm_bindings::kvm_irq_routing_entry;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An x86 IO-APIC's pins: MSI routes stay off their GSIs even where no pin is routed.
const FIRST_MSI_GSI: u32 = 24;

/// One VM's GSI routing table. Clones are handles of the same one; all threads may use it.
#[derive(Clone)]
pub struct Router(pub(crate) Arc<Inner>);

/// GSIs given back that nobody has taken again, and irqfds that could not be detached.
pub(crate) type Waste = (Vec<u32>, Vec<(Source, u32)>);

pub(crate) struct Inner {
    pub(crate) kernel: Box<dyn Kernel>,
    /// Held while the kernel is called. Taken before `pool`, never after it.
    table: Mutex<Table>,
    /// Held for moments, so that staging never waits for a commit.
    pool: Mutex<Pool>,
    batches: AtomicU64,
    /// The pool has something to sweep: spares commits its lock otherwise.
    waste: AtomicBool,
}

impl Router {
    /// A VM's table, which holds `existing` now: on x86 [`FixedRoute::pc_defaults`] after
    /// `KVM_CREATE_IRQCHIP`. It must be the only one to call `KVM_SET_GSI_ROUTING` from now
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

    /// The same; MSI routes get GSIs from `first` on (24 otherwise).
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
            table.push_fixed(&route);
        }
        table.keep();
        Ok(Self(Arc::new(Inner {
            kernel: Box::new(kernel),
            table: Mutex::new(table),
            pool: Mutex::new(pool),
            batches: AtomicU64::new(0),
            waste: AtomicBool::new(false),
        })))
    }

    /// Begins a batch of changes.
    pub fn batch(&self) -> Batch {
        Batch::new(self.clone(), self.0.batches.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Takes the entries of dropped routes out of the kernel's table now, rather than with
    /// the next commit that changes a route.
    ///
    /// # Errors
    /// The kernel refuses the table.
    pub fn sweep(&self) -> Result<Report, CommitError> {
        commit::sweep(&self.0)
    }

    /// The kernel's table, in its order.
    pub fn entries(&self) -> Vec<kvm_irq_routing_entry> {
        self.0.table().entries().to_vec()
    }

    /// Routes that can still be added.
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

impl Inner {
    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a GSI back; its entry, if there is one, is swept out of the table.
    pub(crate) fn release(&self, gsi: u32) {
        self.pool().release(gsi);
        self.waste.store(true, Ordering::Release);
    }

    /// Puts back what a sweep could not do.
    pub(crate) fn put_back(&self, retired: &[u32], stuck: Vec<(Source, u32)>) {
        if !retired.is_empty() || !stuck.is_empty() {
            self.pool().put_back(retired, stuck);
            self.waste.store(true, Ordering::Release);
        }
    }

    /// What is to be swept: GSIs given back that nobody has taken again, and irqfds that
    /// could not be detached. None if there is nothing.
    pub(crate) fn take_waste(&self) -> Option<Waste> {
        if !self.waste.load(Ordering::Acquire) {
            return None;
        }
        // Cleared first: what is added from here on sets it again.
        self.waste.store(false, Ordering::Release);
        let mut pool = self.pool();
        Some((pool.take_retired(), pool.take_stuck()))
    }
}
