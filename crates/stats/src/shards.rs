//! Which part of a plan runs on which host.
//!
//! Hosts differ in speed, so a setting must not run on one of them only. As many blocks as
//! every shard can have are given out whole: a host then runs every machine equally often,
//! and its speed cancels out of every comparison (a randomised complete block design, the
//! host being the block; R. Fisher, The Design of Experiments, 1935, ch. 4). What is left is
//! cut so that no machine stays on one shard: from two runs a machine on, chains of shared
//! hosts join all machines (incomplete blocks; W. Cochran, G. Cox, Experimental Designs,
//! 1957, ch. 9), so that [`crate::hosts::adjust`] can tell hosts from machines.

use crate::plan::{plan, Slot};
use crate::rng::Rng;

/// One run of a plan, and whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ShardSlot {
    /// The run.
    pub slot: Slot,
    /// The shard, from 0.
    pub shard: usize,
}

/// As [`plan`], for `shards` hosts: each shard warms up every machine that it measures, then
/// the blocks follow. Equal arguments give equal plans on every host. A shard's runs, taken
/// in order, are interleaved as the plan is.
pub fn sharded_plan(
    machines: usize,
    warmups: usize,
    runs: usize,
    seed: u64,
    shards: usize,
) -> Vec<ShardSlot> {
    let shards = shards.max(1);
    let whole_blocks = runs / shards * shards;
    let mut place: Vec<usize> = (0..machines).collect();
    Rng::new(seed.wrapping_add(0x5348_4152_4453)).shuffle(&mut place);
    let owner = |slot: &Slot| match slot.block.checked_sub(whole_blocks) {
        None => slot.block % shards,
        Some(left) => (place[slot.machine] + left) % shards,
    };
    let measured: Vec<ShardSlot> = plan(machines, 0, runs, seed)
        .into_iter()
        .map(|slot| ShardSlot { shard: owner(&slot), slot })
        .collect();
    let mut slots = Vec::new();
    for shard in 0..shards {
        let mut own = vec![false; machines];
        measured.iter().filter(|s| s.shard == shard).for_each(|s| own[s.slot.machine] = true);
        let order = plan(machines, warmups, 0, seed.wrapping_add(shard as u64));
        let warm = order.into_iter().filter(|slot| own[slot.machine]);
        slots.extend(warm.map(|slot| {
            let block = shard * warmups + slot.block;
            ShardSlot { slot: Slot { block, ..slot }, shard }
        }));
    }
    let first_block = shards * warmups;
    slots.extend(
        measured
            .into_iter()
            .map(|s| ShardSlot { slot: Slot { block: first_block + s.slot.block, ..s.slot }, ..s }),
    );
    slots
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::{adjust, HostSample};
    use proptest::prelude::*;

    #[test]
    fn one_shard_is_the_plan() {
        let whole: Vec<Slot> = sharded_plan(4, 2, 5, 9, 1).into_iter().map(|s| s.slot).collect();
        assert_eq!(whole, plan_with_separate_warmups(4, 2, 5, 9));
        assert_eq!(sharded_plan(0, 2, 5, 9, 3), []);
    }

    fn plan_with_separate_warmups(m: usize, warmups: usize, runs: usize, seed: u64) -> Vec<Slot> {
        let measured = plan(m, 0, runs, seed).into_iter();
        let measured = measured.map(|s| Slot { block: s.block + warmups, ..s });
        plan(m, warmups, 0, seed).into_iter().chain(measured).collect()
    }

    proptest! {
        #[test]
        fn every_run_once_and_every_machine_spread(
            machines in 1usize..14, warmups in 0usize..3, runs in 1usize..9,
            shards in 1usize..7, seed in any::<u64>(),
        ) {
            let slots = sharded_plan(machines, warmups, runs, seed, shards);
            prop_assert_eq!(&slots, &sharded_plan(machines, warmups, runs, seed, shards));
            let measured: Vec<&ShardSlot> = slots.iter().filter(|s| !s.slot.warmup).collect();
            prop_assert_eq!(measured.len(), machines * runs);
            let mut cells = vec![vec![0usize; shards]; machines];
            for s in &measured {
                cells[s.slot.machine][s.shard] += 1;
            }
            for of in &cells {
                prop_assert_eq!(of.iter().sum::<usize>(), runs);
                let (least, most) = (of.iter().min().unwrap(), of.iter().max().unwrap());
                prop_assert!(most - least <= 1, "{:?}", of);
            }
            for shard in 0..shards {
                let own: Vec<&ShardSlot> = slots.iter().filter(|s| s.shard == shard).collect();
                for (machine, of) in cells.iter().enumerate() {
                    let warm = own.iter().filter(|s| s.slot.warmup && s.slot.machine == machine);
                    prop_assert_eq!(warm.count(), if of[shard] > 0 { warmups } else { 0 });
                }
                let first = own.iter().position(|s| !s.slot.warmup).unwrap_or(0);
                prop_assert!(own[first..].iter().all(|s| !s.slot.warmup));
            }
            if runs > 1 {
                let samples: Vec<HostSample> = measured
                    .iter()
                    .map(|s| HostSample { host: s.shard, group: s.slot.machine, value: 1.0 })
                    .collect();
                prop_assert_eq!(adjust(&samples).confounded, vec![]);
            }
        }
    }
}
