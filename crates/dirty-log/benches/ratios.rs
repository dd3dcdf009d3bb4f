//! The crate's promises, as ratios within one run: contenders take turns, so that whatever
//! else the host does hits all of them. `cargo bench -p dirty-log --bench ratios`.

#![allow(missing_docs)]

#[allow(dead_code)]
mod common;

use common::{loads, patterns, two_threads, Contender, SkipZero, PAGES};
use dirty_log::{fences, DirtyBitmap, GetOpt, GetOrg, SwitchOpt};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use vm_memory::bitmap::AtomicBitmap;

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
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

fn all_marks() {
    println!("\nns a mark, 2 threads at once (dirty-log's / AtomicBitmap's)");
    let atomic = AtomicBitmap::with_pages(PAGES);
    let switch = DirtyBitmap::<SwitchOpt>::with_pages(PAGES);
    for pattern in patterns() {
        let mut ns: [Vec<f64>; 2] = Default::default();
        for _ in 0..101 {
            if pattern.fresh {
                black_box((atomic.take(), switch.take()));
            }
            ns[0].push(two_threads(&atomic, &pattern.orders));
            ns[1].push(two_threads(&switch, &pattern.orders));
        }
        let [theirs, ours] = ns.map(median);
        let ratio = ours / theirs;
        println!(
            "{:>40}: AtomicBitmap {theirs:.1}, dirty-log {ours:.1} ({ratio:.2}x)",
            pattern.name
        );
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
    all_marks();
}
