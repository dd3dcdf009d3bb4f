//! How likely each hypothesis makes the samples that were taken.

use crate::dist::{normal_cdf, t_quantile};

/// Prior standard deviation of the change, in standard deviations of a sample.
const PRIOR_CHANGE: f64 = 2.0;

/// Weight of what is assumed of builds, in degrees of freedom.
const ASSUMED: f64 = 8.0;
/// Prior standard deviation of what the host drifts by from one sample to the next, if it does.
const PRIOR_DRIFT: f64 = 0.001;

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

/// Marginal likelihoods of where the change came. A run is its commit's level, what its build adds,
/// the host's drift by its time, and noise; flat prior on the common level, normal ones on change
/// and drift. That the host does not drift at all is a hypothesis of its own, and what is said is
/// the average of both by how likely they are (J. Hoeting et al., "Bayesian model averaging",
/// Statistical Science 14, 1999): a drift that only may be there is neither taken out nor left in.
pub(super) struct Evidence {
    /// Products of the commits below each index.
    below: Vec<Products>,
    /// 1 / prior variance of the change, of the drift.
    prior: f64,
    drift: f64,
    /// Degrees of freedom of the noise, and of all runs.
    freedom: f64,
    runs: f64,
    /// Level of each commit with samples, and its variance.
    levels: Vec<Option<(f64, f64)>>,
}

/// A run's time, counted in samples, and the logarithm of what it took.
pub(super) type At = (f64, f64);

/// Inner products, weighted with the inverse of the runs' covariance, of 1, time (t) and sample (y).
#[derive(Debug, Clone, Copy, Default)]
struct Products {
    one: f64,
    t: f64,
    y: f64,
    tt: f64,
    ty: f64,
    yy: f64,
}

impl Products {
    /// Of the runs of one build, which share what it adds.
    fn of_build(runs: &[At], noise: f64, build: f64) -> Self {
        let n = runs.len() as f64;
        let sum = |f: &dyn Fn(&At) -> f64| runs.iter().map(f).sum::<f64>();
        let shared = build / (noise + n * build);
        let (t, y) = (sum(&|r| r.0), sum(&|r| r.1));
        let product = |own: f64, a: f64, b: f64| (own - shared * a * b) / noise;
        Products {
            one: product(n, n, n),
            t: product(t, t, n),
            y: product(y, y, n),
            tt: product(sum(&|r| r.0 * r.0), t, t),
            ty: product(sum(&|r| r.0 * r.1), t, y),
            yy: product(sum(&|r| r.1 * r.1), y, y),
        }
    }

    fn plus(self, other: Self) -> Self {
        Products {
            one: self.one + other.one,
            t: self.t + other.t,
            y: self.y + other.y,
            tt: self.tt + other.tt,
            ty: self.ty + other.ty,
            yy: self.yy + other.yy,
        }
    }
}

/// Squares and freedom that builds leave within them, about their own level and a common drift.
fn within<'s>(builds: impl Iterator<Item = &'s Vec<At>>) -> (f64, f64) {
    let (mut yy, mut ty, mut tt, mut freedom) = (0.0, 0.0, 0.0, 0.0);
    for runs in builds.filter(|runs| !runs.is_empty()) {
        let n = runs.len() as f64;
        let centre = runs.iter().fold((0.0, 0.0), |c, r| (c.0 + r.0 / n, c.1 + r.1 / n));
        for (t, y) in runs.iter().map(|r| (r.0 - centre.0, r.1 - centre.1)) {
            yy += y * y;
            ty += t * y;
            tt += t * t;
        }
        freedom += n - 1.0;
    }
    let drift = if tt > 0.0 { ty * ty / tt } else { 0.0 };
    ((yy - drift).max(0.0), (freedom - 1.0).max(1.0))
}

/// Variance of what builds add: the one that is assumed, worth [`ASSUMED`] degrees of freedom, and
/// what builds of the same commit differ by beyond their runs' noise.
fn between_builds(samples: &[Vec<Vec<At>>], noise: f64, assumed: f64) -> f64 {
    let (mut squares, mut freedom) = (0.0, 0.0);
    for own in samples {
        let means: Vec<f64> = own.iter().filter(|s| !s.is_empty()).map(|s| mean_of(s)).collect();
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

fn mean_of(runs: &[At]) -> f64 {
    runs.iter().map(|r| r.1).sum::<f64>() / runs.len() as f64
}

impl Evidence {
    /// Of samples by commit and build.
    pub fn new(samples: &[Vec<Vec<At>>], build_sd: f64) -> Self {
        let builds = || samples.iter().flatten().filter(|s| !s.is_empty());
        let runs = builds().map(Vec::len).sum::<usize>() as f64;
        let (squares, freedom) = within(builds());
        // Costs are known to a part in a million at best.
        let noise = (squares / freedom).max(1e-12);
        let build = between_builds(samples, noise, build_sd * build_sd);
        // Sums of squares lose no digits about the middle.
        let all = |f: &dyn Fn(&At) -> f64| builds().flatten().map(f).sum::<f64>() / runs.max(1.0);
        let middle = (all(&|r| r.0), all(&|r| r.1));
        let mut below = vec![Products::default()];
        let mut levels = Vec::new();
        for own in samples {
            let mut sum = Products::default();
            for runs in own.iter().filter(|s| !s.is_empty()) {
                let runs: Vec<At> = runs.iter().map(|r| (r.0 - middle.0, r.1 - middle.1)).collect();
                sum = sum.plus(Products::of_build(&runs, noise, build));
            }
            levels.push((sum.one > 0.0).then(|| (middle.1 + sum.y / sum.one, 1.0 / sum.one)));
            below.push(below[below.len() - 1].plus(sum));
        }
        let prior = 1.0 / (PRIOR_CHANGE.powi(2) * (noise + build).max(1e-12));
        Self { below, prior, drift: PRIOR_DRIFT.powi(-2), freedom, runs, levels }
    }

    /// Level after less level before, and half of its 95 % interval: what builds differ by is in it.
    pub fn difference(&self, before: usize, after: usize) -> Option<(f64, f64)> {
        let [a, b] = [before, after].map(|at| self.levels.get(at).copied().flatten());
        let ((a, va), (b, vb)) = (a?, b?);
        Some((b - a, t_quantile(0.975, self.freedom) * (va + vb).sqrt()))
    }

    /// Student's likelihood, the noise being estimated, of a weighted sum of squares.
    fn likelihood(&self, squares: f64) -> f64 {
        -0.5 * self.runs * (squares.max(0.0) / self.freedom).max(1e-300).ln()
    }

    pub fn of_no_change(&self) -> f64 {
        let s = self.about_the_level(0);
        let still = self.likelihood(s.yy);
        let drifts = self.likelihood(s.yy - s.ty * s.ty / (s.tt + self.drift))
            - 0.5 * (s.tt / self.drift).ln_1p();
        average(still, drifts).0
    }

    /// Products with the step at `c` in the place of 1, all about the common level.
    fn about_the_level(&self, c: usize) -> Products {
        let all = self.below[self.below.len() - 1];
        let below = self.below[c];
        let per = if all.one > 0.0 { 1.0 / all.one } else { 0.0 };
        let after = all.one - below.one;
        Products {
            one: after - after * after * per,
            t: (all.t - below.t) - after * all.t * per,
            y: (all.y - below.y) - after * all.y * per,
            tt: all.tt - all.t * all.t * per,
            ty: all.ty - all.t * all.y * per,
            yy: all.yy - all.y * all.y * per,
        }
    }

    /// Log likelihood, and the change's posterior mean and standard deviation.
    pub fn of_change_at(&self, c: usize) -> (f64, (f64, f64)) {
        let s = self.about_the_level(c);
        let (zz, tt) = (s.one + self.prior, s.tt + self.drift);
        let still = -0.5 * (zz / self.prior).ln() + self.likelihood(s.yy - s.y * s.y / zz);
        // Step and drift together: what of the step time does not tell.
        let (own, seen) = (zz - s.t * s.t / tt, s.y - s.t * s.ty / tt);
        let drifts = -0.5 * (own / self.prior * (tt / self.drift)).ln()
            + self.likelihood(s.yy - s.ty * s.ty / tt - seen * seen / own);
        let (log, share) = average(still, drifts);
        let (first, second) = ((s.y / zz, zz.recip()), (seen / own, own.recip()));
        let centre = (1.0 - share) * first.0 + share * second.0;
        let about = |(mean, variance): (f64, f64)| variance + (mean - centre).powi(2);
        let variance = (1.0 - share) * about(first) + share * about(second);
        (log, (centre, variance.sqrt()))
    }
}

/// Log of the mean of two likelihoods, and the share of the second.
fn average(a: f64, b: f64) -> (f64, f64) {
    let largest = a.max(b);
    let (x, y) = ((a - largest).exp(), (b - largest).exp());
    (largest + (0.5 * (x + y)).ln(), y / (x + y))
}
