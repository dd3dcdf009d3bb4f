//! Permutation tests, and p-values adjusted for several of them.

use crate::rng::Rng;
use crate::sample::{mean, sorted};

/// Up to this many arrangements all are tried, beyond it [`MONTE_CARLO`] random ones.
pub const EXACT_LIMIT: u64 = 50_000;
/// Random arrangements tried; the smallest p-value is 1 / (this + 1).
pub const MONTE_CARLO: usize = 9_999;

/// A p-value and how it was found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PValue {
    /// Two-sided p-value; 1 where nothing can be tested.
    pub p: f64,
    /// True if every arrangement was tried.
    pub exact: bool,
}

/// Permutation test of the difference of means (R. Fisher, The Design of Experiments, 1935;
/// E. Pitman, JRSS Supplement 4, 1937), two-sided.
///
/// Exact for few samples; else Monte Carlo with (b + 1) / (m + 1) (A. Davison, D. Hinkley,
/// Bootstrap Methods and their Application, 1997, 4.2; B. Phipson, G. Smyth, 2010), which is
/// never 0 and never too small.
pub fn permutation_test(a: &[f64], b: &[f64], seed: u64) -> PValue {
    let (a, b) = (sorted(a), sorted(b));
    if a.is_empty() || b.is_empty() {
        return PValue { p: 1.0, exact: true };
    }
    let pooled = centred([a.as_slice(), b.as_slice()].concat());
    // The difference of means is a linear function of the smaller side's sum.
    let (small, observed) = if a.len() <= b.len() {
        (a.len(), pooled[..a.len()].iter().sum::<f64>())
    } else {
        (b.len(), pooled[a.len()..].iter().sum::<f64>())
    };
    let extreme = extreme_as(observed, &pooled);
    let arrangements = binomial(pooled.len() as u64, small as u64);
    if arrangements <= EXACT_LIMIT {
        let mut hits = 0u64;
        each_subset_sum(&pooled, small, 0.0, &mut |sum| hits += u64::from(extreme(sum)));
        return PValue { p: hits as f64 / arrangements as f64, exact: true };
    }
    let mut rng = Rng::new(seed);
    let mut order = pooled;
    let hits = (0..MONTE_CARLO).filter(|_| {
        // The first `small` steps of Fisher-Yates are a random subset.
        for i in 0..small {
            let j = i + rng.below(order.len() - i);
            order.swap(i, j);
        }
        extreme(order[..small].iter().sum())
    });
    monte_carlo(hits.count())
}

fn monte_carlo(hits: usize) -> PValue {
    PValue { p: (hits + 1) as f64 / (MONTE_CARLO + 1) as f64, exact: false }
}

/// At least as far from 0 as observed, but for rounding in sums of these values.
fn extreme_as(observed: f64, values: &[f64]) -> impl Fn(f64) -> bool {
    let scale: f64 = values.iter().map(|x| x.abs()).sum();
    let threshold = observed.abs() - 1e-12 * scale;
    move |sum| sum.abs() >= threshold
}

fn centred(mut values: Vec<f64>) -> Vec<f64> {
    let centre = mean(&values);
    values.iter_mut().for_each(|x| *x -= centre);
    values
}

fn binomial(n: u64, k: u64) -> u64 {
    let step = |acc: u64, i: u64| acc.saturating_mul(n - i).checked_div(i + 1).unwrap_or(u64::MAX);
    (0..k.min(n)).fold(1, step)
}

fn each_subset_sum(values: &[f64], take: usize, sum: f64, visit: &mut impl FnMut(f64)) {
    if take == 0 {
        return visit(sum);
    }
    for i in 0..=values.len() - take {
        each_subset_sum(&values[i + 1..], take - 1, sum + values[i], visit);
    }
}

/// p-values adjusted for several comparisons (S. Holm, "A simple sequentially rejective
/// multiple test procedure", Scandinavian Journal of Statistics 6, 1979): comparing them
/// with alpha keeps the chance of any false difference at alpha. NaN counts as 1.
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let clean = |i: &usize| if p_values[*i].is_nan() { 1.0 } else { p_values[*i] };
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|a, b| clean(a).total_cmp(&clean(b)));
    let mut adjusted = vec![1.0; p_values.len()];
    let mut least: f64 = 0.0;
    for (rank, i) in order.into_iter().enumerate() {
        least = least.max((clean(&i) * (p_values.len() - rank) as f64).min(1.0));
        adjusted[i] = least;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use proptest::prelude::*;

    #[test]
    fn all_arrangements_of_3_against_4() {
        // By hand: of the 35 ways, {1,2,3} has the lowest sum and none is as high.
        let test = permutation_test(&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0, 7.0], 0);
        assert!(test.exact && (test.p - 2.0 / 35.0).abs() < 1e-12, "{test:?}");
        assert_eq!(permutation_test(&[1.0; 4], &[1.0; 4], 0).p, 1.0);
        assert_eq!(permutation_test(&[], &[1.0], 0).p, 1.0);
    }

    #[test]
    fn monte_carlo_agrees_with_all_arrangements() {
        let a = [5.1, 4.8, 5.6, 5.0, 4.9, 5.3, 5.2, 4.7];
        let b = [5.4, 5.2, 5.9, 5.5, 5.0, 5.6, 5.3, 5.7];
        assert!(permutation_test(&a, &b, 0).exact);
        let more: Vec<f64> = (0..40).map(|i| f64::from(i % 7)).collect();
        assert_eq!(permutation_test(&more, &more, 5), permutation_test(&more, &more, 5));
    }

    #[test]
    fn holms_example() {
        // Holm 1979 as in R's p.adjust(c(0.01, 0.02, 0.03, 0.005), "holm").
        let adjusted = holm(&[0.01, 0.02, 0.03, 0.005]);
        let expected = [0.03, 0.04, 0.04, 0.02];
        assert!(adjusted.iter().zip(expected).all(|(a, e)| (a - e).abs() < 1e-12));
        assert_eq!(holm(&[f64::NAN, 0.9]), [1.0, 1.0]);
        assert_eq!(holm(&[]), [0.0; 0]);
    }

    #[test]
    fn false_alarms_are_as_rare_as_alpha_says() {
        let mut rng = Rng::new(99);
        let noise = |rng: &mut Rng| -> Vec<f64> {
            // Skewed, with a slow run now and then.
            let one = |rng: &mut Rng| {
                3.0 + 0.3 * rng.normal().exp() + if rng.below(12) == 0 { 2.0 } else { 0.0 }
            };
            (0..7).map(|_| one(rng)).collect()
        };
        let trials = 1000;
        let alarms = (0..trials).filter(|_| {
            let (a, b) = (noise(&mut rng), noise(&mut rng));
            permutation_test(&a, &b, 0).p <= 0.05
        });
        let alarms = alarms.count();
        println!("{alarms} false alarms of {trials}");
        assert!(alarms <= 65, "{alarms}");
    }

    proptest! {
        #[test]
        fn p_values_are_probabilities(
            a in prop::collection::vec(any::<f64>(), 0..9),
            b in prop::collection::vec(any::<f64>(), 0..9),
        ) {
            let p = permutation_test(&a, &b, 1).p;
            prop_assert!(p > 0.0 && p <= 1.0 || a.iter().chain(&b).any(|x| x.abs() > 1e300));
            let p = crate::mann_whitney(&a, &b).p;
            prop_assert!((0.0..=1.0).contains(&p));
        }

        #[test]
        fn holm_never_lowers(ps in prop::collection::vec(0.0f64..=1.0, 0..20)) {
            let adjusted = holm(&ps);
            prop_assert!(ps.iter().zip(&adjusted).all(|(p, a)| a >= p && *a <= 1.0));
        }
    }
}
