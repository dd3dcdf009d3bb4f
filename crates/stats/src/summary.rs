//! A sample's summary with an interval for its mean.

use crate::dist::t_quantile;
use crate::sample::{mean, sd, sorted, sorted_quantile};
use vmeter_model::Estimate;

/// Summary of what is never below 0, as times, counts and ratios, with a 95 % interval of the mean
/// by Student's t ("Student", Biometrika 6, 1908), which is cut at 0. Differences have
/// [`estimate_signed`]. A sample below 0 shows that these are some, and nothing is cut.
///
/// For one sample the interval is that sample; for none all fields are 0, n too.
pub fn estimate(samples: &[f64]) -> Estimate {
    let signed = estimate_signed(samples);
    let [low, high] = signed.ci95;
    let low = if signed.min >= 0.0 { low.max(0.0) } else { low };
    Estimate { ci95: [low, high], ..signed }
}

/// The same of differences and logarithms, which may be below 0.
pub fn estimate_signed(samples: &[f64]) -> Estimate {
    let sorted = sorted(samples);
    let n = sorted.len();
    let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else {
        return Estimate { mean: 0.0, median: 0.0, sd: 0.0, ci95: [0.0; 2], min: 0.0, max: 0.0, n };
    };
    // Rounding must not carry the mean out of the samples' range.
    let mean = mean(&sorted).clamp(min, max);
    let sd = sd(&sorted);
    let ci95 = if n < 2 || sd == 0.0 {
        [mean, mean]
    } else {
        let half = t_quantile(0.975, (n - 1) as f64) * sd / (n as f64).sqrt();
        [mean - half, mean + half]
    };
    Estimate { mean, median: sorted_quantile(&sorted, 0.5), sd, ci95, min, max, n }
}

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
    fn no_time_is_below_0_and_a_difference_may_be() {
        let samples = [0.1, 0.1, 3.0];
        let (time, difference) = (estimate(&samples), estimate_signed(&samples));
        assert!(difference.ci95[0] < -2.0);
        assert_eq!(time, Estimate { ci95: [0.0, difference.ci95[1]], ..difference });
        let below = [-0.1, 0.1, 3.0];
        assert_eq!(estimate(&below), estimate_signed(&below));
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
            let signed = estimate_signed(&xs);
            prop_assert_eq!(Estimate { ci95: signed.ci95, ..e }, signed);
            prop_assert!(e.ci95[0] >= 0.0 || e.min < 0.0);
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
