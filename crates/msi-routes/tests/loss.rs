// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Interrupts are raised at random from two threads while another masks, unmasks, moves and
//! disables vectors, batch after batch, by every strategy's rhythm. At the end of a round
//! all vectors are unmasked: then each vector that was raised has arrived exactly once, at
//! one of the messages that it had, and no other has.
//!
//! `MSI_ROUTES_LOSS_INTERRUPTS` sets how many each strategy raises (default 10,000).

use crate::common;

use common::{target, test_vm, Arrived, Random, TestVm};
use msi_routes::measure::Shape;
use msi_routes::{enable, prepare, EventFd, Gate, MsiMessage, Msix, Router, Source, Strategy};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Barrier;
use std::time::Instant;

const DEVICES: usize = 4;
const VECTORS: usize = 65;
/// Each vector has two messages, on APIC vectors of its own.
const VCPUS: usize = 3;
/// Interrupts that a thread raises for each batch.
const PER_BATCH: usize = 16;
const SHAPE: Shape = Shape { devices: DEVICES, vectors: VECTORS, vcpus: VCPUS };
const OTHER: Shape = Shape { devices: 2 * DEVICES, vectors: VECTORS, vcpus: VCPUS };

fn message(device: usize, vector: usize, other: bool) -> MsiMessage {
    OTHER.message(device + if other { DEVICES } else { 0 }, vector)
}

struct Counts {
    raised: usize,
    arrived: usize,
    batches: usize,
}

/// What the guest does to one vector's registers.
fn disturb(device: &mut Msix, n: usize, vector: usize, random: &mut Random) {
    let at = vector as u64 * 16;
    let mask = |on: u32| on.to_le_bytes();
    match random.below(4) {
        0 => {
            let _ = device.write_table(at + 12, &mask(1));
        }
        1 => {
            // As Linux moves an interrupt: masked while the message changes.
            let to = message(n, vector, random.below(2) == 0);
            let _ = device.write_table(at + 12, &mask(1));
            let _ = device.write_table(at, &to.address.to_le_bytes());
            let _ = device.write_table(at + 8, &to.data.to_le_bytes());
            let _ = device.write_table(at + 12, &mask(0));
        }
        _ => {
            let _ = device.write_table(at + 12, &mask(0));
        }
    }
}

/// One batch of a round: a few vectors of one device or of all, sometimes a whole device.
fn shake(router: &Router, devices: &mut [Msix], strategy: Strategy, random: &mut Random) -> usize {
    let chosen = random.below(devices.len());
    // Detaching eventfds takes a grace period each: a whole device only where it is gates.
    if chosen % 2 == 0 && random.below(8) == 0 {
        let off = [1 << 15 | 1 << 14, 0, 1 << 15][random.below(3)];
        let _ = devices[chosen].set_control(off);
    }
    for (n, device) in devices.iter_mut().enumerate() {
        if n == chosen || strategy.is_per_vm() {
            (0..3).for_each(|_| disturb(device, n, random.below(VECTORS), random));
        }
    }
    enable(router, devices, strategy).unwrap().commits
}

/// Raises every vector of `order` once, a few for each batch that is committed meanwhile.
fn fire(sources: &[Source], order: &[usize], batches: &AtomicUsize) {
    for some in order.chunks(PER_BATCH) {
        let seen = batches.load(Ordering::Acquire);
        some.iter().for_each(|&n| sources[n].raise().unwrap());
        while batches.load(Ordering::Acquire) == seen {
            std::thread::yield_now();
        }
    }
}

fn pick(random: &mut Random) -> [Vec<usize>; 2] {
    let mut all: Vec<usize> = (0..DEVICES * VECTORS).filter(|_| random.below(8) > 0).collect();
    for i in (1..all.len()).rev() {
        all.swap(i, random.below(i + 1));
    }
    let second = all.split_off(all.len() / 2);
    [all, second]
}

fn check(vm: &TestVm, raised: &[Vec<usize>; 2], round: usize) -> usize {
    let both =
        |n: usize| [false, true].map(|other| target(message(n / VECTORS, n % VECTORS, other)));
    let raised: Vec<usize> = raised.iter().flatten().copied().collect();
    let of = |arrived: &Arrived, n: usize| both(n).iter().filter(|t| arrived.contains(t)).count();
    let arrived = vm.wait(|arrived| raised.iter().all(|&n| of(arrived, n) > 0));
    for &n in &raised {
        assert_eq!(of(&arrived, n), 1, "round {round}: vector {n} of {raised:?}: {arrived:?}");
    }
    assert_eq!(arrived.len(), raised.len(), "round {round}: {raised:?}: {arrived:?}");
    vm.clear();
    raised.len()
}

fn devices(router: &Router) -> (Vec<Msix>, Vec<Source>) {
    let source = |device: usize| match device % 2 {
        0 => Source::Gate(Gate::new(router.kernel()).unwrap()),
        _ => Source::external(EventFd::new(0o4000).unwrap()).unwrap(),
    };
    let sources: Vec<Source> = (0..DEVICES * VECTORS).map(|n| source(n / VECTORS)).collect();
    let device = |n: usize| {
        let mut msix = Msix::new(sources[n * VECTORS..][..VECTORS].to_vec(), None).unwrap();
        msix.restore(&SHAPE.state(n)).unwrap();
        msix
    };
    ((0..DEVICES).map(device).collect(), sources)
}

fn lossless(vm: &TestVm, strategy: Strategy, wanted: usize) -> Counts {
    let router = vm.router();
    let (mut devices, sources) = devices(&router);
    prepare(&router, &mut devices, strategy).unwrap();
    enable(&router, &mut devices, strategy).unwrap();
    let mut random = Random(0x9e37_79b9 + strategy as u64);
    let mut counts = Counts { raised: 0, arrived: 0, batches: 0 };
    let mut round = 0;
    while counts.raised < wanted {
        let orders = pick(&mut random);
        let (start, batches) = (Barrier::new(3), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let firing: Vec<_> = orders
                .iter()
                .map(|order| {
                    let (start, sources, batches) = (&start, &sources, &batches);
                    scope.spawn(move || {
                        start.wait();
                        fire(sources, order, batches);
                    })
                })
                .collect();
            start.wait();
            while !firing.iter().all(|thread| thread.is_finished()) {
                shake(&router, &mut devices, strategy, &mut random);
                batches.fetch_add(1, Ordering::Release);
            }
        });
        counts.batches += batches.load(Ordering::Acquire);
        for device in &mut devices {
            let _ = device.set_control(1 << 15);
            (0..VECTORS as u64).for_each(|n| {
                let _ = device.write_table(n * 16 + 12, &0u32.to_le_bytes());
            });
        }
        enable(&router, &mut devices, strategy).unwrap();
        counts.raised += orders.iter().map(Vec::len).sum::<usize>();
        counts.arrived += check(vm, &orders, round);
        round += 1;
    }
    counts
}

#[test]
fn no_interrupt_is_lost_and_none_comes_twice() {
    let wanted = std::env::var("MSI_ROUTES_LOSS_INTERRUPTS").ok();
    let wanted: usize = wanted.map_or(10_000, |n| n.parse().expect("a number of interrupts"));
    for strategy in Strategy::ALL {
        let Some(vm) = test_vm(VCPUS as u64) else { return };
        let start = Instant::now();
        let Counts { raised, arrived, batches } = lossless(&vm, strategy, wanted);
        assert_eq!(raised, arrived);
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "{strategy}: {raised} raised, {arrived} arrived, {batches} batches, {seconds:.1} s"
        );
    }
}
