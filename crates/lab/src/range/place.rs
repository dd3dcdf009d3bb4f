//! Which commit a change of level came with: the commits about it are booted again.
//!
//! That there is a change is decided by the first pass alone, in which every commit is run as often
//! as the others; runs that are added to place it decide nothing else, so that they raise no false
//! alarm. They come in blocks of the commits that are in doubt and one of either level that is not,
//! by which the block's own state of the host is taken out.

use super::added::{Added, Part};
use super::level::Level;
use super::samples::Sample;
use std::collections::{BTreeMap, BTreeSet};
use vmeter_session::Session;
use vmeter_stats::cut;
use vmeter_stats::hosts::{without_blocks, HostSample};
use vmeter_stats::localisation::{doubtful, placed, Placed, Spread};
use vmeter_stats::segments::LevelChange;
use vmeter_stats::shape::{stretches, Stretch};

/// Seed of the draws by which a step is told from a creep: the same runs say the same.
const SEED: u64 = 1;
/// Probability with which a step is placed.
const SURE: f64 = 0.95;
/// A commit is run so many times as often as in the first pass, at most.
const MOST_TIMES: usize = 12;
/// Where the steps of the first pass are by all runs, and what that is known from.
pub(super) struct Placement {
    /// Each step, in order; places are those of the levels' commits.
    pub placed: Vec<Placed>,
    /// What they make up: steps, or a creep.
    pub stretches: Vec<Stretch>,
    runs: Vec<Vec<f64>>,
    spread: Spread,
}

impl Placement {
    /// Of `steps` between `levels`, by all samples.
    pub fn of(levels: &[Level<'_>], steps: &[LevelChange], samples: &[Sample]) -> Self {
        let at: Vec<usize> = steps.iter().map(|step| step.at).collect();
        let first: Vec<Vec<f64>> = levels.iter().map(|level| level.logs.clone()).collect();
        let rough = placed(&first, &at, SURE);
        // Commits of one level are alike, so that those beside the ones in doubt tell what a block
        // adds.
        let open: BTreeSet<usize> = doubtful(&rough, levels.len()).into_iter().collect();
        let place: BTreeMap<usize, usize> =
            levels.iter().enumerate().map(|(at, level)| (level.commit.index, at)).collect();
        let group = |at: usize| {
            let level = rough.iter().filter(|step| step.at <= at).count();
            if open.contains(&at) {
                rough.len() + 1 + at
            } else {
                level
            }
        };
        let own: Vec<(usize, HostSample)> = samples
            .iter()
            .filter(|s| s.part != Part::CountsSlow)
            .filter_map(|s| {
                let at = *place.get(&s.of.group)?;
                Some((at, HostSample { group: group(at), ..s.of }))
            })
            .collect();
        let logs = without_blocks(&own.iter().map(|(_, s)| *s).collect::<Vec<_>>());
        let mut runs = vec![Vec::new(); levels.len()];
        for ((at, _), y) in own.iter().zip(logs) {
            if let Some(runs) = runs.get_mut(*at).filter(|_| y.is_finite()) {
                runs.push(y);
            }
        }
        let runs = cut(&runs);
        let placed = placed(&runs, &at, SURE);
        let at: Vec<usize> = placed.iter().map(|p| p.at).collect();
        let spread = Spread::of(&runs, &at);
        let stretches = stretches(&runs, &at, SEED);
        Placement { placed, stretches, runs, spread }
    }

    /// Places of the commits to run again, `each` being the runs of one in the first pass; none if
    /// it is known which commits it was, or more runs would not tell.
    pub fn wanted(&self, each: usize) -> BTreeSet<usize> {
        let runs = |at: usize| self.runs.get(at).map_or(0, Vec::len);
        let open: Vec<usize> = doubtful(&self.placed, self.runs.len())
            .into_iter()
            .filter(|at| runs(*at) < MOST_TIMES * each && self.spread.is_worth_more(runs(*at)))
            .collect();
        let mut wanted: BTreeSet<usize> = open.iter().copied().collect();
        for (k, step) in self.placed.iter().enumerate() {
            let [from, to] = step.within;
            if !open.iter().any(|at| (from..to).contains(at)) {
                continue;
            }
            let begin =
                k.checked_sub(1).and_then(|k| self.placed.get(k)).map_or(0, |p| p.within[1]);
            let end = self.placed.get(k + 1).map_or(self.runs.len(), |p| p.within[0]);
            // The one with the fewest runs, so that no build's own level stands for all.
            let left = (begin..from).rev().min_by_key(|at| runs(*at));
            let right = (to..end).min_by_key(|at| runs(*at));
            wanted.extend(left.into_iter().chain(right));
        }
        wanted
    }
}

/// How many measured runs the first pass has.
pub(super) fn first_pass(session: &Session) -> usize {
    let measured = session.record.plan.iter().filter(|planned| !planned.warmup).count();
    measured.saturating_sub(Added::of(&session.record).further())
}
