//! What to use for the workload that was measured.

use crate::result::{DirtyAdvice, DirtyRow, DirtyTracker};
use crate::source::label;
use dirty_log::StrategyKind;
use std::collections::BTreeMap;
use vmeter_stats::{mean, median};

/// Costs up to so many times the least are not told from it.
const CLOSE: f64 = 1.1;

/// The tracker whose passes cost least, host and guest together, and the strategy whose
/// harvests do.
pub(crate) fn advice(trackers: &[DirtyTracker], rows: &[DirtyRow]) -> Option<DirtyAdvice> {
    let untracked = trackers.iter().find(|tracker| tracker.tracker.is_none())?;
    let cost = |tracker: &DirtyTracker| {
        let collect = tracker.collect_nanoseconds?.mean;
        let extra = mean(&tracker.write_samples_ns) - mean(&untracked.write_samples_ns);
        Some((collect, extra.max(0.0)))
    };
    let all: Vec<(&DirtyTracker, (f64, f64))> =
        trackers.iter().filter_map(|tracker| Some((tracker, cost(tracker)?))).collect();
    let least = all.iter().map(|(_, (collect, extra))| collect + extra).min_by(f64::total_cmp)?;
    // What the guest loses differs by chance; among equals the host's time decides.
    let close = all.into_iter().filter(|(_, (collect, extra))| collect + extra <= CLOSE * least);
    let mut close: Vec<_> = close.collect();
    close.sort_by(|(_, a), (_, b)| a.0.total_cmp(&b.0));
    let (best, (collect, extra)) = *close.first()?;
    let others: Vec<&str> = close[1..].iter().map(|(other, _)| label(other.tracker)).collect();
    let close = if others.is_empty() {
        String::new()
    } else {
        format!("; in all no more than 10 % dearer: {}", others.join(", "))
    };
    let strategy = fastest(rows)?;
    let us = |ns: f64| {
        if ns < 10_000.0 {
            format!("{:.1} us", ns / 1e3)
        } else {
            format!("{:.2} ms", ns / 1e6)
        }
    };
    let faults = best.slowdown.map_or(String::new(), |s| format!(" ({s:.1} times its writes)"));
    Some(DirtyAdvice {
        tracker: best.tracker?,
        strategy,
        reason: format!(
            "{} in a pass to tell the pages, {} more for the guest's writes{faults}{close}",
            us(collect),
            us(extra)
        ),
    })
}

/// The strategy whose harvests of all slots take least, slots by their medians.
fn fastest(rows: &[DirtyRow]) -> Option<StrategyKind> {
    let mut own: BTreeMap<(StrategyKind, u32, bool), Vec<f64>> = BTreeMap::new();
    for row in rows {
        let place = (row.strategy, row.slot, row.dirty_pages > 0);
        own.entry(place).or_default().push(row.nanoseconds);
    }
    let mut sums: BTreeMap<StrategyKind, f64> = BTreeMap::new();
    for ((strategy, _, _), ns) in own {
        *sums.entry(strategy).or_default() += median(&ns);
    }
    let least = sums.into_iter().min_by(|a, b| a.1.total_cmp(&b.1));
    least.map(|(strategy, _)| strategy)
}
