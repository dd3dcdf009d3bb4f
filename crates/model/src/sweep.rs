//! Results of `vmeter sweep` and `vmeter diff`.

use crate::end::End;
use crate::estimate::Estimate;
use crate::result::{Comparison, Envelope, Phase};
use crate::run::{Outcome, SessionMachine};
use crate::shard::HostEffect;
use crate::verdict::DiffVerdict;
use std::collections::BTreeMap;

/// Names with values, in the order in which they were given.
pub type Settings = Vec<(String, String)>;

/// What a sweep varies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SweptParameter {
    /// Option or placeholder, e.g. `pcie-root-ports`.
    pub name: String,
    /// Its values in the order of the sweep.
    pub values: Vec<String>,
    /// True if all values are numbers, so that there is a slope.
    pub numeric: bool,
}

/// Figures of one run of a point.
#[derive(Debug, Clone, PartialEq)]
pub struct SweptRun {
    /// Number of the run in its session.
    pub index: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// What ended it, by evidence, if it is known.
    pub end: Option<End>,
    /// Length, s; of an icount run the guest's virtual time.
    pub total_s: f64,
    /// CPU time of the VMM (user + system), s.
    pub cpu_s: f64,
    /// Phases, s.
    pub phases: Vec<(String, f64)>,
    /// Counts.
    pub counts: BTreeMap<String, f64>,
    /// What was missing or not understood, in words.
    pub warnings: Vec<String>,
    /// Where several hosts had a part: the one it ran on, and the factor that its times
    /// were divided by.
    pub host: Option<(String, f64)>,
}

/// One point of a sweep, over its runs that reached their end.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepPoint {
    /// Label, e.g. `pcie-root-ports=3`.
    pub label: String,
    /// Value of each parameter.
    pub parameters: Settings,
    /// What was booted.
    pub machine: SessionMachine,
    /// Measured runs in their order, failed ones too.
    pub runs: Vec<SweptRun>,
    /// Total, s; none if no run reached its end.
    pub total: Option<Estimate>,
    /// Phases in the order of the whole sweep, a phase that the point lacks as 0.
    pub phases: Vec<Phase>,
    /// Counts.
    pub counts: BTreeMap<String, Estimate>,
}

/// What grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Series {
    /// The whole boot, s.
    Total,
    /// A phase, s.
    Phase,
    /// An activity (initcall, step, leaf span), s.
    Activity,
    /// An activity, guest instructions.
    Insns,
    /// A count.
    Count,
}

/// A jump beyond the common trend.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SweepBreak {
    /// Parameter values before and after.
    pub between: [f64; 2],
    /// What the step costs beyond the trend, in the series' unit.
    pub jump: f64,
    /// Adjusted for all steps of all series of its kind.
    pub p_value: f64,
}

/// How a series grows with a parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct Scaling {
    /// What kind of series.
    pub series: Series,
    /// Phase, activity or count; `TOTAL` for the whole boot.
    pub name: String,
    /// The phase that an activity is in.
    pub phase: Option<String>,
    /// The parameter.
    pub parameter: String,
    /// Values of the other parameters; empty if there is no other.
    pub at: Settings,
    /// Cost per unit of the parameter (least squares), in the series' unit.
    pub slope: f64,
    /// Its 95 % interval.
    pub slope_ci95: [f64; 2],
    /// Against a slope of 0; adjusted for all series of the kind.
    pub p_value: f64,
    /// The rise per unit, where every run of a point agrees and every step rises by the same.
    pub exact_step: Option<f64>,
    /// The rise per unit of more than half of the steps, where every run of a point agrees.
    pub usual_step: Option<f64>,
    /// Jumps beyond the trend.
    pub breaks: Vec<SweepBreak>,
    /// Of the whole boot, where no jump was found: the jump at any one step that is found in four of five such
    /// sweeps, s.
    pub detectable_jump: Option<f64>,
}

/// What one step of a parameter adds to the whole boot and to the counts.
#[derive(Debug, Clone, PartialEq)]
pub struct MarginalStep {
    /// The parameter.
    pub parameter: String,
    /// Values of the other parameters.
    pub at: Settings,
    /// Parameter values before and after.
    pub between: [f64; 2],
    /// Labels of the two points.
    pub labels: [String; 2],
    /// What it adds to the total, s.
    pub total_s: f64,
    /// Its 95 % interval; none where both points have one run.
    pub total_ci95: Option<[f64; 2]>,
    /// What it adds to each count (difference of means).
    pub counts: BTreeMap<String, f64>,
}

/// Why a step jumps: its two points compared.
#[derive(Debug, Clone, PartialEq)]
pub struct ExplainedBreak {
    /// The parameter.
    pub parameter: String,
    /// Parameter values before and after.
    pub between: [f64; 2],
    /// The comparison.
    pub diff: DiffResult,
}

/// Result of `vmeter sweep`.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepResult {
    /// Head.
    pub envelope: Envelope,
    /// What was varied.
    pub parameters: Vec<SweptParameter>,
    /// Points in the order of the sweep.
    pub points: Vec<SweepPoint>,
    /// Slopes and breaks; of activities only those that grow.
    pub scaling: Vec<Scaling>,
    /// Each step's cost.
    pub steps: Vec<MarginalStep>,
    /// Each other point against the first.
    pub comparisons: Vec<Comparison>,
    /// The breaks, explained.
    pub explained: Vec<ExplainedBreak>,
    /// The hosts, where several had a part in it: times are divided by their factors.
    pub hosts: Vec<HostEffect>,
    /// Warnings in words.
    pub warnings: Vec<String>,
    /// What to try next.
    pub hints: Vec<String>,
    /// Folder of the session.
    pub saved_in: String,
}

/// One side of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct DiffSide {
    /// As the user named it.
    pub name: String,
    /// Label of the machine in its session.
    pub label: String,
    /// Its runs that are compared, by number.
    pub runs: Vec<u32>,
    /// Their totals, s.
    pub samples_s: Vec<f64>,
    /// True if all of its measured runs reached their end.
    pub reached: bool,
    /// Total, s.
    pub total: Option<Estimate>,
    /// True if its guest's time is virtual.
    pub icount: bool,
    /// When its session began, RFC 3339.
    pub started_at: String,
}

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiffKind {
    /// The whole boot, s.
    Total,
    /// A phase, s.
    Phase,
    /// A moment that the user named, s after the exec.
    Mark,
    /// An activity, s.
    Activity,
    /// An activity's guest instructions.
    Insns,
    /// A count.
    Count,
    /// A kind of line, occurrences in a run.
    Line,
}

/// Which side has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Both.
    Both,
    /// Only b: it was not there before.
    New,
    /// Only a: it is gone.
    Gone,
}

/// One thing compared.
#[derive(Debug, Clone, PartialEq)]
pub struct DiffRow {
    /// What kind of thing.
    pub kind: DiffKind,
    /// Its name; of a line its text with `#` for numbers.
    pub name: String,
    /// Phase of an activity; where a line is from (`kernel`, `console`, `firmware`).
    pub place: Option<String>,
    /// In a, over the runs; in a run without it 0.
    pub a: Estimate,
    /// In b.
    pub b: Estimate,
    /// Mean of b minus mean of a.
    pub difference: f64,
    /// Its 95 % interval; none where it can't be told or there is no noise.
    pub difference_ci95: Option<[f64; 2]>,
    /// Runs of a and of b that have it.
    pub seen_in: [usize; 2],
    /// Which side has it at all.
    pub presence: Presence,
    /// Adjusted for everything compared; none for what was not tested.
    pub p_value: Option<f64>,
    /// The same of its times at the speed of their runs, which a slower host does not touch; of
    /// parts of a boot, where that speed can be told.
    pub p_value_levelled: Option<f64>,
    /// True if it differs beyond noise, and beyond what the rest of the boot does.
    pub significant: bool,
}

/// A setting or version in which the two sides differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiffSetting {
    /// What.
    pub name: String,
    /// In a; empty if it has none.
    pub a: String,
    /// In b.
    pub b: String,
}

/// Result of `vmeter diff`.
#[derive(Debug, Clone, PartialEq)]
pub struct DiffResult {
    /// Head.
    pub envelope: Envelope,
    /// The side before.
    pub a: DiffSide,
    /// The side after.
    pub b: DiffSide,
    /// What is said of b.
    pub verdict: DiffVerdict,
    /// b over a, total.
    pub ratio: Option<Estimate>,
    /// True if both sides are without noise, so that every difference is one.
    pub exact: bool,
    /// Times and counts: the total, then what differs, the largest first.
    pub rows: Vec<DiffRow>,
    /// Lines that differ.
    pub lines: Vec<DiffRow>,
    /// Settings and versions that differ.
    pub settings: Vec<DiffSetting>,
    /// How many comparisons the p-values are adjusted for.
    pub tests: usize,
    /// Warnings in words.
    pub warnings: Vec<String>,
    /// What to try next.
    pub hints: Vec<String>,
}
