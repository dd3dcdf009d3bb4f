//! From runs to points: medians, what was predicted, and why not.

use crate::commands::Parameters;
use crate::parameters::Point;
use crate::predict::{predict, remedy, Known};
use crate::side::Side;
use serde::{Deserialize, Serialize};
use vmeter_model::migrate::{
    MigrateOutcome, MigratePoint, MigratePrediction, MigrateResult, MigrateRun, MigrateSetup,
};
use vmeter_model::result::Envelope;
use vmeter_model::Estimate;
use vmeter_stats::{estimate, median};

/// A bandwidth measured below this share of its limit is what counts.
const LIMITED: f64 = 0.9;

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
    pub fn of(parameters: &Parameters) -> Self {
        Self {
            bandwidth: parameters.max_bandwidth as f64,
            downtime_s: parameters.downtime_limit as f64 / 1e3,
        }
    }
}

/// Everything that was measured.
pub fn result(
    envelope: Envelope,
    setup: MigrateSetup,
    points: &[Point],
    runs: Vec<MigrateRun>,
    limits: &[Option<Limits>],
    kill: Option<Side>,
) -> MigrateResult {
    let mut result = MigrateResult {
        envelope,
        setup,
        points: Vec::new(),
        runs: Vec::new(),
        warnings: Vec::new(),
        hints: Vec::new(),
    };
    for (n, settings) in points.iter().enumerate() {
        let of_point = || runs.iter().filter(|run| run.point == n);
        let measured: Vec<&MigrateRun> = match of_point().any(|run| !run.warmup) {
            true => of_point().filter(|run| !run.warmup).collect(),
            false => of_point().collect(),
        };
        if measured.is_empty() {
            continue;
        }
        let limits = limits.get(n).copied().flatten().unwrap_or_default();
        let point = point(settings, &measured, limits, kill);
        warn(&mut result.warnings, settings, &point, &measured);
        result.points.push(point);
    }
    result.runs = runs;
    hint(&mut result, kill);
    result
}

/// Settings are checked before anything runs, so that this default is never seen.
fn known(settings: &Point, runs: &[&MigrateRun], limits: Limits) -> (Known, String) {
    let rates = samples(runs, |run| {
        (run.dirty_pages_per_s_before > 0.0 || settings.knobs.dirty_bytes_per_s == 0.0)
            .then_some(run.dirty_pages_per_s_before)
    });
    let mut workload = settings.knobs.workload().unwrap_or_default();
    workload.dirty_bytes_per_s = median(&rates) * crate::guest::PAGE as f64;
    let seen = samples(runs, |run| {
        let first = run.rounds.first()?;
        (first.length_s > 0.0 && run.rounds.len() > 1)
            .then(|| first.transferred_bytes as f64 / first.length_s)
    });
    let seen = median(&seen);
    let unlimited = limits.bandwidth <= 0.0 || limits.bandwidth > 1e15;
    let (bandwidth, from) = match unlimited || seen > 0.0 && seen < limits.bandwidth * LIMITED {
        false => (limits.bandwidth, "the limit set"),
        true if unlimited => (seen, "measured in the first round, there being no limit"),
        true => (seen, "measured in the first round, below the limit set"),
    };
    let known = Known {
        workload,
        bandwidth,
        limit_s: limits.downtime_s,
        auto_converge: settings.knobs.auto_converge,
        postcopy: settings.knobs.postcopy,
        xbzrle: settings.knobs.xbzrle,
    };
    (known, from.to_owned())
}

fn samples(runs: &[&MigrateRun], value: impl Fn(&MigrateRun) -> Option<f64>) -> Vec<f64> {
    runs.iter().filter_map(|run| value(run)).collect()
}

fn some_estimate(samples: &[f64]) -> Option<Estimate> {
    (!samples.is_empty()).then(|| estimate(samples))
}

fn point(
    settings: &Point,
    runs: &[&MigrateRun],
    limits: Limits,
    kill: Option<Side>,
) -> MigratePoint {
    let (known, bandwidth_from) = known(settings, runs, limits);
    let predicted = predict(&known);
    let outcomes = outcomes(runs);
    let converged = outcomes.iter().all(|(outcome, _)| *outcome == MigrateOutcome::Completed);
    let verifications: Vec<bool> =
        runs.iter().filter_map(|run| Some(run.verification.as_ref()?.equal)).collect();
    let verified = (!verifications.is_empty()).then(|| verifications.iter().all(|equal| *equal));
    let right = (kill.is_none()).then(|| right(runs, predicted.converges)).flatten();
    let total = samples(runs, |run| Some(run.total_s));
    let downtime = samples(runs, |run| run.downtime_s);
    let gap = samples(runs, |run| run.guest_gap_s);
    let some_median = |samples: &[f64]| some_estimate(samples).map(|e| e.median);
    let of = |value: &dyn Fn(&MigrateRun) -> f64| median(&samples(runs, |run| Some(value(run))));
    MigratePoint {
        parameters: settings.parameters.clone(),
        total_s: median(&total),
        downtime_s: some_median(&downtime),
        guest_gap_s: some_median(&gap),
        guest_clock_gap_s: some_median(&samples(runs, |run| run.guest_clock_gap_s)),
        rounds: of(&|run| run.rounds.len() as f64).round() as u64,
        dirty_pages_per_s: of(&|run| run.dirty_pages_per_s),
        transferred_bytes: of(&|run| run.transferred_bytes as f64) as u64,
        bandwidth_bytes_per_s: of(&|run| run.bandwidth_bytes_per_s),
        converged,
        verified,
        reason: reason(runs, &known, &predicted.because),
        prediction: MigratePrediction {
            converges: predicted.converges,
            rounds: predicted.rounds,
            total_s: predicted.total_s,
            downtime_s: predicted.downtime_s,
            dirty_bytes_per_s: known.workload.dirty_bytes_per_s,
            bandwidth_bytes_per_s: known.bandwidth,
            bandwidth_from,
            because: predicted.because,
            right,
        },
        outcomes,
        total: estimate(&total),
        downtime: some_estimate(&downtime),
        guest_gap: some_estimate(&gap),
        workload: known.workload,
    }
}

fn outcomes(runs: &[&MigrateRun]) -> Vec<(MigrateOutcome, usize)> {
    let mut counted: Vec<(MigrateOutcome, usize)> = Vec::new();
    for run in runs {
        match counted.iter_mut().find(|(outcome, _)| *outcome == run.outcome) {
            Some((_, count)) => *count += 1,
            None => counted.push((run.outcome, 1)),
        }
    }
    counted.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counted
}

/// Whether all runs that say did as predicted.
fn right(runs: &[&MigrateRun], converges: bool) -> Option<bool> {
    let says = |run: &&&MigrateRun| {
        matches!(run.outcome, MigrateOutcome::Completed | MigrateOutcome::NotConverged)
    };
    let mut told = runs.iter().filter(says).peekable();
    told.peek()?;
    Some(told.all(|run| (run.outcome == MigrateOutcome::Completed) == converges))
}

/// Why a point does not converge, in numbers, and what would help.
fn reason(runs: &[&MigrateRun], known: &Known, because: &str) -> String {
    let Some(run) = runs.iter().find(|run| run.outcome != MigrateOutcome::Completed) else {
        return runs
            .iter()
            .find(|run| !run.reason.is_empty())
            .map_or_else(String::new, |run| run.reason.clone());
    };
    match run.outcome {
        MigrateOutcome::NotConverged if !predict(known).converges => {
            format!("It does not converge: {because}. {}", remedy(known))
        }
        MigrateOutcome::NotConverged => {
            let left = run.rounds.last().map_or(0, |round| round.pages * crate::guest::PAGE);
            format!(
                "It did not converge though it should have ({because}): {}, {:.0} MB each; {:.0} \
                 MB/s went through. {}",
                run.reason,
                left as f64 / 1e6,
                run.bandwidth_bytes_per_s / 1e6,
                remedy(known)
            )
        }
        _ => run.reason.clone(),
    }
}

fn warn(warnings: &mut Vec<String>, settings: &Point, point: &MigratePoint, runs: &[&MigrateRun]) {
    let label = settings.label();
    if let Some(run) = runs.iter().find(|run| run.verification.as_ref().is_some_and(|v| !v.equal)) {
        let differing = run.verification.as_ref().map_or(0, |v| v.differing_pages);
        let first = run.verification.as_ref().and_then(|v| v.first_difference).unwrap_or(0);
        warnings.push(format!(
            "{label}: the guest's memory differs after migration in {differing} pages, the first at {first:#x}"
        ));
    }
    if point.prediction.right == Some(false) {
        let expected = if point.prediction.converges { "should" } else { "should not" };
        warnings.push(format!(
            "{label}: it {expected} have converged ({}), and did otherwise",
            point.prediction.because
        ));
    }
    let asked = settings.knobs.dirty_bytes_per_s;
    let dirtied = point.prediction.dirty_bytes_per_s;
    if asked > 0.0 && dirtied < asked * LIMITED {
        warnings.push(format!(
            "{label}: the guest dirtied {:.0} MB/s before it was migrated, not the {:.0} asked for: the host is busy or slow",
            dirtied / 1e6,
            asked / 1e6
        ));
    }
}

/// A command that would show the remedy at work.
fn hint(result: &mut MigrateResult, kill: Option<Side>) {
    let lost = |point: &&MigratePoint| {
        point.outcomes.iter().any(|(outcome, _)| *outcome == MigrateOutcome::NotConverged)
    };
    let Some(point) = result.points.iter().find(lost).filter(|_| kill.is_none()) else { return };
    let rate = point.parameters.iter().find(|(name, _)| name == "dirty-rate");
    let rate = rate.map_or("0", |(_, rate)| rate);
    let command =
        format!("vmeter migrate --dirty-rate {rate} -L auto-converge=off,on -L postcopy=off,on");
    result.hints.push(command);
}
