// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Kernels that record and that fail, without KVM.

#![allow(dead_code)]

use kvm_bindings::{kvm_irq_routing_entry, KVM_IRQ_ROUTING_MSI};
use msi_routes::{Errno, EventFd, Kernel, MsiMessage};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Where a message arrives.
pub fn target(message: MsiMessage) -> (u8, u8) {
    ((message.address >> 12) as u8, message.data as u8)
}

/// A kernel that counts calls, makes one of them fail, and remembers what it holds.
pub struct Spy {
    inner: Box<dyn Kernel>,
    limit: usize,
    calls: AtomicUsize,
    fail_at: AtomicUsize,
    /// How many calls fail from there on.
    pub failures: AtomicUsize,
    errno: i32,
    pub table: Mutex<Vec<kvm_irq_routing_entry>>,
    pub attached: AtomicUsize,
    pub commits: AtomicUsize,
}

impl Spy {
    pub fn new(inner: impl Kernel + 'static, fail_at: usize, errno: i32) -> Arc<Self> {
        let limit = inner.route_limit();
        Self::with_limit(inner, fail_at, errno, limit)
    }

    pub fn with_limit(
        inner: impl Kernel + 'static,
        fail_at: usize,
        errno: i32,
        limit: usize,
    ) -> Arc<Self> {
        Arc::new(Self {
            inner: Box::new(inner),
            limit,
            calls: AtomicUsize::new(0),
            fail_at: AtomicUsize::new(fail_at),
            failures: AtomicUsize::new(1),
            errno,
            table: Mutex::default(),
            attached: AtomicUsize::new(0),
            commits: AtomicUsize::new(0),
        })
    }

    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    /// After `after` more calls, `count` fail.
    pub fn fail_next(&self, after: usize, count: usize) {
        self.failures.store(count, Ordering::SeqCst);
        self.fail_at.store(self.calls() + after, Ordering::SeqCst);
    }

    /// No further call fails.
    pub fn mend(&self) {
        self.fail_at.store(usize::MAX, Ordering::SeqCst);
    }

    fn call(&self) -> Result<(), Errno> {
        let n = self.calls.fetch_add(1, Ordering::SeqCst);
        let from = self.fail_at.load(Ordering::SeqCst);
        let fail = n >= from && n - from < self.failures.load(Ordering::SeqCst);
        if fail {
            Err(Errno::new(self.errno))
        } else {
            Ok(())
        }
    }
}

impl Kernel for Spy {
    fn route_limit(&self) -> usize {
        self.limit
    }

    fn set_routing(&self, routes: &msi_routes::Routing) -> Result<(), Errno> {
        self.call()?;
        self.commits.fetch_add(1, Ordering::SeqCst);
        self.inner.set_routing(routes)?;
        *self.table.lock().unwrap() = routes.as_ref().as_slice().to_vec();
        Ok(())
    }

    fn attach(&self, eventfd: &EventFd, gsi: u32) -> Result<(), Errno> {
        self.call()?;
        self.inner.attach(eventfd, gsi)?;
        self.attached.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn detach(&self, eventfd: &EventFd, gsi: u32) -> Result<(), Errno> {
        self.call()?;
        self.inner.detach(eventfd, gsi)?;
        self.attached.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }

    fn eventfd(&self) -> Result<EventFd, Errno> {
        self.call()?;
        self.inner.eventfd()
    }
}

/// A kernel that takes anything.
pub struct Null(pub usize);

impl Kernel for Null {
    fn route_limit(&self) -> usize {
        self.0
    }

    fn set_routing(&self, _: &msi_routes::Routing) -> Result<(), Errno> {
        Ok(())
    }

    fn attach(&self, _: &EventFd, _: u32) -> Result<(), Errno> {
        Ok(())
    }

    fn detach(&self, _: &EventFd, _: u32) -> Result<(), Errno> {
        Ok(())
    }
}

/// The MSI entries of a table: (GSI, where it arrives).
pub fn msi_entries(entries: &[kvm_irq_routing_entry]) -> BTreeSet<(u32, (u8, u8))> {
    let msi = entries.iter().filter(|e| e.type_ == KVM_IRQ_ROUTING_MSI);
    msi.map(|e| {
        // SAFETY: the type says that the union holds a message.
        let msi = unsafe { e.u.msi };
        (e.gsi, ((msi.address_lo >> 12) as u8, msi.data as u8))
    })
    .collect()
}

pub fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// A small, fast generator: tests need no better one.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}
