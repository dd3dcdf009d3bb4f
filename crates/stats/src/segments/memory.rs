//! A change of level, or a host that remembers?
//!
//! Where a session resembles the one before it, levels come and go without a change: random order takes
//! such a stretch for one ([`super::order`]), and twenty sessions do not tell how much they resemble each
//! other. So a change is held against that as well: how much better do levels alone explain the values than
//! one level with memory (a first-order autoregression of whatever coefficient explains them best) does,
//! among series of one level with such memory (a parametric bootstrap of the likelihood ratio; D. Cox,
//! "Tests of separate families of hypotheses", 1961)?

use super::order::scores;
use super::{chosen, draws, Stretch};
use crate::rng::Rng;
use crate::sample::mean;

/// Memories that are tried: a session has so much of the one before it. With more the level is a little
/// above what it says (at 0.9, 1 % is up to 3 %), and a larger one here would leave little to be told of twenty.
const MEMORIES: [f64; 3] = [0.0, 0.25, 0.5];

/// Coefficients among which the best is taken for one level with memory.
const COEFFICIENTS: usize = 20;

/// p-value of the stretch by which the values' levels differ, among series of one level with that one of
/// [`MEMORIES`] by which it is the likeliest.
pub(super) fn p_value(values: &[f64], found: &Stretch, rng: &mut Rng) -> f64 {
    let own = advantage(values, found);
    let draws = draws(values.len());
    let mut series = vec![0.0; values.len()];
    let mut as_large = |memory: f64| {
        let larger = (0..draws).filter(|_| {
            remembering(&mut series, memory, rng);
            chosen(&scores(&series)).is_some_and(|of| advantage(&series, &of) >= own)
        });
        (1 + larger.count()) as f64 / (1 + draws) as f64
    };
    MEMORIES.iter().map(|memory| as_large(*memory)).fold(0.0, f64::max)
}

/// Log likelihood of independent values about their levels, less the best of one level with memory.
fn advantage(values: &[f64], found: &Stretch) -> f64 {
    let n = values.len() as f64;
    let total = squares(values.iter().copied());
    let is_inside = |i: usize| (found.begin..found.end).contains(&i);
    let level = |inside: bool| {
        let own = values.iter().enumerate().filter(move |(i, _)| is_inside(*i) == inside);
        squares(own.map(|(_, y)| *y))
    };
    let least = (1e-12 * total).max(1e-300);
    let log = |left: f64| -n / 2.0 * (left.max(least) / n).ln();
    let with_memory = (0..COEFFICIENTS).map(|i| {
        let c = i as f64 / COEFFICIENTS as f64;
        log(left_by(values, c)) + (1.0 - c * c).ln() / 2.0
    });
    // As in `chosen`: a second cut explains more in any series.
    let is_inside = found.cuts(values.len()).count() > 1;
    let cost = if is_inside { 1.5 * (n.ln() + 1.0) } else { 0.0 };
    log(level(true) + level(false)) - cost - with_memory.fold(f64::NEG_INFINITY, f64::max)
}

/// Squares about the mean.
fn squares(values: impl Iterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.collect();
    let centre = mean(&values);
    values.iter().map(|y| (y - centre).powi(2)).sum()
}

/// Squares that an autoregression about one level leaves.
fn left_by(values: &[f64], c: f64) -> f64 {
    let Some((first, n)) = values.first().zip(Some(values.len() as f64)) else { return 0.0 };
    let weight = (1.0 - c * c).sqrt();
    // The first value has the variance of all, the others that of what is new in them.
    let news = || values.windows(2).map(|w| w[1] - c * w[0]);
    let one = 1.0 - c;
    let level = (weight * weight * first + one * news().sum::<f64>())
        / (weight * weight + one * one * (n - 1.0));
    let of_first = (weight * (first - level)).powi(2);
    of_first + news().map(|y| (y - one * level).powi(2)).sum::<f64>()
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
        for (n, memory, trials) in [(20, 0.5, 200), (20, 0.9, 80), (40, 0.5, 40), (20, 0.0, 100)] {
            let (shown, told) = rates(n, trials, memory, n, 0.0);
            assert!(told <= 3 + trials as usize / 50, "{n} {memory}: {told}");
            assert!(memory < 0.5 || shown > trials as usize / 12, "{shown}");
        }
    }

    #[test]
    fn a_step_that_is_plain_is_told() {
        for (n, step, least) in [(20, 2.7, 33), (20, 4.0, 72), (40, 2.7, 75)] {
            let (shown, told) = rates(n, 100, 0.0, 3 * n / 5, step);
            assert!(shown >= 80 && told >= least, "{n} {step}: {shown} {told}");
        }
    }
}
