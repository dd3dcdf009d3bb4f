//! Is b really faster than a? Permutation tests, and a verdict that can be "not known".

use crate::pairs::{log_ratios, paired_ratio};
use crate::ratio::ratio_of_means;
use crate::rng::Rng;
use crate::sample::{mean, sorted};
use serde::{Deserialize, Serialize};
use vmeter_model::{Estimate, Verdict};

/// Up to this many arrangements all are tried, beyond it [`MONTE_CARLO`] random ones.
pub const EXACT_LIMIT: u64 = 50_000;
/// Random arrangements tried; the smallest p-value is 1 / (this + 1).
pub const MONTE_CARLO: usize = 9_999;

/// A p-value and how it was found.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
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

/// Sign-flip test of paired differences (Fisher, 1935, ch. 3): the same test within pairs.
/// Exact or Monte Carlo as [`permutation_test`].
pub fn sign_flip_test(differences: &[f64], seed: u64) -> PValue {
    let d = sorted(differences);
    let observed: f64 = d.iter().sum();
    let extreme = extreme_as(observed, &d);
    if d.len() < 16 {
        let signed = |mask: u32| -> f64 {
            d.iter().enumerate().map(|(i, x)| if mask >> i & 1 == 1 { -x } else { *x }).sum()
        };
        let patterns = 1u32 << d.len();
        let hits = (0..patterns).filter(|&mask| extreme(signed(mask))).count();
        return PValue { p: hits as f64 / f64::from(patterns), exact: true };
    }
    let mut rng = Rng::new(seed);
    let hits = (0..MONTE_CARLO)
        .filter(|_| extreme(d.iter().map(|x| if rng.bits() >> 63 == 1 { -x } else { *x }).sum()));
    monte_carlo(hits.count())
}

/// Permutation test within strata (hosts, blocks): labels are exchanged only inside each
/// (a, b) group, the statistic is the sum over groups of the difference of means weighted by
/// n_a n_b / (n_a + n_b). Monte Carlo.
pub fn stratified_permutation_test(strata: &[(Vec<f64>, Vec<f64>)], seed: u64) -> PValue {
    let mut groups: Vec<(Vec<f64>, usize)> = strata
        .iter()
        .map(|(a, b)| (sorted(a), sorted(b)))
        .filter(|(a, b)| !a.is_empty() && !b.is_empty())
        .map(|(a, b)| (centred([a.as_slice(), b.as_slice()].concat()), a.len()))
        .collect();
    if groups.is_empty() {
        return PValue { p: 1.0, exact: true };
    }
    // With the pooled mean at 0 the weighted difference is the sum of the a side.
    let statistic = |groups: &[(Vec<f64>, usize)]| -> f64 {
        groups.iter().map(|(all, na)| all[..*na].iter().sum::<f64>()).sum()
    };
    let observed = statistic(&groups);
    let all: Vec<f64> = groups.iter().flat_map(|(xs, _)| xs.iter().copied()).collect();
    let extreme = extreme_as(observed, &all);
    let mut rng = Rng::new(seed);
    let hits = (0..MONTE_CARLO).filter(|_| {
        groups.iter_mut().for_each(|(xs, _)| rng.shuffle(xs));
        extreme(statistic(&groups))
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

/// Smallest p-value that [`permutation_test`] can give for so many samples: with 3 against 3
/// nothing can be significant at 5 %.
pub fn smallest_p(a: usize, b: usize) -> f64 {
    let arrangements = binomial((a + b) as u64, a.min(b) as u64);
    let sides = if a == b { 2.0 } else { 1.0 };
    if arrangements <= EXACT_LIMIT {
        (sides / arrangements as f64).min(1.0)
    } else {
        1.0 / (MONTE_CARLO + 1) as f64
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

/// How to compare.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Chance of a false difference at most.
    pub alpha: f64,
    /// Smallest |ratio - 1| worth a verdict: a difference can be real and too small to matter.
    pub min_effect: f64,
    /// a's and b's samples at one index are of one block of an interleaved plan.
    pub paired: bool,
    /// Seed of Monte Carlo tests.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { alpha: 0.05, min_effect: 0.0, paired: false, seed: 0 }
    }
}

impl Options {
    /// The verdict by a p-value (adjusted, if there were several) and the ratio b over a.
    pub fn verdict(&self, p_value: f64, ratio: f64) -> Verdict {
        let significant = p_value <= self.alpha;
        let material = (ratio - 1.0).abs() >= self.min_effect;
        match ratio.partial_cmp(&1.0) {
            Some(std::cmp::Ordering::Less) if significant && material => Verdict::Faster,
            Some(std::cmp::Ordering::Greater) if significant && material => Verdict::Slower,
            _ => Verdict::NoDifference,
        }
    }
}

/// Result of [`compare`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Compared {
    /// b over a: [`ratio_of_means`], or of pairs ([`paired_ratio`]).
    pub ratio: Estimate,
    /// Of the permutation test, or the sign-flip test of log ratios.
    pub p_value: PValue,
    /// The verdict at `alpha`, if this is the only comparison; else use [`Options::verdict`] with
    /// p-values from [`holm`].
    pub verdict: Verdict,
}

/// Compares b with a (the baseline). Paired comparison needs sides of equal length, a failed
/// run being NaN; unequal sides are compared unpaired. None if a ratio can't be formed: a
/// side without samples, a baseline with samples that are not above 0.
pub fn compare(a: &[f64], b: &[f64], options: &Options) -> Option<Compared> {
    let (ratio, p_value) = if options.paired && a.len() == b.len() {
        let pairs: Vec<(f64, f64)> = b.iter().copied().zip(a.iter().copied()).collect();
        (paired_ratio(&pairs)?.estimate, sign_flip_test(&log_ratios(&pairs), options.seed))
    } else {
        (ratio_of_means(a, b)?, permutation_test(a, b, options.seed))
    };
    Some(Compared { ratio, p_value, verdict: options.verdict(p_value.p, ratio.mean) })
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
        let exact = permutation_test(&a, &b, 0);
        assert!(exact.exact);
        let stratified = stratified_permutation_test(&[(a.to_vec(), b.to_vec())], 1);
        assert!(!stratified.exact && (stratified.p - exact.p).abs() < 0.005, "{stratified:?}");
        let more: Vec<f64> = (0..40).map(|i| f64::from(i % 7)).collect();
        assert_eq!(permutation_test(&more, &more, 5), permutation_test(&more, &more, 5));
    }

    #[test]
    fn signs_of_six_pairs() {
        assert!((sign_flip_test(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0).p - 2.0 / 64.0).abs() < 1e-12);
        assert_eq!(sign_flip_test(&[], 0).p, 1.0);
        let many: Vec<f64> = (0..30).map(|i| f64::from(i) - 3.0).collect();
        assert!(sign_flip_test(&many, 0).p <= 0.001);
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
    fn verdicts() {
        let slow = [4.0, 4.1, 3.9, 4.05, 3.95];
        let fast = [2.0, 2.1, 1.9, 2.05, 1.95];
        let options = Options::default();
        assert_eq!(compare(&slow, &fast, &options).unwrap().verdict, Verdict::Faster);
        assert_eq!(compare(&fast, &slow, &options).unwrap().verdict, Verdict::Slower);
        assert_eq!(compare(&slow, &slow, &options).unwrap().verdict, Verdict::NoDifference);
        let strict = Options { min_effect: 0.6, ..options };
        assert_eq!(compare(&slow, &fast, &strict).unwrap().verdict, Verdict::NoDifference);
        assert_eq!(Verdict::NoDifference.to_string(), "no difference found");
        assert!(compare(&[], &fast, &options).is_none());
        assert!(smallest_p(3, 3) > 0.05 && smallest_p(4, 4) < 0.05);
    }

    #[test]
    fn pairing_sees_through_drift() {
        let a: Vec<f64> = (0..10).map(|i| 2.5 + 0.25 * f64::from(i)).collect();
        let b: Vec<f64> =
            a.iter().enumerate().map(|(i, x)| x * (1.04 + 0.002 * (i % 3) as f64)).collect();
        let unpaired = compare(&a, &b, &Options::default()).unwrap();
        assert_eq!(unpaired.verdict, Verdict::NoDifference);
        let paired = compare(&a, &b, &Options { paired: true, ..Options::default() }).unwrap();
        assert_eq!(paired.verdict, Verdict::Slower, "{paired:?}");
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
            compare(&a, &b, &Options::default()).unwrap().verdict != Verdict::NoDifference
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
            let p = sign_flip_test(&a, 1).p;
            prop_assert!((0.0..=1.0).contains(&p));
            let p = crate::mann_whitney(&a, &b).p;
            prop_assert!((0.0..=1.0).contains(&p));
            let _ = compare(&a, &b, &Options { paired: true, ..Options::default() });
        }

        #[test]
        fn holm_never_lowers(ps in prop::collection::vec(0.0f64..=1.0, 0..20)) {
            let adjusted = holm(&ps);
            prop_assert!(ps.iter().zip(&adjusted).all(|(p, a)| a >= p && *a <= 1.0));
        }
    }
}
