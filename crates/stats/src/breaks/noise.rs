//! The noise of a sweep's runs, of which one point may have more than the others.

use super::{Design, Jumps};
use crate::dist::{f_upper, normal_quantile, t_two_sided};
use crate::rng::Rng;
use crate::sample::{mean, sum_squares};

/// Chance that a point which is like the others is judged by its own runs.
const LOUD: f64 = 0.005;

/// The runs' noise around their own point's mean.
pub(super) struct Noise {
    /// Each point's unit of noise: 1 everywhere, or its mean where noise grows with the cost.
    pub unit: Vec<f64>,
    /// Pooled standard deviation in units; 0 for single or equal runs.
    pub sd: f64,
    /// Which points are noisier than that.
    pub loudness: Loudness,
    /// Residuals in units and of the noise of a point that is not loud, each scaled to the
    /// variance of a run.
    residuals: Vec<f64>,
    /// The largest share of the others' variance that noise alone makes of each point's.
    usual: Vec<f64>,
}

/// A sweep without breaks, drawn from the noise.
pub(super) struct Draw {
    /// Largest jump over its standard error for unit noise.
    pub largest: f64,
    pub spread: f64,
    pub noise_sd: f64,
}

impl Noise {
    pub fn of(points: &[(f64, Vec<f64>)], means: &[f64], rounding: f64) -> Self {
        let even = vec![1.0; means.len()];
        let grows: Vec<f64> = means.iter().map(|m| m.abs()).collect();
        let smallest = grows.iter().copied().fold(f64::INFINITY, f64::min);
        let unit = if smallest > rounding && deviance(points, &grows) < deviance(points, &even) {
            grows
        } else {
            even
        };
        let squares: Vec<Squares> = points
            .iter()
            .zip(&unit)
            .map(|((_, runs), u)| Squares {
                sum: sum_squares(runs) / (u * u),
                freedom: (runs.len() - 1) as f64,
            })
            .collect();
        let usual = usual(&squares);
        let loudness = Loudness::of(&squares, &usual);
        let sd = loudness.sd;
        let residuals: Vec<f64> = points
            .iter()
            .zip(means)
            .zip(unit.iter().zip(&loudness.times))
            .flat_map(|(((_, runs), centre), (unit, times))| {
                let n = runs.len() as f64;
                let scale = if n > 1.0 { (n / (n - 1.0)).sqrt() / (unit * times) } else { 0.0 };
                runs.iter().map(move |y| (y - centre) * scale)
            })
            .collect();
        if sd * unit.iter().copied().fold(0.0, f64::max) <= rounding {
            let residuals = vec![0.0; residuals.len()];
            let loudness = Loudness::even(points.len());
            return Self { unit, sd: 0.0, loudness, residuals, usual };
        }
        Self { unit, sd, loudness, residuals, usual }
    }

    pub fn draws(&self, design: &Design, wander: f64, count: usize, rng: &mut Rng) -> Vec<Draw> {
        let mut residuals = self.residuals.clone();
        let mut means = vec![0.0; design.counts.len()];
        let mut squares = Vec::with_capacity(means.len());
        let mut draw = || {
            rng.shuffle(&mut residuals);
            let mut rest = residuals.as_slice();
            squares.clear();
            let points = design.counts.iter().zip(&self.unit).zip(&self.loudness.times);
            for (point, ((count, unit), times)) in means.iter_mut().zip(points) {
                let (runs, others) = rest.split_at(*count);
                let extra = if wander > 0.0 { wander * rng.normal() } else { 0.0 };
                *point = unit * (times * mean(runs) + extra);
                let sum = times * times * sum_squares(runs);
                squares.push(Squares { sum, freedom: (runs.len() - 1) as f64 });
                rest = others;
            }
            let loudness = if self.sd == 0.0 {
                Loudness::even(squares.len())
            } else {
                Loudness::of(&squares, &self.usual)
            };
            let Jumps { scaled, spread, .. } = design.standardise(&means, &loudness);
            let largest = scaled.iter().fold(0.0, |acc: f64, s| acc.max(s.abs()));
            Draw { largest, spread, noise_sd: loudness.sd }
        };
        (0..count).map(|_| draw()).collect()
    }
}

/// Squared deviations of a point's runs from their mean, in units.
#[derive(Debug, Clone, Copy)]
struct Squares {
    sum: f64,
    freedom: f64,
}

/// How noisy the points are.
#[derive(Debug, Clone)]
pub(super) struct Loudness {
    /// Standard deviation of all points that are not loud, in units.
    sd: f64,
    /// Of each point, in `sd`: 1, or its own where it is loud.
    times: Vec<f64>,
    /// Degrees of freedom of each point's variance.
    freedom: Vec<f64>,
}

/// Of a step between two points.
pub(super) struct StepError {
    /// Standard deviation of its rise, for noise of standard deviation 1 unit.
    pub sd: f64,
    /// Degrees of freedom, where a loud point's own runs are what it is known by.
    pub freedom: Option<f64>,
}

impl Loudness {
    fn even(points: usize) -> Self {
        Loudness { sd: 0.0, times: vec![1.0; points], freedom: vec![0.0; points] }
    }

    /// The loudest point is set apart as long as its variance is beyond what is usual of the
    /// others' and more than half of the points are left.
    fn of(squares: &[Squares], usual: &[f64]) -> Self {
        let mut sum: f64 = squares.iter().map(|s| s.sum).sum();
        let mut freedom: f64 = squares.iter().map(|s| s.freedom).sum();
        let mut is_loud = vec![false; squares.len()];
        for _ in 0..squares.len() / 2 {
            let beyond = |i: usize| {
                let own = squares[i];
                let others = (sum - own.sum) / (freedom - own.freedom);
                let share = own.sum / own.freedom / others / usual[i];
                if others > 0.0 && own.freedom > 0.0 && share.is_finite() {
                    share
                } else {
                    0.0
                }
            };
            let calm = (0..squares.len()).filter(|i| !is_loud[*i]);
            let loudest = calm.map(|i| (i, beyond(i))).max_by(|a, b| a.1.total_cmp(&b.1));
            let Some((at, _)) = loudest.filter(|(_, share)| *share > 1.0) else { break };
            is_loud[at] = true;
            sum -= squares[at].sum;
            freedom -= squares[at].freedom;
        }
        let sd = if freedom > 0.0 { (sum / freedom).max(0.0).sqrt() } else { 0.0 };
        let own = |(own, loud): (&Squares, &bool)| {
            if *loud && sd > 0.0 {
                (own.sum / own.freedom).sqrt() / sd
            } else {
                1.0
            }
        };
        let times = squares.iter().zip(&is_loud).map(own).collect();
        let known = |(own, loud): (&Squares, &bool)| if *loud { own.freedom } else { freedom };
        let freedom = squares.iter().zip(&is_loud).map(known).collect();
        Loudness { sd, times, freedom }
    }

    /// Errors of the steps between points whose means have these variances for noise of 1 unit.
    pub fn errors(&self, variances: &[f64]) -> Vec<StepError> {
        let variance = |i: usize| variances[i] * self.times[i] * self.times[i];
        let step = |i: usize| {
            let (a, b) = (variance(i), variance(i + 1));
            let is_loud = self.times[i] != 1.0 || self.times[i + 1] != 1.0;
            // Satterthwaite, Biometrics Bulletin 2, 1946.
            let spread = a * a / self.freedom[i] + b * b / self.freedom[i + 1];
            let freedom = is_loud.then(|| (a + b) * (a + b) / spread);
            StepError { sd: (a + b).sqrt(), freedom }
        };
        (0..variances.len().saturating_sub(1)).map(step).collect()
    }

    /// A jump in standard errors for noise of 1 unit as one that is as rare where the noise is
    /// known.
    pub fn as_normal(&self, scaled: f64, freedom: Option<f64>) -> f64 {
        let Some(freedom) = freedom.filter(|_| self.sd > 0.0) else { return scaled };
        let tail = (t_two_sided(scaled / self.sd, freedom) / 2.0).max(1e-300);
        scaled.signum() * normal_quantile(tail).abs() * self.sd
    }
}

/// For each point the ratio of its variance to the others' that normal noise exceeds with a
/// chance of [`LOUD`].
fn usual(squares: &[Squares]) -> Vec<f64> {
    let all: f64 = squares.iter().map(|s| s.freedom).sum();
    let of = |own: &Squares| {
        let (mut low, mut high) = (1.0, 1e4);
        for _ in 0..30 {
            let middle = f64::sqrt(low * high);
            if f_upper(middle, own.freedom, all - own.freedom) > LOUD {
                low = middle;
            } else {
                high = middle;
            }
        }
        high
    };
    squares.iter().map(of).collect()
}

/// -2 log likelihood of normal noise whose standard deviation is proportional to `unit`, but
/// for a constant.
fn deviance(points: &[(f64, Vec<f64>)], unit: &[f64]) -> f64 {
    let groups = || points.iter().zip(unit).map(|((_, runs), u)| (runs.as_slice(), *u));
    let df = |runs: &[f64]| (runs.len() - 1) as f64;
    let all: f64 = groups().map(|(runs, _)| df(runs)).sum();
    let units: f64 = groups().map(|(runs, u)| df(runs) * u.ln()).sum();
    2.0 * (all * pooled_sd(groups()).ln() + units)
}

/// Standard deviation within groups of (runs, unit), in units.
fn pooled_sd<'a>(groups: impl Iterator<Item = (&'a [f64], f64)>) -> f64 {
    let add = |(s, df), (runs, unit): (&[f64], f64)| {
        (s + sum_squares(runs) / (unit * unit), df + runs.len() - 1)
    };
    match groups.fold((0.0, 0), add) {
        (_, 0) => 0.0,
        (squares, df) => (squares / df as f64).sqrt(),
    }
}
