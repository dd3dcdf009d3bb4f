// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Eventfds that are exchanged while their vectors are in use, and gates that give up their entries.

use crate::common;

use common::{arrives, test_vm, Arrived, Null, Spy};
use msi_routes::{
    Errno, EventFd, FixedRoute, Gate, Kernel, MsiMessage, Msix, Phase, Route, RouteError, Router,
    Source, Step,
};
use std::sync::Arc;

fn eventfd() -> EventFd {
    Null(64).eventfd().unwrap()
}

/// An eventfd, and a second handle of it for the device.
fn shared() -> (EventFd, EventFd) {
    let own = eventfd();
    let descriptor = std::os::fd::AsFd::as_fd(&own).try_clone_to_owned().unwrap();
    (EventFd::from(descriptor), own)
}

fn external() -> (EventFd, Source) {
    let (device, own) = shared();
    (device, Source::external(own).unwrap())
}

/// A live vector's eventfd is exchanged: no table is handed over, the old one leads nowhere, and
/// what the new one was written before the commit arrives.
#[test]
fn a_live_eventfd_is_exchanged_without_a_table() {
    let Some(vm) = test_vm(1) else { return };
    let router = vm.router();
    let (old, source) = external();
    let mut batch = router.batch();
    let route = batch.add(MsiMessage::x86(0, 40), source).unwrap();
    batch.commit().unwrap().complete().unwrap();
    let gsi = route.gsi();
    old.write(1).unwrap();
    assert_eq!(vm.take(&arrives(&[&route])), arrives(&[&route]));
    let (new, own) = shared();
    let mut batch = router.batch();
    batch.set_eventfd(&route, own).unwrap();
    new.write(1).unwrap();
    let counts = batch.commit().unwrap().complete().unwrap();
    assert_eq!((counts.commits, counts.attached, counts.detached), (0, 1, 1));
    assert_eq!((route.gsi(), route.phase()), (gsi, Phase::Live));
    assert_eq!(vm.take(&arrives(&[&route])), arrives(&[&route]));
    new.write(1).unwrap();
    assert_eq!(vm.take(&arrives(&[&route])), arrives(&[&route]));
    old.write(1).unwrap();
    assert_eq!(vm.take(&Arrived::new()), Arrived::new());
}

/// What waits in the eventfd of a masked vector waits in the new one, and comes once.
#[test]
fn what_waits_is_handed_over() {
    let Some(vm) = test_vm(1) else { return };
    let router = vm.router();
    let (old, source) = external();
    let mut batch = router.batch();
    let route = batch.add_masked(MsiMessage::x86(0, 41), source).unwrap();
    batch.commit().unwrap().complete().unwrap();
    old.write(1).unwrap();
    let (new, own) = shared();
    let mut batch = router.batch();
    batch.set_eventfd(&route, own).unwrap();
    batch.commit().unwrap().complete().unwrap();
    assert_eq!((route.phase(), vm.arrived()), (Phase::Masked, Arrived::new()));
    assert!(old.read().is_err(), "it still waits in the old one");
    for expected in [arrives(&[&route]), Arrived::new()] {
        let mut batch = router.batch();
        batch.unmask(&route).unwrap();
        batch.commit().unwrap().complete().unwrap();
        assert_eq!(vm.take(&expected), expected);
        let mut batch = router.batch();
        batch.mask(&route).unwrap();
        batch.commit().unwrap().complete().unwrap();
    }
    drop(new);
}

/// A device: the exchange is staged by `sync`, with whatever else the registers say.
#[test]
fn a_devices_vector_gets_another_eventfd() {
    let Some(vm) = test_vm(1) else { return };
    let router = vm.router();
    let (first, source) = external();
    let gate = Source::gate(router.kernel()).unwrap();
    let mut msix = Msix::new([source, gate], None).unwrap();
    let entry = |vector: u8, mask: u32| {
        let words = [0xfee0_0000, 0, 50 + u32::from(vector), mask];
        words.map(u32::to_le_bytes).concat()
    };
    let write = |msix: &mut Msix, entry: &[u8]| {
        entry.chunks(8).zip([0, 8]).filter(|(half, at)| msix.write_table(*at, half)).count()
    };
    let commit = |msix: &mut Msix| {
        let mut batch = router.batch();
        msix.sync(&mut batch).unwrap();
        batch.commit().unwrap().complete().unwrap()
    };
    assert!(msix.set_control(1 << 15));
    write(&mut msix, &entry(0, 0));
    commit(&mut msix);
    let route = msix.route(0).unwrap().clone();
    first.write(1).unwrap();
    assert_eq!(vm.take(&arrives(&[&route])), arrives(&[&route]));
    // Twice before a commit: what the one in between was written is not lost.
    let (second, own) = shared();
    msix.set_eventfd(0, own).unwrap();
    second.write(1).unwrap();
    let (third, own) = shared();
    msix.set_eventfd(0, own).unwrap();
    assert_eq!(commit(&mut msix).commits, 0);
    assert_eq!(vm.take(&arrives(&[&route])), arrives(&[&route]));
    assert_eq!(commit(&mut msix).attached, 0, "it is done");
    // Masked: the pending bit stays set, whichever eventfd has it.
    write(&mut msix, &entry(0, 1));
    commit(&mut msix);
    third.write(1).unwrap();
    assert!(msix.is_pending(0));
    msix.set_eventfd(0, eventfd()).unwrap();
    assert!(msix.is_pending(0));
    commit(&mut msix);
    assert!(msix.is_pending(0));
    write(&mut msix, &entry(0, 0));
    commit(&mut msix);
    assert_eq!(vm.take(&arrives(&[&route])), arrives(&[&route]));
    // A gate's is its own, and there is no third vector.
    assert!(matches!(msix.set_eventfd(1, eventfd()), Err(RouteError::NotExternal)));
    assert!(matches!(msix.set_eventfd(2, eventfd()), Err(RouteError::NotExternal)));
}

/// Each call of an exchange fails once: the vector is as it was, or is named and masked; then it works.
#[test]
fn an_exchange_that_fails_leaves_the_vector_as_it_was() {
    for fail in 0..4 {
        let spy = Spy::new(Null(64), usize::MAX, libc::ENOMEM);
        let router = Router::new(spy.clone(), FixedRoute::pc_defaults()).unwrap();
        let (_, source) = external();
        let mut batch = router.batch();
        let route = batch.add(MsiMessage::x86(0, 42), source.clone()).unwrap();
        batch.commit().unwrap().complete().unwrap();
        let mut batch = router.batch();
        batch.set_eventfd(&route, eventfd()).unwrap();
        batch.set_message(&route, MsiMessage::x86(0, 43)).unwrap();
        spy.fail_next(fail, 1);
        let failed = match batch.commit() {
            // The table.
            Err(error) => {
                assert!(error.not_restored.is_empty());
                None
            }
            Ok(report) => report.failures.first().map(|failure| failure.step),
        };
        let expected = [Some(Step::Detach), None, Some(Step::Attach), None];
        assert_eq!(failed, expected[fail], "call {fail}");
        assert_eq!(
            (route.phase(), spy.attached.load(std::sync::atomic::Ordering::SeqCst)),
            (Phase::Live, 1)
        );
        let same = matches!((route.source(), &source), (Source::External(a), Source::External(b)) if Arc::ptr_eq(&a, b));
        assert_eq!(same, fail < 3, "call {fail}");
        spy.mend();
        let mut batch = router.batch();
        batch.set_eventfd(&route, eventfd()).unwrap();
        batch.commit().unwrap().complete().unwrap();
        assert_eq!(spy.attached.load(std::sync::atomic::Ordering::SeqCst), 1);
    }
}

/// KVM with its own table size, and KVM_SIGNAL_MSI.
struct Full(common::VmKernel);

impl Kernel for Full {
    fn route_limit(&self) -> usize {
        44
    }

    fn set_routing(&self, routes: &msi_routes::Routing) -> Result<(), Errno> {
        self.0.set_routing(routes)
    }

    fn attach(&self, eventfd: &EventFd, gsi: u32) -> Result<(), Errno> {
        self.0.attach(eventfd, gsi)
    }

    fn detach(&self, eventfd: &EventFd, gsi: u32) -> Result<(), Errno> {
        self.0.detach(eventfd, gsi)
    }

    fn signals(&self) -> bool {
        self.0 .0.fd().signals()
    }

    fn signal(&self, message: MsiMessage) -> Result<(), Errno> {
        self.0 .0.fd().signal(message)
    }
}

/// A full table of gates; a VFIO vector is plugged in, and works, as do all gates.
#[test]
fn a_gate_makes_room_for_an_eventfd() {
    let Some(vm) = test_vm(1) else { return };
    let router = Router::new(Full(vm.kernel()), FixedRoute::pc_defaults()).unwrap();
    if !router.kernel().signals() {
        return println!("skipped: this KVM has no KVM_SIGNAL_MSI");
    }
    let mut batch = router.batch();
    let (mut gates, mut routes): (Vec<Gate>, Vec<Route>) = Default::default();
    while router.free() > 0 {
        let gate = Gate::new(router.kernel()).unwrap();
        let message = MsiMessage::x86(0, 60 + gates.len() as u8);
        routes.push(batch.add(message, Source::Gate(gate.clone())).unwrap());
        gates.push(gate);
    }
    batch.commit().unwrap().complete().unwrap();
    let mut batch = router.batch();
    batch.mask(&routes[1]).unwrap();
    batch.commit().unwrap().complete().unwrap();
    gates[1].fire();
    let full = router.batch().add(MsiMessage::x86(0, 99), external().1);
    assert!(matches!(full, Err(RouteError::Full { .. })));
    // Opted into, as all signalling is.
    assert!(matches!(router.demote(&routes[..2]), Err(RouteError::NoSignals)));
    router.set_signals(true);
    let counts = router.demote(&routes[..2]).unwrap().complete().unwrap();
    assert_eq!((counts.commits, counts.detached, router.free()), (0, 2, 2));
    assert!(routes[0].is_signalled() && routes[1].is_signalled() && !routes[2].is_signalled());
    assert_eq!(router.demote(&routes[..2]).unwrap().counts.detached, 0, "they have none");
    let (device, source) = external();
    let mut batch = router.batch();
    let vfio = batch.add(MsiMessage::x86(0, 99), source).unwrap();
    assert_eq!(batch.commit().unwrap().complete().unwrap().commits, 1);
    device.write(1).unwrap();
    assert_eq!(vm.take(&arrives(&[&vfio])), arrives(&[&vfio]));
    assert_eq!(router.demote([&vfio]).unwrap().counts.detached, 0, "no gate");
    for (gate, route) in gates.iter().zip(&routes) {
        let expected =
            if route.phase() == Phase::Live { arrives(&[route]) } else { Arrived::new() };
        gate.fire();
        assert_eq!(vm.take(&expected), expected, "{route:?}");
    }
    // What waited comes with the unmask; then both get entries again, for which there is one place.
    let mut batch = router.batch();
    batch.unmask(&routes[1]).unwrap();
    batch.commit().unwrap().complete().unwrap();
    assert_eq!(vm.take(&arrives(&[&routes[1]])), arrives(&[&routes[1]]));
    router.promote().unwrap().complete().unwrap();
    assert_eq!(routes[..2].iter().filter(|route| route.is_signalled()).count(), 1);
    for (gate, route) in gates.iter().zip(&routes) {
        gate.fire();
        assert_eq!(vm.take(&arrives(&[route])), arrives(&[route]));
    }
}

/// A demotion while the gate is fired at full speed: each burst is delivered, by one way or the other.
#[test]
fn no_interrupt_is_lost_between_the_ways() {
    let Some(vm) = test_vm(1) else { return };
    let router = Router::new(Full(vm.kernel()), FixedRoute::pc_defaults()).unwrap();
    if !router.kernel().signals() {
        return println!("skipped: this KVM has no KVM_SIGNAL_MSI");
    }
    router.set_signals(true);
    let gate = Gate::new(router.kernel()).unwrap();
    let mut batch = router.batch();
    let route = batch.add(MsiMessage::x86(0, 70), Source::Gate(gate.clone())).unwrap();
    batch.commit().unwrap().complete().unwrap();
    for _ in 0..50 {
        std::thread::scope(|scope| {
            let fired = scope.spawn(|| gate.fire());
            router.demote([&route]).unwrap().complete().unwrap();
            fired.join().unwrap();
        });
        assert!(route.is_signalled() && !gate.pending());
        assert_eq!(vm.take(&arrives(&[&route])), arrives(&[&route]));
        router.promote().unwrap().complete().unwrap();
        assert!(!route.is_signalled());
    }
}
