// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What enabling MSI-X vectors costs on this host, by strategy.
//!
//! `cargo run --release -p msi-routes --example costs --
//! DEVICES VECTORS [ROUNDS [BUSY_CPUS [RUNNING_VCPUS]]]`

use msi_routes::measure::{compare, BusyCpus, Sample, Shape};
use msi_routes::{FixedRoute, Router, Strategy};
use std::error::Error;
use std::ops::ControlFlow;
use std::thread::JoinHandle;
use vmeter_kvm_probe::kvm_bindings::kvm_regs;
use vmeter_kvm_probe::{Kicker, Ring, Vcpu, Vm};

type AnyError = Box<dyn Error + Send + Sync>;

/// `jmp $`
const FOREVER: [u8; 2] = [0xeb, 0xfe];

/// vCPUs that spin in the guest's user mode until dropped.
struct Running {
    kickers: Vec<Kicker>,
    threads: Vec<JoinHandle<()>>,
}

impl Running {
    fn start(vm: &Vm, count: usize) -> Result<Self, AnyError> {
        let mut running = Self { kickers: Vec::new(), threads: Vec::new() };
        for id in 0..count as u64 {
            let mut vcpu: Vcpu = vm.vcpu(id)?;
            vcpu.enter(Ring::Three, kvm_regs::default())?;
            running.kickers.push(vcpu.kicker());
            running.threads.push(std::thread::spawn(move || {
                if let Err(e) = vcpu.run(None, |_| ControlFlow::Break(())) {
                    eprintln!("vCPU {id} stopped: {e}");
                }
            }));
        }
        Ok(running)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kickers.iter().for_each(Kicker::kick);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

fn vm(running: usize) -> Result<(Router, Running), AnyError> {
    let vm = Vm::builder().code(FOREVER).build()?;
    let running = Running::start(&vm, running)?;
    Ok((Router::new(ByVm(vm), FixedRoute::pc_defaults())?, running))
}

/// kvm-probe shares its `VmFd`; the ioctls go through it.
struct ByVm(Vm);

impl msi_routes::Kernel for ByVm {
    fn route_limit(&self) -> usize {
        self.0.fd().route_limit()
    }

    fn set_routing(&self, routes: &msi_routes::Routing) -> Result<(), msi_routes::Errno> {
        self.0.fd().set_routing(routes)
    }

    fn attach(&self, eventfd: &msi_routes::EventFd, gsi: u32) -> Result<(), msi_routes::Errno> {
        self.0.fd().attach(eventfd, gsi)
    }

    fn detach(&self, eventfd: &msi_routes::EventFd, gsi: u32) -> Result<(), msi_routes::Errno> {
        self.0.fd().detach(eventfd, gsi)
    }
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn print(shape: Shape, samples: &[Sample]) {
    let of = |strategy, value: fn(&Sample) -> f64| {
        median(samples.iter().filter(|s| s.strategy == strategy).map(value).collect())
    };
    let total = |s: &Sample| s.enabled.total.as_secs_f64() * 1e3;
    let base = of(Strategy::PerVector, total);
    let Shape { devices, vectors, .. } = shape;
    println!(
        "{devices} devices x {vectors} vectors, medians of {}",
        samples.len() / Strategy::ALL.len()
    );
    println!("strategy         commits  ahead ms   total ms  per_vector / it");
    for strategy in Strategy::ALL {
        let commits = of(strategy, |s| s.enabled.commits as f64);
        let ahead = of(strategy, |s| s.prepared.as_secs_f64() * 1e3);
        let ms = of(strategy, total);
        let ratio = base / ms;
        println!("{strategy:<16} {commits:>7} {ahead:>9.3} {ms:>10.3} {ratio:>16.1}");
    }
}

fn main() -> Result<(), AnyError> {
    let numbers = std::env::args().skip(1).map(|arg| arg.parse::<usize>());
    let numbers = numbers.collect::<Result<Vec<_>, _>>()?;
    let number = |at: usize, default: usize| numbers.get(at).copied().unwrap_or(default);
    let shape = Shape { devices: number(0, 8), vectors: number(1, 65), vcpus: 128 };
    let (rounds, running) = (number(2, 15), number(4, 0));
    let busy = BusyCpus::start(number(3, 0))?;
    let samples = compare(shape, &Strategy::ALL, rounds, || vm(running), |_, _| ())?;
    drop(busy);
    print(shape, &samples);
    Ok(())
}
