//! The order of the runs.

use crate::config::Config;
use serde::{Deserialize, Serialize};
use vmeter_model::run::Planned;

/// One migration of the plan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedMigration {
    /// Position of its point among the session's machines.
    pub machine: usize,
    /// True if no figure includes it.
    pub warmup: bool,
    /// Which turn, from 0 on, warm-ups included.
    pub block: usize,
}

impl Planned for PlannedMigration {
    fn machine(&self) -> usize {
        self.machine
    }

    fn warmup(&self) -> bool {
        self.warmup
    }
}

/// Every point in turn, in an order that favours none. More runs only add to the end.
pub fn plan(asked: &Config, points: usize, seed: u64) -> Vec<PlannedMigration> {
    vmeter_stats::plan(points, asked.warmup as usize, asked.runs as usize, seed)
        .into_iter()
        .map(|slot| PlannedMigration {
            machine: slot.machine,
            warmup: slot.warmup,
            block: slot.block,
        })
        .collect()
}
