// SPDX-License-Identifier: Apache-2.0 OR MIT

//! One commit by number of routes: the bare ioctl, the library's commit of one changed
//! route, and the library without the ioctl, which is what it adds.
//!
//! `cargo bench -p msi-routes`. Ends with the overhead as ratios of medians, the three taken
//! in turn so that whatever else the host does hits all of them alike.

#![allow(missing_docs)]

use criterion::{BenchmarkId, Criterion, Throughput};
use kvm_bindings::KvmIrqRouting;
use kvm_ioctls::VmFd;
use msi_routes::measure::Shape;
use msi_routes::{
    enable, Errno, EventFd, FixedRoute, Kernel, MsiMessage, Route, Router, Source, Strategy,
};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

const ROUTES: [usize; 5] = [1, 65, 520, 2080, 4056];

/// Takes anything at once.
struct Null;

impl Kernel for Null {
    fn route_limit(&self) -> usize {
        4096
    }

    fn set_routing(&self, routes: &msi_routes::Routing) -> Result<(), Errno> {
        black_box(routes);
        Ok(())
    }

    fn attach(&self, _: &EventFd, _: u32) -> Result<(), Errno> {
        Ok(())
    }

    fn detach(&self, _: &EventFd, _: u32) -> Result<(), Errno> {
        Ok(())
    }
}

struct Bench {
    router: Router,
    routes: Vec<Route>,
    turn: usize,
}

impl Bench {
    /// `count` routes; irqfds are no part of the ioctl's arguments, so there are none.
    fn new(kernel: impl Kernel + 'static, count: usize) -> Self {
        let router = Router::new(kernel, FixedRoute::pc_defaults()).unwrap();
        let source = Source::external(EventFd::new(libc::EFD_NONBLOCK).unwrap()).unwrap();
        let mut batch = router.batch();
        let routes = (0..count)
            .map(|_| batch.add_masked(MsiMessage::x86(0, 32), source.clone()).unwrap())
            .collect();
        batch.commit().unwrap().complete().unwrap();
        Self { router, routes, turn: 0 }
    }

    /// Changes one route and commits.
    fn commit(&mut self) {
        self.turn += 1;
        let (lap, at) = (self.turn / self.routes.len(), self.turn % self.routes.len());
        let mut batch = self.router.batch();
        batch.set_message(&self.routes[at], MsiMessage::x86(1, 32 + (lap % 2) as u8)).unwrap();
        batch.commit().unwrap().complete().unwrap();
    }

    fn table(&self) -> KvmIrqRouting {
        KvmIrqRouting::from_entries(&self.router.entries()).unwrap()
    }
}

fn vm() -> Option<Arc<VmFd>> {
    let vm = kvm_ioctls::Kvm::new().and_then(|kvm| kvm.create_vm());
    match vm.and_then(|vm| vm.create_irq_chip().map(|()| vm)) {
        Ok(vm) => Some(Arc::new(vm)),
        Err(e) => {
            println!("skipped: no VM: {e}");
            None
        }
    }
}

fn by_routes(c: &mut Criterion) {
    let mut group = c.benchmark_group("commit");
    for count in ROUTES {
        group.throughput(Throughput::Elements(count as u64));
        let Some(vm) = vm() else { return };
        let mut library = Bench::new(vm.clone(), count);
        let table = library.table();
        group.bench_function(BenchmarkId::new("bare ioctl", count), |b| {
            b.iter(|| vm.set_gsi_routing(&table).unwrap());
        });
        group.bench_function(BenchmarkId::new("library", count), |b| b.iter(|| library.commit()));
        let mut alone = Bench::new(Null, count);
        group.bench_function(BenchmarkId::new("library alone", count), |b| {
            b.iter(|| alone.commit());
        });
    }
    group.finish();
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn nanoseconds(mut f: impl FnMut(), repeat: u32) -> f64 {
    let start = Instant::now();
    (0..repeat).for_each(|_| f());
    start.elapsed().as_nanos() as f64 / f64::from(repeat)
}

/// Rounds of [`overhead`], in each of which all three take their turn.
const ROUNDS: usize = 400;

/// The library alone over the bare ioctl: both at their shortest, as what else a host does
/// only adds; and the whole over the bare ioctl, pair by pair.
fn overhead() {
    println!("\nroutes  bare ioctl  library alone  alone / bare  whole / bare, median of pairs");
    for count in ROUTES {
        let Some(vm) = vm() else { return };
        let mut library = Bench::new(vm.clone(), count);
        let mut alone = Bench::new(Null, count);
        let table = library.table();
        let mut ns: [Vec<f64>; 3] = Default::default();
        for round in 0..ROUNDS {
            // In each round the other is first, so that neither follows the warmer cache.
            for turn in [round % 2, (round + 1) % 2] {
                ns[turn].push(match turn {
                    0 => nanoseconds(|| vm.set_gsi_routing(&table).unwrap(), 1),
                    _ => nanoseconds(|| library.commit(), 1),
                });
            }
            ns[2].push(nanoseconds(|| alone.commit(), 50));
        }
        let pairs = median(ns[1].iter().zip(&ns[0]).map(|(whole, bare)| whole / bare).collect());
        let [bare, _, alone] = ns.map(|samples| samples.into_iter().fold(f64::MAX, f64::min));
        let part = 100.0 * alone / bare;
        println!("{count:>6}  {bare:>7.0} ns  {alone:>10.0} ns  {part:>10.2} %  {pairs:>28.3}");
    }
}

/// Enabling a device's 65 vectors: one ioctl for the table and one for each irqfd, against
/// what the library does beside them.
fn enabling() {
    const VECTORS: usize = 65;
    let shape = Shape { devices: 1, vectors: VECTORS, vcpus: 1 };
    let mut ns: [Vec<f64>; 2] = Default::default();
    for _ in 0..50 {
        let Some(vm) = vm() else { return };
        let (mut full, source) = (Bench::new(Null, VECTORS), || EventFd::new(libc::EFD_NONBLOCK));
        full.commit();
        let (table, fds) = (full.table(), (0..VECTORS).map(|_| source().unwrap()));
        let fds: Vec<EventFd> = fds.collect();
        let bare = || {
            vm.set_gsi_routing(&table).unwrap();
            (24..).zip(&fds).for_each(|(gsi, fd)| vm.attach(fd, gsi).unwrap());
        };
        ns[0].push(nanoseconds(bare, 1));
        let router = Router::new(Null, FixedRoute::pc_defaults()).unwrap();
        let mut devices = shape.devices(&router).unwrap();
        let library = || drop(enable(&router, &mut devices, Strategy::PerVm).unwrap());
        ns[1].push(nanoseconds(library, 1));
    }
    let [bare, alone] = ns.map(median);
    let part = 100.0 * alone / bare;
    println!("\n{VECTORS} vectors enabled: bare {bare:.0} ns, library {alone:.0} ns, {part:.2} %");
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    by_routes(&mut criterion);
    criterion.final_summary();
    overhead();
    enabling();
}
