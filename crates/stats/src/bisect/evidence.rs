//! How likely each hypothesis makes the samples that were taken.

use super::PRIOR_CHANGE;
use crate::dist::normal_cdf;

/// Weight of what is assumed of builds, in degrees of freedom.
const ASSUMED: f64 = 8.0;

/// Posterior distribution of a [`Bisection`]; everything adds up to 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Posterior {
    /// That the change came with this commit.
    pub commits: Vec<f64>,
    /// That there is no change.
    pub no_change: f64,
    /// Mean and standard deviation of the change's logarithm if it came with this commit.
    pub(super) sizes: Vec<(f64, f64)>,
}

impl Posterior {
    /// That there is no change, or one of a part of the cost below `least`.
    pub fn without_change_of(&self, least: f64) -> f64 {
        let reach = least.ln_1p();
        let small = |(share, (centre, sd)): (&f64, &(f64, f64))| {
            let below = |x: f64| normal_cdf((x - centre) / sd.max(1e-12));
            share * (below(reach) - below(-reach)).max(0.0)
        };
        (self.no_change + self.commits.iter().zip(&self.sizes).map(small).sum::<f64>()).min(1.0)
    }
}

/// Marginal likelihoods of the commits' means: each has the variance of its builds and of their
/// runs' means; flat prior on the common mean, normal on the change.
pub(super) struct Evidence {
    /// Sums at commits below each index: of weights (1 / variance), and of weights times
    /// deviations from the weighted mean.
    weights: Vec<f64>,
    sums: Vec<f64>,
    /// Weighted sum of squares around the weighted mean.
    squares: f64,
    /// 1 / prior variance of the change.
    prior: f64,
    /// Degrees of freedom of the noise, and builds that have samples.
    freedom: f64,
    cells: f64,
}

/// Variance of what builds add: the one that is assumed, worth [`ASSUMED`] degrees of freedom, and
/// what builds of the same commit differ by beyond their runs' noise.
fn between_builds(samples: &[Vec<Vec<f64>>], noise: f64, assumed: f64) -> f64 {
    let (mut squares, mut freedom) = (0.0, 0.0);
    for own in samples {
        let means: Vec<f64> =
            own.iter().filter(|s| !s.is_empty()).map(|s| crate::mean(s)).collect();
        let of_runs = own.iter().filter(|s| !s.is_empty()).map(|s| noise / s.len() as f64);
        let spare = means.len().saturating_sub(1) as f64;
        if spare > 0.0 {
            let of_runs = of_runs.sum::<f64>() / means.len() as f64;
            squares += crate::sample::sum_squares(&means) - spare * of_runs;
            freedom += spare;
        }
    }
    (ASSUMED * assumed + squares.max(0.0)) / (ASSUMED + freedom)
}

impl Evidence {
    /// Of samples by commit and build.
    pub fn new(samples: &[Vec<Vec<f64>>], build_sd: f64) -> Self {
        let builds = || samples.iter().flatten().filter(|s| !s.is_empty());
        let cells = builds().count() as f64;
        let runs = builds().map(Vec::len).sum::<usize>() as f64;
        let within: f64 = builds().map(|s| crate::sample::sum_squares(s)).sum();
        let freedom = (runs - cells).max(1.0);
        // Costs are known to a part in a million at best.
        let noise = (within / freedom).max(1e-12);
        let build = between_builds(samples, noise, build_sd * build_sd);
        // Of each commit: weight, mean, and what its builds scatter about that.
        let means: Vec<(f64, f64, f64)> = samples
            .iter()
            .map(|own| {
                let cells: Vec<(f64, f64)> = own
                    .iter()
                    .filter(|s| !s.is_empty())
                    .map(|s| (1.0 / (noise / s.len() as f64 + build), crate::mean(s)))
                    .collect();
                let weight: f64 = cells.iter().map(|(w, _)| w).sum();
                let mean = cells.iter().map(|(w, y)| w * y).sum::<f64>() / weight.max(1e-300);
                (weight, mean, cells.iter().map(|(w, y)| w * (y - mean).powi(2)).sum())
            })
            .collect();
        let total: f64 = means.iter().map(|(w, ..)| w).sum();
        let centre = means.iter().map(|(w, y, _)| w * y).sum::<f64>() / total.max(1e-300);
        let (mut weights, mut sums) = (vec![0.0], vec![0.0]);
        let (mut weight, mut sum, mut squares) = (0.0, 0.0, 0.0);
        for (w, y, scatter) in means {
            weight += w;
            sum += w * (y - centre);
            squares += w * (y - centre).powi(2) + scatter;
            weights.push(weight);
            sums.push(sum);
        }
        let prior = 1.0 / (PRIOR_CHANGE.powi(2) * (noise + build).max(1e-12));
        Self { weights, sums, squares, prior, freedom, cells }
    }

    /// Student's likelihood, the noise being estimated, of a weighted sum of squares.
    fn likelihood(&self, squares: f64) -> f64 {
        -0.5 * (self.freedom + self.cells) * (squares.max(0.0) / self.freedom).ln_1p()
    }

    pub fn of_no_change(&self) -> f64 {
        self.likelihood(self.squares)
    }

    /// Log likelihood, and the change's posterior mean and standard deviation.
    pub fn of_change_at(&self, c: usize) -> (f64, (f64, f64)) {
        let total = self.weights.last().copied().unwrap_or(0.0);
        let before = self.weights[c];
        let information = if total > 0.0 { before * (total - before) / total } else { 0.0 };
        let precision = information + self.prior;
        let size = -self.sums[c] / precision;
        let explained = self.sums[c] * self.sums[c] / precision;
        let log = -0.5 * (1.0 + information / self.prior).ln()
            + self.likelihood(self.squares - explained);
        (log, (size, precision.recip().sqrt()))
    }
}
