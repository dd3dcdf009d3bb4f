//! Quantiles with intervals that assume no distribution.
//!
//! The interval lies between two order statistics (W. Conover, "Practical Nonparametric
//! Statistics", 3rd ed. 1999, 3.2): how many of n samples are below a quantile is binomial,
//! whatever they are distributed as. Too few samples have no such interval, however it is
//! made: of fewer than 368, p99 may be above all of them.

use crate::sample::{sorted, sorted_quantile};
use statrs::distribution::{Binomial, DiscreteCDF};

/// The quantiles that are told.
pub const TOLD: [f64; 3] = [0.5, 0.9, 0.99];
const EACH_SIDE: f64 = 0.025;

/// A quantile of a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tail {
    /// Which, 0 to 1.
    pub quantile: f64,
    /// Its estimate and 95 % interval, unit of the samples; none of too few samples.
    pub found: Option<(f64, [f64; 2])>,
    /// The fewest samples that allow an interval.
    pub needs: usize,
}

/// The quantiles of [`TOLD`], of the finite samples.
pub fn tails(samples: &[f64]) -> [Tail; 3] {
    let sorted = sorted(samples);
    TOLD.map(|quantile| Tail {
        quantile,
        found: interval(&sorted, quantile).map(|ci| (sorted_quantile(&sorted, quantile), ci)),
        needs: needed(quantile),
    })
}

/// The fewest samples of which both ends of a 95 % interval of this quantile exist.
pub fn needed(quantile: f64) -> usize {
    let rarer = quantile.clamp(0.0, 1.0).max(1.0 - quantile);
    let n = EACH_SIDE.ln() / rarer.ln();
    // Rounding must not ask for one more where the power is the level exactly.
    if n.is_finite() {
        (n - 1e-9).ceil() as usize
    } else {
        usize::MAX
    }
}

fn interval(sorted: &[f64], quantile: f64) -> Option<[f64; 2]> {
    let n = sorted.len();
    if n < needed(quantile) {
        return None;
    }
    let below = Binomial::new(quantile, n as u64).ok()?;
    // The largest l with P(fewer than l below) at most the level, and the other end likewise.
    let low = (1..=n).take_while(|l| below.cdf(*l as u64 - 1) <= EACH_SIDE).last()?;
    let high = (1..=n).rev().take_while(|u| below.sf(*u as u64 - 1) <= EACH_SIDE).last()?;
    Some([*sorted.get(low - 1)?, *sorted.get(high - 1)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use proptest::prelude::*;

    #[test]
    fn so_many_are_needed() {
        assert_eq!(TOLD.map(needed), [6, 36, 368]);
    }

    /// Conover's table A3 for the median: of 10 samples, the second and the ninth.
    #[test]
    fn a_median_of_ten() {
        let samples: Vec<f64> = (1..=10).map(f64::from).collect();
        let [median, p90, _] = tails(&samples);
        assert_eq!(median.found, Some((5.5, [2.0, 9.0])));
        assert_eq!((p90.found, p90.needs), (None, 36));
    }

    #[test]
    fn it_covers_what_it_says_of_a_skewed_distribution() {
        let mut rng = Rng::new(3);
        for (quantile, n) in [(0.5, 20), (0.9, 60), (0.99, 500)] {
            let truth = -(1.0f64 - quantile).ln();
            let covered = (0..1000).filter(|_| {
                let xs: Vec<f64> = (0..n).map(|_| -(1.0 - rng.uniform()).ln()).collect();
                let [lo, hi] = interval(&sorted(&xs), quantile).expect("enough");
                lo <= truth && truth <= hi
            });
            let share = covered.count() as f64 / 1000.0;
            assert!((0.94..=0.985).contains(&share), "{quantile}: {share}");
        }
    }

    proptest! {
        #[test]
        fn any_samples_give_ordered_ends(xs in prop::collection::vec(any::<f64>(), 0..90)) {
            for tail in tails(&xs) {
                if let Some((value, [lo, hi])) = tail.found {
                    prop_assert!(lo <= hi && value.is_finite() || xs.iter().any(|x| x.abs() > 1e300));
                    prop_assert!(xs.contains(&lo) && xs.contains(&hi));
                }
            }
        }
    }
}
