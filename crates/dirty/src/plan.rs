//! Which guest does what, in which order: worked out from the seed before the first run.

use serde::{Deserialize, Serialize};
use vmeter_base::fnv;
use vmeter_model::run::Planned;
use vmeter_stats::rng::Rng;

/// Shares of the buffer whose passes the fits are made of, besides those measured.
const FIT_SHARES: [f64; 4] = [0.0, 0.001, 0.01, 0.1];
pub(crate) const FIT_ROUNDS: u32 = 3;

/// What the plan says of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedPass {
    /// The guest: 0 is the one that nobody tracks, the others have a tracker each.
    pub machine: usize,
    /// True for a warm-up.
    pub warmup: bool,
    /// What it does.
    #[serde(flatten)]
    pub step: Step,
}

/// What a guest does in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum Step {
    /// A pass of the workload.
    Pass {
        /// From 0; warm-ups are counted by themselves.
        pass: u32,
        /// Seed of the order in which slots and strategies take turns.
        seed: u64,
    },
    /// A pass with another number of dirty pages, for the trackers' lines.
    Fit {
        /// From 0.
        round: u32,
        /// Pages, of any place in the buffer.
        pages: u64,
    },
    /// A pass of several guests at once, each with memory of its own.
    Together {
        /// From 0.
        round: u32,
        /// Guests.
        vms: usize,
        /// Seed of the order in which slots and strategies take turns.
        seed: u64,
    },
}

impl PlannedPass {
    /// The number of the measured pass, if it is one.
    pub(crate) fn measured(&self) -> Option<u32> {
        match self.step {
            Step::Pass { pass, .. } if !self.warmup => Some(pass),
            _ => None,
        }
    }
}

impl Planned for PlannedPass {
    fn machine(&self) -> usize {
        self.machine
    }

    fn warmup(&self) -> bool {
        self.warmup
    }
}

/// Orders of the guests of a session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Orders {
    /// Guests, the untracked one among them.
    pub(crate) guests: usize,
    /// The session's seed.
    pub(crate) seed: u64,
}

impl Orders {
    /// The generator for one block of runs; blocks do not depend on those before.
    fn rng(self, block: &str) -> Rng {
        Rng::new(fnv::hash(format!("{} {block}", self.seed).as_bytes()))
    }

    fn turns(self, rng: &mut Rng) -> Vec<usize> {
        let mut turns: Vec<usize> = (0..self.guests).collect();
        rng.shuffle(&mut turns);
        turns
    }

    /// Passes of the workload, each by all guests in turn.
    pub(crate) fn passes(self, passes: std::ops::Range<u32>, warmup: bool) -> Vec<PlannedPass> {
        let block = |pass| {
            let mut rng = self.rng(&format!("{}{pass}", if warmup { "warmup" } else { "pass" }));
            let turns = self.turns(&mut rng);
            turns.into_iter().map(move |machine| {
                let step = Step::Pass { pass, seed: rng.bits() };
                PlannedPass { machine, warmup, step }
            })
        };
        passes.flat_map(block).collect()
    }

    /// Rounds of several guests at once, for each number of them and each tracker.
    pub(crate) fn together(self, numbers: &[usize], rounds: u32) -> Vec<PlannedPass> {
        let mut rng = self.rng("together");
        let mut numbers = numbers.to_vec();
        numbers.sort_unstable();
        numbers.dedup();
        let mut planned = Vec::new();
        for round in 0..rounds {
            for &vms in &numbers {
                let tracked = self.turns(&mut rng).into_iter().filter(|machine| *machine > 0);
                planned.extend(tracked.map(|machine| {
                    let step = Step::Together { round, vms, seed: rng.bits() };
                    PlannedPass { machine, warmup: false, step }
                }));
            }
        }
        planned
    }

    /// What the fits are made of, for a workload that may write to `most` pages.
    pub(crate) fn fits(self, most: usize) -> Vec<PlannedPass> {
        let pages = FIT_SHARES.iter().map(|share| (most as f64 * share).ceil() as u64);
        let mut counts: Vec<u64> = pages.collect();
        counts.dedup();
        let mut rng = self.rng("fits");
        let mut planned = Vec::new();
        for round in 0..FIT_ROUNDS {
            for &pages in &counts {
                let step = Step::Fit { round, pages };
                let turns = self.turns(&mut rng).into_iter();
                planned.extend(turns.map(|machine| PlannedPass { machine, warmup: false, step }));
            }
        }
        planned
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_passes_do_not_change_those_before() {
        let orders = Orders { guests: 5, seed: 7 };
        let all = orders.passes(0..6, false);
        assert_eq!([orders.passes(0..2, false), orders.passes(2..6, false)].concat(), all);
        assert_ne!(all, Orders { guests: 5, seed: 8 }.passes(0..6, false));
        for block in all.chunks(5) {
            let mut machines: Vec<usize> = block.iter().map(|planned| planned.machine).collect();
            machines.sort_unstable();
            assert_eq!(machines, [0, 1, 2, 3, 4]);
        }
        assert_eq!(orders.fits(1000).len(), 3 * 4 * 5);
    }

    #[test]
    fn a_plan_is_read_back() {
        let planned = [Orders { guests: 3, seed: 1 }.passes(0..2, true), {
            Orders { guests: 3, seed: 1 }.fits(100)
        }]
        .concat();
        let text = serde_json::to_string(&planned).unwrap();
        assert_eq!(serde_json::from_str::<Vec<PlannedPass>>(&text).unwrap(), planned);
    }
}
