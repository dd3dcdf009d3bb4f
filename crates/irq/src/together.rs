//! Several VMs at once: what a host sees that restores many after one another's failure, or
//! scales out. Each has a thread that enables its devices, all from the same moment on; a
//! figure is the time that one VM waits for its interrupts.

use crate::bench::{devices, Bench};
use crate::data::ns;
use crate::error::IrqError;
use crate::guest::Guest;
use crate::placement;
use crate::result::IrqTogether;
use crate::strategy::IrqStrategy;
use msi_routes::{enable, prepare, Msix, Strategy};
use std::collections::BTreeMap;
use std::sync::Barrier;
use std::time::Instant;
use vmeter_base::{seconds, Ns};
use vmeter_stats::quantile;

/// Enables all vectors of so many VMs at once; each one's time, ns.
pub(crate) fn run(bench: &Bench<'_>, strategy: Strategy, vms: usize) -> Result<Vec<Ns>, IrqError> {
    let options = bench.options;
    let vectors = options.vfs * options.vectors;
    let cpus = bench.placement.before();
    let failed = || IrqError::enable(strategy.name());
    let mut all: Vec<(Guest, Vec<Msix>)> = Vec::with_capacity(vms);
    for _ in 0..vms {
        let guest = Guest::new(options.vcpus, options.running_vcpus, cpus)?;
        let mut devices = devices(&guest.router, options, vectors)?;
        if strategy.is_ahead() {
            prepare(&guest.router, &mut devices, strategy).map_err(failed())?;
        }
        all.push((guest, devices));
    }
    let start = Barrier::new(vms);
    let one = |(guest, devices): &mut (Guest, Vec<Msix>)| {
        // The committing thread's place is for one thread alone; a host restores on all CPUs.
        // Should it fail, the threads share that place.
        let _ = cpus.map(|cpus| placement::allow(&cpus));
        start.wait();
        let begin = Instant::now();
        enable(&guest.router, devices, strategy).map(|_| ns(begin.elapsed()))
    };
    let one = &one;
    std::thread::scope(|scope| {
        let threads: Vec<_> = all.iter_mut().map(|vm| scope.spawn(move || one(vm))).collect();
        let joined = threads.into_iter().map(|thread| {
            let died = || IrqError::Thread(std::io::Error::other("a VM's thread panicked"));
            thread.join().map_err(|_| died())?.map_err(failed())
        });
        joined.collect()
    })
}

/// The VMs' times of each strategy and number of VMs, over the measured rounds.
pub(crate) fn summary(
    strategies: &[IrqStrategy],
    measured: &BTreeMap<(usize, usize), Vec<Vec<Ns>>>,
) -> Vec<IrqTogether> {
    let one = |(&(strategy, vms), rounds): (&(usize, usize), &Vec<Vec<Ns>>)| {
        let samples_s: Vec<f64> = rounds.iter().flatten().copied().map(seconds).collect();
        let last = |round: &Vec<Ns>| round.iter().copied().max().map(seconds);
        let all_s: Vec<f64> = rounds.iter().filter_map(last).collect();
        Some(IrqTogether {
            vms,
            strategy: *strategies.get(strategy)?,
            p50_s: quantile(&samples_s, 0.5)?,
            p99_s: quantile(&samples_s, 0.99)?,
            all_s: quantile(&all_s, 0.5)?,
            rounds: rounds.len(),
            samples_s,
        })
    };
    let mut rows: Vec<IrqTogether> = measured.iter().filter_map(one).collect();
    rows.sort_by_key(|row| (row.vms, strategies.iter().position(|s| *s == row.strategy)));
    rows
}
