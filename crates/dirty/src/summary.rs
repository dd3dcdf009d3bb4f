//! The harvests slot by slot, and the answer: how much faster a clean slot is harvested.

use crate::result::{DirtyRow, DirtySlot, DirtySpeedup, DirtySummary};
use vmeter_dirty_switch::StrategyKind;
use vmeter_stats::median;

/// Slots from this size on are what the speedup is of, bytes.
const LARGE: u64 = 16 << 20;

/// Medians of each slot over all passes and trackers: of the passes that left it clean, and
/// of the others.
pub fn summaries(slots: &[DirtySlot], rows: &[DirtyRow]) -> Vec<DirtySummary> {
    let mut strategies: Vec<StrategyKind> = Vec::new();
    for row in rows {
        if !strategies.contains(&row.strategy) {
            strategies.push(row.strategy);
        }
    }
    let states = slots.iter().flat_map(|slot| [(slot, true), (slot, false)]);
    let summary = |(slot, clean): (&DirtySlot, bool)| {
        let of = |row: &&DirtyRow| row.slot == slot.slot && (row.dirty_pages == 0) == clean;
        let own: Vec<&DirtyRow> = rows.iter().filter(of).collect();
        let medians: Vec<(StrategyKind, f64)> = strategies
            .iter()
            .filter_map(|strategy| {
                let harvests = own.iter().filter(|row| row.strategy == *strategy);
                let ns: Vec<f64> = harvests.map(|row| row.nanoseconds).collect();
                (!ns.is_empty()).then(|| (*strategy, median(&ns)))
            })
            .collect();
        let ratio = match medians.as_slice() {
            [(_, first), .., (_, last)] if *last > 0.0 => Some(first / last),
            _ => None,
        };
        (!own.is_empty()).then(|| DirtySummary {
            slot: slot.slot,
            slot_bytes: slot.slot_bytes,
            clean,
            harvests: own.len() / strategies.len().max(1),
            medians,
            ratio,
        })
    };
    states.filter_map(summary).collect()
}

/// How many times as fast as `get_org` `switch_opt` harvests large clean slots; none where
/// one of them, or such a slot, was not measured.
pub fn speedup(summaries: &[DirtySummary]) -> Option<DirtySpeedup> {
    let (strategy, over) = (StrategyKind::SwitchOpt, StrategyKind::GetOrg);
    let large = summaries.iter().filter(|summary| summary.clean && summary.slot_bytes >= LARGE);
    let ratios = large.filter_map(|summary| {
        let median = |of: StrategyKind| summary.medians.iter().find(|(own, _)| *own == of);
        let (slow, fast) = (median(over)?.1, median(strategy)?.1);
        (fast > 0.0).then(|| slow / fast)
    });
    let ends = ratios.fold(None, |ends: Option<(f64, f64)>, ratio| {
        let (low, high) = ends.unwrap_or((ratio, ratio));
        Some((low.min(ratio), high.max(ratio)))
    });
    let (smallest, largest) = ends?;
    Some(DirtySpeedup { strategy, over, slots_from_bytes: LARGE, smallest, largest })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TrackerKind;

    fn row(slot: u32, pass: u32, dirty_pages: u64, strategy: &str, nanoseconds: f64) -> DirtyRow {
        DirtyRow {
            pass,
            slot,
            slot_bytes: 32 << 20,
            dirty_pages,
            strategy: strategy.parse().expect("a strategy"),
            tracker: TrackerKind::Legacy,
            nanoseconds,
            tsc_cycles: nanoseconds * 2.5,
            first_nanoseconds: nanoseconds,
            collect_nanoseconds: None,
            samples_tsc_cycles: vec![],
            calls: 1,
        }
    }

    #[test]
    fn the_answer_is_of_large_clean_slots_alone() {
        let slot = |slot, slot_bytes| DirtySlot { slot, slot_bytes, gpa: 0 };
        let slots = [slot(0, 1 << 20), slot(1, 32 << 20), slot(2, 64 << 20), slot(3, 64 << 20)];
        let mut rows = Vec::new();
        for (at, slow) in [(0, 9.0), (1, 100.0), (2, 300.0)] {
            for pass in 0..3 {
                rows.push(row(at, pass, 0, "get_org", slow + f64::from(pass)));
                rows.push(row(at, pass, 0, "switch_opt", 1.0));
            }
        }
        rows.push(row(1, 3, 50, "get_org", 1e6));
        rows.push(row(1, 3, 50, "switch_opt", 1e6));
        let summaries = summaries(&slots, &rows);
        let states: Vec<(u32, bool)> = summaries.iter().map(|s| (s.slot, s.clean)).collect();
        assert_eq!(states, [(0, true), (1, true), (1, false), (2, true)]);
        assert_eq!(summaries[1].medians[0], (StrategyKind::GetOrg, 101.0));
        let speedup = speedup(&summaries).expect("both were measured");
        assert_eq!((speedup.smallest, speedup.largest), (101.0, 301.0));
    }

    #[test]
    fn without_the_other_strategy_there_is_no_answer() {
        let slots = [DirtySlot { slot: 0, slot_bytes: 32 << 20, gpa: 0 }];
        let summaries = summaries(&slots, &[row(0, 0, 0, "get_opt", 5.0)]);
        assert_eq!((summaries.len(), speedup(&summaries)), (1, None));
    }
}
