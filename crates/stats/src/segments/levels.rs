//! All levels of a series at once.
//!
//! A cut that is looked for alone lies, of two steps upward, in the middle, where nothing happened, and what
//! is left of the other step on either side hides it. So all cuts are looked for together: of each number of
//! them those whose levels leave the least (dynamic programming; I. Auger, C. Lawrence, Bulletin of
//! Mathematical Biology 51, 1989), and of all numbers that whose last cut is worth it. One odd value is no level:
//! it is taken for no farther from those about it than others are.

use super::stretch::centred;
use crate::sample::{median, parts_between, sum_squares, MAD_TO_SD};

/// A level has so many values: one that is alone is odd, and two may be.
const FEWEST_OF_A_LEVEL: usize = 3;
/// No value is farther from the middle of those about it, in standard deviations of that.
const FARTHEST: f64 = 4.0;
/// No more cuts are looked for.
const MOST_CUTS: usize = 12;

/// Where levels begin but for the first: one cut or more, if there are values enough for any.
pub(super) fn cuts(values: &[f64]) -> Vec<usize> {
    let n = values.len();
    let most = (n / FEWEST_OF_A_LEVEL).saturating_sub(1).min(MOST_CUTS);
    let best = Best::of(&calm(values), most);
    let least = (1e-12 * best.left(0)).max(1e-300);
    let cost = |cuts: usize| {
        // As in `chosen`: a cut more explains more in any series.
        let worth = 3.0 * (n as f64).ln() + 3.0;
        n as f64 * best.left(cuts).max(least).ln() + worth * cuts as f64
    };
    let number = (1..=most).min_by(|a, b| cost(*a).total_cmp(&cost(*b)));
    number.map(|number| best.cuts(number)).unwrap_or_default()
}

/// The values, but that none is farther from the middle of the five about it than others are.
pub(super) fn calm(values: &[f64]) -> Vec<f64> {
    let middle = |i: usize| {
        let begin = i.saturating_sub(2).min(values.len().saturating_sub(5));
        median(&values[begin..(begin + 5).min(values.len())])
    };
    let middles: Vec<f64> = (0..values.len()).map(middle).collect();
    let distances: Vec<f64> = values.iter().zip(&middles).map(|(y, m)| (y - m).abs()).collect();
    let most = FARTHEST * MAD_TO_SD * median(&distances);
    values.iter().zip(middles).map(|(y, m)| y.clamp(m - most, m + most)).collect()
}

/// Squares that levels which begin at these cuts leave.
pub(super) fn left(values: &[f64], cuts: &[usize]) -> f64 {
    let parts = parts_between(0, cuts, values.len()).into_iter();
    parts.filter_map(|[begin, end]| values.get(begin..end)).map(sum_squares).sum()
}

/// The best cuts of each number.
struct Best {
    n: usize,
    /// For each number of cuts and each end: squares that are left of the values before it, and where the
    /// last cut is.
    of: Vec<Vec<(f64, usize)>>,
}

impl Best {
    fn of(values: &[f64], most: usize) -> Self {
        let n = values.len();
        let mut sums = vec![(0.0, 0.0)];
        for y in centred(values) {
            let (sum, squares) = sums.last().copied().unwrap_or_default();
            sums.push((sum + y, squares + y * y));
        }
        let left = |begin: usize, end: usize| {
            let (sum, squares) = (sums[end].0 - sums[begin].0, sums[end].1 - sums[begin].1);
            (squares - sum * sum / (end - begin) as f64).max(0.0)
        };
        let first = |end: usize| match end < FEWEST_OF_A_LEVEL {
            true => (f64::INFINITY, 0),
            false => (left(0, end), 0),
        };
        let mut of = vec![(0..=n).map(first).collect::<Vec<_>>()];
        for _ in 0..most {
            let fewer = &of[of.len() - 1];
            let last = |end: usize| {
                let at = FEWEST_OF_A_LEVEL..(end + 1).saturating_sub(FEWEST_OF_A_LEVEL);
                at.map(|at| (fewer[at].0 + left(at, end), at))
                    .min_by(|a, b| a.0.total_cmp(&b.0))
                    .unwrap_or((f64::INFINITY, 0))
            };
            of.push((0..=n).map(last).collect());
        }
        Best { n, of }
    }

    /// Squares that so many cuts leave.
    fn left(&self, cuts: usize) -> f64 {
        self.of[cuts][self.n].0
    }

    fn cuts(&self, number: usize) -> Vec<usize> {
        let mut end = self.n;
        let mut cuts: Vec<usize> = (1..=number)
            .rev()
            .map(|left| {
                end = self.of[left][end].1;
                end
            })
            .collect();
        cuts.reverse();
        cuts.retain(|at| *at > 0);
        cuts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amount;
    use crate::rng::Rng;
    use crate::segments::{detectable_among, level_changes_in_order};

    /// Histories in which each step is found within one session, all told, and no other shown.
    fn told(sd: f64, steps: &[(usize, f64)]) -> usize {
        let mut rng = Rng::new(24);
        let mut history = || -> Vec<f64> {
            let level =
                |i: usize| steps.iter().filter(|s| i >= s.0).map(|s| s.1.ln_1p()).sum::<f64>();
            (0..24).map(|i| level(i) + sd * rng.normal()).collect()
        };
        let told = (0..10).filter(|_| {
            let found = level_changes_in_order(&history(), 0.01, 1);
            found.len() == steps.len()
                && found
                    .iter()
                    .zip(steps)
                    .all(|(c, s)| c.at.abs_diff(s.0) <= 1 && c.p_remembering <= 0.01)
        });
        told.count()
    }

    /// Cut by cut none of 60 such histories had all of its steps told, and 13 had one in the middle.
    #[test]
    fn stairs_are_told_step_by_step() {
        for steps in [
            &[(8, 0.15), (16, 0.13)][..],
            &[(8, 0.05), (16, 0.14)],
            &[(6, 0.1), (12, 0.1), (18, 0.1)],
            &[(4, 0.15), (14, 0.05), (19, 0.08)],
            &[(5, 0.1), (10, 0.1), (15, 0.1), (20, 0.1)],
            &[(8, 0.15), (16, -0.13)],
            &[(12, 0.15)],
        ] {
            let told = told(0.006, steps);
            println!("{steps:?}: {told} of 10");
            assert!(told >= 9, "{steps:?}: {told}");
        }
    }

    #[test]
    fn the_best_levels_are_those_that_leave_the_least() {
        let values = [0.0, 0.1, 0.0, 5.0, 5.1, 5.0, 5.1, 2.0, 2.0, 2.1];
        let best = Best::of(&values, 2);
        assert_eq!((best.cuts(2), cuts(&values)), (vec![3, 7], vec![3, 7]));
        assert!((best.left(2) - left(&values, &[3, 7])).abs() < 1e-12);
        // An odd value is no level, and of too few there is none.
        let odd = [0.0, 0.1, 0.0, 0.1, 0.0, 9.0, 0.1, 0.0, 0.1, 0.0];
        assert!(calm(&odd)[5] < 1.0);
        assert!(cuts(&odd[..5]).is_empty() && cuts(&[]).is_empty() && calm(&[]).is_empty());
    }

    /// By the neighbours' scatter the figure was of 3 to 13.5 % among histories alike.
    #[test]
    fn what_would_be_seen_is_seen_in_four_of_five_histories() {
        let mut rng = Rng::new(31);
        for n in [20, 24].into_iter().take(amount(1, 2)) {
            let (mut figures, mut found) = (Vec::new(), 0);
            for _ in 0..60 {
                let calm: Vec<f64> = (0..n).map(|_| rng.normal()).collect();
                let step = detectable_among(&calm, &[], 0.01, 0.8).expect("a figure");
                figures.push(step);
                let is_new = |i: usize| 4 * i >= 3 * n;
                let values: Vec<f64> = (0..n)
                    .map(|i| rng.normal() + if is_new(i) { 1.02 * step } else { 0.0 })
                    .collect();
                let changes = level_changes_in_order(&values, 0.01, 1);
                found += usize::from(!changes.is_empty());
            }
            figures.sort_by(f64::total_cmp);
            println!(
                "{n}: found {found} of 60; {:.2} to {:.2}, half {:.2} to {:.2}",
                figures[3], figures[56], figures[15], figures[45]
            );
            assert!(found >= 43 && figures[56] < 2.2 * figures[3], "{n}: {found}");
        }
    }
}
