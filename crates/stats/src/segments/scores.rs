//! What runs say of the level of their commits, and how much that may be chance.
//!
//! By means, and by medians of five, two rare slow boots in one commit are a change of level. So a run's say is
//! bounded: its score is its distance from the middle of all, cut as in [`crate::cut`]. What chance makes of the
//! commits' mean scores the runs say themselves: the order within a block was drawn at random, so had nothing
//! changed, each run of a block could as well have been another commit's (the permutation test of randomised
//! blocks; J. Hodges, E. Lehmann, Annals of Mathematical Statistics 33, 1962). That holds whatever the runs'
//! distribution is. What builds differ by beyond it is added as a normal part.

use super::stretch::Stretch;
use super::{neighbour_sd, tested, DRAWS};
use crate::rng::Rng;
use crate::sample::{mean, median, sum_squares};
use std::collections::BTreeMap;

/// A run's block, and the logarithm of its time without what the block adds.
pub type Run = (usize, f64);

/// No score is beyond. Less would hide a change that came with the last commit alone, and more would make one of a
/// commit that is noisier than the others.
const CUT: f64 = 3.0;

/// The stretch of these commits that differs most, and its p-value; runs differ by `sd`.
pub(super) fn differing(runs: &[Vec<Run>], sd: f64, rng: &mut Rng) -> Option<(Stretch, f64)> {
    let all: Vec<f64> = runs.iter().flatten().map(|(_, y)| *y).collect();
    let middle = median(&all);
    let mut scores: Vec<f64> = all.iter().map(|y| ((y - middle) / sd).clamp(-CUT, CUT)).collect();
    let mut blocks: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (at, (block, _)) in runs.iter().flatten().enumerate() {
        blocks.entry(*block).or_default().push(at);
    }
    let counts: Vec<usize> = runs.iter().map(Vec::len).collect();
    let values = means(&scores, &counts);
    let build = between(&scores, &counts, &values);
    let mut drawn = Vec::new();
    let redraw = |series: &mut [f64], rng: &mut Rng| {
        for own in blocks.values() {
            drawn.clear();
            drawn.extend(own.iter().map(|at| scores[*at]));
            rng.shuffle(&mut drawn);
            own.iter().zip(&drawn).for_each(|(at, score)| scores[*at] = *score);
        }
        let means = means(&scores, &counts);
        series.iter_mut().zip(means).for_each(|(v, mean)| {
            *v = mean + if build > 0.0 { build * rng.normal() } else { 0.0 };
        });
    };
    tested(&values, DRAWS, redraw, rng)
}

fn means(scores: &[f64], counts: &[usize]) -> Vec<f64> {
    let mut left = scores;
    let own = |count: &usize| {
        let (own, rest) = left.split_at(*count);
        left = rest;
        mean(own)
    };
    counts.iter().map(own).collect()
}

/// What neighbouring commits differ by, beyond their runs: a standard deviation.
fn between(scores: &[f64], counts: &[usize], values: &[f64]) -> f64 {
    let (mut left, mut squares, mut freedom) = (scores, 0.0, 0.0);
    for count in counts {
        let (own, rest) = left.split_at(*count);
        left = rest;
        squares += sum_squares(own);
        freedom += *count as f64 - 1.0;
    }
    let of_runs = squares / freedom.max(1.0);
    let each: Vec<f64> = counts.iter().map(|n| of_runs / (*n).max(1) as f64).collect();
    (neighbour_sd(values).powi(2) - mean(&each)).max(0.0).sqrt()
}
