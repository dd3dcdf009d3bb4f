//! How large a step is, by runs of builds on either side of it.
//!
//! What is asked is what a commit changed, and not by how much two files differ: a build adds to
//! all of its runs alike, so that a build is one observation and not each of its runs (T. Kalibera,
//! R. Jones, "Rigorous benchmarking in reasonable time", ISMM 2013). The runs must not be those that
//! found the step: these say too much of it, having been gone on with until it showed.

use crate::dist::{f_upper, t_quantile};
use crate::sample::{mean, sum_squares};
use crate::signed_rank::pseudo_median;

/// Degrees of freedom from which builds themselves tell what they scatter by.
const ENOUGH: usize = 2;

/// p value from which on a build's runs are not held to scatter more than others'.
const NOISIER: f64 = 0.05;

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
        let noisy = by_own_runs(before, after).unwrap_or(0.0);
        let by_centres = Step::of_centres(&a, &b);
        let by_centres = by_centres.map(|step| Step { half: step.half.max(noisy), ..step });
        by_centres.or_else(|| {
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

/// Half of the 95 % interval of the step at a lone build whose runs scatter more than those of the
/// other side's builds: the centres of these do not tell what its own is uncertain by. None where
/// neither side is such a build. Degrees of freedom by B. L. Welch, Biometrika 34 (1947).
fn by_own_runs(before: &[Vec<f64>], after: &[Vec<f64>]) -> Option<f64> {
    let [a, b] = [before, after]
        .map(|side| -> Vec<&Vec<f64>> { side.iter().filter(|runs| !runs.is_empty()).collect() });
    let (lone, others) = match (a.as_slice(), b.as_slice()) {
        ([lone], others) | (others, [lone]) if others.len() > ENOUGH => (*lone, others),
        _ => return None,
    };
    let within = others.iter().map(|runs| sum_squares(runs)).sum::<f64>();
    let freedom = others.iter().map(|runs| runs.len() - 1).sum::<usize>() as f64;
    let own_freedom = lone.len() as f64 - 1.0;
    let own = sum_squares(lone) / own_freedom;
    if f_upper(own * freedom / within, own_freedom, freedom) > NOISIER {
        return None;
    }
    let centres: Vec<f64> = others.iter().map(|runs| pseudo_median(runs)).collect();
    let n = centres.len() as f64;
    let error = [own / lone.len() as f64, sum_squares(&centres) / (n - 1.0) / n];
    let all = error[0] + error[1];
    let welch = all * all / (error[0] * error[0] / own_freedom + error[1] * error[1] / (n - 1.0));
    Some(t_quantile(0.975, welch) * all.sqrt())
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
    fn a_lone_build_that_is_noisy_shows_nothing_by_chance() {
        let mut rng = Rng::new(22);
        let mut shown = [0; 2];
        for (noise, shown) in [0.03, 0.15].into_iter().zip(&mut shown) {
            for _ in 0..2000 {
                let mut build = |noise: f64, runs: usize| -> Vec<f64> {
                    (0..runs).map(|_| noise * rng.normal()).collect()
                };
                let others: Vec<Vec<f64>> = (0..8).map(|_| build(0.03, 5)).collect();
                let step = Step::of_builds(&others, &[build(noise, 40)], 0.01).expect("a step");
                *shown += usize::from(step.size.abs() > step.half);
            }
        }
        assert!(shown[0] < 60, "{shown:?}");
        assert!((60..130).contains(&shown[1]), "{shown:?}");
    }

    #[test]
    fn as_many_runs_as_tell_about_as_much() {
        assert_eq!(runs_each([4, 4], [40, 40], [3, 12]), 10);
        assert_eq!(runs_each([4, 4], [8, 9], [3, 12]), 3);
        assert_eq!(runs_each([1, 5], [300, 300], [3, 12]), 12);
        assert_eq!(runs_each([0, 0], [0, 0], [1, 1]), 1);
    }
}
