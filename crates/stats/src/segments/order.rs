//! Changes of level among values of which nothing says how they scatter.
//!
//! Sessions have whole days that are slow for reasons of the host, and some are noisier than
//! others: no distribution of theirs is known, and by one that is assumed every odd session is a
//! change. What is left is their order: had nothing changed, any other would have been as likely
//! (R. Fisher, The Design of Experiments, 1935). The values are taken as normal scores of their
//! ranks (B. van der Waerden, 1952), so that one odd session weighs no more than being the first,
//! and are held against the same in random order. One session alone is never a change, and few
//! sessions have too few orders for any.

use super::{detectable_by, levels, memory, tested, FEWEST};
use crate::dist::{chi_squared_quantile, normal_quantile};
use crate::rng::Rng;
use crate::sample::sorted;

/// Draws of the random orders: those of so many values are always the same, so that few would make the level of
/// all histories of that length another.
const ORDERS: usize = 9999;
/// What sessions scatter by is taken for no less than it is with this chance.
const SURE: f64 = 0.8;

/// The level changes from value `at` on, or seems to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OrderedChange {
    /// Index of the first value of the new level.
    pub at: usize,
    /// p-value of there being any change, if one value does not depend on the others: among other orders of the
    /// values.
    pub p_value: f64,
    /// p-value of this one beside the others, if values resemble the ones before them.
    pub p_remembering: f64,
}

/// Changes of level, in order; the chance that a series that has none shows any is `alpha`,
/// whatever its distribution, if one value does not depend on the others. If a value may resemble the one
/// before it, that is the chance of any whose `p_remembering` is at most `alpha`.
pub fn level_changes_in_order(values: &[f64], alpha: f64, seed: u64) -> Vec<OrderedChange> {
    if values.iter().any(|v| !v.is_finite()) {
        return Vec::new();
    }
    let mut rng = Rng::new(seed);
    let shuffled = |series: &mut [f64], rng: &mut Rng| rng.shuffle(series);
    let Some((_, p_value)) = tested(&scores(values), ORDERS, shuffled, &mut rng) else {
        return Vec::new();
    };
    if p_value > alpha {
        return Vec::new();
    }
    let cuts = levels::cuts(values);
    let remembering = memory::p_values(values, &cuts, &mut rng);
    let change = |(at, p_remembering)| OrderedChange { at, p_value, p_remembering };
    cuts.into_iter().zip(remembering).map(change).collect()
}

/// As [`super::detectable_step`], in order; none where there are too few values for any step.
fn detectable_in_order(n: usize, alpha: f64, power: f64) -> Option<f64> {
    if n < FEWEST {
        return None;
    }
    detectable_by(n, (alpha, power), scores)
}

/// The step that is found in `power` of cases, or more, among as many values that scatter as these do about their
/// levels, which begin at `cuts`: how much that is few values tell badly, so that it is its upper limit
/// ([`SURE`]).
pub fn detectable_among(values: &[f64], cuts: &[usize], alpha: f64, power: f64) -> Option<f64> {
    let step = detectable_in_order(values.len(), alpha, power)?;
    let freedom = values.len().checked_sub(cuts.len() + 1).filter(|f| *f > 0)? as f64;
    let squares = levels::left(&levels::calm(values), cuts);
    let step = step * (squares / chi_squared_quantile(1.0 - SURE, freedom)).sqrt();
    step.is_finite().then_some(step)
}

/// Normal scores; equal values have the one of their mean rank.
fn scores(values: &[f64]) -> Vec<f64> {
    let n = values.len() as f64;
    let sorted = sorted(values);
    let rank = |v: &f64| {
        let below = sorted.partition_point(|other| other < v);
        let same = sorted.partition_point(|other| other <= v) - below;
        below as f64 + (same as f64 + 1.0) / 2.0
    };
    values.iter().map(|v| normal_quantile(rank(v) / (n + 1.0))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segments::level_changes;

    /// Sessions of which one in twelve is 15 to 30 % slower, and in which one is five times as noisy.
    fn odd(rng: &mut Rng, n: usize, by: f64) -> Vec<f64> {
        let one = |i: usize, rng: &mut Rng| {
            let slow = if rng.below(12) == 0 { 0.15 + 0.15 * rng.uniform() } else { 0.0 };
            let noise = if i == n / 2 { 0.15 } else { 0.03 };
            slow + noise * rng.normal() + if 5 * i >= 3 * n { by } else { 0.0 }
        };
        (0..n).map(|i| one(i, rng)).collect()
    }

    /// By normal scatter six of ten such series showed a change.
    #[test]
    fn odd_sessions_are_no_change() {
        let mut rng = Rng::new(5);
        let (mut alarms, mut before, mut found) = (0, 0, 0);
        for seed in 0..300 {
            let values = odd(&mut rng, 20, 0.0);
            alarms += usize::from(!level_changes_in_order(&values, 0.01, seed).is_empty());
            if seed < 60 {
                before += usize::from(!level_changes(&values, 0.01, seed).is_empty());
                let values = odd(&mut rng, 20, 0.12);
                let changes = level_changes_in_order(&values, 0.01, seed);
                found += usize::from(changes.iter().any(|c| c.at.abs_diff(12) <= 1));
            }
        }
        println!("odd sessions: {alarms} of 300 show a change, by normal scatter {before} of 60; {found} of 60 found");
        assert!(alarms <= 8 && before > 30 && found >= 15, "{alarms} {before} {found}");
    }

    #[test]
    fn few_sessions_have_too_few_orders() {
        let step = |n: usize| {
            (0..n).map(move |i| if 2 * i >= n { 9.0 } else { 0.0 } + (i * 7 % 5) as f64 * 0.01)
        };
        for n in [0, 3, 8, 9] {
            assert_eq!(level_changes_in_order(&step(n).collect::<Vec<_>>(), 0.01, 1), [], "{n}");
            assert_eq!(detectable_in_order(n, 0.01, 0.8), None);
        }
        assert_eq!(level_changes_in_order(&[1.0; 30], 0.01, 1), []);
        let found = level_changes_in_order(&step(14).collect::<Vec<_>>(), 0.01, 1);
        assert_eq!(found.iter().map(|c| c.at).collect::<Vec<_>>(), [7]);
        for n in [10, 14, 16, 20] {
            println!("{n} values: {:?}", detectable_in_order(n, 0.01, 0.8));
        }
        assert!(detectable_in_order(20, 0.01, 0.8) > Some(2.0));
    }
}
