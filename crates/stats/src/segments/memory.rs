//! A change of level, or a host that remembers?
//!
//! Where a session resembles the one before it, levels come and go without a change: random order takes
//! such a stretch for one ([`super::order`]), and twenty sessions do not tell how much they resemble each
//! other. So each change is held against that as well: how much better do all levels alone explain the values than
//! memory (a first-order autoregression of whatever coefficient explains them best) does with the levels that
//! there are without this change, or with one, among series of one level with such memory (a parametric bootstrap
//! of the likelihood ratio; D. Cox, "Tests of separate families of hypotheses", 1961)? The other changes stay in:
//! stairs without their steps are a walk, by which each step was one that a host would show as well.

use super::{draws, levels};
use crate::rng::Rng;

/// Memories that are tried: a session has so much of the one before it. With more the level is a little
/// above what it says (at 0.9, 1 % is some 5 %), and a larger one here would leave little to be told of twenty.
const MEMORIES: [f64; 3] = [0.0, 0.25, 0.5];

/// Coefficients among which the best is taken for one level with memory.
const COEFFICIENTS: usize = 20;

/// For each cut the p-value of the change there, among series of one level with that one of [`MEMORIES`] by which
/// it is the likeliest.
pub(super) fn p_values(values: &[f64], cuts: &[usize], rng: &mut Rng) -> Vec<f64> {
    let own = advantages(values, cuts);
    let draws = draws(values.len());
    let mut series = vec![0.0; values.len()];
    let mut as_large = vec![0.0; cuts.len()];
    for memory in MEMORIES {
        let mut larger = vec![0; cuts.len()];
        for _ in 0..draws {
            remembering(&mut series, memory, rng);
            let of_null = advantages(&series, &levels::cuts(&series));
            let most = of_null.into_iter().fold(f64::NEG_INFINITY, f64::max);
            larger.iter_mut().zip(&own).for_each(|(n, own)| *n += usize::from(most >= *own));
        }
        let share = |n: usize| (1 + n) as f64 / (1 + draws) as f64;
        as_large.iter_mut().zip(larger).for_each(|(p, n)| *p = share(n).max(*p));
    }
    as_large
}

/// For each cut: log likelihood of independent values about all levels, less the best of values with memory about
/// the levels that there are without it, or about one level.
fn advantages(values: &[f64], cuts: &[usize]) -> Vec<f64> {
    let n = values.len() as f64;
    let least = (1e-12 * left_by(values, &[], 0.0)).max(1e-300);
    let log = |left: f64| -n / 2.0 * (left.max(least) / n).ln();
    // As in `chosen`: a cut more explains more in any series.
    let cost = |cuts: usize| cuts as f64 * 1.5 * (n.ln() + 1.0);
    let with_memory = |levels: &[usize]| {
        let of = |c: f64| log(left_by(values, levels, c)) + (1.0 - c * c).ln() / 2.0;
        let best = (0..COEFFICIENTS).map(|i| of(i as f64 / COEFFICIENTS as f64));
        best.fold(f64::NEG_INFINITY, f64::max) - cost(levels.len())
    };
    let of_all = log(left_by(values, cuts, 0.0)) - cost(cuts.len());
    let of_none = with_memory(&[]);
    let without = |cut: &usize| {
        let others: Vec<usize> = cuts.iter().copied().filter(|at| at != cut).collect();
        of_all - of_none.max(with_memory(&others))
    };
    cuts.iter().map(without).collect()
}

/// Squares that an autoregression about levels leaves: the first value has the variance of all, the others that of
/// what is new in them, and where a level begins that depends on the level before.
fn left_by(values: &[f64], cuts: &[usize], c: f64) -> f64 {
    let weight = (1.0 - c * c).sqrt();
    // Normal equations of the levels: each meets but the one before it.
    let levels = cuts.len() + 1;
    let (mut own, mut before) = (vec![0.0; levels], vec![0.0; levels]);
    let (mut sums, mut total) = (vec![0.0; levels], 0.0);
    let (mut level, mut last) = (0, None);
    for (i, y) in values.iter().enumerate() {
        let is_new = cuts.get(level) == Some(&i);
        let (news, one) = match last {
            None => (weight * y, weight),
            Some(last) if is_new => {
                let news = y - c * last;
                own[level] += c * c;
                sums[level] -= c * news;
                before[level + 1] = -c;
                (news, 1.0)
            }
            Some(last) => (y - c * last, 1.0 - c),
        };
        level += usize::from(is_new);
        own[level] += one * one;
        sums[level] += one * news;
        total += news * news;
        last = Some(*y);
    }
    for level in 1..levels {
        let times = before[level] / own[level - 1];
        own[level] -= times * before[level];
        sums[level] -= times * sums[level - 1];
    }
    // What the levels explain, by the triangular system.
    let explained: f64 = own.iter().zip(&sums).map(|(own, sum)| sum * sum / own).sum();
    (total - explained).max(0.0)
}

/// A series of one level in which each value has so much of the one before it.
fn remembering(series: &mut [f64], memory: f64, rng: &mut Rng) {
    let new = (1.0 - memory * memory).sqrt();
    let mut last = rng.normal();
    for value in series {
        *value = last;
        last = memory * last + new * rng.normal();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amount;
    use crate::segments::level_changes_in_order;

    fn rates(n: usize, trials: u64, memory: f64, at: usize, step: f64) -> (usize, usize) {
        let mut rng = Rng::new(n as u64 + (100.0 * memory) as u64);
        let mut series = vec![0.0; n];
        let (mut shown, mut told) = (0, 0);
        for seed in 0..trials {
            remembering(&mut series, memory, &mut rng);
            series.iter_mut().skip(at).for_each(|y| *y += step);
            let found = level_changes_in_order(&series, 0.01, seed);
            shown += usize::from(!found.is_empty());
            told += usize::from(found.iter().any(|c| c.p_remembering <= 0.01));
        }
        println!(
            "{n} values, memory {memory}, a step of {step}: {shown} shown, {told} told of {trials}"
        );
        (shown, told)
    }

    /// By random order alone 15 of 100 histories of 20 sessions that resemble those before them showed a change.
    #[test]
    fn levels_that_come_and_go_are_not_told_from_a_change() {
        let cases = [(20, 0.5, 200), (20, 0.9, 80), (40, 0.5, 40), (20, 0.0, 100)];
        for (n, memory, trials) in cases.into_iter().take(amount(2, cases.len())) {
            let (shown, told) = rates(n, trials, memory, n, 0.0);
            // What is promised ends at 0.5.
            let most = if memory > 0.5 { trials as usize / 8 } else { 3 + trials as usize / 50 };
            assert!(told <= most, "{n} {memory}: {told}");
            assert!(memory < 0.5 || shown > trials as usize / 12, "{shown}");
        }
    }

    #[test]
    fn a_step_that_is_plain_is_told() {
        let cases = [(20, 2.7, 33), (20, 4.0, 72), (40, 2.7, 75)];
        for (n, step, least) in cases.into_iter().take(amount(1, cases.len())) {
            let (shown, told) = rates(n, 100, 0.0, 3 * n / 5, step);
            assert!(shown >= 80 && told >= least, "{n} {step}: {shown} {told}");
        }
    }
}
