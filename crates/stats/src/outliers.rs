//! Flags samples that stand apart. They stay in every estimate: a slow boot is a boot.

use crate::sample::{mad, mean, median};

/// The score beyond which Iglewicz and Hoaglin call a sample a potential outlier.
pub const THRESHOLD: f64 = 3.5;

/// Indices of samples whose modified z-score is beyond [`THRESHOLD`] (B. Iglewicz, D.
/// Hoaglin, "How to Detect and Handle Outliers", ASQC, 1993). Samples that are not finite
/// are flagged too; fewer than four finite ones flag nothing else.
pub fn outliers(samples: &[f64]) -> Vec<usize> {
    let scores = modified_z_scores(samples);
    let flagged = |i: &usize| !samples[*i].is_finite() || scores[*i].abs() > THRESHOLD;
    (0..samples.len()).filter(flagged).collect()
}

/// 0.6745 (x - median) / MAD; where more than half of the samples are equal, so that MAD is
/// 0, (x - median) / (1.253314 x mean absolute deviation), as the same authors propose.
pub fn modified_z_scores(samples: &[f64]) -> Vec<f64> {
    let finite: Vec<f64> = samples.iter().copied().filter(|x| x.is_finite()).collect();
    let centre = median(&finite);
    let mad = mad(&finite);
    let scale = if mad > 0.0 {
        mad / 0.6745
    } else {
        let deviations: Vec<f64> = finite.iter().map(|x| (x - centre).abs()).collect();
        1.253_314 * mean(&deviations)
    };
    let score = |x: &f64| if scale > 0.0 { (x - centre) / scale } else { 0.0 };
    let enough = finite.len() >= 4;
    samples.iter().map(|x| if enough && x.is_finite() { score(x) } else { 0.0 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_slow_boot_is_flagged() {
        assert_eq!(outliers(&[3.9, 4.0, 4.1, 3.95, 9.0, 4.05]), [4]);
        assert_eq!(outliers(&[3.9, 4.0, 4.1, 3.95, 4.2, 4.05]), [0usize; 0]);
    }

    #[test]
    fn equal_samples_with_one_apart() {
        let mut xs = vec![291.0; 20];
        assert_eq!(outliers(&xs), [0usize; 0]);
        xs[7] = 374.0;
        assert_eq!(outliers(&xs), [7]);
        assert_eq!(outliers(&[1.0, 1.0, 9.0]), [0usize; 0], "three samples say nothing");
        assert_eq!(outliers(&[1.0, f64::NAN, 1.0, 1.0, 1.0]), [1]);
    }

    proptest! {
        #[test]
        fn never_more_than_half_of_finite_samples(xs in prop::collection::vec(-1e9f64..1e9, 0..60)) {
            prop_assert!(outliers(&xs).len() * 2 <= xs.len());
        }
    }
}
