//! A sample's summary with an interval for its mean.

use crate::bootstrap::bca;
use crate::dist::t_quantile;
use vmeter_model::Estimate;

/// How the interval of the mean is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interval {
    /// Student's t ("Student", Biometrika 6, 1908): right for means of roughly normal
    /// samples, and the honest choice for few samples.
    StudentT,
    /// Bias-corrected and accelerated bootstrap, see [`crate::bootstrap::bca`]: for skewed
    /// samples of some 15 or more; too narrow for fewer.
    Bootstrap {
        /// Resamples, e.g. 9,999.
        resamples: usize,
        /// Seed of the resampling.
        seed: u64,
    },
}

/// Summary with a 95 % interval of the mean by Student's t.
///
/// For one sample the interval is that sample; for none all fields are 0, n too.
pub fn estimate(samples: &[f64]) -> Estimate {
    estimate_with(samples, Interval::StudentT)
}

/// Summary with the interval asked for.
pub fn estimate_with(samples: &[f64], interval: Interval) -> Estimate {
    let sorted = sorted(samples);
    let n = sorted.len();
    let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else {
        return Estimate { mean: 0.0, median: 0.0, sd: 0.0, ci95: [0.0; 2], min: 0.0, max: 0.0, n };
    };
    // Rounding must not carry the mean out of the samples' range.
    let mean = mean(&sorted).clamp(min, max);
    let sd = sd(&sorted);
    let ci95 = match interval {
        _ if n < 2 || sd == 0.0 => [mean, mean],
        Interval::StudentT => {
            let half = t_quantile(0.975, (n - 1) as f64) * sd / (n as f64).sqrt();
            [mean - half, mean + half]
        }
        Interval::Bootstrap { resamples, seed } => bca(&sorted, crate::mean, 0.95, resamples, seed),
    };
    Estimate { mean, median: sorted_quantile(&sorted, 0.5), sd, ci95, min, max, n }
}

/// The finite samples, in order.
pub(crate) fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut finite: Vec<f64> = samples.iter().copied().filter(|x| x.is_finite()).collect();
    finite.sort_by(f64::total_cmp);
    finite
}

/// Arithmetic mean by the updating formula (B. Welford, Technometrics 4, 1962), which does
/// not overflow; 0 for no samples.
pub fn mean(samples: &[f64]) -> f64 {
    let mut mean = 0.0;
    for (i, x) in samples.iter().enumerate() {
        let k = (i + 1) as f64;
        mean += x / k - mean / k;
    }
    mean
}

/// Sum of squared deviations from the mean.
pub(crate) fn sum_squares(samples: &[f64]) -> f64 {
    let mean = mean(samples);
    samples.iter().map(|x| (x - mean) * (x - mean)).sum()
}

/// Sample variance (n - 1); 0 for fewer than two samples.
pub(crate) fn variance(samples: &[f64]) -> f64 {
    match samples.len() {
        0 | 1 => 0.0,
        n => sum_squares(samples) / (n - 1) as f64,
    }
}

/// Sample standard deviation (n - 1); exactly 0 for equal samples.
pub fn sd(samples: &[f64]) -> f64 {
    match samples.split_first() {
        Some((first, rest)) if rest.iter().any(|x| x != first) => variance(samples).sqrt(),
        _ => 0.0,
    }
}

/// Median of the finite samples; 0 for none.
pub fn median(samples: &[f64]) -> f64 {
    quantile(samples, 0.5).unwrap_or(0.0)
}

/// Quantile, linear between order statistics: definition 7 of R. Hyndman, Y. Fan, "Sample
/// quantiles in statistical packages", The American Statistician 50, 1996 (R's and numpy's
/// default). None for no samples.
pub fn quantile(samples: &[f64], q: f64) -> Option<f64> {
    let sorted = sorted(samples);
    (!sorted.is_empty() && !q.is_nan()).then(|| sorted_quantile(&sorted, q))
}

pub(crate) fn sorted_quantile(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = q.clamp(0.0, 1.0) * last as f64;
    let below = at.floor() as usize;
    let above = (below + 1).min(last);
    let part = at - below as f64;
    sorted[below] * (1.0 - part) + sorted[above] * part
}

/// Median absolute deviation from the median, unscaled.
pub(crate) fn mad(samples: &[f64]) -> f64 {
    let centre = median(samples);
    let deviations: Vec<f64> = samples.iter().map(|x| (x - centre).abs()).collect();
    median(&deviations)
}

/// Turns a MAD into the standard deviation of a normal sample.
pub(crate) const MAD_TO_SD: f64 = 1.482_602_218_505_602;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_answer() {
        // NIST/SEMATECH 1.3.5.2's formula on 1..5: mean 3, sd sqrt(2.5), t(0.975, 4) = 2.776.
        let e = estimate(&[5.0, 1.0, 4.0, 2.0, 3.0]);
        assert_eq!((e.mean, e.median, e.min, e.max, e.n), (3.0, 3.0, 1.0, 5.0, 5));
        assert!((e.sd - 2.5f64.sqrt()).abs() < 1e-12);
        let half = 2.776_445_105 * (2.5f64 / 5.0).sqrt();
        assert!((e.ci95[0] - (3.0 - half)).abs() < 1e-8 && (e.ci95[1] - (3.0 + half)).abs() < 1e-8);
    }

    #[test]
    fn few_or_odd_samples() {
        let none = estimate(&[f64::NAN, f64::INFINITY]);
        assert_eq!((none.n, none.mean, none.ci95), (0, 0.0, [0.0, 0.0]));
        let one = estimate(&[2.5, f64::NAN]);
        assert_eq!((one.n, one.sd, one.ci95), (1, 0.0, [2.5, 2.5]));
        let same = estimate(&[0.1; 7]);
        assert_eq!((same.sd, same.ci95), (0.0, [same.mean; 2]));
    }

    #[test]
    fn quantiles_of_type_7() {
        let xs = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(quantile(&xs, 0.25), Some(1.75));
        assert!((quantile(&xs, 0.99).unwrap() - 3.97).abs() < 1e-12);
        assert_eq!(quantile(&xs, 7.0), Some(4.0));
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&xs, f64::NAN), None);
    }

    #[test]
    fn the_interval_covers_95_percent_of_normal_means() {
        let mut rng = crate::rng::Rng::new(11);
        let covered = (0..4000).filter(|_| {
            let xs: Vec<f64> = (0..5).map(|_| 10.0 + rng.normal()).collect();
            let [lo, hi] = estimate(&xs).ci95;
            lo <= 10.0 && 10.0 <= hi
        });
        let share = covered.count() as f64 / 4000.0;
        assert!((0.94..0.96).contains(&share), "{share}");
    }

    proptest! {
        #[test]
        fn any_samples_give_an_ordered_summary(xs in prop::collection::vec(any::<f64>(), 0..40)) {
            let e = estimate(&xs);
            let usual = xs.iter().all(|x| x.abs() < 1e150);
            if e.n > 0 {
                prop_assert!(e.min <= e.mean && e.mean <= e.max);
                prop_assert!(e.min <= e.median && e.median <= e.max);
            }
            if usual {
                prop_assert!(e.ci95[0] <= e.mean && e.mean <= e.ci95[1]);
            }
        }
    }
}
