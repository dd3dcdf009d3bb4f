//! Rows by key, bounded.

use super::hist::Hist;
use super::slices::{Slice, Slices};
use crate::hash::FastMap;
use crate::walk::{Took, IMPLAUSIBLE, LONGEST};

/// Most rows of a table; what does not fit is counted in one more.
pub const MAX_ROWS: usize = 4096;

/// A duration that is held back until it is known from when on all CPUs are recorded.
#[derive(Debug, Clone, Copy)]
struct Doubt {
    ticks: u64,
    start: u64,
    tid: i32,
    at: Slice,
}

/// One row: how often, and how long where that is known.
#[derive(Debug, Clone, Default)]
pub struct Cell {
    /// How often.
    pub count: u64,
    /// How long, of those whose end was seen.
    pub time: Hist,
    /// The same by slices of the trace's time.
    pub slices: Slices,
    /// Not timed because events were lost in between.
    pub cut: u64,
    /// The longest of the doubtful ones, longest first.
    doubts: Vec<Doubt>,
}

impl Cell {
    /// Counts one.
    #[inline]
    pub fn count(&mut self, at: Slice) {
        self.count += 1;
        let batch = self.slices.batch(at);
        batch.count = batch.count.saturating_add(1);
    }

    /// Adds the time of one that was counted.
    #[inline]
    pub fn time(&mut self, ticks: u64, at: Slice) {
        let level = self.time.add(ticks);
        let batch = self.slices.batch(at);
        batch.timed = batch.timed.saturating_add(1);
        batch.levels = batch.levels.saturating_add(level as u64);
    }

    /// Holds a doubtful time back, if it is one of the longest.
    #[cold]
    fn doubt(&mut self, doubt: Doubt) {
        let at = self.doubts.partition_point(|held| held.ticks >= doubt.ticks);
        self.doubts.insert(at, doubt);
        if self.doubts.len() > LONGEST {
            if let Some(shortest) = self.doubts.pop() {
                self.time(shortest.ticks, shortest.at);
            }
        }
    }

    /// Decides on what was held back, all CPUs being recorded from `complete` on. Gives the
    /// threads and ticks of what is cut.
    fn decide(&mut self, complete: u64) -> Vec<(i32, u64)> {
        let mut all = self.time.clone();
        for doubt in &self.doubts {
            all.add(doubt.ticks);
        }
        let limit = all.quantile(0.5).unwrap_or(0.0) * IMPLAUSIBLE;
        let mut cut = Vec::new();
        for doubt in std::mem::take(&mut self.doubts) {
            if doubt.start < complete && limit > 0.0 && doubt.ticks as f64 > limit {
                self.cut += 1;
                cut.push((doubt.tid, doubt.ticks));
            } else {
                self.time(doubt.ticks, doubt.at);
            }
        }
        cut
    }

    fn merge(&mut self, other: &Cell) {
        self.cut += other.cut;
        self.doubts.extend(&other.doubts);
        self.count += other.count;
        self.time.merge(&other.time);
        self.slices.merge(&other.slices);
    }
}

/// Rows by key.
#[derive(Debug, Clone, Default)]
pub struct Table {
    index: FastMap<u64, u32>,
    rows: Vec<(u64, Cell)>,
    /// What had no room.
    rest: Cell,
}

impl Table {
    /// The row of a key.
    #[inline]
    pub fn cell(&mut self, key: u64) -> &mut Cell {
        if let Some(&at) = self.index.get(&key) {
            return &mut self.rows[at as usize].1;
        }
        self.new_cell(key)
    }

    #[cold]
    fn new_cell(&mut self, key: u64) -> &mut Cell {
        if self.rows.len() >= MAX_ROWS {
            return &mut self.rest;
        }
        let at = self.rows.len();
        self.index.insert(key, at as u32);
        self.rows.push((key, Cell::default()));
        &mut self.rows[at].1
    }

    /// Counts one, with its time if known.
    #[inline]
    pub fn add(&mut self, key: u64, took: impl Into<Took>, at: Slice) {
        let cell = self.cell(key);
        cell.count(at);
        match took.into() {
            Took::Ticks(ticks) => cell.time(ticks, at),
            Took::Doubtful { ticks, start, tid } => cell.doubt(Doubt { ticks, start, tid, at }),
            Took::Cut => cell.cut += 1,
            Took::Unknown => {}
        }
    }

    /// Decides on the doubtful times, all CPUs being recorded from `complete` on. Gives the
    /// threads and ticks of what is cut.
    pub fn decide(&mut self, complete: u64) -> Vec<(i32, u64)> {
        let rows = self.rows.iter_mut().map(|(_, cell)| cell);
        rows.chain([&mut self.rest]).flat_map(|cell| cell.decide(complete)).collect()
    }

    /// Adds another table's rows, whose keys `key` translates.
    pub fn merge(&mut self, other: &Table, mut key: impl FnMut(u64) -> u64) {
        for (theirs, cell) in &other.rows {
            self.cell(key(*theirs)).merge(cell);
        }
        self.rest.merge(&other.rest);
    }

    /// True if the key has a row.
    pub fn has(&self, key: u64) -> bool {
        self.index.contains_key(&key)
    }

    /// Rows in order of their keys.
    pub fn sorted(&self) -> Vec<(u64, &Cell)> {
        let mut rows: Vec<(u64, &Cell)> = self.rows.iter().map(|(k, c)| (*k, c)).collect();
        rows.sort_unstable_by_key(|(key, _)| *key);
        rows
    }

    /// What had no room: more than [`MAX_ROWS`] keys.
    pub fn rest(&self) -> &Cell {
        &self.rest
    }
}

#[cfg(test)]
mod tests {
    use super::super::slices::Slicer;
    use super::*;

    #[test]
    fn a_table_stops_growing_and_loses_nothing() {
        let mut table = Table::default();
        let at = Slicer::default().at(0);
        for key in 0..MAX_ROWS as u64 * 3 {
            table.add(key, Some(key), at);
        }
        let rows = table.sorted();
        assert_eq!(rows.len(), MAX_ROWS);
        assert_eq!(table.rest().count, MAX_ROWS as u64 * 2);
    }

    #[test]
    fn only_early_and_implausibly_long_doubtful_times_are_cut() {
        let mut table = Table::default();
        let at = Slicer::default().at(0);
        let mut add = |ticks: u64, start: u64| {
            table.add(1, Took::Doubtful { ticks, start, tid: 7 }, at);
        };
        (0..100).for_each(|n| add(10 + n % 3, n * 20));
        add(900, 100);
        add(5_000, 200);
        add(5_000, 2_000);
        assert_eq!(table.decide(1_000), [(7, 5_000)]);
        let cell = table.cell(1);
        assert_eq!((cell.count, cell.time.count(), cell.cut), (103, 102, 1));
        assert_eq!(cell.time.total(), (0..100).map(|n| 10 + n % 3).sum::<u128>() + 5_900);
    }
}
