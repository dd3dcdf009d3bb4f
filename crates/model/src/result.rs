//! Results as every output shows them. One model; the outputs only print it.

use crate::end::{Cause, End};
use crate::estimate::Estimate;
use crate::run::{Outcome, RunRecord, SessionMachine};
use crate::span::Timeline;
use crate::verdict::Verdict;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub use vmeter_base::Envelope;

/// One analysed run.
#[derive(Debug, Clone, PartialEq)]
pub struct AnalysedRun {
    /// As recorded.
    pub record: RunRecord,
    /// As understood.
    pub timeline: Timeline,
}

/// A phase over all runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Phase {
    /// Name.
    pub name: String,
    /// Its length over the runs, s.
    pub estimate: Estimate,
    /// Its share of the mean total, 0 to 1.
    pub share: f64,
}

/// An activity (a span that is work of its own, by name) over all runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Activity {
    /// Name, e.g. `initcall acpi_init`.
    pub name: String,
    /// Phase it is in.
    pub phase: String,
    /// How long the end of the boot waited for it: its length in the tree, s; a run without
    /// it counts as 0.
    pub estimate: Estimate,
    /// Of that, s, what is in none of its parts that have names of their own. Over all
    /// activities, this adds up to the total.
    pub own: Estimate,
    /// CPU time that it had, s, where the guest says so.
    pub cpu: Option<Estimate>,
    /// How long it went on beside the tree, s, where nothing waited for it; if it did.
    pub beside: Option<Estimate>,
    /// Guest instructions, where counted.
    pub insns: Option<Estimate>,
    /// Runs it appears in.
    pub seen_in: usize,
}

/// The measured cost of watching.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Overhead {
    /// Which watch level was compared with none.
    pub watch: crate::run::WatchLevel,
    /// Watched over unwatched wall time; samples are per pair. `mean` is the Hodges-Lehmann
    /// centre, `ci95` an interval that holds however early the pairs ended.
    pub ratio: Estimate,
    /// Whether it is within the bound that is promised; none in older measurements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<crate::OverheadVerdict>,
    /// That bound, %.
    #[serde(default)]
    pub bound_pct: f64,
    /// The same for CPU time (user + system).
    pub cpu_ratio: Estimate,
    /// Number of pairs.
    pub pairs: usize,
    /// When it was measured, RFC 3339.
    pub measured_at: String,
    /// Raw wall times, s: (watched, unwatched) per pair.
    pub samples_s: Vec<(f64, f64)>,
    /// Wall time of boots that count instructions over unwatched ones, where the boots
    /// that are timed are others (`full` under TCG).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counting_ratio: Option<Estimate>,
}

/// Result of `vmeter boot`.
#[derive(Debug, Clone, PartialEq)]
pub struct BootResult {
    /// Head.
    pub envelope: Envelope,
    /// The machine.
    pub machine: SessionMachine,
    /// Measured runs, without warm-ups.
    pub runs: Vec<AnalysedRun>,
    /// Total, s, over runs that reached the end.
    pub total: Option<Estimate>,
    /// Phases in order of time, `unattributed` always last.
    pub phases: Vec<Phase>,
    /// Longest activities first.
    pub activities: Vec<Activity>,
    /// Counts over the runs.
    pub counts: BTreeMap<String, Estimate>,
    /// The cost of watching: measured now, or the last measured for this watch level.
    pub overhead: Option<Overhead>,
    /// Positions in `runs` whose total is an outlier (kept all the same).
    pub outliers: Vec<usize>,
    /// Number of the boot that instruction counts come from, where it is none of `runs`.
    pub counted_in: Option<u32>,
    /// Against the machine of a baseline that was booted beside it.
    pub comparison: Option<Comparison>,
    /// Why there is none, although one was booted.
    pub not_compared: Option<String>,
    /// What is found, in words.
    pub said: Vec<String>,
    /// Warnings in words.
    pub warnings: Vec<String>,
    /// What to try next: exact commands.
    pub hints: Vec<String>,
    /// Folder of the session.
    pub saved_in: String,
}

/// One machine of a bench.
#[derive(Debug, Clone, PartialEq)]
pub struct BenchMachine {
    /// Label.
    pub label: String,
    /// Wall times, s, in the order they were run.
    pub samples_s: Vec<f64>,
    /// CPU times (user + system), s.
    pub cpu_samples_s: Vec<f64>,
    /// Wall time.
    pub estimate: Estimate,
    /// CPU time.
    pub cpu: Estimate,
    /// Peak RSS of the VMM, bytes.
    pub max_rss_bytes: u64,
    /// Runs that did not end as they should.
    pub failures: Vec<FailedRun>,
    /// What ended the others, where all agree; an exit, if of one no more is known.
    pub end: Option<Cause>,
    /// Indices of outlying samples (kept).
    pub outliers: Vec<usize>,
    /// What was chosen for it.
    pub machine: SessionMachine,
}

/// A is compared with b.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// Label of the first machine (the baseline).
    pub a: String,
    /// Label of the other.
    pub b: String,
    /// b over a, wall time, block by block: `mean` is the Hodges-Lehmann centre of the ratios,
    /// `ci95` its signed-rank interval, at which all comparisons together are right in `sure_pct`.
    pub ratio: Estimate,
    /// How often the intervals of all comparisons together hold, %: 95, or more where there are several
    /// looks at the runs and this one has a part of the 5 % only.
    pub sure_pct: f64,
    /// The ratio of the means, with the interval by which they can be called equal.
    pub mean_ratio: Estimate,
    /// The wider interval by which the mean alone makes b slower or faster; none where it does not.
    pub mean_alone: Option<[f64; 2]>,
    /// What a few slow runs add, in words, if they do.
    pub tail: Option<String>,
    /// As `ratio`, for CPU time.
    pub cpu_ratio: Estimate,
    /// Two-sided, adjusted for the number of comparisons: the smaller one of the typical run's and the mean's.
    pub p_value: f64,
    /// What is said of b.
    pub verdict: Verdict,
    /// The difference, %, that as many pairs with this noise find in 80 % of cases; none where
    /// so few find nothing.
    pub detectable_pct: Option<f64>,
    /// What counts as equal, %.
    pub margin_pct: f64,
    /// Pairs that were compared.
    pub pairs: usize,
    /// Pairs below which nothing can be decided.
    pub pairs_needed: usize,
    /// True in virtual time, where there is no noise to test against.
    pub exact: bool,
}

/// Two machines whose times are not compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotCompared {
    /// Label of the first machine (the baseline).
    pub a: String,
    /// Label of the other.
    pub b: String,
    /// Why, in words.
    pub why: String,
}

/// A measured run that did not end as it should.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedRun {
    /// Its number.
    pub run: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// What ended it, by evidence, if it is known.
    pub end: Option<End>,
}

/// Result of `vmeter bench`.
#[derive(Debug, Clone, PartialEq)]
pub struct BenchResult {
    /// Head.
    pub envelope: Envelope,
    /// Machines, the baseline first.
    pub machines: Vec<BenchMachine>,
    /// Each other machine against the baseline.
    pub comparisons: Vec<Comparison>,
    /// Machines that are not compared with the baseline.
    pub not_compared: Vec<NotCompared>,
    /// What is found, in words.
    pub said: Vec<String>,
    /// Warnings in words.
    pub warnings: Vec<String>,
    /// What to try next.
    pub hints: Vec<String>,
    /// Folder of the session.
    pub saved_in: String,
}

vmeter_base::words! {
    /// How a check of `vmeter doctor` came out.
    pub enum CheckStatus {
        /// All is well.
        Good = "good",
        /// It works, less well than it could.
        Poor = "poor",
        /// Something cannot be measured.
        Missing = "missing",
    }
}

vmeter_base::words! {
    /// What `vmeter doctor` looks at, in reading order.
    pub enum CheckName {
        /// Whether guests run natively.
        Kvm = "/dev/kvm",
        /// The VMM.
        Qemu = "QEMU",
        /// Its firmware.
        Firmware = "firmware",
        /// Those that are cached.
        Kernels = "kernels",
        /// The VMM's own moments, and the guest's RAM at its end.
        Ptrace = "ptrace of children",
        /// KVM's tracepoints.
        Tracefs = "tracefs",
        /// Functions of programs.
        Uprobes = "uprobes",
        /// How the time is read.
        Clock = "clock source",
        /// Whether it changes.
        Frequency = "CPU frequency",
        /// Time that other guests took.
        Steal = "steal",
        /// Whether boots alternate.
        Freed = "freed memory",
        /// How far the wall clock can be believed.
        Noise = "noise",
        /// What vmeters that were killed have left.
        Leavings = "leavings",
    }
}

impl CheckName {
    /// True for what no boot can do without.
    pub fn is_needed(self) -> bool {
        matches!(self, Self::Qemu | Self::Firmware | Self::Kernels)
    }
}

/// One thing that `vmeter doctor` looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// What.
    pub name: CheckName,
    /// How it came out.
    pub status: CheckStatus,
    /// What was found.
    pub found: String,
    /// What it means, or the exact command that mends it; empty if all is well.
    pub mend: String,
    /// More, for `-v`.
    pub detail: String,
}

/// Result of `vmeter doctor`.
#[derive(Debug, Clone, PartialEq)]
pub struct DoctorResult {
    /// Head.
    pub envelope: Envelope,
    /// Checks in reading order.
    pub checks: Vec<Check>,
}
