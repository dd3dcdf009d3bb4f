//! What is played: one run of a machine.

use vmeter_model::run::WatchLevel;
use vmeter_model::MachineSpec;

/// One run to play.
#[derive(Debug, Clone, Copy)]
pub struct Scene<'a> {
    /// The machine as asked for.
    pub spec: &'a MachineSpec,
    /// Its label.
    pub label: &'a str,
    /// Number of the run.
    pub index: u32,
    /// True for a warm-up.
    pub warmup: bool,
    /// How it is watched.
    pub watch: WatchLevel,
    /// Seed of the session: variations follow from it and the index.
    pub seed: u64,
}
