//! What is saved of a migration.

use crate::commands::Parameters;
use crate::side::Side;
use serde::{Deserialize, Serialize};
use vmeter_model::run::DataRun;

/// `data` of a run's `run.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// What was seen.
    pub migration: Migration,
    /// QEMU's limits while it was seen.
    pub limits: Limits,
}

/// A run as it is saved.
pub(crate) type SavedMigration = DataRun<Measured>;

/// QEMU's limits in effect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes/s.
    pub bandwidth: f64,
    /// s.
    pub downtime_s: f64,
}

impl Limits {
    /// Of QEMU's parameters.
    pub(crate) fn of(parameters: &Parameters) -> Self {
        Self {
            bandwidth: parameters.max_bandwidth as f64,
            downtime_s: parameters.downtime_limit as f64 / 1e3,
        }
    }
}

vmeter_base::words! {
    /// How a migration ended.
    pub enum MigrateOutcome {
        /// The guest runs at the destination.
        Completed = "completed",
        /// Given up: what was left to send did not become less.
        NotConverged = "not-converged",
        /// Given up at the timeout.
        TimedOut = "timed-out",
        /// QEMU gave it up.
        Failed = "failed",
        /// The destination died on the way.
        DestinationDied = "destination-died",
        /// The source died on the way.
        SourceDied = "source-died",
    }
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

/// One migration, as it was seen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Migration {
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

impl Migration {
    /// One that ended before anything of it was seen.
    pub(crate) fn empty(outcome: MigrateOutcome, reason: String) -> Self {
        Self {
            outcome,
            reason,
            total_s: 0.0,
            setup_s: 0.0,
            downtime_s: None,
            guest_gap_s: None,
            guest_clock_gap_s: None,
            stopped_s: None,
            longest_gap_before_s: 0.0,
            longest_gap_after_s: 0.0,
            lost_after_s: 0.0,
            rounds: Vec::new(),
            dirty_pages_per_s_before: 0.0,
            dirty_pages_per_s: 0.0,
            transferred_bytes: 0,
            bandwidth_bytes_per_s: 0.0,
            throttle_percent: 0,
            source_runs_on: None,
            destination_ran: false,
            verification: None,
            samples: Vec::new(),
        }
    }

    /// True if QEMU refused what was asked of it, so that nothing was ever sent.
    pub(crate) fn was_refused(&self) -> bool {
        self.outcome == MigrateOutcome::Failed && self.samples.is_empty()
    }

    /// True if it came to what it should: the guest arrived, or where a side was killed is
    /// where it should be.
    pub(crate) fn is_as_it_should(&self, killed: Option<Side>) -> bool {
        match killed {
            None => self.outcome == MigrateOutcome::Completed,
            Some(Side::Destination) => {
                self.outcome == MigrateOutcome::DestinationDied && self.source_runs_on == Some(true)
            }
            Some(Side::Source) => {
                self.outcome == MigrateOutcome::SourceDied && !self.destination_ran
            }
        }
    }
}
