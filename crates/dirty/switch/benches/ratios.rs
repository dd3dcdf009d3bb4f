// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The crate's promises, as ratios within one run: contenders take turns, so that whatever
//! else the host does hits all of them. `cargo bench -p vmeter-dirty-switch --bench ratios`.

#![allow(missing_docs)]

#[allow(dead_code)]
mod common;

use common::{loads, marks, patterns, Contender, SkipZero, PAGES};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use vm_memory::bitmap::AtomicBitmap;
use vmeter_dirty_switch::{fences, DirtyBitmap, GetOpt, GetOrg, SwitchOpt};

/// The quartiles.
fn quartiles(mut samples: Vec<f64>) -> [f64; 3] {
    samples.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| samples[samples.len() * quarter / 4])
}

fn median(samples: Vec<f64>) -> f64 {
    quartiles(samples)[1]
}

/// Nanoseconds of one harvest. `repeat` > 1 only where it finds nothing.
fn one_harvest<C: Contender>(contender: &C, dirty: &[usize], repeat: u32) -> f64 {
    dirty.iter().for_each(|&page| contender.set(page));
    let start = Instant::now();
    for _ in 0..repeat {
        black_box(contender.take());
    }
    start.elapsed().as_nanos() as f64 / f64::from(repeat)
}

fn harvests(title: &str) {
    println!("\nharvest of {PAGES} pages, {title}: median ns (AtomicBitmap's / own)");
    let atomic = AtomicBitmap::with_pages(PAGES);
    let skip = SkipZero::with_pages(PAGES);
    let org = DirtyBitmap::<GetOrg>::with_pages(PAGES);
    let opt = DirtyBitmap::<GetOpt>::with_pages(PAGES);
    let switch = DirtyBitmap::<SwitchOpt>::with_pages(PAGES);
    for (load, dirty) in loads() {
        let rounds = if dirty.len() == PAGES { 40 } else { 400 };
        let many = if dirty.is_empty() { 100 } else { 1 };
        let mut ns: [Vec<f64>; 5] = Default::default();
        for _ in 0..rounds {
            ns[0].push(one_harvest(&atomic, &dirty, 1));
            ns[1].push(one_harvest(&skip, &dirty, 1));
            ns[2].push(one_harvest(&org, &dirty, 1));
            ns[3].push(one_harvest(&opt, &dirty, many));
            ns[4].push(one_harvest(&switch, &dirty, many));
        }
        let ns = ns.map(median);
        print!("{load:>11}");
        let names = ["AtomicBitmap", SkipZero::NAME, "get_org", "get_opt", "switch_opt"];
        for (name, own) in names.iter().zip(ns) {
            print!("  {name} {own:.1} ({:.1}x)", ns[0] / own);
        }
        println!();
    }
}

fn all_marks(threads: usize) {
    println!("\nns a mark, {threads} thread(s): median (quartiles)");
    let atomic = AtomicBitmap::with_pages(PAGES);
    let switch = DirtyBitmap::<SwitchOpt>::with_pages(PAGES);
    for pattern in patterns() {
        let mut ns: [Vec<f64>; 3] = Default::default();
        for _ in 0..101 {
            if pattern.fresh {
                black_box((atomic.take(), switch.take()));
            }
            let theirs = marks(&atomic, &pattern.orders[..threads]);
            let ours = marks(&switch, &pattern.orders[..threads]);
            ns[0].push(theirs);
            ns[1].push(ours);
            ns[2].push(ours / theirs);
        }
        let shown = ns.map(quartiles).map(|[q1, m, q3]| format!("{m:.2} ({q1:.2}-{q3:.2})"));
        let [theirs, ours, ratio] = shown;
        println!("{:>40}: AtomicBitmap {theirs}, dirty-log {ours}, ratio {ratio}", pattern.name);
    }
}

fn main() {
    let first = DirtyBitmap::<SwitchOpt>::with_pages(1);
    println!("{:?} fences; {first:?}", fences());
    harvests("no other thread");
    let (stop, other) = (AtomicBool::new(false), DirtyBitmap::<SwitchOpt>::with_pages(PAGES));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut page = 0;
            while !stop.load(Ordering::Relaxed) {
                other.set(page % PAGES);
                page += 1;
            }
        });
        harvests("a thread marking in another slot all the time");
        stop.store(true, Ordering::Relaxed);
    });
    all_marks(1);
    all_marks(2);
}
