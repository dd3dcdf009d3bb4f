//! Many comparisons at once: which of hundreds of activities differ between two machines.
//!
//! Two samples of a few runs each are compared by Student's test, and its p-values adjusted
//! by Benjamini and Hochberg; Welch's interval says how large the difference is. Where nothing differs at all, the chance of reporting anything is
//! then the level asked for, as with Holm's adjustment; where much differs, far more is found.

use crate::dist::{t_quantile, t_two_sided};
use crate::permutation::permutation_test;
use crate::sample::{mean, sorted, variance};
use serde::{Deserialize, Serialize};

/// The difference of two means.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// Mean of b minus mean of a.
    pub difference: f64,
    /// Its 95 % interval; none where no side has two samples.
    pub ci95: Option<[f64; 2]>,
    /// Two-sided p-value; none where no side has two samples.
    pub p_value: Option<f64>,
}

/// Welch's test of the difference of means (B. Welch, "The generalization of 'Student's'
/// problem when several different population variances are involved", Biometrika 34, 1947),
/// degrees of freedom by F. Satterthwaite (Biometrics Bulletin 2, 1946).
///
/// No sample's standard deviation counts as less than `resolution`: what a clock or a
/// counter can't resolve is no evidence, and two runs may agree by chance. A side with one
/// sample borrows the other's variance (Student's test). None if a side has no sample.
pub fn welch(a: &[f64], b: &[f64], resolution: f64) -> Option<Difference> {
    let (a, b) = (sorted(a), sorted(b));
    if a.is_empty() || b.is_empty() {
        return None;
    }
    let difference = mean(&b) - mean(&a);
    let (na, nb) = (a.len() as f64, b.len() as f64);
    let floor = resolution * resolution;
    let (error, df) = match (a.len(), b.len()) {
        (1, 1) => return Some(Difference { difference, ci95: None, p_value: None }),
        (1, _) | (_, 1) => {
            let both = variance(&a).max(variance(&b)).max(floor);
            ((both * (1.0 / na + 1.0 / nb)).sqrt(), na + nb - 2.0)
        }
        _ => {
            let (va, vb) = (variance(&a).max(floor) / na, variance(&b).max(floor) / nb);
            let error = (va + vb).sqrt();
            let df = (va + vb).powi(2) / (va * va / (na - 1.0) + vb * vb / (nb - 1.0));
            (error, if df.is_finite() { df } else { na.min(nb) - 1.0 })
        }
    };
    let half = if error > 0.0 { t_quantile(0.975, df) * error } else { 0.0 };
    let p = match difference {
        0.0 => 1.0,
        _ if error > 0.0 => t_two_sided(difference / error, df),
        _ => 0.0,
    };
    let ci95 = Some([difference - half, difference + half]);
    Some(Difference { difference, ci95, p_value: Some(p) })
}

/// Two-sided p-value of Student's test of two samples ("Student", Biometrika 6, 1908; R.
/// Fisher, Metron 5, 1925): are both sides draws from one distribution? Under that question
/// the variances are equal, and pooling them resolves far more than Welch's test where each
/// side has two or three runs. `resolution` as in [`welch`]; none where no side has two
/// samples, or one has none.
pub fn student(a: &[f64], b: &[f64], resolution: f64) -> Option<f64> {
    let (a, b) = (sorted(a), sorted(b));
    let (na, nb) = (a.len() as f64, b.len() as f64);
    let df = na + nb - 2.0;
    if a.is_empty() || b.is_empty() || df < 1.0 {
        return None;
    }
    let pooled = ((na - 1.0) * variance(&a) + (nb - 1.0) * variance(&b)) / df;
    let error = (pooled.max(resolution * resolution) * (1.0 / na + 1.0 / nb)).sqrt();
    Some(match mean(&b) - mean(&a) {
        0.0 => 1.0,
        difference if error > 0.0 => t_two_sided(difference / error, df),
        _ => 0.0,
    })
}

/// p-values adjusted by Y. Benjamini and Y. Hochberg ("Controlling the false discovery rate",
/// JRSS B 57, 1995): of those at or below alpha, a share of at most alpha is false on
/// average, also where the tests are positively dependent (Y. Benjamini, D. Yekutieli,
/// Annals of Statistics 29, 2001). NaN counts as 1.
pub fn benjamini_hochberg(p_values: &[f64]) -> Vec<f64> {
    let clean = |i: &usize| if p_values[*i].is_nan() { 1.0 } else { p_values[*i] };
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|a, b| clean(b).total_cmp(&clean(a)));
    let (all, mut least) = (p_values.len() as f64, 1.0f64);
    let mut adjusted = vec![1.0; p_values.len()];
    for (above, i) in order.into_iter().enumerate() {
        let rank = all - above as f64;
        least = least.min(clean(&i) * all / rank);
        adjusted[i] = least;
    }
    adjusted
}

/// Permutation tests of discrete samples (occurrences a run), adjusted by R. Tarone ("A
/// modified Bonferroni method for discrete data", Biometrics 46, 1990): tests that could not
/// be significant whatever had happened are not counted. Compare with `alpha` only.
pub fn tarone(tests: &[(Vec<f64>, Vec<f64>)], alpha: f64, seed: u64) -> Vec<f64> {
    let attainable: Vec<f64> = tests.iter().map(|(a, b)| smallest(a, b, seed)).collect();
    let count = |k: usize| attainable.iter().filter(|p| **p <= alpha / k as f64).count();
    let factor = (1..=tests.len()).find(|k| count(*k) <= *k).unwrap_or(tests.len().max(1));
    let tests = tests.iter().zip(attainable);
    tests
        .map(|((a, b), attainable)| {
            if attainable <= alpha / factor as f64 {
                (discrete(a, b, seed) * factor as f64).min(1.0)
            } else {
                1.0
            }
        })
        .collect()
}

/// p-value of the permutation test of occurrences. Of lines that a run has or has not it is
/// exact for any number of runs (R. Fisher's test, 1935: the hypergeometric distribution), so that
/// more runs never lose what fewer find.
fn discrete(a: &[f64], b: &[f64], seed: u64) -> f64 {
    let (a, b) = (sorted(a), sorted(b));
    let mut all = a.iter().chain(&b);
    if a.is_empty() || b.is_empty() || !all.all(|n| *n == 0.0 || *n == 1.0) {
        return permutation_test(&a, &b, seed).p;
    }
    let ones = |side: &[f64]| side.iter().filter(|n| **n == 1.0).count();
    let (na, nb, seen) = (a.len(), b.len(), ones(&a) + ones(&b));
    let difference =
        |in_a: usize| (in_a as f64 / na as f64 - (seen - in_a) as f64 / nb as f64).abs();
    let observed = difference(ones(&a)) * (1.0 - 1e-12);
    let log_choose = |n: usize, k: usize| -> f64 {
        (0..k).map(|i| ((n - i) as f64 / (i + 1) as f64).ln()).sum()
    };
    let all = log_choose(na + nb, seen);
    let chance = |in_a: usize| (log_choose(na, in_a) + log_choose(nb, seen - in_a) - all).exp();
    let possible = seen.saturating_sub(nb)..=seen.min(na);
    possible.filter(|k| difference(*k) >= observed).map(chance).sum::<f64>().min(1.0)
}

/// The p-value had the same runs fallen most unevenly on the two sides.
fn smallest(a: &[f64], b: &[f64], seed: u64) -> f64 {
    let pooled = sorted(&[a, b].concat());
    let split = |at: usize| {
        let (low, high) = pooled.split_at(at.min(pooled.len()));
        discrete(low, high, seed)
    };
    split(a.len()).min(split(b.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use proptest::prelude::*;

    #[test]
    fn welch_as_published() {
        // The example of R's t.test: t.test(1:10, y = c(7:20)).
        let a: Vec<f64> = (1..=10).map(f64::from).collect();
        let b: Vec<f64> = (7..=20).map(f64::from).collect();
        let found = welch(&a, &b, 0.0).expect("two samples");
        assert_eq!(found.difference, 8.0);
        let [low, high] = found.ci95.expect("an interval");
        assert!((low - 4.947_198).abs() < 1e-6 && (high - 11.052_802).abs() < 1e-6, "{low} {high}");
        assert!((found.p_value.expect("a p-value") - 1.855e-5).abs() < 1e-7);
    }

    #[test]
    fn student_as_published() {
        // The sleep data of the 1908 paper, as R's t.test(…, var.equal = TRUE) has it.
        let a = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0];
        let b = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4];
        assert!((student(&a, &b, 0.0).expect("p") - 0.079_19).abs() < 1e-5);
        assert_eq!(student(&[1.0], &[2.0], 0.0), None);
        assert!(student(&[5.5, 6.1], &[609.0, 610.0], 1e-6).expect("p") < 1e-5);
    }

    #[test]
    fn single_runs_tell_nothing_and_equal_runs_no_more_than_the_resolution() {
        let found = welch(&[1.0], &[5.0], 0.0).expect("two samples");
        assert_eq!((found.difference, found.p_value), (4.0, None));
        let equal = |resolution| {
            welch(&[352.0, 352.0], &[353.0, 353.0], resolution).and_then(|d| d.p_value)
        };
        assert!(equal(1.0).expect("p") > 0.3);
        assert_eq!(equal(0.0), Some(0.0));
        assert!(welch(&[812.0], &[1103.0; 3], 1.0).and_then(|d| d.p_value).expect("p") < 1e-4);
    }

    #[test]
    fn benjamini_hochberg_as_published() {
        // The 15 p-values of the 1995 paper's example: four are found at 5 %.
        let p = [
            0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262,
            0.5719, 0.6528, 0.7590, 1.0,
        ];
        let adjusted = benjamini_hochberg(&p);
        assert_eq!(adjusted.iter().filter(|p| **p <= 0.05).count(), 4);
        assert!((adjusted[3] - 0.0095 * 15.0 / 4.0).abs() < 1e-12);
    }

    #[test]
    fn nothing_is_found_where_nothing_is() {
        let mut rng = Rng::new(3);
        for runs in [2, 3, 5, 10] {
            let mut false_alarms = 0;
            for _ in 0..400 {
                let p: Vec<f64> = (0..60)
                    .map(|_| {
                        let mut side = || -> Vec<f64> {
                            (0..runs).map(|_| (0.3 * rng.normal()).exp()).collect()
                        };
                        student(&side(), &side(), 0.0).unwrap_or(1.0)
                    })
                    .collect();
                false_alarms += usize::from(benjamini_hochberg(&p).iter().any(|p| *p <= 0.05));
            }
            assert!(false_alarms <= 28, "{runs} runs: {false_alarms} of 400");
        }
    }

    #[test]
    fn tarone_counts_only_what_could_be_found() {
        let new = (vec![0.0; 5], vec![1.0; 5]);
        let rare = (vec![0.0; 5], vec![0.0, 0.0, 0.0, 0.0, 1.0]);
        let mut tests = vec![rare; 50];
        tests.push(new);
        let p = tarone(&tests, 0.05, 1);
        assert!(p[50] <= 0.008 && p[..50].iter().all(|p| *p == 1.0), "{}", p[50]);
        assert!(tarone(&[], 0.05, 1).is_empty());
        let few = (vec![0.0; 2], vec![1.0; 2]);
        assert_eq!(tarone(&[few], 0.05, 1), vec![1.0f64]);
    }

    /// Review E11: of 120 new lines 9 runs a side found all, 20 none.
    #[test]
    fn more_runs_lose_no_line() {
        for runs in [9, 10, 20, 50] {
            let new = (vec![0.0; runs], vec![1.0; runs]);
            let p = tarone(&vec![new; 120], 0.01, 1);
            assert!(p.iter().all(|p| *p <= 0.01), "{runs} runs: {}", p[0]);
        }
        let (a, b) = ([0.0, 0.0, 1.0, 0.0], [1.0, 1.0, 0.0, 1.0, 1.0]);
        assert!((discrete(&a, &b, 1) - permutation_test(&a, &b, 1).p).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn adjusting_keeps_order_and_never_helps(p in proptest::collection::vec(0.0f64..=1.0, 0..40)) {
            let adjusted = benjamini_hochberg(&p);
            for (i, a) in adjusted.iter().enumerate() {
                prop_assert!(*a >= p[i] * (1.0 - 1e-12) && *a <= 1.0);
                for (j, b) in adjusted.iter().enumerate() {
                    prop_assert!(p[i] > p[j] || a <= b);
                }
            }
        }

        #[test]
        fn any_samples(
            a in proptest::collection::vec(any::<f64>(), 0..6),
            b in proptest::collection::vec(any::<f64>(), 0..6),
        ) {
            if let Some(p) = welch(&a, &b, 1e-6).and_then(|d| d.p_value) {
                prop_assert!((0.0..=1.0).contains(&p) || p.is_nan());
            }
        }
    }
}
