//! What is said of a series of runs that is not one of independent runs.

use vmeter_stats::steady::{alike, first_unlike};

/// Series that would be called so by chance, of all that a result has.
const BY_CHANCE: f64 = 0.05;

/// Remarks on runs of one machine in the order in which they were measured, `of` being how
/// many machines there are.
pub(crate) fn remarks(label: &str, samples_s: &[f64], of: usize) -> Vec<String> {
    let level = BY_CHANCE / of.max(1) as f64;
    let alike = alike(samples_s).filter(|found| found.p_value <= level).map(|found| {
        format!(
            "{label}: runs are like the run before them (correlation {:.2}): for its mean they \
             count as some {:.0}, not {}, so that interval is too narrow; comparisons of machines \
             in turn are not touched by it",
            found.lag_1,
            found.effective.max(1.0),
            samples_s.len()
        )
    });
    let warming = first_unlike(samples_s).map(|ratio| {
        format!(
            "{label}: the first run took {ratio:.2} of what the others did, beyond their scatter: \
             --warmup N leaves N runs of each machine out"
        )
    });
    alike.into_iter().chain(warming).collect()
}
