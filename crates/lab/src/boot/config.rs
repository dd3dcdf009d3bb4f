//! What to boot and how, as the command line says it and as a session keeps it.

use crate::looks::Repeats;
use serde::{Deserialize, Serialize};
use vmeter_model::run::WatchLevel;
use vmeter_model::MachineSpec;
use vmeter_session::RunOptions;

pub(crate) const KIND: &str = "boot";

/// What to boot and how.
#[derive(Debug, Clone)]
pub struct BootOptions {
    /// The machine.
    pub spec: MachineSpec,
    /// How closely to watch; `light`, or as the session that is gone on with, if absent.
    pub watch: Option<WatchLevel>,
    /// Take turns with unwatched boots, to measure what watching costs.
    pub overhead: bool,
    /// Saved session whose machine is booted beside this one, if it can be.
    pub baseline: Option<std::path::PathBuf>,
    /// The difference, %, to that machine which the runs are to find: as many as it needs.
    pub detect: Option<f64>,
    /// So many at once, each number in turn; one, if empty.
    pub concurrency: Vec<u32>,
    /// How runs are repeated.
    pub runs: RunOptions,
}

/// What a session is begun with.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// The machine.
    #[serde(default)]
    pub(super) spec: MachineSpec,
    /// `--watch`.
    #[serde(default)]
    pub(super) watch: WatchLevel,
    /// `--overhead`.
    #[serde(default)]
    pub(super) overhead: bool,
    #[serde(flatten)]
    pub(super) repeats: Repeats,
}
