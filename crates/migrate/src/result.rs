//! What a session of migrations comes to.

use crate::data::{MigrateOutcome, Migration};
use crate::side::Side;
use serde::{Deserialize, Serialize};
use vmeter_model::result::Envelope;
use vmeter_model::sweep::Settings;
use vmeter_model::{Estimate, ResolvedOption};

/// What the guest does while it is migrated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct MigrateWorkload {
    /// Rate at which it dirties pages, bytes/s.
    pub dirty_bytes_per_s: f64,
    /// Memory it dirties, in turn, for ever.
    pub working_set_bytes: u64,
    /// Memory that holds data (noise), the working set included.
    pub resident_bytes: u64,
    /// Bytes written of each page that is dirtied.
    pub written_bytes: u64,
}

/// One migration, and where it stands among the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MigrateRun {
    /// Position of its point in [`MigrateResult::points`].
    pub point: usize,
    /// Which turn, from 0 on, warm-ups included.
    pub block: usize,
    /// True if no figure includes it.
    pub warmup: bool,
    /// What was seen of it.
    #[serde(flatten)]
    pub seen: Migration,
}

/// What dirty rate and bandwidth say should happen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MigratePrediction {
    /// Whether it converges.
    pub converges: bool,
    /// Rounds until it does.
    pub rounds: Option<u64>,
    /// Total time, s.
    pub total_s: Option<f64>,
    /// Downtime, s.
    pub downtime_s: Option<f64>,
    /// Dirty rate that it is made from, bytes/s (measured before the migration).
    pub dirty_bytes_per_s: f64,
    /// Bandwidth that it is made from, bytes/s.
    pub bandwidth_bytes_per_s: f64,
    /// Where that bandwidth is from, in words.
    pub bandwidth_from: String,
    /// In one sentence.
    pub because: String,
    /// Whether it came out so, over the runs; absent where no run says.
    pub right: Option<bool>,
}

/// A setting of the migration, over its runs. Figures are medians.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MigratePoint {
    /// What was set, in the units of the options.
    pub parameters: Settings,
    /// Total time, s; of runs that did not complete, until they were given up.
    pub total_s: f64,
    /// Downtime by QEMU, s.
    pub downtime_s: Option<f64>,
    /// Downtime as the guest felt it, s.
    pub guest_gap_s: Option<f64>,
    /// The same by the guest's own clock, s.
    pub guest_clock_gap_s: Option<f64>,
    /// Rounds.
    pub rounds: u64,
    /// Pages/s that the guest dirtied while it was migrated.
    pub dirty_pages_per_s: f64,
    /// Sent, bytes.
    pub transferred_bytes: u64,
    /// Bandwidth, bytes/s.
    pub bandwidth_bytes_per_s: f64,
    /// True if every run completed.
    pub converged: bool,
    /// True if the guest's memory was equal on both sides in every run; null where no run had
    /// two sides to compare.
    pub verified: Option<bool>,
    /// What the runs came to, most frequent first.
    pub outcomes: Vec<(MigrateOutcome, usize)>,
    /// Why it does not converge, and what would make it; empty if it does.
    pub reason: String,
    /// What was expected.
    pub prediction: MigratePrediction,
    /// Total time, s.
    pub total: Estimate,
    /// Downtime by QEMU, s.
    pub downtime: Option<Estimate>,
    /// Downtime as the guest felt it, s.
    pub guest_gap: Option<Estimate>,
    /// What the guest does.
    pub workload: MigrateWorkload,
}

/// How it was set up.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MigrateSetup {
    /// The source's command line; the destination's has `-incoming defer` besides.
    pub argv: Vec<String>,
    /// What was chosen for the source.
    pub chosen: Vec<ResolvedOption>,
    /// Memory of the guest.
    pub memory_bytes: u64,
    /// Measured runs of each point.
    pub runs: usize,
    /// Runs before them.
    pub warmup: usize,
    /// Seed of the order.
    pub seed: u64,
    /// Time between heartbeats, s.
    pub heartbeat_s: f64,
    /// The side that was killed in the middle of each migration, if one was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub killed: Option<Side>,
}

/// Result of `vmeter migrate`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MigrateResult {
    /// Head.
    pub envelope: Envelope,
    /// How it was set up.
    pub setup: MigrateSetup,
    /// Settings, in the order of the sweep.
    pub points: Vec<MigratePoint>,
    /// Every run, warm-ups too.
    pub runs: Vec<MigrateRun>,
    /// Warnings in words.
    pub warnings: Vec<String>,
    /// What to try next.
    pub hints: Vec<String>,
    /// The session's folder.
    #[serde(default)]
    pub saved_in: String,
}
