//! A run in numbers: what is left of a timeline once many runs are compared.

use std::collections::{BTreeMap, HashSet};
use vmeter_model::result::{AnalysedRun, Phase};
use vmeter_model::run::Outcome;
use vmeter_model::span::UNATTRIBUTED;
use vmeter_model::sweep::SweptRun;
use vmeter_model::time::seconds;
use vmeter_model::{Estimate, Identity, Timeline};
use vmeter_stats::estimate;

/// Count that only some watch levels take for the whole boot.
pub const INSNS: &str = "guest_insns";

/// (phase, name) of an activity.
pub type ActivityKey = (String, String);

/// Names of activities that are work which someone could do something about: leaves of a
/// tree, and initcalls, modules and steps even where their parts are known. Phases and groups
/// are not.
pub(crate) struct Work<'t> {
    leaves: HashSet<&'t str>,
}

impl<'t> Work<'t> {
    /// The work in any of these runs.
    pub(crate) fn of(timelines: impl IntoIterator<Item = &'t Timeline>) -> Self {
        let leaves = timelines.into_iter().flat_map(|t| t.leaves());
        Work { leaves: leaves.map(|span| span.name.as_str()).collect() }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.leaves.contains(name) || Identity::of(name).is_call()
    }
}

/// Names of phases over many runs: the order of the first run, in which a later run's own
/// phases stand after the one they followed there; `unattributed` last.
pub(crate) fn phase_order<'r, R>(runs: impl IntoIterator<Item = R>) -> Vec<String>
where
    R: IntoIterator<Item = &'r str>,
{
    let mut names: Vec<String> = Vec::new();
    for run in runs {
        let mut after = 0;
        for name in run.into_iter().filter(|name| *name != UNATTRIBUTED) {
            match names.iter().position(|n| n == name) {
                Some(at) => after = after.max(at + 1),
                None => {
                    names.insert(after, name.to_owned());
                    after += 1;
                }
            }
        }
    }
    names.push(UNATTRIBUTED.to_owned());
    names
}

/// Estimates of phases, s: `samples` gives a phase's in each run, of which the totals add up
/// to `whole`.
pub(crate) fn phases(
    names: &[String],
    whole: f64,
    samples: impl Fn(&str) -> Vec<f64>,
) -> Vec<Phase> {
    let phase = |name: &String| {
        let samples = samples(name);
        let share = if whole > 0.0 { samples.iter().sum::<f64>() / whole } else { 0.0 };
        Phase { name: name.clone(), estimate: estimate(&samples), share }
    };
    names.iter().map(phase).collect()
}

/// Estimates of counts, each over the runs that have it.
pub(crate) fn counts<'r>(
    counted: impl IntoIterator<Item = (&'r String, f64)>,
) -> BTreeMap<String, Estimate> {
    let mut samples: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (name, value) in counted {
        samples.entry(name).or_default().push(value);
    }
    let counted = |(name, values): (&str, Vec<f64>)| {
        let values = if name == INSNS { observations(values) } else { values };
        (name.to_owned(), estimate(&values))
    };
    samples.into_iter().map(counted).collect()
}

/// Instruction counts that are the same to the last digit are one observation: they are those of
/// the one boot that counted, joined to the others, or of virtual time.
pub(crate) fn observations(mut insns: Vec<f64>) -> Vec<f64> {
    if insns.windows(2).all(|w| w[0] == w[1]) {
        insns.truncate(1);
    }
    insns
}

/// The figures of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct Figures {
    /// Total, phases, counts.
    pub run: SweptRun,
    /// Time, s, and guest instructions of each activity.
    pub activities: BTreeMap<ActivityKey, (f64, Option<f64>)>,
    /// Moments that the user named, s after the exec.
    pub marks: BTreeMap<String, f64>,
    /// True if time is virtual.
    pub icount: bool,
}

impl Figures {
    /// The figures of an analysed run.
    pub fn of(analysed: &AnalysedRun) -> Self {
        let (record, timeline) = (&analysed.record, &analysed.timeline);
        let work = Work::of([timeline]);
        let activities = vmeter_timeline::activity_times(timeline)
            .into_iter()
            .filter(|((_, name), _)| work.has(name))
            .map(|(key, (ns, insns))| (key, (seconds(ns), insns.map(|n| n as f64))))
            .collect();
        let counts = timeline.counts.iter().map(|(name, n)| (name.clone(), *n as f64)).collect();
        let phases = timeline.phases.iter().map(|(name, ns)| (name.clone(), seconds(*ns)));
        Figures {
            run: SweptRun {
                index: record.index,
                outcome: record.outcome.clone(),
                end: record.end.clone(),
                total_s: seconds(timeline.total),
                cpu_s: record.usage.cpu_s(),
                phases: phases.collect(),
                counts,
                warnings: timeline.warnings.clone(),
                host: None,
            },
            activities,
            marks: timeline.named_marks.iter().map(|(n, at)| (n.clone(), seconds(*at))).collect(),
            icount: record.icount,
        }
    }

    /// True for a run that reached its end.
    pub fn is_done(&self) -> bool {
        self.run.outcome == Outcome::Done
    }

    /// Divides every time by `factor`, that of the host called `host`, and CPU time by its own:
    /// a host that is slow because others have its CPUs takes no more of it.
    pub fn level(&mut self, host: &str, factor: f64, of_cpu: f64) {
        self.run.host = Some((host.to_owned(), factor));
        self.run.total_s /= factor;
        self.run.cpu_s /= of_cpu;
        self.run.phases.iter_mut().for_each(|(_, s)| *s /= factor);
        self.activities.values_mut().for_each(|(s, _)| *s /= factor);
        self.marks.values_mut().for_each(|s| *s /= factor);
    }

    /// Length of a phase, s; 0 if the run does not have it.
    pub fn phase(&self, name: &str) -> f64 {
        self.run.phases.iter().filter(|(n, _)| n == name).map(|(_, s)| s).sum()
    }

    /// Names of its phases, in their order.
    pub(crate) fn phase_names(&self) -> impl Iterator<Item = &str> {
        self.run.phases.iter().map(|(name, _)| name.as_str())
    }
}
