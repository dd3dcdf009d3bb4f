//! Work functions, and on which CPUs their items run.

use std::collections::BTreeSet;

/// A work function.
#[derive(Debug, Default)]
pub struct Work {
    /// Times that it ran.
    pub runs: u64,
    /// CPUs it ran on.
    pub cpus: BTreeSet<u32>,
    /// Its last items, with the CPU that each ran on.
    items: Vec<(u64, u32)>,
    /// One item ran now here, now there.
    roams: bool,
}

impl Work {
    /// An item runs on a CPU.
    pub fn ran(&mut self, item: u64, cpu: u32) {
        match self.items.iter().find(|(known, _)| *known == item) {
            Some((_, before)) => self.roams |= *before != cpu,
            None => {
                if self.items.len() >= MAX_ITEMS {
                    self.items.remove(0);
                }
                self.items.push((item, cpu));
            }
        }
    }

    /// True if each CPU has an item of its own: the kernel's per-CPU work.
    pub fn of_each_cpu(&self) -> bool {
        !self.roams && self.cpus.len() >= 2
    }
}

/// Work items of a function that are told apart.
const MAX_ITEMS: usize = 64;
