//! What all handles of one VM share: the kernel's table, the GSIs, and what is to be swept.

use crate::error::RouteError;
use crate::foreign::Errno;
use crate::kernel::Kernel;
use crate::message::MsiMessage;
use crate::plan::Workspace;
use crate::pool::{Pool, MOST_SIGNALLED};
use crate::route::{Home, Route, RouteInner};
use crate::source::Source;
use crate::table::Table;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// GSIs given back that nobody has taken again, and irqfds that could not be detached.
pub(crate) type Waste = (Vec<u32>, Vec<(Source, u32)>);

/// What a commit holds from its first look at the table to its last ioctl.
pub(crate) struct Locked {
    pub(crate) table: Table,
    pub(crate) workspace: Workspace,
}

pub(crate) struct Shared {
    pub(crate) kernel: Box<dyn Kernel>,
    /// Held while the kernel is called. Taken before `pool`, never after it.
    locked: Mutex<Locked>,
    /// Held for moments, so that staging never waits for a commit.
    pool: Mutex<Pool>,
    batches: AtomicU64,
    /// Threads that detach irqfds at the same time.
    pub(crate) detach_threads: AtomicUsize,
    /// Routes that were signalled when they were made.
    signalled: Mutex<Vec<Weak<RouteInner>>>,
    /// New gates' routes are signalled until they are promoted.
    pub(crate) lazy: AtomicBool,
    /// Gates' routes for which the table has no room are signalled.
    pub(crate) signals: AtomicBool,
    /// The pool has something to sweep: spares commits its lock otherwise.
    waste: AtomicBool,
}

impl Shared {
    pub(crate) fn new(kernel: Box<dyn Kernel>, table: Table, pool: Pool) -> Self {
        let workspace = Workspace::new(table.limit() + MOST_SIGNALLED);
        Shared {
            kernel,
            locked: Mutex::new(Locked { table, workspace }),
            pool: Mutex::new(pool),
            batches: AtomicU64::new(0),
            detach_threads: AtomicUsize::new(1),
            signalled: Mutex::default(),
            lazy: AtomicBool::new(false),
            signals: AtomicBool::new(false),
            waste: AtomicBool::new(false),
        }
    }

    /// A number that no batch of this VM has had.
    pub(crate) fn next_batch(&self) -> u64 {
        self.batches.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Locked> {
        self.locked.lock().unwrap_or_else(|poisoned| {
            self.locked.clear_poison();
            let mut locked = poisoned.into_inner();
            // A kernel that panicked did not take it.
            locked.table.roll_back();
            locked
        })
    }

    pub(crate) fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A GSI for a route from this source; or a number above them and true, if it is to be
    /// signalled.
    pub(crate) fn number(&self, source: &Source) -> Result<(u32, bool), RouteError> {
        let lazy = self.lazy.load(Ordering::Relaxed);
        let allowed = source.is_gate() && (lazy || self.signals.load(Ordering::Relaxed));
        let may = || allowed && self.kernel.signals();
        if lazy && may() {
            if let Some(number) = self.pool().reserve_signalled() {
                return Ok((number, true));
            }
        }
        let reserved = self.pool().reserve();
        match reserved {
            Err(RouteError::Full { .. }) if may() => {
                let number = self.pool().reserve_signalled();
                number.map(|number| (number, true)).ok_or_else(|| self.pool().full())
            }
            reserved => Ok((reserved?, false)),
        }
    }

    /// A route that is signalled was made.
    pub(crate) fn note(&self, route: &Route) {
        let mut all = self.signalled.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that are no more go now and then.
        if all.len() == all.capacity() {
            all.retain(|route| route.strong_count() > 0);
        }
        all.push(Arc::downgrade(&route.0));
    }

    /// Routes that were signalled when they were made, and are still.
    pub(crate) fn signalled(&self) -> Vec<Route> {
        let mut all = self.signalled.lock().unwrap_or_else(PoisonError::into_inner);
        let routes: Vec<Route> = all.iter().filter_map(Weak::upgrade).map(Route).collect();
        all.retain(|route| route.strong_count() > 0);
        routes
    }

    /// A number that a route has no more; its entry, if it has one, is to be swept.
    pub(crate) fn give_back(&self, number: u32) {
        self.pool().release(number);
        self.waste.store(true, Ordering::Release);
    }

    /// Nothing of these is in the kernel any more: their GSIs are free.
    pub(crate) fn retire<'a>(&self, routes: impl Iterator<Item = &'a Route>) {
        let mut pool = self.pool();
        let mut gone = routes.filter_map(Route::go).peekable();
        if gone.peek().is_some() {
            gone.for_each(|gsi| pool.release(gsi));
            self.waste.store(true, Ordering::Release);
        }
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

impl Home for Shared {
    fn release(&self, gsi: u32) {
        self.pool().release(gsi);
        self.waste.store(true, Ordering::Release);
    }

    fn signal(&self, message: MsiMessage) -> Result<(), Errno> {
        self.kernel.signal(message)
    }

    fn detach(&self, source: &Source, gsi: u32) -> bool {
        let detached = self.kernel.detach(source.eventfd(), gsi).is_ok();
        if !detached {
            self.put_back(&[], vec![(source.clone(), gsi)]);
        }
        detached
    }
}
