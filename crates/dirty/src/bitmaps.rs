//! The strategies: for each slot a bitmap of each kind, marked alike and harvested in turn.

use crate::clock::tsc;
use crate::layout::Layout;
use crate::DirtyError;
use dirty_log::PageSet;
use vmeter_dirty_switch::{
    BadPageSize, DirtyBitmap, GetOpt, GetOrg, Slot, Strategy, StrategyKind, SwitchOpt,
};
use vmeter_stats::rng::Rng;

/// Samples of a clean slot, and calls in each: a clean harvest is shorter than reading the
/// clock is, and can be repeated as it is.
const CLEAN_SAMPLES: usize = 31;
const CLEAN_CALLS: u32 = 16;
const PAGE_SIZE: usize = crate::layout::PAGE as usize;

/// Dirty words of each slot, with their indices.
pub(crate) type DirtyWords = Vec<Vec<(usize, u64)>>;

/// A bitmap by its strategy; not a trait object, as a VMM has one kind of bitmap and no
/// need of a table of functions.
#[derive(Debug)]
enum Log {
    GetOrg(DirtyBitmap<GetOrg>),
    GetOpt(DirtyBitmap<GetOpt>),
    SwitchOpt(DirtyBitmap<SwitchOpt>),
}

impl Log {
    fn new(kind: StrategyKind, bytes: usize) -> Result<Self, BadPageSize> {
        Ok(match kind {
            StrategyKind::GetOrg => Self::GetOrg(DirtyBitmap::new(bytes, PAGE_SIZE)?),
            StrategyKind::GetOpt => Self::GetOpt(DirtyBitmap::new(bytes, PAGE_SIZE)?),
            StrategyKind::SwitchOpt => Self::SwitchOpt(DirtyBitmap::new(bytes, PAGE_SIZE)?),
        })
    }

    fn strategy(&self) -> StrategyKind {
        match self {
            Self::GetOrg(_) => StrategyKind::GetOrg,
            Self::GetOpt(_) => StrategyKind::GetOpt,
            Self::SwitchOpt(_) => StrategyKind::SwitchOpt,
        }
    }

    fn slot(&self) -> &Slot {
        match self {
            Self::GetOrg(log) => log,
            Self::GetOpt(log) => log,
            Self::SwitchOpt(log) => log,
        }
    }

    fn once(&self, words: &mut Vec<(usize, u64)>) -> f64 {
        match self {
            Self::GetOrg(log) => once(log, words),
            Self::GetOpt(log) => once(log, words),
            Self::SwitchOpt(log) => once(log, words),
        }
    }

    fn clean(&self) -> f64 {
        match self {
            Self::GetOrg(log) => clean(log),
            Self::GetOpt(log) => clean(log),
            Self::SwitchOpt(log) => clean(log),
        }
    }
}

/// Bitmaps of all slots, by slot and strategy.
#[derive(Debug)]
pub(crate) struct Bitmaps {
    slots: Vec<Vec<Log>>,
}

/// A slot harvested one way.
#[derive(Debug, Clone)]
pub(crate) struct Harvested {
    pub(crate) slot: usize,
    pub(crate) strategy: StrategyKind,
    pub(crate) first_cycles: f64,
    pub(crate) samples: Vec<f64>,
    pub(crate) calls: u32,
    /// Words that are not 0.
    pub(crate) words: Vec<(usize, u64)>,
}

impl Bitmaps {
    pub(crate) fn new(layout: &Layout, strategies: &[StrategyKind]) -> Result<Self, DirtyError> {
        let bitmap = |bytes: u64, &kind: &StrategyKind| {
            let too_large = || DirtyError::Options(format!("a slot of {bytes} bytes is too large"));
            let bytes = usize::try_from(bytes).map_err(|_| too_large())?;
            Log::new(kind, bytes).map_err(|_| too_large())
        };
        let slot = |bytes| strategies.iter().map(|kind| bitmap(bytes, kind)).collect();
        let slots = layout.slots.iter().map(|plan| slot(plan.bytes));
        Ok(Self { slots: slots.collect::<Result<_, _>>()? })
    }

    /// Marks what a tracker reported, as a VMM's thread does.
    pub(crate) fn mark(&self, told: &DirtyWords) {
        for (logs, words) in self.slots.iter().zip(told) {
            for log in logs {
                words.iter().for_each(|&(i, word)| {
                    log.slot().mark_words(i, &[word]);
                });
            }
        }
    }

    /// Harvests every slot every way, slots and ways in random order.
    pub(crate) fn harvest(&self, rng: &mut Rng) -> Vec<Harvested> {
        let mut turns: Vec<usize> = (0..self.slots.len()).collect();
        rng.shuffle(&mut turns);
        turns.into_iter().flat_map(|slot| self.harvest_slot(slot, rng)).collect()
    }

    fn harvest_slot(&self, slot: usize, rng: &mut Rng) -> Vec<Harvested> {
        let logs = &self.slots[slot];
        let mut turns: Vec<usize> = (0..logs.len()).collect();
        rng.shuffle(&mut turns);
        let mut found: Vec<Harvested> = Vec::with_capacity(logs.len());
        for &turn in &turns {
            let log = &logs[turn];
            let mut words = Vec::with_capacity(log.slot().word_count());
            let first_cycles = log.once(&mut words);
            let (strategy, samples) = (log.strategy(), vec![first_cycles]);
            found.push(Harvested { slot, strategy, first_cycles, samples, calls: 1, words });
        }
        if found.iter().all(|harvested| harvested.words.is_empty()) {
            found.iter_mut().for_each(|harvested| {
                harvested.samples.clear();
                harvested.calls = CLEAN_CALLS;
            });
            for _ in 0..CLEAN_SAMPLES {
                let mut order: Vec<usize> = (0..turns.len()).collect();
                rng.shuffle(&mut order);
                for i in order {
                    found[i].samples.push(logs[turns[i]].clean());
                }
            }
        }
        found.sort_by_key(|harvested| harvested.strategy);
        found
    }

    /// Harvests once more what was dirty and has been marked again, for a further sample
    /// of each. False if other pages are found than before.
    pub(crate) fn harvest_again(&self, before: &mut [Harvested], rng: &mut Rng) -> bool {
        let mut dirty: Vec<&mut Harvested> =
            before.iter_mut().filter(|harvested| !harvested.words.is_empty()).collect();
        rng.shuffle(&mut dirty);
        let mut same = true;
        for harvested in dirty {
            let logs = &self.slots[harvested.slot];
            let Some(log) = logs.iter().find(|log| log.strategy() == harvested.strategy) else {
                continue;
            };
            let mut words = Vec::with_capacity(log.slot().word_count());
            harvested.samples.push(log.once(&mut words));
            same &= words == harvested.words;
        }
        same
    }
}

/// One harvest with a look at each dirty word, until the slot can be harvested again.
#[inline(never)]
fn once<S: Strategy>(log: &DirtyBitmap<S>, words: &mut Vec<(usize, u64)>) -> f64 {
    let start = tsc();
    let harvest = log.harvest();
    harvest.for_each_word(|i, word| words.push((i, word)));
    drop(harvest);
    (tsc() - start) as f64
}

/// The same of a clean slot, the mean of several calls.
#[inline(never)]
fn clean<S: Strategy>(log: &DirtyBitmap<S>) -> f64 {
    let mut words = 0u64;
    let start = tsc();
    for _ in 0..CLEAN_CALLS {
        let harvest = log.harvest();
        harvest.for_each_word(|_, _| words += 1);
    }
    let cycles = tsc() - start;
    assert_eq!(std::hint::black_box(words), 0, "a slot marked as clean contains dirty pages");
    cycles as f64 / f64::from(CLEAN_CALLS)
}

/// The words of page sets, for [`Bitmaps::mark`] and for comparison.
pub(crate) fn words(sets: &[PageSet]) -> DirtyWords {
    sets.iter().map(|set| set.dirty_words().collect()).collect()
}
