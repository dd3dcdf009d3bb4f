// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Routes without entries in the table: a table that is full, a boot without commits, and their
//! promotion; irqfds of pins.

use crate::common;

use common::{arrives, target, test_vm, Arrived, TestVm};
use msi_routes::{
    Errno, EventFd, FixedRoute, Gate, Kernel, MsiMessage, Msix, Phase, Route, RouteError, Router,
    Source,
};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::Arc;

/// A VM with a small table, that counts.
struct Small {
    inner: common::VmKernel,
    limit: usize,
    tables: AtomicUsize,
    signalled: AtomicUsize,
    refuse: AtomicUsize,
}

impl Kernel for Small {
    fn route_limit(&self) -> usize {
        self.limit
    }

    fn set_routing(&self, routes: &msi_routes::Routing) -> Result<(), Errno> {
        self.tables.fetch_add(1, SeqCst);
        if self.refuse.swap(0, SeqCst) > 0 {
            return Err(Errno::new(libc::ENOMEM));
        }
        self.inner.set_routing(routes)
    }

    fn attach(&self, eventfd: &EventFd, gsi: u32) -> Result<(), Errno> {
        self.inner.attach(eventfd, gsi)
    }

    fn detach(&self, eventfd: &EventFd, gsi: u32) -> Result<(), Errno> {
        self.inner.detach(eventfd, gsi)
    }

    fn attach_resampled(&self, e: &EventFd, r: &EventFd, gsi: u32) -> Result<(), Errno> {
        self.inner.0.fd().attach_resampled(e, r, gsi)
    }

    fn signals(&self) -> bool {
        self.inner.0.fd().signals()
    }

    fn signal(&self, message: MsiMessage) -> Result<(), Errno> {
        self.signalled.fetch_add(1, SeqCst);
        self.inner.0.fd().signal(message)
    }
}

fn small(vm: &TestVm, limit: usize) -> (Arc<Small>, Router) {
    let (inner, tables) = (vm.kernel(), AtomicUsize::new(0));
    let (signalled, refuse) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let kernel = Arc::new(Small { inner, limit, tables, signalled, refuse });
    (kernel.clone(), Router::new(kernel, FixedRoute::pc_defaults()).unwrap())
}

fn fire(vm: &TestVm, routes: &[Route]) {
    for route in routes {
        let expected = match route.phase() {
            Phase::Live => arrives(&[route]),
            _ => Arrived::new(),
        };
        route.source().raise().unwrap();
        assert_eq!(vm.take(&expected), expected, "{route:?}");
    }
}

#[test]
fn a_full_table_is_no_failure() {
    let Some(vm) = test_vm(1) else { return };
    let (kernel, router) = small(&vm, 44);
    if !kernel.signals() {
        return println!("skipped: this KVM has no KVM_SIGNAL_MSI");
    }
    let gate = || Source::gate(router.kernel()).unwrap();
    // Not before the VMM allows it: its seccomp filter may kill it.
    let mut batch = router.batch();
    let some: Vec<_> = (0..5).map(|n| batch.add(MsiMessage::x86(0, 40 + n), gate())).collect();
    assert!(matches!(some[4], Err(RouteError::Full { limit: 44, .. })));
    drop((batch, some));
    router.set_signals(true);
    let mut batch = router.batch();
    let mut routes: Vec<Route> =
        (0..20).map(|n| batch.add(MsiMessage::x86(0, 40 + n), gate()).unwrap()).collect();
    routes[9].source().raise().unwrap();
    batch.commit().unwrap().complete().unwrap();
    assert_eq!(routes.iter().filter(|route| route.is_signalled()).count(), 16);
    // What waited came with the commit.
    assert_eq!(vm.take(&arrives(&[&routes[9]])), arrives(&[&routes[9]]));
    fire(&vm, &routes);
    assert_eq!(kernel.signalled.load(SeqCst), 17);
    // Masked, changed, unmasked, removed, as any other; and refused.
    let mut batch = router.batch();
    batch.mask(&routes[10]).unwrap();
    batch.set_message(&routes[11], MsiMessage::x86(0, 99)).unwrap();
    batch.remove(&routes[12]).unwrap();
    batch.commit().unwrap().complete().unwrap();
    assert_eq!(target(routes[11].message()).1, 99);
    fire(&vm, &routes);
    for refused in [1, 0] {
        kernel.refuse.store(refused, SeqCst);
        let mut batch = router.batch();
        batch.unmask(&routes[10]).unwrap();
        batch.remove(&routes[13]).unwrap();
        batch.set_message(&routes[0], MsiMessage::x86(0, 100 + refused as u8)).unwrap();
        assert_eq!(batch.commit().is_err(), refused == 1);
        if refused == 1 {
            assert_eq!((routes[10].phase(), routes[13].phase()), (Phase::Masked, Phase::Live));
            fire(&vm, &routes[13..14]);
        }
    }
    assert_eq!(vm.take(&arrives(&[&routes[10]])), arrives(&[&routes[10]]), "what waited");
    // Three entries are free: the next promotion takes them, in one commit.
    routes.drain(1..4);
    let before = kernel.tables.load(SeqCst);
    kernel.refuse.store(1, SeqCst);
    drop(router.promote().unwrap_err());
    fire(&vm, &routes);
    let counts = router.promote().unwrap().complete().unwrap();
    assert_eq!((counts.attached, kernel.tables.load(SeqCst) - before), (3, 2));
    let live = |route: &&Route| route.phase() == Phase::Live;
    let signalled = routes.iter().filter(live).filter(|r| r.is_signalled()).count();
    assert_eq!((signalled, router.free()), (11, 0));
    fire(&vm, &routes);
    drop(routes);
    assert_eq!((router.msi_routes(), router.free()), (0, 4));
    // An eventfd of others needs an entry.
    let external = || Source::external(EventFd::new(libc::EFD_NONBLOCK).unwrap()).unwrap();
    let mut batch = router.batch();
    let five: Vec<_> = (0..5).map(|n| batch.add(MsiMessage::x86(0, n), external())).collect();
    assert!(matches!(five[4], Err(RouteError::Full { limit: 44, .. })));
}

/// A guest that boots: 12 devices of 9 vectors, unmasked one by one as Linux does, each
/// device's interrupts wanted at once.
#[test]
fn a_boot_makes_one_commit() {
    let Some(vm) = test_vm(1) else { return };
    let (kernel, router) = small(&vm, 4096);
    if !kernel.signals() {
        return println!("skipped: this KVM has no KVM_SIGNAL_MSI");
    }
    let boot = |lazy: bool| {
        router.set_lazy(lazy);
        kernel.tables.store(0, SeqCst);
        let mut devices = Vec::new();
        for device in 0..12u8 {
            let gates: Vec<Gate> = (0..9).map(|_| Gate::new(router.kernel()).unwrap()).collect();
            let sources = gates.iter().cloned().map(Source::Gate);
            let mut msix = Msix::new(sources, None).unwrap();
            let sync = |msix: &mut Msix| {
                let mut batch = router.batch();
                msix.sync(&mut batch).unwrap();
                batch.commit().unwrap().complete().unwrap();
            };
            let _ = msix.set_control(1 << 15 | 1 << 14);
            let _ = msix.set_control(1 << 15);
            for n in 0..9u8 {
                let message = MsiMessage::x86(0, 40 + device * 9 + n);
                let at = u64::from(n) * 16;
                let _ = msix.write_table(at, &message.address.to_le_bytes());
                let _ = msix.write_table(at + 8, &u64::from(message.data).to_le_bytes());
                sync(&mut msix);
            }
            gates.iter().for_each(Gate::fire);
            let all: Arrived = (0..9).map(|n| (0, 40 + device * 9 + n)).collect();
            assert_eq!(vm.take(&all), all);
            devices.push((msix, gates));
        }
        router.promote().unwrap().complete().unwrap();
        let tables = kernel.tables.load(SeqCst);
        for (msix, gates) in &devices {
            gates.iter().for_each(Gate::fire);
            let routes: Vec<&Route> = (0..9).map(|n| msix.route(n).unwrap()).collect();
            assert!(routes.iter().all(|route| !route.is_signalled()));
            assert_eq!(vm.take(&arrives(&routes)), arrives(&routes));
        }
        assert_eq!(router.msi_routes(), 108);
        tables
    };
    let (eager, lazy) = (boot(false), boot(true));
    println!("commits of a boot: {eager}, lazily {lazy}");
    assert_eq!((eager, lazy), (108, 1));
}

/// Raised from another thread while routes are promoted: each interrupt arrives.
#[test]
fn promotion_loses_no_interrupt() {
    let Some(vm) = test_vm(1) else { return };
    let (kernel, router) = small(&vm, 4096);
    if !kernel.signals() {
        return println!("skipped: this KVM has no KVM_SIGNAL_MSI");
    }
    router.set_lazy(true);
    for round in 0..100 {
        let mut batch = router.batch();
        let gate = || Source::gate(router.kernel()).unwrap();
        let routes: Vec<Route> =
            (0..20).map(|n| batch.add(MsiMessage::x86(0, 40 + n), gate()).unwrap()).collect();
        batch.commit().unwrap().complete().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| routes.iter().for_each(|route| route.source().raise().unwrap()));
            router.promote().unwrap().complete().unwrap();
        });
        let all = arrives(&routes.iter().collect::<Vec<_>>());
        assert_eq!(vm.take(&all), all, "round {round}");
    }
}

#[test]
fn pins_have_irqfds_too() {
    use vmeter_kvm_probe::kvm_bindings::{kvm_irqchip, KVM_IRQCHIP_IOAPIC};
    let Some(vm) = test_vm(1) else { return };
    let mut chip = kvm_irqchip { chip_id: KVM_IRQCHIP_IOAPIC, ..Default::default() };
    vm.vm.fd().get_irqchip(&mut chip).unwrap();
    // SAFETY: the chip id says that the union holds an IO-APIC; both are plain data. Level
    // triggered.
    unsafe { chip.chip.ioapic.redirtbl[20].bits = 0x77 | 1 << 15 };
    vm.vm.fd().set_irqchip(&chip).unwrap();
    let (_, router) = small(&vm, 4096);
    let eventfd = || EventFd::new(libc::EFD_NONBLOCK).unwrap();
    let none = router.attach_pin(30, eventfd(), None);
    assert!(matches!(none, Err(RouteError::Gone { gsi: 30 })), "{none:?}");
    let pin = router.attach_pin(20, eventfd(), Some(eventfd())).unwrap();
    pin.eventfd().write(1).unwrap();
    let expected = Arrived::from([(0, 0x77)]);
    assert_eq!(vm.take(&expected), expected);
    drop(pin);
    // Given back: another one can be attached.
    drop(router.attach_pin(20, eventfd(), Some(eventfd())).unwrap());
}
