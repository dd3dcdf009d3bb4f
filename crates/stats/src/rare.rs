//! Whether slow boots became more frequent, or fewer, from some build on.
//!
//! A build may leave the typical boot as it was and make one of ten take twice as long. That moves no robust level
//! ([`crate::cut`]), so it is asked for by itself: is there a build from which on another share of the runs is far
//! slower than the level? Of all builds that one is taken where the shares differ most (chi-squared of the two by
//! two table), and the same is done with the runs of each block in random order (a permutation test with a maximum
//! statistic; P. Westfall, S. Young, Resampling-Based Multiple Testing, 1993). It finds that there is a change better
//! than where: the builds that it may have come with are a posterior's.

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
/// p-value up to which a change is worth fresh runs. Nine of a hundred series without one have it.
pub const CANDIDATE: f64 = 0.1;
/// p-value up to which a change is told with fresh runs, and up to which these alone show it. So, with two batches of
/// fresh runs at most, half as many as the first, one of a hundred series without a change is told to have one.
const ALPHA: f64 = 0.01;
const ALPHA_OF_FRESH: f64 = 0.05;
/// Probability with which a change is placed.
const SURE: f64 = 0.95;

/// Which runs are slow: far above the level of their part of the builds.
#[derive(Debug, Clone, PartialEq)]
pub struct SlowRuns {
    /// Each build's runs: the block, and whether it is slow.
    runs: Vec<Vec<(usize, bool)>>,
    /// The time of the slow runs over that of the others (medians).
    pub times: f64,
}

/// A change of how often runs are slow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RareChange {
    /// Index of the first build after it.
    pub at: usize,
    /// The first and the last build that it may have come with (95 %).
    pub within: [usize; 2],
    /// p-value, among all builds where it could be.
    pub p_value: f64,
}

/// Slow runs, and all runs, before a change and from it on.
pub type Shares = [[usize; 2]; 2];

impl SlowRuns {
    /// Of the runs of each build, whose level changes at `steps`. None where fewer than three are slow, or too few
    /// runs tell how they scatter.
    pub fn of(runs: &[Vec<Run>], steps: &[usize]) -> Option<Self> {
        let times: Vec<Vec<f64>> =
            runs.iter().map(|own| own.iter().map(|(_, y)| *y).collect()).collect();
        let far = (SLOW * sd_of_runs(&times)?).max(LEAST);
        let levels = parts_between(0, steps, times.len()).into_iter().flat_map(|[begin, end]| {
            let level = median(&times.get(begin..end).unwrap_or_default().concat());
            vec![level; end - begin]
        });
        let above: Vec<Vec<(usize, f64)>> = runs
            .iter()
            .zip(levels)
            .map(|(own, level)| own.iter().map(|(block, y)| (*block, y - level)).collect())
            .collect();
        let (slow, others): (Vec<f64>, Vec<f64>) =
            above.iter().flatten().map(|(_, y)| *y).partition(|y| *y > far);
        if slow.len() < FEWEST {
            return None;
        }
        let flagged = |own: Vec<(usize, f64)>| own.into_iter().map(|(b, y)| (b, y > far)).collect();
        Some(SlowRuns {
            runs: above.into_iter().map(flagged).collect(),
            times: (median(&slow) - median(&others)).exp(),
        })
    }

    /// `runs` without the slow ones; a build whose runs are all slow keeps them.
    pub fn left_out(&self, runs: &[Vec<Run>]) -> Vec<Vec<Run>> {
        let others = |(own, flags): (&Vec<Run>, &Vec<(usize, bool)>)| {
            let kept = own.iter().zip(flags).filter(|(_, (_, is_slow))| !is_slow);
            let kept: Vec<Run> = kept.map(|(run, _)| *run).collect();
            if kept.is_empty() {
                own.clone()
            } else {
                kept
            }
        };
        runs.iter().zip(&self.runs).map(others).collect()
    }

    /// How many runs are slow before build `at` and from it on, of the runs whose block `counts`.
    pub fn shares(&self, at: usize, counts: impl Fn(usize) -> bool) -> Shares {
        let side = |side: &[Vec<(usize, bool)>]| {
            let own = || side.iter().flatten().filter(|(block, _)| counts(*block));
            [own().filter(|(_, is_slow)| *is_slow).count(), own().count()]
        };
        let (before, since) = self.runs.split_at(at.min(self.runs.len()));
        [side(before), side(since)]
    }

    /// The build from which on the share of slow runs differs most.
    pub fn change(&self, seed: u64) -> Option<RareChange> {
        let counts: Vec<usize> = self.runs.iter().map(Vec::len).collect();
        let mut slow: Vec<bool> = self.runs.iter().flatten().map(|(_, is)| *is).collect();
        let (at, size) = most(&slow, &counts)?;
        let mut blocks: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (at, (block, _)) in self.runs.iter().flatten().enumerate() {
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
            let drawn = most(&slow, &counts).map_or(0.0, |(_, size)| size);
            as_large += usize::from(drawn >= size * (1.0 - 1e-9));
        }
        let p_value = as_large as f64 / (DRAWS + 1) as f64;
        Some(RareChange { at, within: self.within(at), p_value })
    }

    /// The builds about `at` that the change may have come with: each weighed by how probable it makes the counts,
    /// whatever the two shares are (uniform before any run is seen), and as many as it takes to have 95 %.
    fn within(&self, at: usize) -> [usize; 2] {
        let weight = |at: usize| {
            let sides = self.shares(at, |_| true);
            sides.iter().map(|[slow, all]| -(*all as f64 + 1.0).ln() - ln_choose(*all, *slow)).sum()
        };
        let logs: Vec<f64> = (1..self.runs.len()).map(weight).collect();
        let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut all: Vec<(usize, f64)> =
            (1..).zip(logs.iter().map(|log| (log - most).exp())).collect();
        let total: f64 = all.iter().map(|(_, weight)| weight).sum();
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        let mut had = 0.0;
        let mut within = [at, at];
        for (at, weight) in all {
            if had >= SURE * total {
                break;
            }
            had += weight;
            within = [within[0].min(at), within[1].max(at)];
        }
        within
    }
}

/// True if the runs tell a change: all of them together at 1 %, and those in the blocks that are `fresh`, which had no
/// part in finding it, by themselves at 5 %.
pub fn is_shown(slow: &SlowRuns, change: &RareChange, fresh: impl Fn(usize) -> bool) -> bool {
    let all = slow.shares(change.at, |_| true);
    change.p_value <= ALPHA && shares_differ(&slow.shares(change.at, fresh), &all) <= ALPHA_OF_FRESH
}

/// True if slow runs are more frequent from the change on.
pub fn is_more([before, since]: &Shares) -> bool {
    since[0] * before[1] > before[0] * since[1]
}

/// One-sided p-value of "slow runs are as frequent on both sides" against the way that `way` has (Fisher's exact
/// test).
fn shares_differ(shares: &Shares, way: &Shares) -> f64 {
    let [few, many] = if is_more(way) { *shares } else { [shares[1], shares[0]] };
    let (slow, all) = (few[0] + many[0], few[1] + many[1]);
    let of = |k: usize| ln_choose(many[1], k) + ln_choose(few[1], slow - k) - ln_choose(all, slow);
    (many[0]..=slow.min(many[1])).filter(|k| slow - k <= few[1]).map(|k| of(k).exp()).sum()
}

/// Logarithm of n over k.
fn ln_choose(n: usize, k: usize) -> f64 {
    let k = k.min(n - k.min(n));
    (1..=k).map(|i| ((n - k + i) as f64 / i as f64).ln()).sum()
}

/// The build from which on the share of slow runs differs most, and by how much.
fn most(slow: &[bool], counts: &[usize]) -> Option<(usize, f64)> {
    let (all, of_all) = (slow.len(), slow.iter().filter(|slow| **slow).count());
    let (mut begin, mut before) = (0, 0);
    let mut best = None;
    for (at, count) in counts.iter().enumerate() {
        if begin > 0 && begin < all {
            let (n, m) = (begin as f64, (all - begin) as f64);
            let share = of_all as f64 / all as f64;
            let apart = before as f64 / n - (of_all - before) as f64 / m;
            let size = apart * apart / (share * (1.0 - share)).max(1e-12) / (1.0 / n + 1.0 / m);
            if best.is_none_or(|(_, most)| size > most) {
                best = Some((at, size));
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

    /// Of 13 builds, of which each has a share of slow runs.
    struct World(Rng);

    impl World {
        fn runs(&mut self, runs: usize, share: impl Fn(usize) -> f64) -> Vec<Vec<f64>> {
            let mut run = |share: f64| {
                let slow = if self.0.uniform() < share { std::f64::consts::LN_2 } else { 0.0 };
                0.02 * self.0.normal() + slow
            };
            (0..13).map(|i| (0..runs).map(|_| run(share(i))).collect()).collect()
        }
    }

    /// As a range asks ([`is_shown`]): in how many of the trials a change is found, and in how many of these the
    /// builds that it may have come with hold the sixth.
    fn found(trials: u64, runs: usize, share: impl Fn(usize) -> f64) -> [usize; 2] {
        let mut world = World(Rng::new(runs as u64));
        let mut found = [0; 2];
        for seed in 0..trials {
            let mut all = world.runs(runs, &share);
            let judged = |all: &[Vec<f64>]| {
                let slow = SlowRuns::of(&in_blocks(all), &[])?;
                let change = slow.change(seed)?;
                Some((change, is_shown(&slow, &change, |block| block >= runs)))
            };
            if judged(&all).is_none_or(|(change, _)| change.p_value > CANDIDATE) {
                continue;
            }
            for _ in 0..2 {
                let fresh = world.runs(runs.div_ceil(2), &share);
                all = all.iter().zip(fresh).map(|(a, b)| [a.clone(), b].concat()).collect();
                if let Some((change, true)) = judged(&all) {
                    found[0] += 1;
                    found[1] += usize::from((change.within[0]..=change.within[1]).contains(&6));
                    break;
                }
            }
        }
        println!("13 x {runs}: {found:?} of {trials}");
        found
    }

    #[test]
    fn a_tail_that_a_build_brought_is_found_and_one_that_was_there_is_none() {
        let brought = |i: usize| if i >= 6 { 0.1 } else { 0.0 };
        for runs in [5, 20] {
            assert!(found(200, runs, |_| 0.1)[0] <= 5, "{runs}");
        }
        let [shown, within] = found(100, 20, brought);
        assert!(shown >= 92 && within * 10 >= shown * 9, "{within} of {shown}");
        let [shown, within] = found(100, 10, brought);
        assert!(shown >= 35 && within * 10 >= shown * 8, "{within} of {shown}");
    }

    #[test]
    fn few_slow_runs_are_none_and_levels_are_left_alone() {
        assert_eq!(SlowRuns::of(&[], &[]), None);
        let calm = [0.0, 0.1, 0.3, 0.2];
        assert_eq!(SlowRuns::of(&in_blocks(&vec![calm.to_vec(); 6]), &[3]), None);
        let mut runs = vec![calm.map(|y| 0.01 * y).to_vec(); 6];
        runs[4] = vec![1.0; 4];
        let runs = in_blocks(&runs);
        let slow = SlowRuns::of(&runs, &[]).expect("slow runs");
        assert_eq!(slow.shares(4, |block| block > 0), [[0, 12], [3, 6]]);
        assert_eq!(slow.left_out(&runs), runs, "a build of which nothing would be left");
    }

    #[test]
    fn fishers_test_is_one_sided() {
        // The tea: three of four, and one of four.
        let tea = [[1, 4], [3, 4]];
        assert!((shares_differ(&tea, &tea) - 17.0 / 70.0).abs() < 1e-9);
        assert!((shares_differ(&tea, &[[3, 4], [1, 4]]) - 69.0 / 70.0).abs() < 1e-9);
        assert!((shares_differ(&[[0, 5], [0, 5]], &tea) - 1.0).abs() < 1e-9);
    }
}
