// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What a measurement holds, with CPUs busy and vCPUs running: counts and structure. The
//! times are for `cargo run --release --example costs` to show.

use crate::common;

use common::{arrives, test_vm, TestVm};
use msi_routes::measure::{compare, BusyCpus, Sample, Shape};
use msi_routes::{Gate, MsiMessage, Router, Source, Strategy};
use std::error::Error;
use std::ops::ControlFlow;
use vmeter_kvm_probe::kvm_bindings::kvm_regs;
use vmeter_kvm_probe::{Kicker, Ring, Stop, Vcpu, Vm};

/// `jmp $`
const FOREVER: [u8; 2] = [0xeb, 0xfe];

/// vCPUs that spin in user mode until dropped.
struct Running {
    kickers: Vec<Kicker>,
    threads: Vec<std::thread::JoinHandle<Vcpu>>,
}

impl Running {
    fn start(vcpus: Vec<Vcpu>) -> Self {
        let kickers = vcpus.iter().map(Vcpu::kicker).collect();
        let run = |mut vcpu: Vcpu| {
            std::thread::spawn(move || {
                vcpu.enter(Ring::Three, kvm_regs::default()).unwrap();
                let stop = vcpu.run(None, |exit| ControlFlow::Break(format!("{exit:?}")));
                assert_eq!(stop.unwrap(), Stop::Kicked);
                vcpu
            })
        };
        Self { kickers, threads: vcpus.into_iter().map(run).collect() }
    }

    fn stop(mut self) -> Vec<Vcpu> {
        self.kickers.iter().for_each(Kicker::kick);
        self.threads.drain(..).map(|thread| thread.join().unwrap()).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kickers.iter().for_each(Kicker::kick);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

fn running_vm(vcpus: u64) -> Option<(Vm, Running)> {
    let vm = Vm::builder().code(FOREVER).build().map_err(|e| println!("skipped: {e}")).ok()?;
    let TestVm { vm, vcpus } = TestVm::new(vm, vcpus);
    Some((vm, Running::start(vcpus)))
}

#[test]
fn a_sample_holds_every_device_and_commit() {
    let Some(first) = running_vm(2) else { return };
    drop(first);
    let shape = Shape { devices: 3, vectors: 9, vcpus: 2 };
    let busy = BusyCpus::start(1).unwrap();
    let vm = || -> Result<(Router, Running), Box<dyn Error + Send + Sync>> {
        let (vm, running) = running_vm(2).ok_or("no VM")?;
        Ok((common::router(&vm), running))
    };
    let mut seen = 0;
    let done = |sample: &Sample, devices: &[msi_routes::Msix]| {
        assert_eq!(devices.len(), sample.enabled.devices.len());
        seen += 1;
    };
    let samples = compare(shape, &Strategy::ALL, 3, vm, done).unwrap();
    drop(busy);
    assert_eq!((seen, samples.len()), (15, 15));
    // The order rotates.
    assert_eq!(samples[0].strategy, Strategy::PerVector);
    assert_eq!(samples[5].strategy, Strategy::PerDevice);
    for Sample { strategy, prepared, enabled, .. } in &samples {
        let commits = match strategy {
            Strategy::PerVector => 27,
            Strategy::PerDevice | Strategy::Reserved => 3,
            Strategy::PerVm | Strategy::ReservedPerVm => 1,
        };
        assert_eq!(enabled.commits, commits, "{strategy}");
        let irqfds: Vec<usize> = enabled.devices.iter().map(|d| d.irqfds).collect();
        assert_eq!(irqfds, [9, 18, 27]);
        let parts = enabled.devices.iter().map(|d| d.time).sum::<std::time::Duration>();
        assert!(parts + enabled.shared <= enabled.total);
        assert_eq!(!enabled.shared.is_zero(), strategy.is_per_vm());
        assert_eq!(!prepared.is_zero(), strategy.is_ahead());
    }
}

#[test]
fn what_is_fired_at_running_vcpus_arrives() {
    let Some((vm, running)) = running_vm(2) else { return };
    let router = common::router(&vm);
    let mut batch = router.batch();
    let gates: Vec<Gate> = (0..80).map(|_| Gate::new(router.kernel()).unwrap()).collect();
    let message = |n: u8| MsiMessage::x86(n % 2, 100 + n);
    let routes: Vec<_> = gates
        .iter()
        .zip(0..)
        .map(|(gate, n)| batch.add(message(n), Source::Gate(gate.clone())).unwrap())
        .collect();
    gates[..40].iter().for_each(Gate::fire);
    batch.commit().unwrap().complete().unwrap();
    gates[40..].iter().for_each(Gate::fire);
    // The guest has interrupts off: they stay in the IRR.
    let vm = TestVm { vm, vcpus: running.stop() };
    let all = arrives(&routes.iter().collect::<Vec<_>>());
    assert_eq!(vm.take(&all), all);
}

#[test]
fn messages_of_a_shape_are_told_apart() {
    for (devices, vcpus) in [(8, 3), (32, 10), (62, 128), (1, 1)] {
        let shape = Shape { devices, vectors: 65, vcpus };
        let all: std::collections::BTreeSet<_> = (0..devices)
            .flat_map(|device| (0..65).map(move |vector| (device, vector)))
            .map(|(device, vector)| common::target(shape.message(device, vector)))
            .collect();
        assert_eq!(all.len(), devices * 65);
        assert!(all.iter().all(|(apic, vector)| usize::from(*apic) < vcpus && *vector >= 32));
    }
    assert!(test_vm(1).is_none_or(|vm| vm.arrived().is_empty()));
}

#[test]
fn strategies_have_names() {
    for strategy in Strategy::ALL {
        assert_eq!(strategy.to_string().parse(), Ok(strategy));
    }
    let unknown = "per_host".parse::<Strategy>();
    assert_eq!(unknown, Err(msi_routes::UnknownStrategy("per_host".into())));
}
