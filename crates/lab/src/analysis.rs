//! From saved runs to results. Live and old sessions both come through here.

use crate::figures::{self, ActivityKey};
use std::collections::BTreeMap;
use std::path::Path;
use vmeter_model::result::{Activity, AnalysedRun, Phase};
use vmeter_model::run::RunRecord;
use vmeter_model::time::seconds;
use vmeter_model::{Estimate, Identity, Kind, Timeline};
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

/// What is said of an activity's name where it is a phase or a group: the time in which none
/// of its parts was seen.
const BETWEEN: &str = ": between its parts";

#[derive(Default)]
struct Samples {
    /// In the tree, in no part of another name, CPU time, beside the tree: s, by run.
    seconds: [Vec<f64>; 4],
    insns: Vec<f64>,
    has_cpu: bool,
    is_beside: bool,
    seen_in: usize,
}

impl Samples {
    fn add(&mut self, run: usize, seconds: [f64; 4]) {
        let before = self.seconds[0].len();
        self.seen_in += usize::from(before <= run);
        for (all, value) in self.seconds.iter_mut().zip(seconds) {
            all.resize(all.len().max(run + 1), 0.0);
            all[run] += value;
        }
    }

    fn activity(mut self, key: ActivityKey, runs: usize) -> Activity {
        self.seconds.iter_mut().for_each(|samples| samples.resize(runs, 0.0));
        let [whole, own, cpu, beside] = &self.seconds;
        Activity {
            phase: key.0,
            name: key.1,
            estimate: estimate(whole),
            own: estimate(own),
            cpu: self.has_cpu.then(|| estimate(cpu)),
            beside: self.is_beside.then(|| estimate(beside)),
            insns: (!self.insns.is_empty()).then(|| estimate(&figures::observations(self.insns))),
            seen_in: self.seen_in,
        }
    }
}

/// Activities of all runs, the longest mean first. A run without one counts as 0.
///
/// An activity is work that someone could do something about: a leaf of the tree, or a
/// unit, program, initcall, module or step even where its parts are known, or what went on
/// beside the tree. Of phases and groups there is only what lies between their parts.
pub fn activities(timelines: &[&Timeline]) -> Vec<Activity> {
    let mut by_name: BTreeMap<ActivityKey, Samples> = BTreeMap::new();
    for (run, timeline) in timelines.iter().enumerate() {
        of_tree(timeline, run, &mut by_name);
        of_beside(timeline, run, &mut by_name);
    }
    let all = by_name.into_iter();
    let mut activities: Vec<Activity> =
        all.map(|(key, samples)| samples.activity(key, timelines.len())).collect();
    let beside = |a: &Activity| a.beside.as_ref().map_or(0.0, |beside| beside.mean);
    activities.sort_by(|a, b| {
        let by_wait = b.estimate.mean.total_cmp(&a.estimate.mean);
        // Of two as long as each other the one that holds the other.
        let by_own = by_wait.then_with(|| a.own.mean.total_cmp(&b.own.mean));
        by_own.then_with(|| beside(b).total_cmp(&beside(a)))
    });
    activities
}

fn of_tree(timeline: &Timeline, run: usize, by_name: &mut BTreeMap<ActivityKey, Samples>) {
    let phase = vmeter_timeline::phases_of(timeline);
    let in_phase = |id: u32| phase.get(&id).copied().unwrap_or_default().to_owned();
    let mut own: BTreeMap<ActivityKey, f64> = BTreeMap::new();
    for leaf in timeline.leaves() {
        *own.entry((in_phase(leaf.id), leaf.name.clone())).or_default() += seconds(leaf.len());
    }
    let mut cpu: BTreeMap<ActivityKey, f64> = BTreeMap::new();
    for span in &timeline.spans {
        let Some(ns) = span.cpu else { continue };
        *cpu.entry((in_phase(span.id), span.name.clone())).or_default() += seconds(ns);
    }
    for (key, (ns, insns)) in vmeter_timeline::activity_times(timeline) {
        let (whole, own) = (seconds(ns), own.get(&key).copied().unwrap_or(0.0));
        let grouped = is_group(&key) && own < whole;
        if own == 0.0 && (grouped || !is_whole(&key.1)) {
            continue;
        }
        let had = cpu.get(&key).copied();
        let (key, whole) = if grouped { ((key.0, key.1 + BETWEEN), own) } else { (key, whole) };
        let samples = by_name.entry(key).or_default();
        samples.add(run, [whole, own, had.unwrap_or(0.0), 0.0]);
        samples.has_cpu |= had.is_some();
        samples.insns.extend(insns.filter(|_| !grouped).map(|n| n as f64));
    }
}

/// What overlaps the tree, under the phase in which it began.
fn of_beside(timeline: &Timeline, run: usize, by_name: &mut BTreeMap<ActivityKey, Samples>) {
    let tops = || timeline.spans.iter().filter(|span| span.parent.is_none());
    for span in &timeline.overlapping {
        let within = tops().find(|top| top.start <= span.start && span.start < top.end);
        let key = (within.map_or_else(String::new, |top| top.name.clone()), span.name.clone());
        let samples = by_name.entry(key).or_default();
        let cpu = span.cpu.map_or(0.0, seconds);
        samples.add(run, [0.0, 0.0, cpu, seconds(span.len())]);
        samples.has_cpu |= span.cpu.is_some();
        samples.is_beside = true;
    }
}

/// True for what is a frame around its parts: a phase, a group of initcalls or units, a stretch of
/// an initrd between two of its lines.
fn is_group((phase, name): &ActivityKey) -> bool {
    let of = Identity::of(name);
    phase == name
        || matches!(of.kind, Kind::Initcalls | Kind::Initrd | Kind::Userspace)
        || matches!(
            (of.kind, of.name),
            (Kind::Kernel, "initcalls") | (Kind::Systemd, "units" | "start-jobs")
        )
}

/// True for what is work of its own even where all of its parts have names.
fn is_whole(name: &str) -> bool {
    let of = Identity::of(name);
    of.is_call() || matches!(of.kind, Kind::Unit | Kind::Program)
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
