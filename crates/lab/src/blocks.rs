//! Which block of the plan a run belongs to: runs of one block met the same state of the host,
//! and only those are compared with each other.

use std::collections::BTreeMap;
use vmeter_model::run::{Planned, PlannedRun, WatchLevel};
use vmeter_stats::Slot;

/// A figure of each run that reached its end, by the block of the plan.
pub(crate) type ByBlock = BTreeMap<usize, f64>;

/// Measured runs of each machine that are planned.
pub(crate) fn runs_each<P: Planned>(plan: &[P]) -> usize {
    plan.iter().filter(|planned| planned.machine() == 0 && !planned.warmup()).count()
}

/// Warm-ups, then measured runs of `machines` in turn, each watched as `level` says.
pub(crate) fn in_blocks(
    machines: usize,
    (warmups, runs): (u32, u32),
    seed: u64,
    level: impl Fn(&Slot) -> WatchLevel,
) -> Vec<PlannedRun> {
    planned(vmeter_stats::plan(machines, warmups as usize, runs as usize, seed), level)
}

/// The runs of these slots, each watched as `level` says.
pub(crate) fn planned(slots: Vec<Slot>, level: impl Fn(&Slot) -> WatchLevel) -> Vec<PlannedRun> {
    let run =
        |slot: Slot| PlannedRun { machine: slot.machine, warmup: slot.warmup, watch: level(&slot) };
    slots.into_iter().map(run).collect()
}

/// Block of each measured run of a plan, by its number: the nth run of a machine is in block n,
/// every block having each machine once.
pub(crate) fn blocks<P: Planned>(plan: &[P]) -> BTreeMap<u32, usize> {
    let mut had: BTreeMap<usize, usize> = BTreeMap::new();
    let measured = (0u32..).zip(plan).filter(|(_, planned)| !planned.warmup());
    measured
        .map(|(index, planned)| {
            let block = had.entry(planned.machine()).or_default();
            *block += 1;
            (index, *block - 1)
        })
        .collect()
}

/// The pairs (a, b) of the blocks that have both, in order, and how many have only one.
pub(crate) fn pairs(a: &ByBlock, b: &ByBlock) -> (Vec<(f64, f64)>, usize) {
    let both = a.iter().filter_map(|(block, a)| Some((*a, *b.get(block)?)));
    let pairs: Vec<(f64, f64)> = both.collect();
    let single = a.len() + b.len() - 2 * pairs.len();
    (pairs, single)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_stats::Rule;

    fn planned(machine: usize, warmup: bool) -> PlannedRun {
        PlannedRun { machine, warmup, watch: WatchLevel::None }
    }

    #[test]
    fn the_nth_run_of_a_machine_is_in_block_n() {
        let plan = [(0, true), (1, true), (1, false), (0, false), (0, false), (1, false)];
        let found = blocks(&plan.map(|(machine, warmup)| planned(machine, warmup)));
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [(2, 0), (3, 0), (4, 1), (5, 1)]);
    }

    /// Review E8.
    /// A host that gets four times slower over ten blocks; one run of each side is missing. By
    /// position the pairs were shifted, and two machines that are the same differed by 12 %
    /// with p = 0.004.
    #[test]
    fn missing_runs_shift_no_pairs() {
        let host = |block: usize| 2.0 + 6.0 * block as f64 / 9.0;
        let side = |lacks: usize| -> ByBlock {
            (0..10).filter(|b| *b != lacks).map(|b| (b, host(b))).collect()
        };
        let (pairs, single) = pairs(&side(2), &side(9));
        assert_eq!((pairs.len(), single), (8, 2));
        let found = Rule::default().decide(&pairs).expect("pairs");
        assert!((found.ratio.mean - 1.0).abs() < 1e-9, "{found:?}");
    }
}
