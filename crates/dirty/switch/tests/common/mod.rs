// SPDX-License-Identifier: Apache-2.0 OR MIT

//! One stress run for every strategy and both kinds of fences.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use vmeter_dirty_switch::{DirtyLog, StrategyKind};

const PAGE: usize = 4096;
/// Pages of the slot, of which every `STRIDE`th is marked: several groups of the summary.
const PAGES: usize = if cfg!(miri) { 2_000 } else { 100_000 };
const STRIDE: usize = 97;
const MARKED: usize = PAGES / STRIDE;
const WRITERS: usize = 3;

/// What one writer does to one page.
#[derive(Default)]
struct Cell {
    /// Guest memory: the version written last.
    data: AtomicU64,
    /// Versions whose mark has begun, and whose mark has returned.
    begun: AtomicU64,
    done: AtomicU64,
}

type Cells = Vec<[Cell; WRITERS]>;

fn write(log: &dyn DirtyLog, cells: &Cells, writer: usize, marks: u64) {
    let mut state = 0x9e37_79b9_7f4a_7c15 ^ (writer as u64 + 1);
    for _ in 0..marks {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let page = state as usize % MARKED;
        let cell = &cells[page][writer];
        let version = cell.begun.load(Ordering::Relaxed) + 1;
        // Plain stores: a locked instruction here would be the fence that is to be tested.
        cell.begun.store(version, Ordering::Relaxed);
        cell.data.store(version, Ordering::Relaxed);
        match (writer, state >> 60) {
            (2, 0) => log.mark_in_signal_handler(page * STRIDE),
            (1, 0) => {
                log.mark(page * STRIDE);
                vmeter_dirty_switch::rest();
            }
            (2, 1) => log.mark_bytes(page * STRIDE * PAGE + 17, 8),
            _ => log.mark(page * STRIDE),
        }
        cell.done.store(version, Ordering::Release);
    }
}

/// What the harvests have copied of each page.
struct Copies {
    data: Vec<[u64; WRITERS]>,
    /// Marks done when the harvest began that last saw the page.
    done_before: Vec<Option<u64>>,
}

fn check_harvest(log: &dyn DirtyLog, cells: &Cells, copies: &mut Copies) -> usize {
    let done = |cell: &[Cell; WRITERS]| [0, 1, 2].map(|w| cell[w].done.load(Ordering::Acquire));
    let done: Vec<_> = cells.iter().map(done).collect();
    let harvest = log.harvest();
    let mut count = 0;
    harvest.for_each_page(|page| {
        assert_eq!(page % STRIDE, 0, "page {page} was never marked");
        let page = page / STRIDE;
        count += 1;
        copies.data[page] = [0, 1, 2].map(|w| cells[page][w].data.load(Ordering::Relaxed));
        let begun: u64 = cells[page].iter().map(|c| c.begun.load(Ordering::Relaxed)).sum();
        if let Some(before) = copies.done_before[page].replace(done[page].iter().sum()) {
            assert!(begun > before, "page {page} is seen twice for the same mark");
        }
    });
    for (page, (done, copied)) in done.iter().zip(&copies.data).enumerate() {
        let lost = (0..WRITERS).find(|&w| copied[w] < done[w]);
        assert_eq!(lost, None, "page {page}: {done:?} marked before, {copied:?} copied");
    }
    count
}

/// `DIRTY_LOG_STRESS_MARKS` marks of each strategy, else 300 000 (900 under Miri); every harvest is checked
/// against what was marked before it began.
pub fn stress() {
    let marks = std::env::var("DIRTY_LOG_STRESS_MARKS").ok();
    let few = if cfg!(miri) { 900 } else { 300_000 };
    let marks: u64 = marks.map_or(few, |m| m.parse().expect("a number of marks"));
    for kind in StrategyKind::ALL {
        let log = kind.bitmap(PAGES * PAGE, PAGE).unwrap();
        let cells: Cells = (0..MARKED).map(|_| Default::default()).collect();
        let mut copies =
            Copies { data: vec![[0; WRITERS]; MARKED], done_before: vec![None; MARKED] };
        let (mut harvests, mut seen) = (0u64, 0u64);
        let writing = AtomicBool::new(true);
        std::thread::scope(|scope| {
            let (log, cells, writing) = (&*log, &cells, &writing);
            let writers: Vec<_> = (0..WRITERS)
                .map(|w| scope.spawn(move || write(log, cells, w, marks / WRITERS as u64)))
                .collect();
            let end = scope.spawn(move || {
                writers.into_iter().for_each(|w| w.join().unwrap());
                writing.store(false, Ordering::Release);
            });
            while writing.load(Ordering::Acquire) {
                seen += check_harvest(log, cells, &mut copies) as u64;
                harvests += 1;
            }
            end.join().unwrap();
        });
        seen += check_harvest(&*log, &cells, &mut copies) as u64;
        for (page, copied) in copies.data.iter().enumerate() {
            let data = [0, 1, 2].map(|w| cells[page][w].data.load(Ordering::Relaxed));
            assert_eq!(*copied, data, "page {page}");
        }
        assert!(log.harvest().is_clean(), "something is seen twice");
        println!("{kind}: {marks} marks, {harvests} harvests, {seen} dirty pages seen");
    }
}
