//! From saved runs to results. Live and old sessions both come through here.

use crate::counting;
use crate::figures::{self, Work};
use anyhow::Result;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use vmeter_model::result::{Activity, AnalysedRun, BootResult, Envelope, Overhead, Phase};
use vmeter_model::run::{Outcome, RunRecord, SessionMachine, WatchLevel};
use vmeter_model::time::seconds;
use vmeter_model::{Estimate, Timeline};
use vmeter_session::envelope::envelope;
use vmeter_session::Session;
use vmeter_stats::estimate;

/// Decodes a run's recordings and accounts for its time.
///
/// A source that cannot be decoded becomes a warning of the timeline.
pub fn analyse_run(dir: &Path, record: RunRecord) -> AnalysedRun {
    let (events, decoding) = vmeter_record::decode::events(dir, &record);
    let mut warnings = record.warnings.clone();
    warnings.extend(decoding);
    let mut timeline = vmeter_timeline::build(&events, &record);
    warnings.append(&mut timeline.warnings);
    timeline.warnings = warnings;
    AnalysedRun { record, timeline }
}

/// The result of a saved `vmeter boot` (of its first machine, runs that were watched).
///
/// # Errors
/// When the session's folder cannot be read or holds no finished run.
pub fn boot_result(session: &Session, overhead: Option<Overhead>) -> Result<BootResult> {
    let (finished, warnings) = session.finished()?;
    let machine = session.record.machines.first().cloned().unwrap_or_default();
    let watched = finished.iter().any(|(_, r)| r.watch != WatchLevel::None);
    let mut own: Vec<(PathBuf, RunRecord)> = finished
        .into_iter()
        .filter(|(_, r)| r.label == machine.label)
        .filter(|(_, r)| !watched || r.watch != WatchLevel::None)
        .collect();
    let counted = own
        .iter()
        .find(|(_, r)| r.warmup && r.watch == WatchLevel::Full)
        .map(|(dir, record)| analyse_run(dir, record.clone()));
    // A machine that fails in its warm-up has no other run to show.
    if own.iter().any(|(_, r)| !r.warmup) {
        own.retain(|(_, r)| !r.warmup);
    }
    let mut runs: Vec<AnalysedRun> =
        own.into_iter().map(|(dir, record)| analyse_run(&dir, record)).collect();
    let counted = counted.filter(|counted| counting::is_separate(counted, &runs));
    if let Some(counted) = &counted {
        runs.iter_mut().for_each(|run| counting::join(&counted.timeline, &mut run.timeline));
    }
    if runs.is_empty() {
        return Err(session.no_runs());
    }
    let mut result = summarise(envelope(&session.record), machine, runs, warnings);
    result.overhead = overhead;
    result.counted_in = counted.map(|run| run.record.index);
    result.saved_in = session.dir.display().to_string();
    Ok(result)
}

/// Summarises analysed runs of one machine.
pub fn summarise(
    envelope: Envelope,
    machine: SessionMachine,
    runs: Vec<AnalysedRun>,
    warnings: Vec<String>,
) -> BootResult {
    let done: Vec<&AnalysedRun> =
        runs.iter().filter(|r| r.record.outcome == Outcome::Done).collect();
    let any_done = !done.is_empty();
    let summarised = if done.is_empty() { runs.iter().collect() } else { done };
    let timelines: Vec<&Timeline> = summarised.iter().map(|r| &r.timeline).collect();
    let totals: Vec<f64> = timelines.iter().map(|t| seconds(t.total)).collect();
    let outliers = vmeter_stats::outliers(&totals)
        .into_iter()
        .filter_map(|i| {
            let index = summarised[i].record.index;
            runs.iter().position(|run| run.record.index == index)
        })
        .collect();
    let phases = phases(&timelines);
    let activities = activities(&timelines);
    let counts = counts(&timelines);
    BootResult {
        envelope,
        machine,
        // The time of a run that failed is no boot time.
        total: any_done.then(|| estimate(&totals)),
        phases,
        activities,
        counts,
        overhead: None,
        outliers,
        counted_in: None,
        warnings,
        hints: Vec::new(),
        saved_in: String::new(),
        runs,
    }
}

/// Phases by name, in the order of [`figures::phase_order`].
pub fn phases(timelines: &[&Timeline]) -> Vec<Phase> {
    let names = timelines.iter().map(|t| t.phases.iter().map(|(name, _)| name.as_str()));
    let order = figures::phase_order(names);
    let whole = timelines.iter().map(|t| seconds(t.total)).sum();
    figures::phases(&order, whole, |phase| {
        let own = |t: &&Timeline| {
            t.phases.iter().filter(|(name, _)| name == phase).map(|(_, ns)| seconds(*ns)).sum()
        };
        timelines.iter().map(own).collect()
    })
}

#[derive(Default)]
struct Samples {
    seconds: Vec<f64>,
    insns: Vec<f64>,
    seen_in: usize,
}

/// Activities of all runs, the longest mean first. A run without one counts as 0.
///
/// An activity is work that someone could do something about: a leaf of the tree, or
/// an initcall, module or step even where its parts are known. Phases and groups are not.
pub fn activities(timelines: &[&Timeline]) -> Vec<Activity> {
    let mut by_name: BTreeMap<(String, String), Samples> = BTreeMap::new();
    let work = Work::of(timelines.iter().copied());
    for (run, timeline) in timelines.iter().enumerate() {
        for (key, (ns, insns)) in vmeter_timeline::activity_times(timeline) {
            if !work.has(&key.1) {
                continue;
            }
            let samples = by_name.entry(key).or_default();
            samples.seconds.resize(run, 0.0);
            samples.seconds.push(seconds(ns));
            samples.insns.extend(insns.map(|n| n as f64));
            samples.seen_in += 1;
        }
    }
    let mut activities: Vec<Activity> = by_name
        .into_iter()
        .map(|((phase, name), mut samples)| {
            samples.seconds.resize(timelines.len(), 0.0);
            Activity {
                name,
                phase,
                estimate: estimate(&samples.seconds),
                insns: (!samples.insns.is_empty()).then(|| estimate(&samples.insns)),
                seen_in: samples.seen_in,
            }
        })
        .collect();
    activities.sort_by(|a, b| b.estimate.mean.total_cmp(&a.estimate.mean));
    activities
}

/// Counts over the runs that have them.
pub fn counts(timelines: &[&Timeline]) -> BTreeMap<String, Estimate> {
    figures::counts(timelines.iter().flat_map(|t| &t.counts).map(|(name, n)| (name, *n as f64)))
}

/// Opens a session and gives its result as `vmeter show` prints it.
///
/// # Errors
/// As [`Session::open`] and [`boot_result`].
pub fn load_boot(session: &Session) -> Result<BootResult> {
    let overhead = crate::boot::overhead::last(session);
    boot_result(session, overhead)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_model::span::UNATTRIBUTED;

    #[test]
    fn an_activity_that_a_run_lacks_counts_as_zero() {
        let with = Timeline { total: 10, phases: vec![("a".into(), 10)], ..Timeline::default() };
        let without = Timeline {
            total: 10,
            phases: vec![("unattributed".into(), 10)],
            ..Timeline::default()
        };
        let phases = phases(&[&with, &without]);
        assert_eq!(phases[0].estimate.mean, 5e-9);
        assert_eq!(phases[1].name, UNATTRIBUTED);
        assert_eq!(phases[0].share + phases[1].share, 1.0);
    }
}
