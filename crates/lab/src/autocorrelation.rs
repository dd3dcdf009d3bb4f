//! What is said of a series of runs that is not one of independent runs.

use vmeter_model::run::{Outcome, RunRecord};
use vmeter_model::time::seconds;
use vmeter_stats::autocorrelation::{alike, first_unlike, goes_with};

/// Series that would be called so by chance, of all that a result has.
const BY_CHANCE: f64 = 0.05;

/// Remarks on runs of one machine in the order in which they were measured, `of` being how
/// many machines there are.
pub(crate) fn remarks(label: &str, samples_s: &[f64], of: usize) -> Vec<String> {
    let level = BY_CHANCE / of.max(1) as f64;
    let alike = alike(samples_s).filter(|found| found.p_value <= level).map(|found| {
        format!(
            "{label}: each run resembles the run before it (correlation {:.2}). The mean is only \
                as certain as a mean of about {:.0} independent runs, although there are {} \
                runs. The mean's interval is therefore too narrow. Comparisons of machines that \
                run in turn are not affected",
            found.lag_1,
            found.effective.max(1.0),
            samples_s.len()
        )
    });
    let warming = first_unlike(samples_s).map(|ratio| {
        format!(
            "{label}: the first run took {ratio:.2} times as long as the other runs, which is \
                outside their scatter: use --warmup N to exclude the first N runs of each machine"
        )
    });
    alike.into_iter().chain(warming).collect()
}

/// What the host did beside the runs of one machine, where those are long in which it did more of
/// it, `of` being how many machines there are. Nothing is scaled by it.
pub(crate) fn host_remarks(label: &str, runs: &[&RunRecord], of: usize) -> Vec<String> {
    let done: Vec<&&RunRecord> =
        runs.iter().filter(|r| !r.warmup && r.outcome == Outcome::Done).collect();
    let total = |run: &RunRecord| seconds(run.total_ns);
    let totals: Vec<f64> = done.iter().map(|run| total(run)).collect();
    let told = |of: &dyn Fn(&RunRecord) -> Option<f64>| -> Vec<f64> {
        done.iter().filter_map(|run| of(run)).collect()
    };
    let beside = [
        ("other guests took more of the host's CPUs", told(&|r| Some(r.steal_s / total(r)))),
        (
            "more programs on the host waited for a CPU",
            told(&|r| r.cpu_pressure_s.map(|waited| waited / total(r))),
        ),
        ("the host was slow right before the run", told(&|r| r.probe_s)),
    ];
    let level = BY_CHANCE / (beside.len() * of.max(1)) as f64;
    let found = beside.iter().filter_map(|(what, values)| {
        let found = goes_with(&totals, values).filter(|found| found.p_value <= level)?;
        Some((what, found.r))
    });
    let strongest = found.max_by(|a, b| a.1.total_cmp(&b.1));
    let text = strongest.map(|(what, r)| {
        format!(
            "{label}: runs take longer when {what} (correlation {r:.2}). On a quieter host, or by \
                comparing CPU time, you can detect smaller differences"
        )
    });
    text.into_iter().collect()
}
