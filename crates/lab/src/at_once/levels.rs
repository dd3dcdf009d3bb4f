//! What so many VMs at once come to: how long each takes, what the slowest waited for, how long
//! they take to be gone, and from how many on it gets worse.

use super::tail::{waits_for, WaitsFor};
use super::{at_once, is_spread, OF};
use std::collections::BTreeMap;
use vmeter_model::run::{Outcome, RunRecord, SessionMachine};
use vmeter_model::time::seconds;
use vmeter_model::{Estimate, Moment, Ns};
use vmeter_record::sources::vmm_threads;
use vmeter_session::SavedRun;
use vmeter_stats::tails::{tails, Tail};
use vmeter_stats::{breaks, estimate, linear_fit, median};

/// Of a level's runs, those of which it is asked what they waited for.
const SLOWEST: f64 = 0.9;
/// Of fewer runs there is no slowest tenth.
const FEWEST: usize = 10;
/// Chance of a knee that is none.
const ALPHA: f64 = 0.05;

/// One number of VMs at once.
#[derive(Debug, Clone, PartialEq)]
pub struct Level {
    /// Label of its machine.
    pub label: String,
    /// How many.
    pub at_once: u32,
    /// How often so many were started.
    pub waves: usize,
    /// From each VMM's exec to its end or ready point, s.
    pub samples_s: Vec<f64>,
    /// Their quantiles.
    pub tails: [Tail; 3],
    /// From the moment when a guest was done until its VMM was gone, s.
    pub tear_down: Estimate,
    /// From the first guest that was done until the last VMM was gone, wave by wave, s.
    pub to_last_exit: Estimate,
    /// What the slowest waited for, if there is a slowest.
    pub slowest: Option<Slowest>,
    /// What the VMs of a traced wave waited for; or why that is not known.
    pub waits_for: Result<Option<WaitsFor>, String>,
}

/// What the slowest runs of a level took more than its typical one, means, s.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slowest {
    /// How many.
    pub runs: usize,
    /// How much longer.
    pub longer_s: f64,
    /// Of that: more CPU time.
    pub cpu_s: f64,
    /// Of that: a thread was ready to run and had no CPU; none where nobody looked.
    pub cpu_wait_s: Option<f64>,
    /// Of that: nothing explains it.
    pub rest_s: f64,
}

/// From how many VMs at once on it gets worse.
#[derive(Debug, Clone, PartialEq)]
pub struct Knee {
    /// The two numbers between which it lies.
    pub between: [f64; 2],
    /// How much longer a VM takes beyond it than the trend below it says, s.
    pub jump_s: f64,
    /// How likely it is by chance.
    pub p_value: f64,
}

/// All numbers of one machine.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Levels {
    /// In order of their numbers.
    pub all: Vec<Level>,
    /// How much longer each VM takes for each further one at once, s.
    pub slope_s: Option<f64>,
    /// Where it gets worse than that.
    pub knees: Vec<Knee>,
}

/// What the machines that ran several at once come to, by the label that they share.
pub fn levels(
    machines: &[SessionMachine],
    finished: &[SavedRun],
    seed: u64,
) -> BTreeMap<String, Levels> {
    let mut found: BTreeMap<String, Levels> = BTreeMap::new();
    for machine in machines.iter().filter(|machine| is_spread(machine)) {
        let own = finished.iter().map(|(_, run)| run).filter(|run| run.label == machine.label);
        let own: Vec<&RunRecord> =
            own.filter(|run| !run.warmup && run.outcome == Outcome::Done).collect();
        let shared = machine.parameters.iter().find(|(name, _)| name == OF);
        let shared = shared.map_or(machine.label.as_str(), |(_, shared)| shared);
        if let Some(level) = level(machine, &own) {
            found.entry(shared.to_owned()).or_default().all.push(level);
        }
    }
    for levels in found.values_mut() {
        levels.all.sort_by_key(|level| level.at_once);
        let fewest = levels.all.first().map(|level| level.label.clone());
        for level in levels.all.iter_mut().filter(|level| level.at_once > 1) {
            let vs = fewest.as_deref().filter(|fewest| *fewest != level.label);
            level.waits_for = waits_for(finished, &level.label, vs);
        }
        let points: Vec<(f64, Vec<f64>)> =
            levels.all.iter().map(|l| (f64::from(l.at_once), l.samples_s.clone())).collect();
        let pairs: Vec<(f64, f64)> =
            points.iter().flat_map(|(x, all)| all.iter().map(|y| (*x, *y))).collect();
        levels.slope_s = linear_fit(&pairs).filter(|_| points.len() > 1).map(|fit| fit.slope);
        levels.knees = breaks(&points, ALPHA, seed)
            .into_iter()
            .map(|found| Knee {
                between: found.between.into(),
                jump_s: found.jump,
                p_value: found.p_value,
            })
            .collect();
    }
    found
}

fn level(machine: &SessionMachine, runs: &[&RunRecord]) -> Option<Level> {
    let number = at_once(machine);
    let samples_s: Vec<f64> = runs.iter().map(|run| seconds(run.total_ns)).collect();
    let tear_down: Vec<f64> =
        runs.iter().filter_map(|run| gone(run)).map(|(from, to)| seconds(to - from)).collect();
    // Runs are numbered as they are planned, those of a wave one after the other.
    let waves: Vec<&[&RunRecord]> = runs.chunks(number as usize).collect();
    let last = waves.iter().filter_map(|wave| {
        let all: Vec<(Ns, Ns)> = wave
            .iter()
            .filter_map(|run| gone(run).map(|(from, to)| (run.exec_ns + from, run.exec_ns + to)))
            .collect();
        let first = all.iter().map(|(from, _)| *from).min()?;
        Some(seconds(all.iter().map(|(_, to)| *to).max()? - first))
    });
    (!runs.is_empty()).then(|| Level {
        label: machine.label.clone(),
        at_once: number,
        waves: waves.len(),
        tails: tails(&samples_s),
        tear_down: estimate(&tear_down),
        to_last_exit: estimate(&last.collect::<Vec<_>>()),
        slowest: slowest(runs),
        waits_for: Ok(None),
        samples_s,
    })
}

/// From when on a guest was done, and when its VMM was gone, ns after its exec.
fn gone(run: &RunRecord) -> Option<(Ns, Ns)> {
    let gone = run.moment(&Moment::VmmExit)?;
    let ready = run.moment(&Moment::Ready).filter(|at| *at <= gone);
    let done = ready
        .or_else(|| run.moment(&Moment::VmmExiting))
        .or_else(|| run.moment(&Moment::VmmKilled))?;
    Some((done.min(gone), gone))
}

fn slowest(runs: &[&RunRecord]) -> Option<Slowest> {
    let totals: Vec<f64> = runs.iter().map(|run| seconds(run.total_ns)).collect();
    let limit = vmeter_stats::quantile(&totals, SLOWEST)?;
    let middle = median(&totals);
    let slow: Vec<&&RunRecord> = runs.iter().filter(|run| seconds(run.total_ns) > limit).collect();
    let others: Vec<&&RunRecord> =
        runs.iter().filter(|run| seconds(run.total_ns) <= limit).collect();
    if slow.is_empty() || runs.len() < FEWEST {
        return None;
    }
    let mean = |of: &[&&RunRecord], value: &dyn Fn(&RunRecord) -> Option<f64>| -> Option<f64> {
        let all: Option<Vec<f64>> = of.iter().map(|run| value(run)).collect();
        all.map(|all| all.iter().sum::<f64>() / all.len().max(1) as f64)
    };
    let more = |value: &dyn Fn(&RunRecord) -> Option<f64>| {
        Some((mean(&slow, value)? - mean(&others, value)?).max(0.0))
    };
    let longer_s = mean(&slow, &|run| Some(seconds(run.total_ns)))? - middle;
    let cpu_wait_s = more(&|run| vmm_threads::waited(run).map(seconds)).map(|s| s.min(longer_s));
    let left = longer_s - cpu_wait_s.unwrap_or(0.0);
    let cpu_s = more(&|run| Some(run.usage.cpu_s()))?.min(left.max(0.0));
    let rest_s = (left - cpu_s).max(0.0);
    Some(Slowest { runs: slow.len(), longer_s, cpu_s, cpu_wait_s, rest_s })
}

#[cfg(test)]
mod tests {
    use super::super::AT_ONCE;
    use super::*;

    fn run(label: &str, index: u32, total_ms: Ns) -> SavedRun {
        let record = RunRecord {
            label: label.into(),
            index,
            exec_ns: 1_000_000_000,
            total_ns: total_ms * 1_000_000,
            moments: vec![
                (total_ms * 1_000_000, Moment::Ready),
                ((total_ms + 7) * 1_000_000, Moment::VmmExit),
            ],
            ..RunRecord::default()
        };
        (std::path::PathBuf::new(), record)
    }

    #[test]
    fn a_level_has_quantiles_a_tear_down_and_its_slowest() {
        let machine = SessionMachine {
            label: "boot, 4 at once".into(),
            parameters: vec![(AT_ONCE.into(), "4".into()), (OF.into(), "boot".into())],
            ..SessionMachine::default()
        };
        let runs: Vec<SavedRun> = (0..40)
            .map(|n| run("boot, 4 at once", n, if n % 20 == 3 { 400 } else { 100 }))
            .collect();
        let found = levels(&[machine], &runs, 1);
        let level = &found["boot"].all[0];
        assert_eq!((level.at_once, level.waves, level.samples_s.len()), (4, 10, 40));
        assert_eq!(level.tails[0].found.map(|(p50, _)| p50), Some(0.1));
        assert!((level.tear_down.mean - 0.007).abs() < 1e-9);
        // A wave with a slow one is gone 307 ms after its first guest was done.
        assert!((level.to_last_exit.max - 0.307).abs() < 1e-9, "{:?}", level.to_last_exit);
        let slowest = level.slowest.expect("two of them");
        assert_eq!((slowest.runs, slowest.cpu_wait_s), (2, None));
        assert!((slowest.longer_s - 0.3).abs() < 1e-9 && (slowest.rest_s - 0.3).abs() < 1e-9);
    }
}
