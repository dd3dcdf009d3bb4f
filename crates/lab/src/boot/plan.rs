//! Which boots of a machine there are, and how each is watched.

use crate::blocks::in_blocks;
use crate::booter::Recorder;
use crate::looks::Repeats;
use crate::prepare::Prepared;
use vmeter_model::run::{PlannedRun, WatchLevel};
use vmeter_stats::Slot;

/// Measured boots of a machine, unless `--runs` says otherwise.
const DEFAULT_RUNS: u32 = 5;
/// … and of each of two machines, where a baseline takes turns with it.
const DEFAULT_PAIRS: u32 = 10;

/// How the boots that are timed, and those that count instructions, are watched. They
/// are the same where counting costs nothing: not by the plugin, or in virtual time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Levels {
    pub asked: WatchLevel,
    pub timed: WatchLevel,
}

impl Levels {
    pub fn of(watch: WatchLevel, recorder: &Recorder) -> Self {
        let by_plugin = recorder.machines.iter().any(Prepared::is_slowed_by_counting);
        let timed = match watch {
            WatchLevel::Full if by_plugin => WatchLevel::Light,
            other => other,
        };
        Levels { asked: watch, timed }
    }

    pub fn counts_apart(self) -> bool {
        self.asked != self.timed
    }
}

/// Warm-ups, then measured boots, of machines in turn. Counting boots double as warm-ups.
pub(super) fn plan(
    repeats: &Repeats,
    levels: Levels,
    machines: usize,
    seed: u64,
) -> Vec<PlannedRun> {
    let runs = repeats.planned(if machines > 1 { DEFAULT_PAIRS } else { DEFAULT_RUNS });
    let warmups = repeats.warmups().max(u32::from(levels.counts_apart()));
    let level = |slot: &Slot| if slot.warmup { levels.asked } else { levels.timed };
    in_blocks(machines, (warmups, runs), seed, level)
}
