// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Against the host's own `/dev/kvm`: what is raised arrives at the local APIC, once.
//! Where there is no `/dev/kvm`, each test says so and passes.

use crate::common;

use common::{arrives, target, test_vm, Arrived, TestVm};
use msi_routes::measure::Shape;
use msi_routes::{
    enable, prepare, EventFd, FixedRoute, Gate, Msi, MsiMessage, Msix, Phase, RouteError, Router,
    Source, Step, Strategy,
};

fn message(n: usize) -> MsiMessage {
    MsiMessage::x86(0, 40 + n as u8)
}

fn eventfd() -> EventFd {
    EventFd::new(0o4000).unwrap()
}

fn both_sources(router: &Router) -> [Source; 2] {
    [Source::gate(router.kernel()).unwrap(), Source::external(eventfd()).unwrap()]
}

fn all_vectors_arrive(vm: &TestVm, devices: &[Msix]) {
    for device in devices {
        for n in 0..device.vectors() {
            let here = arrives(&[device.route(n).unwrap()]);
            device.source(n).unwrap().raise().unwrap();
            assert_eq!(vm.take(&here), here);
        }
    }
}

#[test]
fn every_vector_of_every_strategy_arrives_once() {
    let shape = Shape { devices: 8, vectors: 65, vcpus: 3 };
    for strategy in Strategy::ALL {
        let Some(vm) = test_vm(shape.vcpus as u64) else { return };
        let router = vm.router();
        let mut devices = shape.devices(&router).unwrap();
        prepare(&router, &mut devices, strategy).unwrap();
        let enabled = enable(&router, &mut devices, strategy).unwrap();
        let expected = match strategy {
            Strategy::PerVector => 520,
            Strategy::PerDevice | Strategy::Reserved => 8,
            Strategy::PerVm | Strategy::ReservedPerVm => 1,
        };
        assert_eq!(enabled.commits, expected, "{strategy}");
        assert_eq!(router.msi_routes(), 520);
        all_vectors_arrive(&vm, &devices);
        // All at once: each has its own vector.
        let sources = || devices.iter().flat_map(|d| (0..65).map(|n| d.source(n).unwrap()));
        sources().for_each(|source| source.raise().unwrap());
        let routes: Vec<_> =
            devices.iter().flat_map(|d| (0..65).map(|n| d.route(n).unwrap())).collect();
        let all = arrives(&routes);
        assert_eq!(all.len(), 520);
        assert_eq!(vm.take(&all), all, "{strategy}");
    }
}

#[test]
fn what_is_raised_before_the_commit_arrives_after_it() {
    let Some(vm) = test_vm(1) else { return };
    let router = vm.router();
    for source in both_sources(&router) {
        let mut batch = router.batch();
        let route = batch.add(message(0), source.clone()).unwrap();
        source.raise().unwrap();
        assert_eq!((vm.arrived(), route.phase()), (Arrived::new(), Phase::Staged));
        batch.commit().unwrap().complete().unwrap();
        assert_eq!(vm.take(&arrives(&[&route])), arrives(&[&route]));
        assert_eq!(route.phase(), Phase::Live);
    }
}

#[test]
fn what_is_raised_while_masked_arrives_once_when_unmasked() {
    let Some(vm) = test_vm(1) else { return };
    let router = vm.router();
    for source in both_sources(&router) {
        let mut batch = router.batch();
        let route = batch.add(message(0), source.clone()).unwrap();
        source.raise().unwrap();
        batch.commit().unwrap().complete().unwrap();
        vm.take(&arrives(&[&route]));
        for raised in [0, 1, 3] {
            let mut batch = router.batch();
            batch.mask(&route).unwrap();
            let report = batch.commit().unwrap().complete().unwrap();
            assert_eq!((report.commits, route.phase()), (0, Phase::Masked));
            (0..raised).for_each(|_| source.raise().unwrap());
            let mut batch = router.batch();
            batch.set_message(&route, message(raised)).unwrap();
            batch.unmask(&route).unwrap();
            assert_eq!(vm.arrived(), Arrived::new());
            batch.commit().unwrap().complete().unwrap();
            let expected = if raised > 0 { arrives(&[&route]) } else { Arrived::new() };
            assert_eq!(vm.take(&expected), expected);
        }
        assert_eq!(vm.arrived(), Arrived::new());
    }
}

#[test]
fn a_route_that_is_gone_delivers_nothing_and_its_gsi_is_used_again() {
    let Some(vm) = test_vm(1) else { return };
    let router = vm.router();
    for source in both_sources(&router) {
        let mut batch = router.batch();
        let first = batch.add(message(0), source.clone()).unwrap();
        batch.commit().unwrap().complete().unwrap();
        let gsi = first.gsi();
        assert_eq!(gsi, 24);
        let mut batch = router.batch();
        batch.remove(&first).unwrap();
        batch.commit().unwrap().complete().unwrap();
        source.raise().unwrap();
        assert_eq!((vm.arrived(), router.msi_routes()), (Arrived::new(), 0));
        assert!(matches!(router.batch().unmask(&first), Err(RouteError::Gone { .. })));
        // Another source on the same GSI, and the old one again on a new GSI: it waited.
        let mut batch = router.batch();
        let other = batch.add(message(1), Source::gate(router.kernel()).unwrap()).unwrap();
        let again = batch.add(message(2), source).unwrap();
        batch.commit().unwrap().complete().unwrap();
        assert_eq!((other.gsi(), again.gsi()), (gsi, gsi + 1));
        assert_eq!(vm.take(&arrives(&[&again])), arrives(&[&again]));
        drop((other, again));
        assert_eq!(router.msi_routes(), 0);
        assert_eq!(router.entries().len(), 42, "swept by the next commit");
        assert_eq!(router.sweep().unwrap().counts.routes, 40);
    }
}

#[test]
fn the_irqchips_pins_are_untouched() {
    use vmeter_kvm_probe::kvm_bindings::{kvm_irqchip, KVM_IRQCHIP_IOAPIC};
    let Some(vm) = test_vm(1) else { return };
    let mut chip = kvm_irqchip { chip_id: KVM_IRQCHIP_IOAPIC, ..Default::default() };
    vm.vm.fd().get_irqchip(&mut chip).unwrap();
    // SAFETY: the chip id says that the union holds an IO-APIC; both are plain data.
    unsafe { chip.chip.ioapic.redirtbl[20].bits = 0x77 };
    vm.vm.fd().set_irqchip(&chip).unwrap();
    let router = vm.router();
    let pin = Arrived::from([(0, 0x77)]);
    let press = || {
        vm.vm.fd().set_irq_line(20, true).unwrap();
        vm.vm.fd().set_irq_line(20, false).unwrap();
        vm.take(&pin)
    };
    assert_eq!(press(), pin);
    let mut routes = Vec::new();
    for n in 0..20 {
        let mut batch = router.batch();
        routes.push(batch.add(message(n), Source::gate(router.kernel()).unwrap()).unwrap());
        batch.commit().unwrap().complete().unwrap();
        assert_eq!(press(), pin);
        if n % 3 == 2 {
            drop(routes.remove(0));
        }
    }
    let mut batch = router.batch();
    batch.remove_fixed(20).unwrap();
    batch.commit().unwrap().complete().unwrap();
    vm.vm.fd().set_irq_line(20, true).unwrap();
    vm.vm.fd().set_irq_line(20, false).unwrap();
    assert_eq!(vm.arrived(), Arrived::new());
    let mut batch = router.batch();
    batch.add_fixed(FixedRoute::irqchip(20, KVM_IRQCHIP_IOAPIC, 20)).unwrap();
    batch.commit().unwrap().complete().unwrap();
    assert_eq!(press(), pin);
}

#[test]
fn xen_and_hyper_v_routes_live_in_the_same_table() {
    let Some(vm) = test_vm(1) else { return };
    let router = vm.router();
    let kinds = [FixedRoute::xen_evtchn(30, 5, 0, u32::MAX), FixedRoute::hv_sint(31, 0, 2)];
    for route in kinds {
        let mut batch = router.batch();
        batch.add_fixed(route).unwrap();
        if let Err(e) = batch.commit().unwrap().complete() {
            println!("skipped: this host has no {route:?}: {e}");
            assert_eq!((e.gsi, e.step), (route.gsi(), Step::Entry));
            continue;
        }
        let mut batch = router.batch();
        let msi = batch.add(message(0), Source::gate(router.kernel()).unwrap()).unwrap();
        batch.commit().unwrap().complete().unwrap();
        msi.source().raise().unwrap();
        assert_eq!(vm.take(&arrives(&[&msi])), arrives(&[&msi]));
        let there = |r: &Router| r.entries().iter().any(|e| e.gsi == route.gsi());
        assert!(there(&router));
        let mut batch = router.batch();
        batch.remove_fixed(route.gsi()).unwrap();
        batch.commit().unwrap().complete().unwrap();
        assert!(!there(&router));
    }
}

#[test]
fn one_eventfd_on_two_gsis_fails_alone() {
    let Some(vm) = test_vm(1) else { return };
    let router = vm.router();
    let shared = eventfd();
    let twice = || Source::external(shared.try_clone().unwrap()).unwrap();
    let mut batch = router.batch();
    let a = batch.add(message(0), twice()).unwrap();
    let b = batch.add(message(1), twice()).unwrap();
    let c = batch.add(message(2), Source::gate(router.kernel()).unwrap()).unwrap();
    let report = batch.commit().unwrap();
    let counts = report.counts;
    assert_eq!((counts.attached, report.failures.len(), counts.commits), (2, 1, 2));
    assert_eq!(counts.routes, 42);
    let error = report.complete().unwrap_err().to_string();
    assert!(error.contains("GSI 25") && error.contains("attached already"), "{error}");
    assert_eq!((a.phase(), b.phase(), c.phase()), (Phase::Live, Phase::Gone, Phase::Live));
    a.source().raise().unwrap();
    c.source().raise().unwrap();
    assert_eq!(vm.take(&arrives(&[&a, &c])), arrives(&[&a, &c]));
}

#[test]
fn migration_loses_nothing() {
    let shape = Shape { devices: 2, vectors: 70, vcpus: 1 };
    let Some(vm) = test_vm(1) else { return };
    let router = vm.router();
    let mut devices = shape.devices(&router).unwrap();
    enable(&router, &mut devices, Strategy::PerVm).unwrap();
    // The guest masks a whole device and one vector of the other; both raise.
    assert!(devices[0].set_control(1 << 15 | 1 << 14));
    assert!(devices[1].write_table(16 * 7 + 12, &1u32.to_le_bytes()));
    enable(&router, &mut devices, Strategy::PerVm).unwrap();
    for (device, vector) in [(0, 3), (0, 69), (1, 7)] {
        devices[device].source(vector).unwrap().raise().unwrap();
        assert!(devices[device].is_pending(vector));
    }
    let mut pba = [0u8; 16];
    devices[0].read_pba(0, &mut pba);
    assert_eq!((pba[0], pba[8]), (1 << 3, 1 << 5));
    assert_eq!(vm.arrived(), Arrived::new());
    let saved: Vec<_> = devices.iter().map(Msix::state).collect();
    drop((devices, router));

    let Some(vm) = test_vm(1) else { return };
    let router = vm.router();
    let mut devices = shape.devices(&router).unwrap();
    for (device, state) in devices.iter_mut().zip(&saved) {
        device.restore(state).unwrap();
    }
    let enabled = enable(&router, &mut devices, Strategy::PerVm).unwrap();
    assert_eq!((enabled.commits, router.msi_routes()), (1, 69));
    assert_eq!(devices.iter().map(Msix::state).collect::<Vec<_>>(), saved);
    assert!(devices[0].set_control(1 << 15));
    enable(&router, &mut devices, Strategy::PerVm).unwrap();
    let waited = Arrived::from([target(shape.message(0, 3)), target(shape.message(0, 69))]);
    assert_eq!(vm.take(&waited), waited);
    assert!(devices[1].write_table(16 * 7 + 12, &0u32.to_le_bytes()));
    enable(&router, &mut devices, Strategy::PerVm).unwrap();
    let waited = Arrived::from([target(shape.message(1, 7))]);
    assert_eq!(vm.take(&waited), waited);
}

#[test]
fn msi_vectors_replace_the_low_bits_of_the_data() {
    let Some(vm) = test_vm(1) else { return };
    let router = vm.router();
    for log2 in 0..=5u16 {
        let count = 1u8 << log2;
        let gates: Vec<Gate> = (0..count).map(|_| Gate::new(router.kernel()).unwrap()).collect();
        let mut msi = Msi::new(gates.iter().cloned().map(Source::Gate), None).unwrap();
        assert!(!msi.set_message(0xfee0_0000, 0x40));
        assert!(msi.set_control(1 | log2 << 4));
        assert!(msi.set_mask(1));
        let mut batch = router.batch();
        msi.sync(&mut batch).unwrap();
        let report = batch.commit().unwrap().complete().unwrap();
        assert_eq!(
            (report.attached, report.commits),
            (usize::from(count) - 1, usize::from(log2 > 0))
        );
        gates.iter().for_each(Gate::fire);
        let others: Arrived = (1..count).map(|n| (0, 0x40 + n)).collect();
        assert_eq!((vm.take(&others), msi.pending()), (others, 1));
        // Migrated: the bit pending is delivered there.
        let state = msi.state();
        drop(msi);
        let mut msi =
            Msi::new((0..count).map(|_| Source::gate(router.kernel()).unwrap()), None).unwrap();
        msi.restore(&state).unwrap();
        assert!(msi.set_mask(0));
        let mut batch = router.batch();
        msi.sync(&mut batch).unwrap();
        batch.commit().unwrap().complete().unwrap();
        assert_eq!(vm.take(&Arrived::from([(0, 0x40)])), Arrived::from([(0, 0x40)]));
    }
}

#[test]
fn the_whole_table_can_be_used_and_its_end_is_a_clear_error() {
    let Some(vm) = test_vm(1) else { return };
    let router = vm.router();
    let free = router.free();
    let gate = Source::gate(router.kernel()).unwrap();
    let mut batch = router.batch();
    // One eventfd is enough for routes that are not live.
    let external = Source::external(eventfd()).unwrap();
    let mut routes = Vec::new();
    for n in 0..free {
        routes.push(batch.add_masked(message(n % 100), external.clone()).unwrap());
    }
    let full = batch.add(message(0), gate.clone()).unwrap_err();
    assert!(matches!(full, RouteError::Full { .. }), "{full}");
    println!("{full}");
    assert_eq!(batch.commit().unwrap().complete().unwrap().routes, free + 40);
    let mut batch = router.batch();
    batch.unmask(&routes[free - 1]).unwrap();
    batch.commit().unwrap().complete().unwrap();
    external.raise().unwrap();
    assert_eq!(vm.take(&arrives(&[&routes[free - 1]])).len(), 1);
    routes.truncate(free - 1);
    let mut batch = router.batch();
    let last = batch.add(message(7), gate).unwrap();
    batch.commit().unwrap().complete().unwrap();
    last.source().raise().unwrap();
    assert_eq!(vm.take(&arrives(&[&last])), arrives(&[&last]));
}
