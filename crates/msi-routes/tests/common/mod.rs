//! A VM whose local APICs show what arrived, and kernels that record and that fail.

#![allow(dead_code)]

use msi_routes::{Errno, EventFd, FixedRoute, Kernel, MsiMessage, Route, Router};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use vmeter_kvm_probe::kvm_bindings::{
    kvm_irq_routing_entry, kvm_lapic_state, KvmIrqRouting, KVM_IRQ_ROUTING_MSI,
};
use vmeter_kvm_probe::{Vcpu, Vm};

/// Offsets in the APIC page (Intel SDM vol. 3, 11.4.1).
const SPURIOUS: usize = 0xf0;
const IRR: usize = 0x200;

/// What arrived: (APIC id, vector).
pub type Arrived = BTreeSet<(u8, u8)>;

/// vCPUs that never run: what arrives stays in their IRR.
pub struct TestVm {
    pub vm: Vm,
    pub vcpus: Vec<Vcpu>,
}

/// A VM, or a line that says why there is none.
pub fn test_vm(vcpus: u64) -> Option<TestVm> {
    match Vm::builder().build() {
        Ok(vm) => Some(TestVm::new(vm, vcpus)),
        Err(e) => {
            println!("skipped: {e}");
            None
        }
    }
}

impl TestVm {
    pub fn new(vm: Vm, vcpus: u64) -> Self {
        let vcpus: Vec<Vcpu> = (0..vcpus).map(|id| vm.vcpu(id).unwrap()).collect();
        for vcpu in &vcpus {
            let mut apic = vcpu.fd().get_lapic().unwrap();
            let enabled = word(&apic, SPURIOUS) | 0x1ff;
            set_word(&mut apic, SPURIOUS, enabled);
            vcpu.fd().set_lapic(&apic).unwrap();
        }
        Self { vm, vcpus }
    }

    pub fn kernel(&self) -> VmKernel {
        VmKernel(self.vm.clone())
    }

    pub fn router(&self) -> Router {
        router(&self.vm)
    }

    /// What has arrived since [`Self::clear`].
    pub fn arrived(&self) -> Arrived {
        let mut all = Arrived::new();
        for (id, vcpu) in (0u8..).zip(&self.vcpus) {
            let apic = vcpu.fd().get_lapic().unwrap();
            let bit = |v: &u8| word(&apic, IRR + usize::from(v / 32) * 16) >> (v % 32) & 1 == 1;
            all.extend((0..=255).filter(bit).map(|vector| (id, vector)));
        }
        all
    }

    /// Empties the IRRs. Nothing may be under way.
    pub fn clear(&self) {
        for vcpu in &self.vcpus {
            let mut apic = vcpu.fd().get_lapic().unwrap();
            (0..8).for_each(|i| set_word(&mut apic, IRR + i * 16, 0));
            vcpu.fd().set_lapic(&apic).unwrap();
        }
    }

    /// Waits for `done` of what has arrived: KVM may inject from a kworker.
    pub fn wait(&self, done: impl Fn(&Arrived) -> bool) -> Arrived {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let arrived = self.arrived();
            if done(&arrived) || Instant::now() > deadline {
                return arrived;
            }
            std::thread::yield_now();
        }
    }

    /// What arrives, once it is what was expected; then clears.
    pub fn take(&self, expected: &Arrived) -> Arrived {
        let arrived = self.wait(|arrived| arrived.is_superset(expected));
        self.clear();
        arrived
    }
}

pub fn router(vm: &Vm) -> Router {
    Router::new(VmKernel(vm.clone()), FixedRoute::pc_defaults()).unwrap()
}

fn word(apic: &kvm_lapic_state, at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| apic.regs[at + i] as u8))
}

fn set_word(apic: &mut kvm_lapic_state, at: usize, value: u32) {
    value.to_le_bytes().iter().enumerate().for_each(|(i, b)| apic.regs[at + i] = *b as _);
}

/// Where a message arrives.
pub fn target(message: MsiMessage) -> (u8, u8) {
    ((message.address >> 12) as u8, message.data as u8)
}

pub fn arrives(routes: &[&Route]) -> Arrived {
    routes.iter().map(|route| target(route.message())).collect()
}

#[derive(Clone)]
pub struct VmKernel(pub Vm);

impl Kernel for VmKernel {
    fn route_limit(&self) -> usize {
        self.0.fd().route_limit()
    }

    fn set_routing(&self, routes: &KvmIrqRouting) -> Result<(), Errno> {
        self.0.fd().set_routing(routes)
    }

    fn attach(&self, eventfd: &EventFd, gsi: u32) -> Result<(), Errno> {
        self.0.fd().attach(eventfd, gsi)
    }

    fn detach(&self, eventfd: &EventFd, gsi: u32) -> Result<(), Errno> {
        self.0.fd().detach(eventfd, gsi)
    }
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

    fn set_routing(&self, routes: &KvmIrqRouting) -> Result<(), Errno> {
        self.call()?;
        self.commits.fetch_add(1, Ordering::SeqCst);
        self.inner.set_routing(routes)?;
        *self.table.lock().unwrap() = routes.as_slice().to_vec();
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

    fn set_routing(&self, _: &KvmIrqRouting) -> Result<(), Errno> {
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
