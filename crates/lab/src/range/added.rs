//! What a range adds to its plan beyond runs of each commit in turn, and what each run was made for.

use crate::blocks::blocks;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use vmeter_model::run::{PlannedRun, SessionRecord};

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

/// Runs that size a step.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sizing {
    /// The commits that it came with.
    pub commits: Vec<usize>,
    /// The session's machines before and from it on.
    pub sides: [Vec<usize>; 2],
    /// Part of the plan: the first run, and the one after the last.
    pub runs: [u32; 2],
}

impl Sizing {
    /// True for a run that sizes.
    pub fn holds(&self, run: u32) -> bool {
        (self.runs[0]..self.runs[1]).contains(&run)
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
