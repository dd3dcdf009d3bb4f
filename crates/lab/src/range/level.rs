//! The levels of a range: what each commit's runs come to, and where that changes.

use super::added::Part;
use super::samples::Sample;
use std::collections::BTreeMap;
use vmeter_model::range::{Change, MeasuredCommit};
use vmeter_model::{ChangeShape, Estimate, Verdict};
use vmeter_stats::hosts::without_blocks;
use vmeter_stats::rare::SlowRuns;
use vmeter_stats::segments::{level_changes_of_runs, LevelChange, Run};
use vmeter_stats::signed_rank::pseudo_median;
use vmeter_stats::{cut, mean, ratio_of_means};

/// Chance of any change of level in a range in which nothing changed.
pub(super) const ALPHA: f64 = 0.04;

/// A measured commit.
pub(super) struct Level<'c> {
    pub commit: &'c MeasuredCommit,
    /// Times by block, s.
    pub by_block: BTreeMap<usize, f64>,
    /// Centres of the logarithms of each build's.
    pub builds: Vec<f64>,
    /// The logarithms without what blocks add, with the block of each.
    pub runs: Vec<Run>,
    /// The same without blocks, the far ones cut, and their centre.
    pub logs: Vec<f64>,
    pub centre: f64,
}

/// The levels of these commits, by the runs of the parts that count.
pub(super) fn levels<'c>(
    commits: &'c [MeasuredCommit],
    samples: &[Sample],
    counts: impl Fn(Part) -> bool,
) -> Vec<Level<'c>> {
    let samples: Vec<Sample> = samples.iter().filter(|s| counts(s.part)).copied().collect();
    let logs = without_blocks(&samples.iter().map(|s| s.of).collect::<Vec<_>>());
    let own = |commit: &MeasuredCommit| {
        let is_own = |(s, y): &(&Sample, &f64)| s.of.group == commit.index && y.is_finite();
        let own = samples.iter().zip(&logs).filter(is_own);
        own.map(|(s, y)| (*s, *y)).collect::<Vec<_>>()
    };
    let measured = commits.iter().map(|commit| (commit, own(commit)));
    let measured: Vec<_> =
        measured.filter(|(c, own)| !c.samples_s.is_empty() && !own.is_empty()).collect();
    let times = |(_, own): &(_, Vec<(Sample, f64)>)| own.iter().map(|(_, y)| *y).collect();
    let calm = cut(&measured.iter().map(times).collect::<Vec<Vec<f64>>>());
    let level = |commit: &'c MeasuredCommit, own: Vec<(Sample, f64)>, logs: Vec<f64>| {
        let mut of_builds: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for ((s, _), y) in own.iter().zip(&logs) {
            of_builds.entry(s.build).or_default().push(*y);
        }
        Level {
            commit,
            by_block: own.iter().map(|(s, _)| (s.of.host, s.of.value)).collect(),
            builds: of_builds.values().map(|logs| pseudo_median(logs)).collect(),
            runs: own.iter().map(|(s, y)| (s.of.host, *y)).collect(),
            centre: pseudo_median(&logs),
            logs,
        }
    };
    measured.into_iter().zip(calm).map(|((commit, own), logs)| level(commit, own, logs)).collect()
}

/// Where the level changes. That slow boots became more frequent moves it as well, if by little: where it moves no
/// more once they are left out, it is no change of the typical boot.
pub(super) fn steps(levels: &[Level<'_>], seed: u64) -> Vec<LevelChange> {
    let runs: Vec<Vec<Run>> = levels.iter().map(|l| l.runs.clone()).collect();
    let found = level_changes_of_runs(&runs, ALPHA, seed);
    let at: Vec<usize> = found.iter().map(|step| step.at).collect();
    match SlowRuns::of(&runs, &at).filter(|_| !found.is_empty()) {
        Some(slow) => level_changes_of_runs(&slow.left_out(&runs), ALPHA, seed),
        None => found,
    }
}

pub(super) fn times_of(side: &[Level<'_>]) -> Vec<f64> {
    side.iter().flat_map(|l| l.by_block.values().copied()).collect()
}

pub(super) fn change(
    before: &[Level<'_>],
    after: &[Level<'_>],
    ratio: Option<Estimate>,
    p_value: f64,
) -> Option<Change> {
    let (last, first) = (before.last()?.commit.index, after.first()?.commit.index);
    let (a, b) = (times_of(before), times_of(after));
    let ratio = ratio.or_else(|| ratio_of_means(&a, &b))?;
    let jump_s = mean(&a) * (ratio.mean - 1.0);
    let verdict = if ratio.mean > 1.0 { Verdict::Slower } else { Verdict::Faster };
    Some(Change {
        shape: ChangeShape::Step,
        commits: (last + 1..=first).collect(),
        before: last,
        verdict,
        ratio: Some(ratio),
        jump_s,
        p_value: Some(p_value),
        probability: None,
        sizing: None,
        mean: None,
        place: None,
        slow: None,
    })
}
