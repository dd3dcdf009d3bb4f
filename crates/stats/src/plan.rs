//! In which order machines are run.
//!
//! The host drifts (other load, temperature, page cache), so runs of one machine in a row
//! would measure the drift. Runs are therefore blocked: each block runs every machine once,
//! in random order (R. Fisher, The Design of Experiments, 1935, ch. 4; for benchmarks: A.
//! Abedi, T. Brecht, "Conducting repeatable experiments in highly variable cloud computing
//! environments", ICPE 2017). Block k's runs of two machines are pair k of a paired test.

use crate::rng::Rng;

/// One run of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slot {
    /// Index of the machine.
    pub machine: usize,
    /// True if no estimate is to include it.
    pub warmup: bool,
    /// Block it belongs to, warm-up blocks first.
    pub block: usize,
}

/// `warmups` blocks of warm-up runs, then `runs` blocks of measured ones, each with every
/// machine once in an order of its own. Equal seeds give equal plans.
///
/// Orders are balanced: within each group of `machines` consecutive blocks every machine is
/// first once (the rows of a random cyclic Latin square), so that "first after the previous
/// block" favours none.
pub fn plan(machines: usize, warmups: usize, runs: usize, seed: u64) -> Vec<Slot> {
    let mut rng = Rng::new(seed);
    let mut slots = Vec::new();
    let mut rotations: Vec<usize> = Vec::new();
    let mut base: Vec<usize> = (0..machines).collect();
    for block in 0..warmups.saturating_add(runs) {
        if block == warmups {
            rotations.clear();
        }
        if rotations.is_empty() {
            rng.shuffle(&mut base);
            rotations = (0..machines).collect();
            rng.shuffle(&mut rotations);
        }
        let Some(rotation) = rotations.pop() else { break };
        slots.extend((0..machines).map(|i| Slot {
            machine: base[(i + rotation) % machines],
            warmup: block < warmups,
            block,
        }));
    }
    slots
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn seeds_repeat_and_differ() {
        assert_eq!(plan(3, 1, 5, 42), plan(3, 1, 5, 42));
        assert_ne!(plan(3, 1, 5, 42), plan(3, 1, 5, 43));
        assert_eq!(plan(0, 3, 5, 1), []);
    }

    proptest! {
        #[test]
        fn every_machine_once_a_block_and_first_equally_often(
            machines in 1usize..6, warmups in 0usize..4, rounds in 1usize..5, seed in any::<u64>(),
        ) {
            let runs = machines * rounds;
            let slots = plan(machines, warmups, runs, seed);
            prop_assert_eq!(slots.len(), machines * (warmups + runs));
            let mut first = vec![0; machines];
            for (block, members) in slots.chunks(machines).enumerate() {
                prop_assert!(members.iter().all(|s| s.block == block));
                prop_assert!(members.iter().all(|s| s.warmup == (block < warmups)));
                let mut seen: Vec<usize> = members.iter().map(|s| s.machine).collect();
                seen.sort_unstable();
                prop_assert_eq!(seen, (0..machines).collect::<Vec<_>>());
                if block >= warmups {
                    first[members[0].machine] += 1;
                }
            }
            prop_assert!(first.iter().all(|&f| f == rounds), "{:?}", first);
        }
    }
}
