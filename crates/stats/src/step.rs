//! How large a step is, by runs of builds on either side of it.
//!
//! What is asked is what a commit changed, and not by how much two files differ: a build adds to
//! all of its runs alike, so that a build is one observation and not each of its runs (T. Kalibera,
//! R. Jones, "Rigorous benchmarking in reasonable time", ISMM 2013). The runs must not be those that
//! found the step: these say too much of it, having been gone on with until it showed.

use crate::dist::t_quantile;
use crate::sample::{mean, sum_squares};
use crate::signed_rank::pseudo_median;

/// Degrees of freedom from which builds themselves tell what they scatter by.
const ENOUGH: usize = 2;

/// A step between two levels, in logarithms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Level after less level before.
    pub size: f64,
    /// Half of its 95 % interval.
    pub half: f64,
}

impl Step {
    /// Of the logarithms of each build's runs on either side. Builds too few to show what they
    /// scatter by (three, or fewer) are taken to differ by a standard deviation of `build_sd`.
    /// None where a side has none, or nothing tells the noise.
    pub fn of_builds(before: &[Vec<f64>], after: &[Vec<f64>], build_sd: f64) -> Option<Step> {
        let centres = |side: &[Vec<f64>]| -> Vec<f64> {
            side.iter().filter(|runs| !runs.is_empty()).map(|runs| pseudo_median(runs)).collect()
        };
        let (a, b) = (centres(before), centres(after));
        Step::of_centres(&a, &b).or_else(|| {
            let builds = || before.iter().chain(after).filter(|runs| !runs.is_empty());
            let runs: usize = builds().map(Vec::len).sum();
            let freedom = runs.saturating_sub(a.len() + b.len()) as f64;
            if a.is_empty() || b.is_empty() || freedom < 1.0 {
                return None;
            }
            let noise = builds().map(|runs| sum_squares(runs)).sum::<f64>() / freedom;
            let error = |side: &[Vec<f64>], n: usize| {
                let one = |runs: &Vec<f64>| build_sd * build_sd + noise / runs.len() as f64;
                side.iter().filter(|r| !r.is_empty()).map(one).sum::<f64>() / (n * n) as f64
            };
            let variance = error(before, a.len()) + error(after, b.len());
            let half = t_quantile(0.975, freedom) * variance.sqrt();
            Some(Step { size: mean(&b) - mean(&a), half })
        })
    }

    /// Of the builds' centres, which scatter alike on both sides; none where these are too few to
    /// show by how much.
    pub fn of_centres(before: &[f64], after: &[f64]) -> Option<Step> {
        let freedom = (before.len() + after.len()).checked_sub(2).filter(|f| *f >= ENOUGH)? as f64;
        if before.is_empty() || after.is_empty() {
            return None;
        }
        let variance = (sum_squares(before) + sum_squares(after)) / freedom;
        let builds = 1.0 / before.len() as f64 + 1.0 / after.len() as f64;
        let half = t_quantile(0.975, freedom) * (variance * builds).sqrt();
        Some(Step { size: mean(after) - mean(before), half })
    }

    /// The ratio of the two levels.
    pub fn ratio(&self) -> f64 {
        self.size.exp()
    }

    /// Its 95 % interval.
    pub fn ci95(&self) -> [f64; 2] {
        [self.size - self.half, self.size + self.half].map(f64::exp)
    }
}

/// Runs of each build that tell the step between so many builds on either side about as well as
/// so many runs on either side did that were not spread evenly; `fewest` to `most`.
pub fn runs_each(builds: [usize; 2], runs: [usize; 2], [fewest, most]: [usize; 2]) -> usize {
    let error = |n: [usize; 2]| n.iter().map(|n| 1.0 / (*n).max(1) as f64).sum::<f64>();
    ((error(builds) / error(runs)).ceil() as usize).clamp(fewest, most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn a_build_is_one_observation() {
        // Student's pooled interval of 1, 2, 3 and 5, 6, 7: 4 ± 2.776 x sqrt(1 x 2/3).
        let step = Step::of_centres(&[1.0, 2.0, 3.0], &[5.0, 6.0, 7.0]).expect("a step");
        assert!((step.size - 4.0).abs() < 1e-12);
        assert!((step.half - 2.776_445 * (2.0f64 / 3.0).sqrt()).abs() < 1e-5);
        let runs = |centre: f64| vec![centre - 0.1, centre, centre + 0.1];
        let of = |centres: &[f64]| centres.iter().copied().map(runs).collect::<Vec<_>>();
        let again = Step::of_builds(&of(&[1.0, 2.0, 3.0]), &of(&[5.0, 6.0, 7.0]), 9.0);
        assert!((again.expect("a step").half - step.half).abs() < 1e-9);
        // Two builds: what is assumed of them is in the interval.
        let two = |sd| Step::of_builds(&of(&[1.0]), &of(&[2.0]), sd).expect("a step");
        assert!(two(1.0).half > two(0.0).half + 2.0 && two(0.0).half < 0.5);
        assert_eq!(Step::of_builds(&[], &of(&[1.0, 2.0, 3.0]), 1.0), None);
    }

    #[test]
    fn it_covers_what_a_commit_changed() {
        let mut rng = Rng::new(21);
        for build in [0.0, 0.01, 0.03] {
            let mut covered = 0;
            for _ in 0..2000 {
                let mut side = |level: f64, n: usize| -> Vec<Vec<f64>> {
                    let builds = (0..n).map(|_| level + build * rng.normal()).collect::<Vec<_>>();
                    let runs = |own: f64, rng: &mut Rng| {
                        (0..6).map(|_| own + 0.03 * rng.normal()).collect::<Vec<_>>()
                    };
                    builds.into_iter().map(|own| runs(own, &mut rng)).collect()
                };
                let (a, b) = (side(0.0, 4), side(0.04, 3));
                let step = Step::of_builds(&a, &b, 0.01).expect("a step");
                covered += usize::from((step.size - 0.04).abs() <= step.half);
            }
            assert!((1870..1930).contains(&covered), "{build}: {covered} of 2000");
        }
    }

    #[test]
    fn as_many_runs_as_tell_about_as_much() {
        assert_eq!(runs_each([4, 4], [40, 40], [3, 12]), 10);
        assert_eq!(runs_each([4, 4], [8, 9], [3, 12]), 3);
        assert_eq!(runs_each([1, 5], [300, 300], [3, 12]), 12);
        assert_eq!(runs_each([0, 0], [0, 0], [1, 1]), 1);
    }
}
