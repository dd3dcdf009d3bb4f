//! Rows by key, bounded.

use super::hist::Hist;
use super::slices::{Slice, Slices};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Most rows of a table; what does not fit is counted in one more.
pub const MAX_ROWS: usize = 4096;

/// Mixes one integer: keys are small numbers, and the tables are bounded.
#[derive(Default, Clone, Copy)]
pub(crate) struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.write_u64(u64::from(b));
        }
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }

    fn write_i32(&mut self, n: i32) {
        self.write_u64(n as u64);
    }

    fn write_u64(&mut self, n: u64) {
        let mixed = (self.0.rotate_left(5) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

pub(crate) type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<Mix>>;

/// One row: how often, and how long where that is known.
#[derive(Debug, Clone, Default)]
pub struct Cell {
    /// How often.
    pub count: u64,
    /// How long, of those whose end was seen.
    pub time: Hist,
    /// The same by slices of the trace's time.
    pub slices: Slices,
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

    fn merge(&mut self, other: &Cell) {
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

    /// Counts one, with its time in ticks if known.
    #[inline]
    pub fn add(&mut self, key: u64, ticks: Option<u64>, at: Slice) {
        let cell = self.cell(key);
        cell.count(at);
        if let Some(ticks) = ticks {
            cell.time(ticks, at);
        }
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
}
