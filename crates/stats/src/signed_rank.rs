//! The signed-rank test and its interval: what paired differences say without assuming a
//! normal distribution (F. Wilcoxon, "Individual comparisons by ranking methods",
//! Biometrics Bulletin 1, 1945; M. Hollander, D. Wolfe, E. Chicken, Nonparametric
//! Statistical Methods, 3rd ed. 2014, ch. 3).
//!
//! It assumes that differences scatter symmetrically about their centre. Pairs run in
//! random order give exactly that: the two runs' noise is exchangeable.

use crate::dist::normal_cdf;
use crate::sample::sorted;

/// Up to here tail probabilities are exact, with ties too; beyond by the normal.
const EXACT: usize = 60;

/// One-sided p-values of paired differences.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SignedRank {
    /// Differences used: those that are finite and not 0.
    pub n: usize,
    /// p-value against "the centre is at most 0".
    pub above: f64,
    /// p-value against "the centre is at least 0".
    pub below: f64,
}

impl SignedRank {
    /// Two-sided p-value.
    pub fn two_sided(&self) -> f64 {
        (2.0 * self.above.min(self.below)).min(1.0)
    }
}

/// Tests whether `differences` are centred on 0. Zeros are left out (Wilcoxon's way), ties
/// share their mean rank; the tail is that of the ranks as they are.
pub fn signed_rank(differences: &[f64]) -> SignedRank {
    let mut signed: Vec<f64> =
        differences.iter().copied().filter(|d| d.is_finite() && *d != 0.0).collect();
    signed.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
    let ranks = doubled_ranks(&signed);
    let positive: usize =
        signed.iter().zip(&ranks).filter(|(d, _)| **d > 0.0).map(|(_, r)| r).sum();
    let total: usize = ranks.iter().sum();
    let [above, below] = if signed.len() <= EXACT {
        let weights = subset_sums(&ranks);
        [weights[positive..].iter().sum(), weights[..=positive].iter().sum()]
    } else {
        let sd = (ranks.iter().map(|r| (r * r) as f64).sum::<f64>() / 4.0).sqrt();
        let centre = total as f64 / 2.0;
        // Doubled ranks: half a step of W is 1.
        let tail = |w: f64| normal_cdf(-(w - 1.0 - centre) / sd);
        [tail(positive as f64), tail((total - positive) as f64)]
    };
    SignedRank { n: signed.len(), above: above.min(1.0), below: below.min(1.0) }
}

/// Ranks of |d| times two, so that shared ranks are whole numbers.
fn doubled_ranks(by_size: &[f64]) -> Vec<usize> {
    let mut ranks = vec![0; by_size.len()];
    let mut start = 0;
    while start < by_size.len() {
        let tied = by_size[start..].iter().take_while(|d| d.abs() == by_size[start].abs()).count();
        // Ranks start+1 ..= start+tied share their mean.
        ranks[start..start + tied].fill(2 * start + tied + 1);
        start += tied;
    }
    ranks
}

/// Probability of each sum when every rank is taken with probability one half.
fn subset_sums(ranks: &[usize]) -> Vec<f64> {
    let mut weights = vec![0.0; ranks.iter().sum::<usize>() + 1];
    weights[0] = 1.0;
    let mut reach = 0;
    for &rank in ranks {
        reach += rank;
        for sum in (0..=reach).rev() {
            let with = if sum >= rank { weights[sum - rank] } else { 0.0 };
            weights[sum] = (weights[sum] + with) / 2.0;
        }
    }
    weights
}

/// Centre of the differences: the median of all pairwise means (J. Hodges, E. Lehmann,
/// Annals of Mathematical Statistics 34, 1963). 0 for none.
pub fn pseudo_median(differences: &[f64]) -> f64 {
    crate::sample::sorted_quantile(&walsh_averages(differences), 0.5)
}

/// Interval of the centre that misses it on each side with probability `tail` at most (Tukey;
/// Hollander & Wolfe, 3.3). None where so few pairs can't give such an interval: below 6
/// pairs for a tail of 2.5 %.
pub fn interval(differences: &[f64], tail: f64) -> Option<[f64; 2]> {
    let averages = walsh_averages(differences);
    let n = differences.iter().filter(|d| d.is_finite()).count();
    let dropped = averages_to_drop(n, tail)?;
    Some([*averages.get(dropped)?, averages[averages.len() - 1 - dropped]])
}

/// The lower end of the interval of finite differences that drops so many averages.
pub(crate) fn lower_end(differences: &[f64], dropped: usize) -> f64 {
    let pairs = differences.iter().enumerate();
    let mut averages: Vec<f64> =
        pairs.flat_map(|(i, a)| differences[i..].iter().map(move |b| a / 2.0 + b / 2.0)).collect();
    let at = dropped.min(averages.len().saturating_sub(1));
    *averages.select_nth_unstable_by(at, f64::total_cmp).1
}

/// How many of the lowest Walsh averages lie below the interval.
pub(crate) fn averages_to_drop(n: usize, tail: f64) -> Option<usize> {
    if n > EXACT {
        let n = n as f64;
        let sd = (n * (n + 1.0) * (2.0 * n + 1.0) / 24.0).sqrt();
        let edge = n * (n + 1.0) / 4.0 + crate::dist::normal_quantile(tail) * sd - 0.5;
        return (edge >= 0.0).then_some(edge as usize);
    }
    let ranks: Vec<usize> = (1..=n).collect();
    let cumulated = subset_sums(&ranks).into_iter().scan(0.0, |sum, weight| {
        *sum += weight;
        Some(*sum)
    });
    // P(W <= k) <= tail for the first `count` values of k.
    let count = cumulated.take_while(|p| *p <= tail).count();
    count.checked_sub(1)
}

fn walsh_averages(differences: &[f64]) -> Vec<f64> {
    let finite = sorted(differences);
    let pairs = finite.iter().enumerate();
    let averages: Vec<f64> =
        pairs.flat_map(|(i, a)| finite[i..].iter().map(move |b| a / 2.0 + b / 2.0)).collect();
    sorted(&averages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Hollander & Wolfe, example 3.1 (Hamilton depression scale, n = 9): T+ = 5, one-sided
    /// p = 0.020, pseudo-median -0.46, 96 % interval (-0.786, -0.010).
    #[test]
    #[allow(clippy::approx_constant)] // A rating of 3.14.
    fn the_books_example() {
        let x = [1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30];
        let y = [0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29];
        let d: Vec<f64> = y.iter().zip(x).map(|(y, x)| y - x).collect();
        let test = signed_rank(&d);
        assert_eq!(test.n, 9);
        assert!((test.below - 0.01953).abs() < 1e-4, "{test:?}");
        assert!((pseudo_median(&d) + 0.46).abs() < 0.001);
        let [lo, hi] = interval(&d, 0.02).unwrap();
        assert!((lo + 0.786).abs() < 0.001 && (hi + 0.010).abs() < 0.001, "{lo} {hi}");
    }

    #[test]
    fn the_tail_is_that_of_all_sign_patterns() {
        let d = [0.5, -1.0, 1.0, 2.0, 2.0, -0.25, 3.0];
        let mut by_size = d;
        by_size.sort_by(|a: &f64, b| a.abs().total_cmp(&b.abs()));
        let ranks = doubled_ranks(&by_size);
        assert_eq!(ranks, [2, 4, 7, 7, 11, 11, 14]);
        let observed = 4 + 7 + 11 + 11 + 14;
        let sum = |mask: usize| -> usize {
            (0..7).filter(|i| mask >> i & 1 == 1).map(|i| ranks[i]).sum()
        };
        let tail = (0..128).filter(|&mask| sum(mask) >= observed).count() as f64 / 128.0;
        assert!((signed_rank(&d).above - tail).abs() < 1e-12);
    }

    #[test]
    fn too_few_pairs_give_no_interval() {
        assert_eq!(interval(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.025), None);
        assert_eq!(interval(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0.025), Some([1.0, 6.0]));
        assert_eq!(interval(&[], 0.025), None);
        assert_eq!(signed_rank(&[0.0, f64::NAN]).two_sided(), 1.0);
    }

    #[test]
    fn exact_and_normal_tails_meet() {
        let mut rng = crate::rng::Rng::new(9);
        let d: Vec<f64> = (0..EXACT).map(|_| rng.normal() + 0.2).collect();
        let mut more = d.clone();
        more.push(1e-9);
        let (exact, normal) = (signed_rank(&d).above, signed_rank(&more).above);
        assert!((exact - normal).abs() < 0.005, "{exact} {normal}");
        let (a, b) = (interval(&d, 0.025).unwrap(), interval(&more, 0.025).unwrap());
        assert!((a[0] - b[0]).abs() < 0.05 && (a[1] - b[1]).abs() < 0.05);
    }

    proptest! {
        #[test]
        fn tails_are_probabilities(d in prop::collection::vec(any::<f64>(), 0..80)) {
            let test = signed_rank(&d);
            prop_assert!((0.0..=1.0).contains(&test.above) && (0.0..=1.0).contains(&test.below));
            prop_assert!(test.above + test.below >= 1.0 - 1e-6);
            if let Some([lo, hi]) = interval(&d, 0.05) {
                prop_assert!(lo <= hi);
            }
        }
    }
}
