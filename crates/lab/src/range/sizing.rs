//! How large a step is, by runs that did not find it.
//!
//! A search ends when what it sees is convincing, and of all commits' runs a small step is found where
//! these make it look larger: the runs that found a step say too much of it. Runs of builds on either side are made anew, in blocks, by which the host's state cancels; they
//! tell the step's size and decide nothing else.

use super::added::{Added, Sizing};
use super::decision::Taken;
use std::collections::{BTreeMap, BTreeSet};
use vmeter_model::range::Change;
use vmeter_model::run::PlannedRun;
use vmeter_model::{Estimate, Verdict};
use vmeter_stats::hosts::{without_blocks, HostSample};
use vmeter_stats::mean_ratio::MeanRatio;
use vmeter_stats::step::{runs_each, Step};
use vmeter_stats::{cut, ratio_of_means};

/// Builds of each side, if the search made so many.
const EACH: usize = 4;
/// Builds of both sides together, if the range has so many: with fewer, what they scatter by is hardly
/// known.
const FEWEST: usize = 6;
/// Runs of each build.
const RUNS: [usize; 2] = [3, 12];
/// Builds of each side where all are there.
const OF_ALL: usize = 8;
/// A step that its fresh runs do not show is run so often in all, on other builds if there are some.
pub(super) const TRIES: usize = 2;
/// Where all commits are measured, the runs that size are this part of the first pass, at most, in each try.
const SHARE: usize = 2;

impl Sizing {
    /// Runs of each machine that are worth as much as those of the search.
    pub fn runs_each(&self, added: &Added, taken: &Taken, exact: bool) -> usize {
        if exact {
            return 1;
        }
        let Some((first, last)) = self.commits.first().zip(self.commits.last()) else { return 0 };
        let found = taken.iter().filter(|(run, _)| !added.sizes(**run));
        let (before, after): (Vec<usize>, Vec<usize>) = found
            .map(|(_, (commit, ..))| *commit)
            .filter(|c| c < first || c >= last)
            .partition(|c| c < first);
        let builds = [0, 1].map(|side| self.sides[side].len());
        runs_each(builds, [before.len(), after.len()], RUNS)
    }
}

/// The step, by the runs of all `tries` that are there; times that repeat (`exact`) need none of
/// their own.
pub(super) fn step(
    tries: &[&Sizing],
    plan: &[PlannedRun],
    taken: &Taken,
    exact: bool,
    build_sd: f64,
) -> Option<Sized> {
    let side = |which: usize| {
        let all: BTreeSet<usize> = tries.iter().flat_map(|t| &t.sides[which]).copied().collect();
        all
    };
    let sides = [side(0), side(1)];
    let sample = |(run, (_, _, value)): (&u32, &(usize, u32, f64))| {
        let group = plan.get(*run as usize)?.machine;
        sides.iter().any(|side| side.contains(&group)).then_some(())?;
        let host = block(tries, *run);
        let host = if exact { Some(host.unwrap_or(0)) } else { host };
        Some(HostSample { host: host?, group, value: *value })
    };
    let samples: Vec<HostSample> = taken.iter().filter_map(sample).collect();
    let logs: Vec<f64> = if exact {
        samples.iter().map(|s| s.value.ln()).collect()
    } else {
        without_blocks(&samples)
    };
    let of_side = |side: &BTreeSet<usize>| -> Vec<(usize, f64)> {
        let all = samples.iter().zip(&logs).filter(|(_, y)| y.is_finite());
        all.map(|(s, y)| (s.group, *y)).filter(|(machine, _)| side.contains(machine)).collect()
    };
    let sides = sides.each_ref().map(of_side);
    // Of three runs of a build one that is slow is not far from two others: of a whole side it is.
    let times = sides.each_ref().map(|side| side.iter().map(|(_, y)| *y).collect::<Vec<_>>());
    let calm = if exact { times.to_vec() } else { cut(&times) };
    let of_builds = |(side, logs): (&Vec<(usize, f64)>, &Vec<f64>)| {
        let mut builds: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        for ((machine, _), y) in side.iter().zip(logs) {
            builds.entry(*machine).or_default().push(*y);
        }
        if exact {
            builds.values_mut().for_each(|values| values.truncate(1));
        }
        builds.into_values().collect::<Vec<Vec<f64>>>()
    };
    let both: Vec<Vec<Vec<f64>>> = sides.iter().zip(&calm).map(of_builds).collect();
    let [a, b] = both.as_slice() else { return None };
    let step = Step::of_builds(a, b, build_sd)?;
    let [slow_a, slow_b] = times.each_ref().map(|y| y.iter().map(|y| y.exp()).collect::<Vec<_>>());
    let has_slow = MeanRatio::of_sides(&slow_a, &slow_b).is_some_and(|found| found.has_slow());
    let mean = ratio_of_means(&slow_a, &slow_b).filter(|_| has_slow && !exact);
    let (builds, runs) = ([a.len(), b.len()], samples.len());
    let [before, after] =
        [a, b].map(|side| side.concat().iter().map(|y| y.exp()).collect::<Vec<_>>());
    let all = ratio_of_means(&before, &after)?;
    let jump_s = vmeter_stats::mean(&before) * (step.ratio() - 1.0);
    let ratio = Estimate { mean: step.ratio(), ci95: step.ci95(), ..all };
    Some(Sized { ratio, mean, jump_s, runs, builds })
}

/// The block of a run that sizes, numbered over all tries.
fn block(tries: &[&Sizing], run: u32) -> Option<usize> {
    let mut before = 0;
    for own in tries {
        let each = own.sides.iter().map(Vec::len).sum::<usize>().max(1);
        if own.holds(run) {
            return Some(before + (run - own.runs[0]) as usize / each);
        }
        before += (own.runs[1].saturating_sub(own.runs[0]) as usize).div_ceil(each);
    }
    None
}

/// Runs that may size one of so many steps, where the first pass has so many.
pub(super) fn most_runs(first_pass: usize, steps: usize) -> usize {
    first_pass / SHARE / steps.max(1)
}

/// Builds of each side for so many runs.
pub(super) fn builds_each(most: usize) -> usize {
    (most / RUNS[0] / 2).clamp(FEWEST / 2, OF_ALL)
}

/// Runs of each of so many builds, of which the first pass asked `asked` of each commit.
pub(super) fn runs_of_each(most: usize, builds: usize, asked: u32) -> usize {
    (most / builds.max(1)).clamp(RUNS[0], RUNS[0].max(asked as usize))
}

/// The builds of a side as they are run in each block: fewer than there is room for are run as
/// often as that takes. The commit at the end of a range is the only build of its level.
pub(super) fn fill(side: &[usize], room: usize) -> Vec<usize> {
    side.iter().cycle().take(room.max(side.len())).copied().collect()
}

/// What sizes the step that came with `commits`, of which each has a run that counts.
pub(super) fn of<'s>(added: &'s Added, taken: &Taken, commits: &[usize]) -> Vec<&'s Sizing> {
    let counts = |own: &&Sizing| {
        let [first, end] = own.runs;
        // Times that repeat may need no run beyond those that found it.
        first == end && !taken.is_empty() || taken.range(first..end).next().is_some()
    };
    added.sizing.iter().filter(|own| own.commits == commits).filter(counts).collect()
}

/// A step that was sized.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sized {
    pub ratio: Estimate,
    /// Of the means, where some of the runs are slow.
    pub mean: Option<Estimate>,
    /// Time after less time before, s.
    pub jump_s: f64,
    /// By so many runs, of so many builds of either side.
    pub runs: usize,
    pub builds: [usize; 2],
}

impl Sized {
    /// True if it shows a step that way by itself.
    pub fn shows(&self, way: f64) -> bool {
        let [low, high] = self.ratio.ci95;
        if way > 0.0 {
            low > 1.0
        } else {
            high < 1.0
        }
    }

    /// The change, by how large it is by these runs.
    pub fn of(&self, change: Change) -> Change {
        let verdict = if self.jump_s > 0.0 { Verdict::Slower } else { Verdict::Faster };
        let Sized { ratio, mean, jump_s, runs, .. } = *self;
        Change { verdict, ratio: Some(ratio), mean, jump_s, sizing: Some(runs), ..change }
    }
}

/// Builds of one side in the order in which they are wanted, nearest to the step first, and whether
/// each is there already.
pub(super) type Candidates = Vec<((usize, u32), bool)>;

/// Which builds to run: those that are there, and as few more as it takes. `machine` makes a
/// build's machine, or none where that fails.
pub(super) fn chosen<E>(
    mut open: [Candidates; 2],
    mut machine: impl FnMut((usize, u32)) -> Result<Option<usize>, E>,
) -> Result<[Vec<usize>; 2], E> {
    let mut sides = [Vec::new(), Vec::new()];
    for (side, open) in sides.iter_mut().zip(&mut open) {
        while side.len() < EACH {
            let Some(at) = open.iter().position(|(_, is_there)| *is_there) else { break };
            side.extend(machine(open.remove(at).0)?);
        }
    }
    while sides[0].len() + sides[1].len() < FEWEST {
        let fewer = usize::from(sides[1].len() < sides[0].len());
        let Some(at) = [fewer, 1 - fewer].into_iter().find(|at| !open[*at].is_empty()) else {
            break;
        };
        let there = open[at].iter().position(|(_, is_there)| *is_there).unwrap_or(0);
        sides[at].extend(machine(open[at].remove(there).0)?);
    }
    Ok(sides)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_model::run::WatchLevel;

    fn choose(open: [Candidates; 2]) -> [Vec<usize>; 2] {
        // Commit 9 does not build.
        let machine = |(commit, _): (usize, u32)| Ok::<_, ()>((commit != 9).then_some(commit));
        chosen(open, machine).expect("builds")
    }

    #[test]
    fn the_nearest_builds_that_are_there_and_few_more() {
        let side = |all: &[(usize, bool)]| all.iter().map(|(c, is)| ((*c, 1), *is)).collect();
        let many = [(7, true), (6, false), (5, true), (4, true), (3, true), (0, true)];
        let found = choose([side(&many), side(&[(8, true), (9, false), (10, false), (12, true)])]);
        assert_eq!(found, [vec![7, 5, 4, 3], vec![8, 12]]);
        // The last commit is the guilty one.
        let found = choose([side(&many[..3]), side(&[(8, true)])]);
        assert_eq!(found, [vec![7, 5, 6], vec![8]]);
        let found = choose([side(&[(7, true)]), side(&[(8, true), (9, false), (10, false)])]);
        assert_eq!(found, [vec![7], vec![8, 10]]);
    }

    #[test]
    fn a_scan_of_all_is_not_doubled() {
        // 25 commits of five runs; with four steps; 65 commits; one run of each of 25.
        for (first, steps, runs, [builds, each]) in
            [(125, 1, 5, [8, 3]), (125, 4, 5, [3, 3]), (325, 1, 5, [8, 5]), (25, 1, 1, [3, 3])]
        {
            let most = most_runs(first, steps);
            let own = builds_each(most);
            assert_eq!([own, runs_of_each(most, 2 * own, runs)], [builds, each], "{first} {steps}");
        }
        assert_eq!(runs_of_each(0, 0, 5), 3);
    }

    #[test]
    fn a_lone_build_is_run_as_often_as_the_other_side() {
        assert_eq!(fill(&[7], 4), [7, 7, 7, 7]);
        assert_eq!(fill(&[7, 9], 3), [7, 9, 7]);
        assert_eq!(fill(&[7, 9, 11], 2), [7, 9, 11]);
        assert_eq!(fill(&[], 4), [0; 0]);
    }

    #[test]
    fn only_runs_of_its_own_tell_its_size() {
        let sizing = Sizing { commits: vec![1], sides: [vec![0, 2], vec![1, 3]], runs: [2, 6] };
        let machines = [0, 1, 0, 1, 2, 3];
        let planned = |machine| PlannedRun { machine, warmup: false, watch: WatchLevel::None };
        let plan = machines.map(planned);
        let times = [1.0, 9.0, 1.0, 1.2, 1.0, 1.2];
        let taken: Taken =
            (0u32..).zip(times).map(|(run, t)| (run, (machines[run as usize], 1, t))).collect();
        // In two tries of a block each.
        let [first, second] = [0, 2].map(|at| {
            let sides = [vec![at], vec![at + 1]];
            Sizing { sides, runs: [at as u32 + 2, at as u32 + 4], ..sizing.clone() }
        });
        let found = step(&[&first, &second], &plan, &taken, false, 0.01).expect("a step");
        assert!((found.ratio.mean - 1.2).abs() < 1e-9 && found.builds == [2, 2]);
        assert_eq!(
            [2, 3, 4, 5, 6].map(|run| block(&[&first, &second], run)).map(|b| b.map_or(9, |b| b)),
            [0, 0, 1, 1, 9]
        );
        let found = step(&[&sizing], &plan, &taken, false, 0.01).expect("a step");
        assert!((found.ratio.mean - 1.2).abs() < 1e-9 && (found.jump_s - 0.2).abs() < 1e-9);
        assert_eq!((found.runs, found.builds), (4, [2, 2]));
        let early: Taken = taken.into_iter().filter(|(run, _)| *run < 2).collect();
        assert_eq!(step(&[&sizing], &plan, &early, false, 0.01), None);
        assert_eq!(sizing.runs_each(&Added::default(), &early, false), 3);
    }
}
