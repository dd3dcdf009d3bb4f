//! What a session of `vmeter memory` is begun with.

use crate::looks::Repeats;
use serde::{Deserialize, Serialize};
use vmeter_model::MachineSpec;

/// What a session is begun with.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Config {
    pub(super) read_mib: u32,
    pub(super) machines: Vec<(String, MachineSpec)>,
    #[serde(flatten)]
    pub(super) repeats: Repeats,
}
