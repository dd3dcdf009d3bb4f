//! Which commit a change of level came with: the commits about it are booted again.
//!
//! That there is a change is decided by the first pass alone, in which every commit is run as often
//! as the others; runs that are added to place it decide nothing else, so that they raise no false
//! alarm. They come in blocks of the commits that are in doubt and one of either level that is not,
//! by which the block's own state of the host is taken out.

use super::levels::{self, Level};
use super::sizing::Sizing;
use crate::blocks::blocks;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use vmeter_model::range::RangeRecord;
use vmeter_model::run::{PlannedRun, SessionRecord};
use vmeter_session::{SavedRun, Session};
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
/// All runs that place are this part of the first pass, at most.
const SHARE: usize = 2;

/// What a run of a range was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Each commit as often as the others: these find what changed.
    First,
    /// It places a step.
    Places,
    /// It tells how large a step is.
    Sizes,
    /// All commits anew, to see how often boots are slow.
    CountsSlow,
}

impl Part {
    /// True for the first pass.
    pub fn is_first(self) -> bool {
        self == Part::First
    }
}

/// What a range adds to its plan beyond runs of each commit in turn.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Added {
    /// Parts of the plan that place steps: the first run, and the one after the last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placing: Vec<[u32; 2]>,
    /// Runs of a search, and the runs of the good end's machine beside them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub references: Vec<[u32; 2]>,
    /// Runs that tell how large a step is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sizing: Vec<Sizing>,
    /// Parts of the plan in which all commits are run anew, to see whether boots are slow as often as it seemed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slow: Vec<[u32; 2]>,
    /// Runs of each commit that `--detect` asks for, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs: Option<u32>,
}

impl Added {
    /// What was added to a session; nothing to one that has just begun.
    pub fn of(record: &SessionRecord) -> Self {
        Self::deserialize(&record.asked).unwrap_or_default()
    }

    /// What a run was made for.
    pub fn part(&self, run: u32) -> Part {
        let is_in = |parts: &[[u32; 2]]| parts.iter().any(|[from, to]| (*from..*to).contains(&run));
        match run {
            _ if is_in(&self.placing) => Part::Places,
            _ if is_in(&self.slow) => Part::CountsSlow,
            _ if self.sizing.iter().any(|sizing| sizing.holds(run)) => Part::Sizes,
            _ => Part::First,
        }
    }

    /// True for a run that tells the size of a step.
    pub fn sizes(&self, run: u32) -> bool {
        self.part(run) == Part::Sizes
    }

    /// The machines that sized the step that came with `commits`.
    pub fn builds_that_sized(&self, commits: &[usize]) -> BTreeSet<usize> {
        let own = self.sizing.iter().filter(|sizing| sizing.commits == commits);
        own.flat_map(|sizing| sizing.sides.iter().flatten().copied()).collect()
    }

    /// How many runs place steps.
    pub fn count(&self) -> usize {
        self.placing.iter().map(|[from, to]| to.saturating_sub(*from) as usize).sum()
    }

    /// How many runs there are beyond the first pass.
    pub fn further(&self) -> usize {
        let parts = self.slow.iter().chain(self.sizing.iter().map(|own| &own.runs));
        self.count() + parts.map(|[from, to]| to.saturating_sub(*from) as usize).sum::<usize>()
    }

    /// The block of each measured run: the nth of a machine in the first pass is in block n; in
    /// what places steps or counts slow boots a block ends where a machine comes again. Runs that tell a size have
    /// none here: they say nothing else.
    pub fn blocks(&self, plan: &[PlannedRun]) -> BTreeMap<u32, usize> {
        let numbered = || (0u32..).zip(plan.iter().copied());
        let of_part = |run: &u32| self.part(*run);
        let first: Vec<(u32, PlannedRun)> =
            numbered().filter(|(run, _)| of_part(run).is_first()).collect();
        let of_first = blocks(&first.iter().map(|(_, planned)| *planned).collect::<Vec<_>>());
        let number = |at: u32| first.get(at as usize).map(|(run, _)| *run);
        let mut all: BTreeMap<u32, usize> =
            of_first.iter().filter_map(|(at, block)| Some((number(*at)?, *block))).collect();
        let mut block = all.values().max().map_or(0, |last| last + 1);
        let mut had = BTreeSet::new();
        let is_more = |run: &u32| matches!(of_part(run), Part::Places | Part::CountsSlow);
        let begins = |run: u32| self.placing.iter().chain(&self.slow).any(|[from, _]| *from == run);
        for (run, planned) in numbered().filter(|(run, _)| is_more(run)) {
            if !had.insert(planned.machine) || begins(run) && had.len() > 1 {
                block += 1;
                had = [planned.machine].into();
            }
            all.insert(run, block);
        }
        all
    }
}

/// Where the steps of the first pass are by all runs, and what that is known from.
pub(super) struct Placement {
    /// Each step, in order; places are those of the levels' commits.
    pub placed: Vec<Placed>,
    /// What they make up: steps, or a creep.
    pub stretches: Vec<Stretch>,
    runs: Vec<Vec<f64>>,
    spread: Spread,
}

/// A run's time, s, by its commit (the group) and block (the host).
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    /// Which of its commit's builds it is of.
    pub build: u32,
    /// What it was made for.
    pub part: Part,
    /// The time.
    pub of: HostSample,
}

/// The samples of a range.
pub(super) fn samples(
    (record, session): (&RangeRecord, &Session),
    finished: &[SavedRun],
    times: &BTreeMap<u32, f64>,
) -> Vec<Sample> {
    let added = Added::of(&session.record);
    let blocks = added.blocks(&session.record.plan);
    let sample = |run: u32, label: &str| {
        let (group, build) = record.of_label(label)?;
        let of = HostSample { host: *blocks.get(&run)?, group, value: *times.get(&run)? };
        Some(Sample { build, part: added.part(run), of })
    };
    finished.iter().filter_map(|(_, run)| sample(run.index, &run.label)).collect()
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

/// The commits of a range on disk that are to be run again, by their position in it.
///
/// # Errors
/// When the session cannot be read.
pub(super) fn next(record: &RangeRecord, session: &Session) -> Result<BTreeSet<usize>> {
    let added = Added::of(&session.record);
    let first = first_pass(session);
    let (finished, _) = session.finished()?;
    let exact = finished.iter().all(|(_, run)| run.icount);
    if exact || added.count() * SHARE >= first {
        return Ok(BTreeSet::new());
    }
    let (times, commits) = super::outcome::timed(record, session, &finished)?;
    Ok(levels::to_place((record, session), (&commits, &finished), &times))
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_model::run::WatchLevel;

    #[test]
    fn runs_that_place_are_in_blocks_of_their_own() {
        let planned = |machine| PlannedRun { machine, warmup: false, watch: WatchLevel::None };
        let plan = [
            0, 1, 2, 2, 0, 1, /* placing */ 1, 2, 2, 1, /* more of all */ 0, 2, 1,
            /* sizing */ 0, 1, /* slow boots */ 0, 2, 1, 1, 0, 2,
        ];
        let sizing = vec![Sizing { runs: [13, 15], ..Sizing::default() }];
        let added =
            Added { placing: vec![[6, 10]], sizing, slow: vec![[15, 21]], ..Added::default() };
        let blocks = added.blocks(&plan.map(planned));
        let found: Vec<usize> = blocks.into_values().collect();
        assert_eq!(found, [0, 0, 0, 1, 1, 1, 3, 3, 4, 4, 2, 2, 2, 5, 5, 5, 6, 6, 6]);
        assert_eq!((added.count(), added.further()), (4, 12));
    }
}
