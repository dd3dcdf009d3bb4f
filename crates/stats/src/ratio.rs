//! How many times as long: the ratio of two means of unpaired samples.

use crate::bootstrap::bca;
use crate::dist::t_quantile;
use crate::rng::Rng;
use crate::sample::{mean, median, sd, sorted, sorted_quantile, variance};
use vmeter_model::Estimate;

/// Mean of `b` over mean of `a` (the baseline), as an estimate:
///
/// - `mean`, `median`: the ratio of the means, of the medians;
/// - `ci95`: see [`fieller`]; where that is unbounded (the baseline's mean is within its own
///   noise of 0) the percentile bootstrap; the ratio itself where a side has one sample;
/// - `sd`: of one `b` over one `a`, to first order (delta method);
/// - `min`, `max`: smallest `b` over largest `a`, and the reverse; `n`: the smaller side.
///
/// None if a side has no finite sample, or a baseline that is not above 0.
pub fn ratio_of_means(a: &[f64], b: &[f64]) -> Option<Estimate> {
    let (a, b) = (sorted(a), sorted(b));
    let (mean_a, mean_b) = (mean(&a), mean(&b));
    let (min_a, max_a) = (*a.first()?, *a.last()?);
    let (min_b, max_b) = (*b.first()?, *b.last()?);
    if min_a <= 0.0 {
        return None;
    }
    let ratio = mean_b / mean_a;
    let ci95 = if a.len() < 2 || b.len() < 2 {
        [ratio, ratio]
    } else {
        fieller(&a, &b, 0.95).unwrap_or_else(|| bootstrap(&a, &b))
    };
    let spread = (sd(&a) / mean_a).hypot(sd(&b) / mean_b.abs().max(f64::MIN_POSITIVE));
    Some(Estimate {
        mean: ratio,
        median: median(&b) / median(&a),
        sd: ratio.abs() * spread,
        ci95,
        min: min_b / max_a,
        max: max_b / min_a,
        n: a.len().min(b.len()),
    })
}

/// Fieller's interval of mean(b) / mean(a) (E. Fieller, "Some problems in interval
/// estimation", JRSS B 16, 1954) for independent samples of unequal variance, with
/// Satterthwaite's degrees of freedom at the estimated ratio (M. Hasler, R. Vonk, L.
/// Hothorn, Statistics in Medicine 27, 2008).
///
/// None where the set is unbounded, or a side has fewer than two samples.
pub fn fieller(a: &[f64], b: &[f64], confidence: f64) -> Option<[f64; 2]> {
    if a.len() < 2 || b.len() < 2 {
        return None;
    }
    let (na, nb) = (a.len() as f64, b.len() as f64);
    let (ma, mb) = (mean(a), mean(b));
    let (va, vb) = (variance(a) / na, variance(b) / nb);
    let ratio = mb / ma;
    let (wa, wb) = (ratio * ratio * va, vb);
    if wa + wb == 0.0 {
        return ratio.is_finite().then_some([ratio, ratio]);
    }
    let df = (wa + wb).powi(2) / (wa * wa / (na - 1.0) + wb * wb / (nb - 1.0));
    let t2 = t_quantile(0.5 + confidence / 2.0, df).powi(2);
    let quadratic = ma * ma - t2 * va;
    let root = ((ma * mb).powi(2) - quadratic * (mb * mb - t2 * vb)).sqrt();
    let ends = [(ma * mb - root) / quadratic, (ma * mb + root) / quadratic];
    (quadratic > 0.0 && ends.iter().all(|e| e.is_finite())).then_some(ends)
}

/// Percentile bootstrap of the ratio, each side resampled by itself, with a fixed seed.
fn bootstrap(a: &[f64], b: &[f64]) -> [f64; 2] {
    let mut rng = Rng::new(0);
    let mut draw = |from: &[f64]| {
        mean(&(0..from.len()).map(|_| from[rng.below(from.len())]).collect::<Vec<_>>())
    };
    let ratios: Vec<f64> = (0..4999).map(|_| draw(b) / draw(a)).collect();
    let ratios = sorted(&ratios);
    [sorted_quantile(&ratios, 0.025), sorted_quantile(&ratios, 0.975)]
}

/// A bootstrap interval of the median, for a report that shows medians.
pub fn median_interval(samples: &[f64], resamples: usize, seed: u64) -> [f64; 2] {
    bca(samples, median, 0.95, resamples, seed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use proptest::prelude::*;

    #[test]
    fn the_interval_covers_95_percent() {
        let mut rng = Rng::new(5);
        let trials = 3000;
        let covered = (0..trials).filter(|_| {
            let a: Vec<f64> = (0..8).map(|_| 4.0 + 0.4 * rng.normal()).collect();
            let b: Vec<f64> = (0..8).map(|_| 5.0 + 0.8 * rng.normal()).collect();
            let [lo, hi] = fieller(&a, &b, 0.95).unwrap();
            lo <= 1.25 && 1.25 <= hi
        });
        let share = covered.count() as f64 / f64::from(trials);
        assert!((0.938..0.965).contains(&share), "{share}");
    }

    #[test]
    fn few_or_odd_samples() {
        let one = ratio_of_means(&[2.0], &[3.0]).unwrap();
        assert_eq!((one.mean, one.ci95, one.n), (1.5, [1.5, 1.5], 1));
        let same = ratio_of_means(&[2.0; 5], &[3.0; 4]).unwrap();
        assert_eq!((same.mean, same.ci95, same.sd), (1.5, [1.5, 1.5], 0.0));
        assert!(ratio_of_means(&[], &[1.0]).is_none());
        assert!(ratio_of_means(&[0.0, 1.0], &[1.0]).is_none());
        let noise = ratio_of_means(&[0.001, 10.0], &[1.0, 1.1]).unwrap();
        assert!(noise.ci95[0] < noise.mean && noise.mean < noise.ci95[1], "{noise:?}");
        let [lo, hi] = median_interval(&[1.0, 2.0, 3.0, 4.0, 50.0], 999, 1);
        assert!((1.0..=3.0).contains(&lo) && (3.0..=50.0).contains(&hi));
    }

    proptest! {
        #[test]
        fn the_ratio_is_inside_its_interval(
            a in prop::collection::vec(1e-3f64..1e6, 2..20),
            b in prop::collection::vec(1e-3f64..1e6, 2..20),
        ) {
            let ends = fieller(&a, &b, 0.95);
            let r = mean(&b) / mean(&a);
            let slack = 1e-9 * r;
            prop_assert!(ends.is_none_or(|[lo, hi]| lo <= r + slack && r <= hi + slack));
            let e = ratio_of_means(&a, &b).unwrap();
            prop_assert!(e.min <= e.mean + slack && e.mean <= e.max + slack);
        }
    }
}
