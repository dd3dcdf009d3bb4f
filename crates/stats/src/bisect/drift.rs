//! Samples as they enter the search: the far ones pulled in, about the host's drift where it shows.

use super::{noise, Bisection, Seen, DRIFT, PULL_IN};
use crate::sample::median;

impl Bisection {
    /// Samples by commit, the far ones pulled in: those beyond both ends' medians by more than the
    /// noise within commits explains, a drift that shows aside. Noise of 0 (instruction counts)
    /// pulls nothing.
    pub(super) fn pulled_in(&self, first: usize, last: usize) -> Vec<Vec<f64>> {
        let drift = self.drift();
        let samples = self.less(drift);
        let reach = PULL_IN * noise(&self.by_build(&samples));
        if samples[first].is_empty() || samples[last].is_empty() || reach == 0.0 {
            return self.less(0.0);
        }
        let [a, b] = [first, last].map(|end| median(&samples[end]));
        let (low, high) = (a.min(b) - reach, a.max(b) + reach);
        let pull = |s: &Seen| (s.log - drift * s.at).clamp(low, high) + drift * s.at;
        self.samples.iter().map(|s| s.iter().map(pull).collect()).collect()
    }

    /// The logarithms less that drift.
    fn less(&self, drift: f64) -> Vec<Vec<f64>> {
        let level = |seen: &Seen| seen.log - drift * seen.at;
        self.samples.iter().map(|s| s.iter().map(level).collect()).collect()
    }

    pub(super) fn without_drift(&self) -> Vec<Vec<f64>> {
        self.less(self.drift())
    }

    /// The host's drift from sample to sample, if one shows within the commits: the median slope
    /// of their pairs of samples (Theil and Sen), where it is many standard errors; 0 if not.
    fn drift(&self) -> f64 {
        let noise = noise(&self.by_build(&self.less(0.0)));
        let mut slopes = Vec::new();
        let mut spread = 0.0;
        for samples in self.builds_of_all().filter(|s| s.len() > 1) {
            let centre = samples.iter().map(|s| s.at).sum::<f64>() / samples.len() as f64;
            spread += samples.iter().map(|s| (s.at - centre).powi(2)).sum::<f64>();
            for (i, early) in samples.iter().enumerate() {
                // Late against early: neighbours in time say little of a drift.
                let later = samples[i + 1..]
                    .iter()
                    .filter(|late| 3.0 * (late.at - early.at) > spread.sqrt());
                slopes.extend(later.map(|late| (late.log - early.log) / (late.at - early.at)));
            }
        }
        let slope = median(&slopes);
        let error = noise / spread.sqrt();
        if slopes.len() < 3 || slope.abs() < DRIFT * error || !error.is_finite() || noise == 0.0 {
            return 0.0;
        }
        slope
    }
}
