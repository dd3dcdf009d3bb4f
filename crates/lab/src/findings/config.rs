//! What a session of findings is begun with.

use serde::{Deserialize, Serialize};
use vmeter_model::findings::PlannedFinding;
use vmeter_model::MachineSpec;

/// What a session is begun with.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// Ids as they were given.
    pub(super) ids: Vec<String>,
    /// The machine.
    pub(super) spec: MachineSpec,
    /// `--no-icount`.
    pub(super) no_icount: bool,
    /// `--runs`.
    pub(super) runs: u32,
    /// `--warmup`.
    pub(super) warmup: u32,
    /// Machines that take turns; those in virtual time follow them.
    pub timed: u32,
    /// What is compared.
    pub findings: Vec<PlannedFinding>,
    /// Labels of the machines that print known amounts.
    #[serde(default)]
    pub printing: Vec<String>,
}
