//! Result of `vmeter migrate`.

use crate::estimate::Estimate;
use crate::result::Envelope;
use crate::sweep::Settings;
use serde::{Deserialize, Serialize};

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

/// How a migration ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MigrateOutcome {
    /// The guest runs at the destination.
    Completed,
    /// Given up: what was left to send did not become less.
    NotConverged,
    /// Given up at the timeout.
    TimedOut,
    /// QEMU gave it up.
    Failed,
    /// The destination died on the way.
    DestinationDied,
    /// The source died on the way.
    SourceDied,
}

/// What was seen of a migration at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct MigrateSample {
    /// Since the migration was asked for, s.
    pub at_s: f64,
    /// Which round (`dirty-sync-count`).
    pub round: u64,
    /// Left to send, bytes.
    pub remaining_bytes: u64,
    /// Sent, bytes.
    pub transferred_bytes: u64,
    /// QEMU's throttle of the guest's CPUs (auto-converge), %.
    pub throttle_percent: u64,
}

/// A pass over the guest's memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct MigrateRound {
    /// Number, from 1 on.
    pub round: u64,
    /// When it began, since the migration was asked for, s.
    pub start_s: f64,
    /// How long it took, s.
    pub length_s: f64,
    /// Pages to send when it began.
    pub pages: u64,
    /// Sent meanwhile, bytes.
    pub transferred_bytes: u64,
    /// Pages that the guest wrote meanwhile, by its own count.
    pub written_pages: u64,
    /// Throttle at its end, %.
    pub throttle_percent: u64,
}

/// The guest's memory on both sides.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrateVerification {
    /// True if every byte is the same.
    pub equal: bool,
    /// Bytes compared on each side.
    pub bytes: u64,
    /// Pages that differ.
    pub differing_pages: u64,
    /// Guest-physical address of the first of them.
    pub first_difference: Option<u64>,
    /// SHA-256 of the source's RAM.
    pub source_sha256: String,
    /// SHA-256 of the destination's RAM.
    pub destination_sha256: String,
    /// Pages that the guest had written when it was stopped on either side.
    pub written_pages: u64,
}

/// One migration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MigrateRun {
    /// Position of its point in [`MigrateResult::points`].
    pub point: usize,
    /// Which turn, from 0 on, warm-ups included.
    pub block: usize,
    /// True if no figure includes it.
    pub warmup: bool,
    /// How it ended.
    pub outcome: MigrateOutcome,
    /// Why, where it did not complete.
    pub reason: String,
    /// From `migrate` to its end, s: QEMU's `total-time`, or until it was given up.
    pub total_s: f64,
    /// Of it, before the first page, s (`setup-time`).
    pub setup_s: f64,
    /// QEMU's `downtime`, s.
    pub downtime_s: Option<f64>,
    /// From the last heartbeat at the source to the first at the destination, s.
    pub guest_gap_s: Option<f64>,
    /// The same by the guest's own clock, which QEMU stops with the guest, s.
    pub guest_clock_gap_s: Option<f64>,
    /// From the source's STOP to the destination's RESUME, s.
    pub stopped_s: Option<f64>,
    /// Longest time without a heartbeat before the switch, s.
    pub longest_gap_before_s: f64,
    /// The same after it, s: with post-copy the guest waits for pages there.
    pub longest_gap_after_s: f64,
    /// Time lost after the switch in gaps of 10 ms and more, s.
    pub lost_after_s: f64,
    /// Rounds.
    pub rounds: Vec<MigrateRound>,
    /// Pages/s that the guest dirtied before the migration.
    pub dirty_pages_per_s_before: f64,
    /// Pages/s that the guest dirtied while it was migrated.
    pub dirty_pages_per_s: f64,
    /// Sent in all, bytes.
    pub transferred_bytes: u64,
    /// While pages were sent, bytes/s.
    pub bandwidth_bytes_per_s: f64,
    /// Largest throttle (auto-converge), %.
    pub throttle_percent: u64,
    /// Whether the guest went on at the source where it did not complete.
    pub source_runs_on: Option<bool>,
    /// Whether the destination ever ran the guest.
    pub destination_ran: bool,
    /// The guest's memory on both sides; absent where there are no two sides.
    pub verification: Option<MigrateVerification>,
    /// Progress over time.
    pub samples: Vec<MigrateSample>,
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
    /// What was chosen: (what, value, why or how to change it).
    pub chosen: Vec<(String, String, String)>,
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
    /// `source` or `destination`, where one was killed in the middle of each migration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub killed: Option<String>,
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
}
