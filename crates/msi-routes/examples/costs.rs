//! What enabling MSI-X vectors costs on this host, by strategy.
//!
//! `cargo run --release -p msi-routes --example costs -- DEVICES VECTORS [ROUNDS [BUSY_CPUS]]`

use msi_routes::measure::{compare, BusyCpus, Sample, Shape};
use msi_routes::{FixedRoute, Router, Strategy};
use std::error::Error;

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let numbers = std::env::args().skip(1).map(|arg| arg.parse::<usize>());
    let numbers = numbers.collect::<Result<Vec<_>, _>>()?;
    let number = |at: usize, default: usize| numbers.get(at).copied().unwrap_or(default);
    let shape = Shape { devices: number(0, 8), vectors: number(1, 65), vcpus: 128 };
    let (rounds, busy) = (number(2, 15), BusyCpus::start(number(3, 0))?);
    let vm = || -> Result<(Router, ()), Box<dyn Error + Send + Sync>> {
        let vm = kvm_ioctls::Kvm::new()?.create_vm()?;
        vm.create_irq_chip()?;
        Ok((Router::new(vm, FixedRoute::pc_defaults())?, ()))
    };
    let samples = compare(shape, &Strategy::ALL, rounds, vm, |_, _| ())?;
    drop(busy);
    let of = |strategy, value: fn(&Sample) -> f64| {
        median(samples.iter().filter(|s| s.strategy == strategy).map(value).collect())
    };
    let total = |s: &Sample| s.enabled.total.as_secs_f64() * 1e3;
    let base = of(Strategy::PerVector, total);
    println!("{} devices x {} vectors, medians of {rounds}", shape.devices, shape.vectors);
    println!("strategy     commits  ahead ms   total ms  per_vector / it");
    for strategy in Strategy::ALL {
        let commits = of(strategy, |s| s.enabled.commits as f64);
        let ahead = of(strategy, |s| s.prepared.as_secs_f64() * 1e3);
        let ms = of(strategy, total);
        let ratio = base / ms;
        println!("{strategy:<12} {commits:>7} {ahead:>9.3} {ms:>10.3} {ratio:>16.1}");
    }
    Ok(())
}
