//! The strategies: for each slot a bitmap of each kind, marked alike and harvested in turn.

use crate::clock::tsc;
use crate::layout::Layout;
use crate::DirtyError;
use dirty_log::{DirtyLog, PageSet, StrategyKind};
use vmeter_stats::rng::Rng;

/// Samples of a clean slot, and calls in each. A clean harvest is shorter than reading the
/// clock is, and can be repeated; a dirty one cannot.
const CLEAN_SAMPLES: usize = 31;
const CLEAN_CALLS: u32 = 16;
const PAGE_SIZE: usize = crate::layout::PAGE as usize;

/// Bitmaps of all slots, by slot and strategy.
#[derive(Debug)]
pub(crate) struct Bitmaps {
    slots: Vec<Vec<Box<dyn DirtyLog>>>,
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
        let bitmap = |bytes: u64, kind: &StrategyKind| {
            let too_large = || DirtyError::Options(format!("a slot of {bytes} bytes is too large"));
            let bytes = usize::try_from(bytes).map_err(|_| too_large())?;
            kind.bitmap(bytes, PAGE_SIZE).map_err(|_| too_large())
        };
        let slot = |bytes| strategies.iter().map(|kind| bitmap(bytes, kind)).collect();
        let slots = layout.slots.iter().map(|plan| slot(plan.bytes));
        Ok(Self { slots: slots.collect::<Result<_, _>>()? })
    }

    /// Marks what a tracker told, as a VMM's thread does.
    pub(crate) fn mark(&self, words: &[Vec<(usize, u64)>]) {
        for (logs, words) in self.slots.iter().zip(words) {
            for log in logs {
                words.iter().for_each(|&(i, word)| {
                    log.mark_words(i, &[word]);
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
            let log = &*logs[turn];
            let mut words = Vec::with_capacity(log.word_count());
            let cycles = once(log, &mut words);
            let (strategy, samples) = (log.strategy(), vec![cycles]);
            found.push(Harvested {
                slot,
                strategy,
                first_cycles: cycles,
                samples,
                calls: 1,
                words,
            });
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
                    found[i].samples.push(clean(&*logs[turns[i]]));
                }
            }
        }
        found.sort_by_key(|harvested| harvested.strategy);
        found
    }
}

/// One harvest with a look at each dirty word, until the slot can be harvested again.
#[inline(never)]
fn once(log: &dyn DirtyLog, words: &mut Vec<(usize, u64)>) -> f64 {
    let start = tsc();
    let harvest = log.harvest();
    harvest.for_each_word(|i, word| words.push((i, word)));
    drop(harvest);
    (tsc() - start) as f64
}

/// The same of a clean slot, the mean of several calls.
#[inline(never)]
fn clean(log: &dyn DirtyLog) -> f64 {
    let mut words = 0u64;
    let start = tsc();
    for _ in 0..CLEAN_CALLS {
        let harvest = log.harvest();
        harvest.for_each_word(|_, _| words += 1);
    }
    let cycles = tsc() - start;
    assert_eq!(std::hint::black_box(words), 0, "a clean slot is dirty without a mark");
    cycles as f64 / f64::from(CLEAN_CALLS)
}

/// The words of page sets, for [`Bitmaps::mark`] and for comparison.
pub(crate) fn words(sets: &[PageSet]) -> Vec<Vec<(usize, u64)>> {
    sets.iter().map(|set| set.dirty_words().collect()).collect()
}
