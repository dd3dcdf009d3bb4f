//! Mann-Whitney's U: does one side tend to be larger, by ranks only.

use crate::dist::normal_cdf;
use crate::sample::sorted;

/// Result of [`mann_whitney`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MannWhitney {
    /// Number of pairs (one a, one b) in which b is larger, ties counting half.
    pub u: f64,
    /// u over the number of pairs: the chance that a b is larger than an a.
    pub probability: f64,
    /// Two-sided p-value.
    pub p: f64,
}

/// Rank-sum test (H. Mann, D. Whitney, Annals of Mathematical Statistics 18, 1947). Exact by
/// their recursion for up to 20 samples a side without ties; else the normal approximation
/// with corrections for ties and continuity (Hollander & Wolfe, ch. 4).
pub fn mann_whitney(a: &[f64], b: &[f64]) -> MannWhitney {
    let (a, b) = (sorted(a), sorted(b));
    let pairs = (a.len() * b.len()) as f64;
    if pairs == 0.0 {
        return MannWhitney { u: 0.0, probability: 0.5, p: 1.0 };
    }
    let score = |x: f64, y: f64| match y.total_cmp(&x) {
        _ if x == y => 0.5,
        std::cmp::Ordering::Greater => 1.0,
        _ => 0.0,
    };
    let u: f64 = a.iter().map(|x| b.iter().map(|y| score(*x, *y)).sum::<f64>()).sum();
    let pooled = sorted(&[a.as_slice(), b.as_slice()].concat());
    let tied = pooled.windows(2).any(|w| w[0] == w[1]);
    let p = if !tied && a.len() <= 20 && b.len() <= 20 {
        exact(u.min(pairs - u) as usize, a.len(), b.len())
    } else {
        normal(u, a.len() as f64, b.len() as f64, &pooled)
    };
    MannWhitney { u, probability: u / pairs, p: p.min(1.0) }
}

/// Twice P(U <= u). Counts of arrangements by U: choosing b's places one at a time.
fn exact(u: usize, m: usize, n: usize) -> f64 {
    // counts[j][k]: ways for j of the a's with U = k.
    let mut counts = vec![vec![0.0f64; m * n + 1]; m + 1];
    counts[0][0] = 1.0;
    for place in 1..=m + n {
        for j in (1..=m.min(place)).rev() {
            // The place's item is the j-th a: `place - j` of the b's come before it.
            let before = place - j;
            if before > n {
                continue;
            }
            for k in (before..=m * n).rev() {
                counts[j][k] += counts[j - 1][k - before];
            }
        }
    }
    let total: f64 = counts[m].iter().sum();
    2.0 * counts[m][..=u].iter().sum::<f64>() / total
}

fn normal(u: f64, m: f64, n: f64, pooled: &[f64]) -> f64 {
    let all = m + n;
    let ties: f64 = pooled
        .chunk_by(|x, y| x == y)
        .map(|run| (run.len() as f64).powi(3) - run.len() as f64)
        .sum();
    let variance = m * n / 12.0 * (all + 1.0 - ties / (all * (all - 1.0)));
    if variance <= 0.0 {
        return 1.0;
    }
    let distance = ((u - m * n / 2.0).abs() - 0.5).max(0.0);
    2.0 * normal_cdf(-distance / variance.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hollander & Wolfe, example 4.1 (permeability constants; m = 10, n = 5): the larger U is
    /// 35, one-sided p = 0.127.
    #[test]
    fn the_books_example() {
        let term = [0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46];
        let early = [1.15, 0.88, 0.90, 0.74, 1.21];
        let test = mann_whitney(&early, &term);
        assert_eq!(test.u, 35.0);
        assert!((test.p - 2.0 * 0.1272).abs() < 2e-4, "{test:?}");
    }

    #[test]
    fn exact_and_normal_meet() {
        let a: Vec<f64> = (0..18).map(f64::from).collect();
        let b: Vec<f64> = (0..18).map(|i| f64::from(i) + 4.5).collect();
        let exact = mann_whitney(&a, &b);
        let pooled = sorted(&[a, b].concat());
        assert!((normal(exact.u, 18.0, 18.0, &pooled) - exact.p).abs() < 0.003, "{exact:?}");
    }

    #[test]
    fn ties_and_empties() {
        assert_eq!(mann_whitney(&[1.0; 5], &[1.0; 5]).p, 1.0);
        assert_eq!(mann_whitney(&[], &[1.0]).p, 1.0);
        let separate = mann_whitney(&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]);
        assert!((separate.p - 0.1).abs() < 1e-12 && separate.probability == 1.0);
    }
}
