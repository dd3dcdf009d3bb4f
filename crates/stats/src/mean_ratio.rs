//! The ratio of two means where a few runs take far longer than the rest.
//!
//! One boot in twenty that takes three times as long makes the mean 10 % slower and leaves the typical boot
//! as it was. Student's interval and the bootstrap know only the slow runs that they saw, and of so few the
//! upper end is far too low. So the samples are taken apart: the bulk has Student's interval, and the slow runs
//! are counts of rare events, each with its own weight, which have the gamma interval (M. Fay, E. Feuer,
//! Statistics in Medicine 16, 1997; for equal weights it is the exact Poisson interval). The parts are put
//! together by the method of variance estimates recovery (G. Zou, A. Donner, Statistics in Medicine 27, 2008).
//! A side without slow runs may have them too: its upper end is that of 0 events of the largest weight seen.
//! What neither side shows once is in no interval: 40 runs miss what happens to one in 14 in 5 % of cases.

use crate::dist::{chi_squared_quantile, t_quantile};
use crate::permutation::permutation_test;
use crate::sample::{mad, mean, median, sd, sorted, variance, MAD_TO_SD};
use crate::signed_rank::signed_rank;
use vmeter_model::Estimate;

/// Runs of one side that are slow beyond what its bulk explains.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Slow {
    /// How many.
    pub count: usize,
    /// Of so many.
    pub of: usize,
    /// How many times as long as the side's typical run they take (the median of them); 1 where none is slow.
    pub times: f64,
}

/// Mean of b over mean of a.
#[derive(Debug, Clone, PartialEq)]
pub struct MeanRatio {
    /// The ratio.
    pub ratio: f64,
    /// Slow runs of a and of b.
    pub slow: [Slow; 2],
    /// Of the ratio of the bulks' means: its logarithm, the standard error of that, degrees of freedom.
    bulk: [f64; 3],
    /// What slow runs add to the mean of a and of b.
    loads: [Load; 2],
    /// What slow runs take beyond the bulk, 0 for the others.
    excess: Excess,
}

#[derive(Debug, Clone, PartialEq)]
enum Excess {
    /// Above 0 where b's run of the pair is slow, below 0 where a's is.
    Pairs(Vec<f64>),
    Sides([Vec<f64>; 2]),
}

/// What rare runs add to a mean, each of them its weight, as a share of the bulk's mean.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Load {
    sum: f64,
    squares: f64,
    /// The largest weight of both sides.
    most: f64,
}

impl Load {
    fn of(weights: &[f64], most: f64) -> Self {
        let squares = weights.iter().map(|w| w * w).sum();
        Load { sum: weights.iter().sum(), squares, most }
    }

    /// Fay and Feuer's interval, which misses with `tail` on each side.
    fn interval(&self, tail: f64) -> [f64; 2] {
        let gamma = |mean: f64, variance: f64, p: f64| match variance > 0.0 {
            true => variance / (2.0 * mean) * chi_squared_quantile(p, 2.0 * mean * mean / variance),
            false => 0.0,
        };
        let more = (self.sum + self.most, self.squares + self.most * self.most);
        [gamma(self.sum, self.squares, tail), gamma(more.0, more.1, 1.0 - tail)]
    }
}

impl MeanRatio {
    /// Of pairs (a, b) that were run side by side. A run is slow if the pair's ratio is: what slows both runs of a
    /// pair alike is no difference. Pairs with a side that is not finite and above 0 are left out; none if fewer
    /// than two are left.
    pub fn of_pairs(pairs: &[(f64, f64)]) -> Option<Self> {
        let usable = |x: f64| x.is_finite() && x > 0.0;
        let pairs: Vec<(f64, f64)> =
            pairs.iter().copied().filter(|(a, b)| usable(*a) && usable(*b)).collect();
        let logs: Vec<f64> = pairs.iter().map(|(a, b)| b.ln() - a.ln()).collect();
        let (centre, cut) = (median(&logs), cut(&logs));
        let is_bulk = |log: &f64| (log - centre).abs() <= cut;
        let bulk: Vec<(f64, f64)> =
            pairs.iter().zip(&logs).filter(|(_, l)| is_bulk(l)).map(|(pair, _)| *pair).collect();
        if bulk.len() < 2 {
            return None;
        }
        let sums = |of: &[(f64, f64)]| of.iter().fold((0.0, 0.0), |s, p| (s.0 + p.0, s.1 + p.1));
        let ((bulk_a, bulk_b), (all_a, all_b)) = (sums(&bulk), sums(&pairs));
        let ratio = bulk_b / bulk_a;
        let rest: Vec<f64> = bulk.iter().map(|(a, b)| b / ratio - a).collect();
        let error = variance(&rest).sqrt() * (bulk.len() as f64).sqrt() / bulk_a;
        // What b takes more than a does, in units of a; a slow run of a has it below 0.
        let beyond: Vec<f64> = pairs
            .iter()
            .zip(&logs)
            .map(|((a, b), log)| if is_bulk(log) { 0.0 } else { b / ratio - a })
            .collect();
        let of_a: f64 = beyond.iter().map(|x| (-x).max(0.0)).sum();
        let rest = all_a - of_a;
        let weights = |sign: f64| -> Vec<f64> {
            beyond.iter().map(|x| sign * x / rest).filter(|w| *w > 0.0).collect()
        };
        let side = |side: fn(&(f64, f64)) -> f64| pairs.iter().map(side).collect::<Vec<_>>();
        let least = cut / 2f64.sqrt();
        Some(MeanRatio {
            ratio: all_b / all_a,
            slow: [slow(&side(|p| p.0), least), slow(&side(|p| p.1), least)],
            bulk: [ratio.ln(), error, bulk.len() as f64 - 1.0],
            loads: loads(&weights(-1.0), &weights(1.0)),
            excess: Excess::Pairs(beyond),
        })
    }

    /// Of two sides that were run by themselves. None if one has fewer than two samples that are finite, or
    /// one that is not above 0.
    pub fn of_sides(a: &[f64], b: &[f64]) -> Option<Self> {
        let sides = [sorted(a), sorted(b)];
        if sides.iter().any(|side| side.len() < 2 || side[0] <= 0.0) {
            return None;
        }
        let split = sides.each_ref().map(|side| {
            let logs: Vec<f64> = side.iter().map(|x| x.ln()).collect();
            let (centre, cut) = (median(&logs), cut(&logs));
            side.iter().partition::<Vec<f64>, _>(|x| x.ln() - centre <= cut)
        });
        let weights = split.each_ref().map(|(bulk, slow)| {
            let (centre, n) = (mean(bulk), (bulk.len() + slow.len()) as f64);
            slow.iter().map(|x| (x / centre - 1.0) / n).collect::<Vec<f64>>()
        });
        let [of_a, of_b] = split.each_ref().map(|(bulk, _)| {
            let n = bulk.len() as f64;
            let centre = mean(bulk);
            (centre, variance(bulk) / (n * centre * centre), n - 1.0)
        });
        let square = of_a.1 + of_b.1;
        // Satterthwaite's degrees of freedom.
        let parts = [of_a, of_b].map(|(_, v, df)| if v > 0.0 { v * v / df } else { 0.0 });
        let df = square * square / (parts[0] + parts[1]).max(f64::MIN_POSITIVE);
        let excess = split.each_ref().map(|(bulk, slow)| {
            let (centre, zeros) = (mean(bulk), bulk.iter().map(|_| 0.0));
            slow.iter().map(|x| x / centre - 1.0).chain(zeros).collect::<Vec<f64>>()
        });
        Some(MeanRatio {
            ratio: mean(&sides[1]) / mean(&sides[0]),
            slow: [slow(&sides[0], 0.0), slow(&sides[1], 0.0)],
            bulk: [of_b.0.ln() - of_a.0.ln(), square.sqrt(), df.max(1.0)],
            loads: loads(&weights[0], &weights[1]),
            excess: Excess::Sides(excess),
        })
    }

    /// True if any run is slow beyond what the bulk explains: the ratio says another thing than the bulk's.
    pub fn has_slow(&self) -> bool {
        self.loads.iter().any(|load| load.sum > 0.0)
    }

    /// The interval that misses with probability `level`, half of it on each side.
    pub fn interval(&self, level: f64) -> [f64; 2] {
        let tail = level / 2.0;
        let [log, error, df] = self.bulk;
        let reach = if error > 0.0 { t_quantile(1.0 - tail, df) * error } else { 0.0 };
        let (mut below, mut above) = (reach * reach, reach * reach);
        if self.has_slow() {
            let [a, b] = self.loads.map(|load| {
                let [low, high] = load.interval(tail);
                [load.sum.ln_1p() - low.ln_1p(), high.ln_1p() - load.sum.ln_1p()]
            });
            below += a[1] * a[1] + b[0] * b[0];
            above += a[0] * a[0] + b[1] * b[1];
        }
        let centre = log + self.loads[1].sum.ln_1p() - self.loads[0].sum.ln_1p();
        [(centre - below.sqrt()).exp(), (centre + above.sqrt()).exp()]
    }

    /// The level of the widest interval that leaves 1 out: the two-sided p-value of "the means are equal".
    pub fn p_value(&self) -> f64 {
        let differs = |level: f64| {
            let [low, high] = self.interval(level);
            low > 1.0 || high < 1.0
        };
        let (mut low, mut high) = (-14.0, 0.0);
        for _ in 0..40 {
            let middle = (low + high) / 2.0;
            match differs(10f64.powf(middle)) {
                true => high = middle,
                false => low = middle,
            }
        }
        10f64.powf(high)
    }

    /// Two-sided p-value of "slow runs, with their sizes, are as likely on either side"; 1 where there is none.
    /// Exact for pairs, of which either side is as likely to have it.
    pub fn slow_p_value(&self) -> f64 {
        match &self.excess {
            _ if !self.has_slow() => 1.0,
            Excess::Pairs(beyond) => signed_rank(beyond).two_sided(),
            Excess::Sides([a, b]) => permutation_test(a, b, 0).p,
        }
    }
}

/// Mean of `b` over mean of `a` (the baseline), as an estimate:
///
/// - `mean`, `median`: the ratio of the means, of the medians;
/// - `ci95`: [`MeanRatio::interval`]; the ratio itself where a side has one sample;
/// - `sd`: of one `b` over one `a`, to first order (delta method);
/// - `min`, `max`: smallest `b` over largest `a`, and the reverse; `n`: the smaller side.
///
/// None if a side has no finite sample, or one that is not above 0.
pub fn ratio_of_means(a: &[f64], b: &[f64]) -> Option<Estimate> {
    let (a, b) = (sorted(a), sorted(b));
    let (min_a, max_a) = (*a.first()?, *a.last()?);
    let (min_b, max_b) = (*b.first()?, *b.last()?);
    if min_a <= 0.0 || min_b <= 0.0 {
        return None;
    }
    let (mean_a, mean_b) = (mean(&a), mean(&b));
    let ratio = mean_b / mean_a;
    Some(Estimate {
        mean: ratio,
        median: median(&b) / median(&a),
        sd: ratio * (sd(&a) / mean_a).hypot(sd(&b) / mean_b),
        ci95: MeanRatio::of_sides(&a, &b).map_or([ratio, ratio], |found| found.interval(0.05)),
        min: min_b / max_a,
        max: max_b / min_a,
        n: a.len().min(b.len()),
    })
}

fn loads(a: &[f64], b: &[f64]) -> [Load; 2] {
    let most = a.iter().chain(b).copied().fold(0.0, f64::max);
    [Load::of(a, most), Load::of(b, most)]
}

/// How far from the median a logarithm may lie that is of the bulk.
fn cut(logs: &[f64]) -> f64 {
    // Of normal samples 5 to 7 in 100 have a value beyond it, be they of 10 or of 100.
    let times = 3.5 + 10.0 / logs.len() as f64;
    (times * MAD_TO_SD * mad(logs)).max(1e-6)
}

/// The slow runs of a side, at least so far (a logarithm) above its median.
fn slow(side: &[f64], least: f64) -> Slow {
    let logs: Vec<f64> = side.iter().map(|x| x.ln()).collect();
    let (centre, cut) = (median(&logs), cut(&logs).max(least));
    let slow: Vec<f64> = logs.iter().map(|l| l - centre).filter(|l| *l > cut).collect();
    Slow { count: slow.len(), of: side.len(), times: median(&slow).exp() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use proptest::prelude::*;

    /// Runs of 3 % noise, of which one in `rare` takes `times` as long.
    fn runs(rng: &mut Rng, n: usize, rare: f64, times: f64) -> Vec<f64> {
        let one = |rng: &mut Rng| {
            let slow = if rng.uniform() * rare < 1.0 { times } else { 1.0 };
            slow * (0.03 * rng.normal()).exp()
        };
        (0..n).map(|_| one(rng)).collect()
    }

    type Make = fn(&[f64], &[f64]) -> Option<MeanRatio>;

    fn of_pairs(a: &[f64], b: &[f64]) -> Option<MeanRatio> {
        MeanRatio::of_pairs(&a.iter().copied().zip(b.iter().copied()).collect::<Vec<_>>())
    }

    /// Of 1,000 sessions those whose interval lies below the truth, above it, and those without a slow run of b.
    fn missed(make: Make, n: usize, rare: [f64; 2], times: f64) -> [usize; 3] {
        let mut rng = Rng::new(n as u64);
        let truth = |rare: f64| 1.0 + (times - 1.0) / rare;
        let truth = truth(rare[1]) / truth(rare[0]);
        let mut missed = [0; 3];
        for _ in 0..1000 {
            let [a, b] = rare.map(|rare| runs(&mut rng, n, rare, times));
            let [low, high] = make(&a, &b).expect("a ratio").interval(0.05);
            missed[0] += usize::from(high < truth);
            missed[1] += usize::from(low > truth);
            missed[2] += usize::from(b.iter().all(|x| *x < 1.0 + (times - 1.0) / 2.0));
        }
        missed
    }

    /// Student's interval of these lies below the truth in 13, 10, 9 and 7 %. Sessions that show no slow run
    /// can't know of any.
    #[test]
    fn the_interval_covers_where_slow_runs_are_rare() {
        const NONE: f64 = 1e9;
        for make in [of_pairs as Make, MeanRatio::of_sides] {
            for (n, rare, times) in [
                (40, [NONE, 20.0], 3.0),
                (100, [NONE, 20.0], 3.0),
                (40, [NONE, 10.0], 3.0),
                (40, [NONE, 10.0], 1.3),
                (20, [20.0, 20.0], 3.0),
                (40, [10.0, 10.0], 3.0),
                (40, [10.0, 10.0], 1.3),
                (40, [NONE, NONE], 1.0),
            ] {
                let [below, above, unseen] = missed(make, n, rare, times);
                println!(
                    "{n} {rare:?} {times}: {below} below, {above} above, {unseen} without one"
                );
                let unseen = if rare[1] == NONE || rare[0] != NONE { 0 } else { unseen };
                assert!(below <= unseen + 38 && above <= 38, "{below} {above} {unseen}");
            }
        }
    }

    #[test]
    fn slow_runs_are_counted() {
        let mut rng = Rng::new(4);
        let (a, mut b) = (runs(&mut rng, 40, 1e9, 1.0), runs(&mut rng, 40, 1e9, 1.0));
        for at in [3, 14, 15, 39] {
            b[at] *= 2.9;
        }
        for make in [of_pairs as Make, MeanRatio::of_sides] {
            let found = make(&a, &b).expect("a ratio");
            let [of_a, of_b] = found.slow;
            assert_eq!((of_a.count, of_b.count, of_b.of), (0, 4, 40));
            assert!((of_b.times - 2.9).abs() < 0.15 && (found.ratio - 1.19).abs() < 0.03);
            // Four of four on one side: 2 / 2^4, and 2 (40 choose 4) / (80 choose 4).
            assert!((found.slow_p_value() - 0.12).abs() < 0.02, "{}", found.slow_p_value());
            let back = make(&b, &a).expect("a ratio");
            let [low, high] = found.interval(0.05);
            let [back_low, back_high] = back.interval(0.05);
            assert!((low * back_high - 1.0).abs() < 1e-9 && (high * back_low - 1.0).abs() < 1e-9);
            assert!(low > 1.0 - 0.1 && high > 1.4, "{low} {high}");
        }
        let all: Vec<f64> = a.iter().map(|x| 2.0 * x).collect();
        let found = of_pairs(&a, &all).expect("a ratio");
        assert!(!found.has_slow() && found.slow_p_value() == 1.0 && found.p_value() < 1e-12);
    }

    /// What slows both runs of a pair is the host's.
    #[test]
    fn a_spell_of_the_host_is_no_slow_run() {
        let mut rng = Rng::new(5);
        let (mut a, mut b) = (runs(&mut rng, 40, 1e9, 1.0), runs(&mut rng, 40, 1e9, 1.0));
        for at in 10..14 {
            a[at] *= 1.8;
            b[at] *= 1.8;
        }
        assert!(!of_pairs(&a, &b).expect("a ratio").has_slow());
        assert!(MeanRatio::of_sides(&a, &b).expect("a ratio").has_slow());
    }

    #[test]
    fn few_or_odd_samples() {
        let one = ratio_of_means(&[2.0], &[3.0]).unwrap();
        assert_eq!((one.mean, one.ci95, one.n), (1.5, [1.5, 1.5], 1));
        let same = ratio_of_means(&[2.0; 5], &[3.0; 4]).unwrap();
        assert!(
            (same.mean - 1.5).abs() < 1e-12
                && same.ci95.iter().all(|end| (end - 1.5).abs() < 1e-12)
        );
        assert!(ratio_of_means(&[], &[1.0]).is_none());
        assert!(ratio_of_means(&[0.0, 1.0], &[1.0]).is_none());
        assert_eq!(MeanRatio::of_pairs(&[(1.0, 2.0)]), None);
        assert_eq!(MeanRatio::of_pairs(&[(f64::NAN, 2.0), (0.0, 1.0), (1.0, 1.0)]), None);
    }

    proptest! {
        #[test]
        fn the_ratio_is_inside_its_interval(
            a in prop::collection::vec(1e-3f64..1e6, 2..20),
            b in prop::collection::vec(1e-3f64..1e6, 2..20),
        ) {
            let found = ratio_of_means(&a, &b).unwrap();
            let slack = 1e-6 * found.mean;
            prop_assert!(found.ci95[0] <= found.mean + slack && found.mean <= found.ci95[1] + slack);
            prop_assert!(found.min <= found.mean + slack && found.mean <= found.max + slack);
            if let Some(found) = of_pairs(&a, &b) {
                let [low, high] = found.interval(0.05);
                prop_assert!(low <= found.ratio * 1.000_001 && found.ratio <= high * 1.000_001);
                prop_assert!((0.0..=1.0).contains(&found.p_value()));
            }
        }
    }
}
