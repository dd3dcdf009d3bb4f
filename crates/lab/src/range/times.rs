//! The times of a range's runs, and the commits that they are of.

use super::builds::{Build, Builds};
use super::template;
use crate::analysis;
use crate::ends::{Ends, TO_LEARN_IT};
use crate::figures::Figures;
use crate::host_factors::{Factors, Timed};
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use vmeter_model::range::{BuildRecord, MeasuredCommit, Metric, RangeRecord};
use vmeter_model::run::{Outcome, RunRecord};
use vmeter_model::time::seconds;
use vmeter_model::CommitState;
use vmeter_session::{SavedRun, Session};
use vmeter_stats::estimate;

/// True for a run of which only the exit of its VMM is known: it says nothing of its commit.
/// A command of `--run` is no VMM, and its exit is its end.
pub(super) fn is_blind(record: &RangeRecord, run: &RunRecord) -> bool {
    record.run.is_none() && Ends::of_records(std::iter::once(run)).is_unknown()
}

/// What a run says of its commit, s; none if it failed, or if nothing says how its guest ended.
/// Virtual time where that is counted.
pub(super) fn sample(record: &RangeRecord, dir: &Path, run: &RunRecord) -> Option<f64> {
    if run.outcome != Outcome::Done || is_blind(record, run) {
        return None;
    }
    let value = match record.metric {
        Metric::Cpu => run.usage.cpu_s(),
        Metric::Wall if run.icount => {
            Figures::of(&analysis::analyse_run(dir, run.clone())).run.total_s
        }
        Metric::Wall => seconds(run.total_ns),
    };
    (value > 0.0).then_some(value)
}

/// The times of all measured runs, each divided by its host's factor where several hosts
/// carried them out.
pub(super) fn times(
    record: &RangeRecord,
    session: &Session,
    finished: &[SavedRun],
) -> (BTreeMap<u32, f64>, Factors) {
    let machine = |label: &str| session.record.machines.iter().position(|m| m.label == label);
    let timed = finished.iter().filter(|(_, run)| !run.warmup).filter_map(|(dir, run)| {
        Some((run.index, machine(&run.label)?, sample(record, dir, run)?))
    });
    let timed: Vec<Timed> = timed.collect();
    let in_time: BTreeSet<u32> =
        finished.iter().filter(|(_, run)| !run.icount).map(|(_, run)| run.index).collect();
    let counted = |run: &u32| in_time.contains(run);
    let real: Vec<Timed> = timed.iter().filter(|(run, ..)| counted(run)).copied().collect();
    let all = finished.iter().map(|(_, run)| run.index).collect();
    let factors = Factors::of(&session.record, &all, &real, "commits");
    let factor = |run: &u32| factors.of_run(*run).filter(|_| counted(run)).map_or(1.0, |f| f.1);
    let times = timed.iter().map(|(run, _, value)| (*run, value / factor(run))).collect();
    (times, factors)
}

/// The times of all measured runs, and the commits that they are of.
pub(super) fn timed(
    record: &RangeRecord,
    session: &Session,
    finished: &[SavedRun],
) -> Result<(BTreeMap<u32, f64>, Vec<MeasuredCommit>)> {
    let (times, _) = times(record, session, finished);
    let (commits, _) = commits(record, session, finished, &times)?;
    Ok((times, commits))
}

/// What was built.
pub(super) struct Built {
    pub builds: usize,
    /// Commits of which a further build made the same files as the first.
    pub repeated: usize,
}

/// Each commit with its samples, and what was built.
pub(super) fn commits(
    record: &RangeRecord,
    session: &Session,
    finished: &[SavedRun],
    times: &BTreeMap<u32, f64>,
) -> Result<(Vec<MeasuredCommit>, Built)> {
    let references = template::references(&record.machine)?;
    let builds = Builds::new(record, &session.dir, references);
    let (mut built, mut repeated) = (0, 0);
    let commits = record.commits.iter().enumerate().map(|(index, commit)| {
        let is_own = |label: &str| record.of_label(label).is_some_and(|(at, _)| at == index);
        let own = || finished.iter().filter(|(_, run)| is_own(&run.label));
        let samples_s: Vec<f64> =
            own().filter_map(|(_, run)| times.get(&run.index).copied()).collect();
        let numbers = 1..=record.builds.max(1);
        let done: Vec<BuildRecord> =
            numbers.filter_map(|number| builds.done(Build { commit, number })).collect();
        built += done.len();
        repeated += usize::from(done.iter().any(|b| b.repeats));
        let build_failed = done.into_iter().find_map(|b| b.failure);
        let failed = own().find_map(|(_, run)| crate::boots::fatal_reason(run));
        let blind = own().any(|(_, run)| is_blind(record, run));
        let (state, failure) = match (build_failed, failed) {
            (Some(why), _) => (CommitState::BuildFailed, Some(why)),
            (None, Some(why)) => (CommitState::DoesNotRun, Some(why)),
            (None, None) if blind => (CommitState::NotCompared, Some(blindness())),
            (None, None) if samples_s.is_empty() => (CommitState::NotMeasured, None),
            (None, None) => (CommitState::Measured, None),
        };
        MeasuredCommit {
            index,
            hash: commit.hash.clone(),
            subject: commit.subject.clone(),
            state,
            failure,
            estimate: (!samples_s.is_empty()).then(|| estimate(&samples_s)),
            samples_s,
            probability: None,
        }
    });
    let commits = commits.collect();
    Ok((commits, Built { builds: built, repeated }))
}

/// Why a commit that runs is not compared.
pub(super) fn blindness() -> String {
    format!("vmeter does not know how this commit's guest ended, {TO_LEARN_IT}")
}
