//! Whether slow boots became more frequent, or fewer, from some build on.
//!
//! A build may leave the typical boot as it was and make one of ten take twice as long. That moves no robust level
//! ([`crate::cut`]), so it is asked for by itself: is there a build from which on another share of the runs is far
//! slower than the level? Of all builds that one is taken where the shares differ most (chi-squared of the two by
//! two table), and the same is done with the runs of each block in random order (a permutation test with a maximum
//! statistic; P. Westfall, S. Young, Resampling-Based Multiple Testing, 1993).

use crate::cut::sd_of_runs;
use crate::rng::Rng;
use crate::sample::{median, parts_between};
use crate::segments::Run;
use std::collections::BTreeMap;

/// Draws of the null distribution.
const DRAWS: usize = 999;
/// A run is slow if it is above the level by so many standard deviations of single runs.
const SLOW: f64 = 6.0;
/// And by so much, as a logarithm.
const LEAST: f64 = 0.05;
/// Fewer slow runs are not worth a word.
const FEWEST: usize = 3;

/// A change of how often runs are slow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RareChange {
    /// Index of the first build after it.
    pub at: usize,
    /// Slow runs, and all runs, before and from it on.
    pub slow: [[usize; 2]; 2],
    /// The time of the slow runs over that of the others (medians).
    pub times: f64,
    /// p-value, among all builds where it could be.
    pub p_value: f64,
}

/// The change in how often runs of these builds are slow, if it is one at `alpha`; levels change at `steps`.
pub fn rare_change(
    runs: &[Vec<Run>],
    steps: &[usize],
    alpha: f64,
    seed: u64,
) -> Option<RareChange> {
    let times: Vec<Vec<f64>> =
        runs.iter().map(|own| own.iter().map(|(_, y)| *y).collect()).collect();
    let far = (SLOW * sd_of_runs(&times)?).max(LEAST);
    let above: Vec<f64> = parts_between(0, steps, times.len())
        .into_iter()
        .filter_map(|[begin, end]| times.get(begin..end))
        .flat_map(|part| {
            let own = part.concat();
            let level = median(&own);
            own.into_iter().map(move |y| y - level)
        })
        .collect();
    let mut slow: Vec<bool> = above.iter().map(|y| *y > far).collect();
    let counts: Vec<usize> = runs.iter().map(Vec::len).collect();
    if slow.len() != counts.iter().sum::<usize>()
        || slow.iter().filter(|slow| **slow).count() < FEWEST
    {
        return None;
    }
    let by_speed = |is: bool| -> Vec<f64> {
        above.iter().zip(&slow).filter(|(_, slow)| **slow == is).map(|(y, _)| *y).collect()
    };
    let times = (median(&by_speed(true)) - median(&by_speed(false))).exp();
    let (at, size, table) = most(&slow, &counts)?;
    let mut blocks: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (at, (block, _)) in runs.iter().flatten().enumerate() {
        blocks.entry(*block).or_default().push(at);
    }
    let mut rng = Rng::new(seed ^ 0x736c_6f77);
    let mut as_large = 1;
    for _ in 0..DRAWS {
        for own in blocks.values() {
            let mut drawn: Vec<bool> = own.iter().map(|at| slow[*at]).collect();
            rng.shuffle(&mut drawn);
            own.iter().zip(drawn).for_each(|(at, is)| slow[*at] = is);
        }
        let drawn = most(&slow, &counts).map_or(0.0, |(_, size, _)| size);
        as_large += usize::from(drawn >= size * (1.0 - 1e-9));
    }
    let p_value = as_large as f64 / (DRAWS + 1) as f64;
    (p_value <= alpha).then_some(RareChange { at, slow: table, times, p_value })
}

/// The build from which on the share of slow runs differs most, by how much, and the table.
fn most(slow: &[bool], counts: &[usize]) -> Option<(usize, f64, [[usize; 2]; 2])> {
    let (all, of_all) = (slow.len(), slow.iter().filter(|slow| **slow).count());
    let (mut begin, mut before) = (0, 0);
    let mut best = None;
    for (at, count) in counts.iter().enumerate() {
        if begin > 0 && begin < all {
            let (n, m) = (begin as f64, (all - begin) as f64);
            let share = of_all as f64 / all as f64;
            let apart = before as f64 / n - (of_all - before) as f64 / m;
            let size = apart * apart / (share * (1.0 - share)).max(1e-12) / (1.0 / n + 1.0 / m);
            if best.is_none_or(|(_, most, _)| size > most) {
                best = Some((at, size, [[before, begin], [of_all - before, all - begin]]));
            }
        }
        before += slow[begin..begin + count].iter().filter(|slow| **slow).count();
        begin += count;
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segments::in_blocks;

    fn found(trials: u64, runs: usize, share: impl Fn(usize) -> f64) -> (usize, usize) {
        let mut rng = Rng::new(runs as u64);
        let mut run = |share: f64| {
            0.02 * rng.normal() + if rng.uniform() < share { std::f64::consts::LN_2 } else { 0.0 }
        };
        let (mut shown, mut near) = (0, 0);
        for seed in 0..trials {
            let all: Vec<Vec<f64>> =
                (0..13).map(|i| (0..runs).map(|_| run(share(i))).collect()).collect();
            let Some(change) = rare_change(&in_blocks(&all), &[], 0.01, seed) else { continue };
            shown += 1;
            near += usize::from(change.at.abs_diff(6) <= 1);
            assert!((1.8..2.2).contains(&change.times), "{change:?}");
        }
        println!("13 x {runs}: {shown} shown, {near} where it is, of {trials}");
        (shown, near)
    }

    #[test]
    fn a_tail_that_a_build_brought_is_found_and_one_that_was_there_is_none() {
        let brought = |i: usize| if i >= 6 { 0.1 } else { 0.0 };
        assert!(found(100, 5, |_| 0.1).0 <= 4 && found(100, 20, |_| 0.1).0 <= 4);
        let (shown, near) = found(100, 20, brought);
        assert!(shown >= 60 && near >= 40, "{shown} {near}");
        found(100, 5, brought);
        found(100, 10, brought);
        assert_eq!(rare_change(&[], &[], 0.05, 1), None);
        let none = in_blocks(&vec![vec![0.0, 0.1, 0.2, 0.1]; 6]);
        assert_eq!(rare_change(&none, &[3], 1.0, 1), None);
    }
}
