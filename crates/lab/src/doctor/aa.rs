//! `vmeter doctor --aa`: one machine against itself, in turn. Whatever differs then is the host.

use vmeter_model::result::BenchResult;
use vmeter_stats::Rule;

/// Blocks of which is looked at how often they would have raised a false alarm.
const WINDOW: usize = 10;
/// Correlation of neighbouring runs beyond this, in standard errors, is said.
const CORRELATED: f64 = 2.6;

/// What the runs of a machine against itself say of this host, in sentences.
pub fn says(result: &BenchResult) -> Vec<String> {
    let [a, b] = result.machines.as_slice() else { return Vec::new() };
    let pairs: Vec<(f64, f64)> =
        a.samples_s.iter().copied().zip(b.samples_s.iter().copied()).collect();
    if pairs.len() != a.samples_s.len().max(b.samples_s.len()) {
        return vec!["runs failed, so vmeter cannot estimate how reliable verdicts on this host \
            are"
        .into()];
    }
    let mut said = Vec::new();
    for runs in [10, 20, 40] {
        let Some(seen) = detectable(&pairs, runs) else { continue };
        said.push(format!(
            "with {runs} runs of each machine, a true difference of {seen:.1} % would be found with 80 % power"
        ));
    }
    if let Some(found) = Rule::default().decide(&pairs) {
        said.extend(crate::verdict::tail(&a.label, &b.label, &found));
    }
    let windows: Vec<bool> = pairs
        .windows(WINDOW)
        .filter_map(|window| Rule::default().decide(window))
        .map(|found| found.p_value <= 0.05)
        .collect();
    if !windows.is_empty() {
        let alarms = windows.iter().filter(|alarm| **alarm).count();
        said.push(format!(
            "{alarms} of {} overlapping stretches of {WINDOW} blocks wrongly show that the \
             machine differs from itself; vmeter accepts at most 5 %",
            windows.len()
        ));
    }
    if let Some(lag) = vmeter_stats::sample::lag_1(&a.samples_s) {
        let error = 1.0 / (a.samples_s.len() as f64).sqrt();
        if lag > CORRELATED * error {
            said.push(format!(
                "each run resembles the run before it (correlation {lag:.2}): on this host the \
                    interval of one machine's mean is too narrow; comparisons of machines that \
                    run in turn are not affected"
            ));
        }
    }
    said
}

/// The difference, %, that so many pairs with this noise show.
fn detectable(pairs: &[(f64, f64)], runs: usize) -> Option<f64> {
    let found = Rule::default().decide(pairs)?.detectable?;
    let log = found.ln_1p() * (pairs.len() as f64 / runs as f64).sqrt();
    Some(100.0 * log.exp_m1())
}
