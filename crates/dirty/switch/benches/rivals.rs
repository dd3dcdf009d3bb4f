// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What the switch buys over simpler bitmaps, as tables of medians and quartiles from one run:
//! contenders take turns, so that whatever else the host does hits all of them.
//!
//! `cargo bench -p vmeter-dirty-switch --bench rivals`; with `-- --quick` a few rounds of the small
//! size, to see that it works. Full fences are chosen once a process, so that column is from a
//! process of its own, right before each table's.

#![allow(missing_docs)]

#[allow(dead_code)]
mod common;
mod rival;

use common::{cpu_time, stay_on};
use rival::{Named, Nothing, Rival, SkipClean};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use vm_memory::bitmap::{AtomicBitmap, NewBitmap};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use dirty_log::SummaryBitmap;
use vmeter_dirty_switch::{DirtyBitmap, SwitchOpt};

type Switch = DirtyBitmap<SwitchOpt>;

/// Only this table: harvest, runs, marks or write_obj.
const ONLY: &str = "DIRTY_LOG_BENCH_TABLE";
/// In the process that uses full fences.
const FULL: &str = "DIRTY_LOG_BENCH_FULL_FENCES";
const SIZES: [(&str, usize); 3] = [("3.76 GB", 917_248), ("64 GiB", 64 << 18), ("1 TiB", 1 << 28)];
const LOADS: [(&str, usize); 4] = [("clean", 0), ("10 pages", 10), ("1 %", 100), ("100 %", 1)];

/// Samples of each row and contender.
#[derive(Default)]
struct Table {
    rows: Vec<String>,
    samples: BTreeMap<(String, &'static str), Vec<f64>>,
}

impl Table {
    fn add(&mut self, row: &str, name: &'static str, sample: f64) {
        if !self.rows.iter().any(|known| known == row) {
            self.rows.push(row.into());
        }
        self.samples.entry((row.into(), name)).or_default().push(sample);
    }

    fn print(&self, title: &str, unit: &str, names: &[&'static str]) {
        println!("\n{title}; {unit}, median (quartiles)\n\n| | {} |", names.join(" | "));
        println!("|---|{}", "---|".repeat(names.len()));
        for row in &self.rows {
            let cells = names.iter().map(|&name| match self.samples.get(&(row.clone(), name)) {
                Some(samples) => shown(samples),
                None => "-".into(),
            });
            println!("| {row} | {} |", cells.collect::<Vec<_>>().join(" | "));
        }
    }

    /// As lines, for the process that prints.
    fn tell(&self) {
        for ((row, name), samples) in &self.samples {
            for sample in samples {
                println!("{row}\t{name}\t{sample}");
            }
        }
    }
}

fn shown(samples: &[f64]) -> String {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |quarter: usize| sorted[(sorted.len() - 1) * quarter / 4];
    let digits = |x: f64| if x < 10.0 { 2 } else { usize::from(x < 100.0) };
    let show = |x: f64| format!("{x:.*}", digits(x));
    format!("{} ({}-{})", show(at(2)), show(at(1)), show(at(3)))
}

fn is_full() -> bool {
    std::env::var_os(FULL).is_some()
}

fn is_quick() -> bool {
    std::env::args().any(|arg| arg == "--quick")
}

/// What the process with full fences measures of a table.
fn from_full(table: &mut Table, which: &str) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    let quick = is_quick().then_some("--quick");
    let child = child.env(FULL, which).args(quick).stdout(Stdio::piped()).spawn();
    let mut child = child.expect("this very program runs");
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for line in lines.map_while(Result::ok) {
        let parts: Vec<&str> = line.split('\t').collect();
        if let [row, _, sample] = parts[..] {
            table.add(row, "switch, full fences", sample.parse().unwrap());
        }
    }
    assert!(child.wait().unwrap().success());
}

fn dirty(rival: &impl Rival, pages: usize, load: usize) {
    match load {
        0 => {}
        10 => (0..10).for_each(|i| rival.mark(i * (pages / 10))),
        step => (0..pages).step_by(step).for_each(|page| rival.mark(page)),
    }
}

fn harvest<R: Rival>(table: &mut Table, rival: &R, row: &str, pages: usize, load: usize) {
    dirty(rival, pages, load);
    let repeat = if load == 0 && pages < 1 << 20 { 20 } else { 1 };
    let start = Instant::now();
    for _ in 0..repeat {
        black_box(rival.harvest());
    }
    table.add(row, R::NAME, micros(start) / f64::from(repeat));
}

fn micros(since: Instant) -> f64 {
    since.elapsed().as_nanos() as f64 / 1e3
}

fn harvests(table: &mut Table) {
    for (size, pages) in SIZES {
        if is_quick() && pages > 1 << 20 {
            continue;
        }
        let (atomic, skip, summary, switch) = (
            AtomicBitmap::of(pages),
            SkipClean::of(pages),
            SummaryBitmap::of(pages),
            Switch::of(pages),
        );
        for (name, load) in LOADS {
            let row = format!("{size}, {name}");
            let rounds = match pages {
                _ if is_quick() => 3,
                1_000_000.. if load == 1 => 5,
                100_000_000.. => 11,
                _ => 101,
            };
            for _ in 0..rounds {
                if !is_full() {
                    harvest(table, &atomic, &row, pages, load);
                    harvest(table, &skip, &row, pages, load);
                    harvest(table, &summary, &row, pages, load);
                }
                harvest(table, &switch, &row, pages, load);
            }
        }
    }
}

/// Harvests to ranges; 512 GiB, as a migration of that size sees it, by this thread's CPU time: what
/// others do on its CPU takes longer than all of it. Beside it, what this host's memory takes for as
/// many bytes: a copy of a bitmap.
fn runs(table: &mut Table) {
    let pages = if is_quick() { 1 << 20 } else { 128 << 20 };
    let (summary, switch) = (SummaryBitmap::of(pages), Switch::of(pages));
    let (from, mut to) = (vec![1u64; pages / 64], vec![0u64; pages / 64]);
    for (name, load) in LOADS {
        let row = format!("512 GiB, {name}");
        let rounds = if load == 1 { 7 } else { 21 };
        for _ in 0..if is_quick() { 3 } else { rounds } {
            let mut pages_seen = 0;
            let mut see = |run: std::ops::Range<usize>| pages_seen += black_box(run).len();
            if !is_full() {
                dirty(&summary, pages, load);
                let start = cpu_time();
                summary.harvest_runs(&mut see);
                table.add(&row, SummaryBitmap::NAME, (cpu_time() - start) / 1e3);
            }
            dirty(&switch, pages, load);
            let start = cpu_time();
            Switch::harvest(&switch).into_runs(&mut see);
            table.add(&row, Switch::NAME, (cpu_time() - start) / 1e3);
            black_box(pages_seen);
            if !is_full() {
                let start = cpu_time();
                to.copy_from_slice(black_box(&from));
                black_box(&to);
                table.add("a copy of its bitmap", Nothing::NAME, (cpu_time() - start) / 1e3);
            }
        }
    }
}

/// Which pages a thread marks: its part of the slot in order or at random, or one page.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    Forward,
    Random,
    OnePageEach,
    OnePage,
}

fn page(order: Order, n: usize, thread: usize, threads: usize, pages: usize) -> usize {
    let part = pages / threads;
    match order {
        Order::Forward => thread * part + n % part,
        // A multiplicative hash: each page once in a power of two of them.
        Order::Random => thread * part + (n.wrapping_mul(0x9e37_79b1) >> 3) % part,
        Order::OnePageEach => thread * part,
        Order::OnePage => 5,
    }
}

/// CPU time of a mark, ns, of `threads` at once, spread over so many slots.
fn marks<R: Rival>(slots: &[R], pages: usize, threads: usize, order: Order) -> f64 {
    let each = if is_quick() { 20_000 } else { 400_000 } / threads;
    let ready = AtomicU64::new(0);
    let run = |thread: usize| {
        if threads <= 2 {
            stay_on(thread);
        }
        slots[thread % slots.len()].mark(page(order, 0, thread, threads, pages));
        ready.fetch_add(1, Ordering::SeqCst);
        while ready.load(Ordering::SeqCst) < threads as u64 {
            std::thread::yield_now();
        }
        let begin = cpu_time();
        for n in 0..each {
            // A thread alone goes round the slots; several have one each.
            let slot = if threads == 1 { n } else { thread };
            slots[slot % slots.len()].mark(page(order, n, thread, threads, pages));
        }
        (cpu_time() - begin) / each as f64
    };
    let run = &run;
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).sum::<f64>() / threads as f64
    })
}

/// (name, order, clean before each round)
const PATTERNS: [(&str, Order, bool); 6] = [
    ("from clean, in order", Order::Forward, true),
    ("from clean, random", Order::Random, true),
    ("dirty already, in order", Order::Forward, false),
    ("dirty already, random", Order::Random, false),
    ("a page each, over and over", Order::OnePageEach, false),
    ("one page, over and over", Order::OnePage, false),
];

fn mark_rounds<R: Rival>(table: &mut Table, slots: &[R], threads: usize, pages: usize) {
    for (name, order, fresh) in PATTERNS {
        let row = format!("{threads} threads, {} slots, {name}", slots.len());
        if fresh {
            slots.iter().for_each(|slot| {
                black_box(slot.harvest());
            });
        }
        table.add(&row, R::NAME, marks(slots, pages, threads, order));
    }
}

fn all_marks(table: &mut Table) {
    const PAGES: usize = 917_248;
    let shapes = [(1, 1), (1, 64), (2, 1), (4, 1), (16, 1), (64, 1), (8, 8), (64, 64)];
    for (threads, count) in shapes {
        let (nothing, atomic, summary, switch) = (
            rival::slots::<Nothing>(count, PAGES),
            rival::slots::<AtomicBitmap>(count, PAGES),
            rival::slots::<SummaryBitmap>(count, PAGES),
            rival::slots::<Switch>(count, PAGES),
        );
        for _ in 0..if is_quick() { 2 } else { 25 } {
            if !is_full() {
                mark_rounds(table, &nothing, threads, PAGES);
                mark_rounds(table, &atomic, threads, PAGES);
                mark_rounds(table, &summary, threads, PAGES);
            }
            mark_rounds(table, &switch, threads, PAGES);
        }
    }
}

fn write_objects<B: NewBitmap + Named>(table: &mut Table, memory: &GuestMemoryMmap<B>) {
    const WRITES: usize = 200_000;
    for (row, step) in [("in order", 4096), ("8 bytes further each", 8)] {
        let begin = cpu_time();
        for n in 0..WRITES {
            let at = GuestAddress((n * step % (256 << 20)) as u64);
            memory.write_obj(black_box(n as u64), at).unwrap();
        }
        table.add(row, B::NAME, (cpu_time() - begin) / WRITES as f64);
    }
}

fn through_guest_memory(table: &mut Table) {
    fn memory<B: NewBitmap>() -> GuestMemoryMmap<B> {
        GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 256 << 20)]).unwrap()
    }
    let (nothing, atomic) = (memory::<()>(), memory::<AtomicBitmap>());
    let (summary, switch) = (memory::<SummaryBitmap>(), memory::<Switch>());
    for _ in 0..if is_quick() { 2 } else { 31 } {
        if !is_full() {
            write_objects(table, &nothing);
            write_objects(table, &atomic);
            write_objects(table, &summary);
        }
        write_objects(table, &switch);
    }
}

/// Its name, what fills it, its title, its unit.
type Part = (&'static str, fn(&mut Table), &'static str, &'static str);

const TABLES: [Part; 4] = [
    ("harvest", harvests, "Harvest, with a look at each dirty word", "us"),
    ("runs", runs, "Harvest to ranges", "us of CPU time"),
    ("marks", all_marks, "A mark", "ns of CPU time"),
    ("write_obj", through_guest_memory, "GuestMemoryMmap::write_obj of a u64", "ns of CPU time"),
];

fn main() {
    if let Ok(which) = std::env::var(FULL) {
        vmeter_dirty_switch::use_full_fences().expect("no bitmap was made yet");
        let mut table = Table::default();
        TABLES.iter().filter(|(name, ..)| *name == which).for_each(|(_, run, ..)| run(&mut table));
        return table.tell();
    }
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    println!("{cpus} CPUs; more threads than those take turns. {:?} fences.", {
        drop(Switch::of(1));
        vmeter_dirty_switch::fences()
    });
    let only = std::env::var(ONLY).ok();
    for (which, run, title, unit) in TABLES {
        if only.as_deref().is_some_and(|only| only != which) {
            continue;
        }
        let mut full = Table::default();
        from_full(&mut full, which);
        let mut table = Table::default();
        run(&mut table);
        table.samples.append(&mut full.samples);
        table.print(title, unit, &rival::NAMES);
    }
}
