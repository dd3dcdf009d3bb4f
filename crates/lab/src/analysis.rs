//! From saved runs to results. Live and old sessions both come through here.

use crate::figures::{self, Work};
use std::collections::BTreeMap;
use std::path::Path;
use vmeter_model::result::{Activity, AnalysedRun, Phase};
use vmeter_model::run::RunRecord;
use vmeter_model::time::seconds;
use vmeter_model::{Estimate, Timeline};
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
