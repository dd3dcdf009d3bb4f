// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What all handles of one VM share: the kernel's table, the GSIs, and what is to be swept.

use crate::error::RouteError;
use crate::foreign::Errno;
use crate::kernel::Kernel;
use crate::message::MsiMessage;
use crate::on_panic::on_panic;
use crate::plan::Workspace;
use crate::pool::{Pool, MOST_SIGNALLED};
use crate::route::{Home, Route, RouteInner};
use crate::source::Source;
use crate::table::Table;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

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
    /// Routes that are signalled, or were.
    signalled: Mutex<Vec<Weak<RouteInner>>>,
    /// New gates' routes are signalled until they are promoted.
    pub(crate) lazy: AtomicBool,
    /// Gates' routes for which the table has no room are signalled.
    pub(crate) signals: AtomicBool,
    /// The kernel said that it takes devices' ids.
    devids: AtomicBool,
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
            devids: AtomicBool::new(false),
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
            locked.table.doubt();
            locked
        })
    }

    pub(crate) fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What goes into the table for a message.
    pub(crate) fn translate(&self, message: MsiMessage) -> Result<MsiMessage, Errno> {
        let mut message = self.kernel.translate(message)?;
        if message.devid.is_some() && !self.takes_devid() {
            message.devid = None;
        }
        Ok(message)
    }

    /// The answer may become yes: when the VMM makes the ITS.
    fn takes_devid(&self) -> bool {
        let takes = self.devids.load(Ordering::Relaxed) || self.kernel.takes_devid();
        self.devids.store(takes, Ordering::Relaxed);
        takes
    }

    /// A GSI for a route from this source; or a number above them and true, if it is to be
    /// signalled.
    pub(crate) fn number(&self, source: &Source) -> Result<(u32, bool), RouteError> {
        let lazy = self.lazy.load(Ordering::Relaxed);
        let may = || source.is_gate() && self.may_signal();
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

    /// The VMM allows `KVM_SIGNAL_MSI`, and the kernel has it.
    pub(crate) fn may_signal(&self) -> bool {
        let allowed = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        (allowed(&self.lazy) || allowed(&self.signals)) && self.kernel.signals()
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

    /// A route is signalled that was promoted, or was made with an entry.
    pub(crate) fn note_again(&self, route: &Route) {
        let mut all = self.signalled.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|other| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(&route.0)));
        all.push(Arc::downgrade(&route.0));
    }

    /// Routes that were signalled when they were made, or are again.
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

    /// Puts back what was to be swept out of a table that the kernel has not got.
    pub(crate) fn put_back(&self, retired: &[u32]) {
        if !retired.is_empty() {
            self.pool().put_back(retired);
            self.waste.store(true, Ordering::Release);
        }
    }

    /// What is to be swept out of the table: GSIs given back that nobody has taken again. Those
    /// of irqfds that could not be detached before are among them if they can now.
    pub(crate) fn take_waste(&self) -> Vec<u32> {
        // Cleared first: what is added from here on sets it again.
        if !self.waste.load(Ordering::Acquire) || !self.waste.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        self.detach_stuck();
        self.pool().take_retired()
    }

    /// Tries each irqfd once that could not be detached before.
    pub(crate) fn detach_stuck(&self) {
        let count = self.pool().stuck();
        for _ in 0..count {
            let Some((source, gsi)) = self.pool().take_stuck() else { return };
            if self.detach(&source, gsi) {
                self.release(gsi);
            }
        }
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
        let later = || self.detach_later(source, gsi);
        let detached = on_panic(later, || self.kernel.detach(source.eventfd(), gsi)).is_ok();
        if !detached {
            later();
        }
        detached
    }

    fn detach_later(&self, source: &Source, gsi: u32) {
        self.pool().put_back_stuck(source.clone(), gsi);
        self.waste.store(true, Ordering::Release);
    }
}
