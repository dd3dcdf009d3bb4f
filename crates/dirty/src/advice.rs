//! What to use for the workload that was measured.

use vmeter_model::dirty::{DirtyAdvice, DirtyRow, DirtyTracker};
use vmeter_stats::mean;

/// The tracker whose passes cost least, host and guest together, and the strategy whose
/// harvests do.
pub(crate) fn advice(trackers: &[DirtyTracker], rows: &[DirtyRow]) -> Option<DirtyAdvice> {
    let untracked = trackers.iter().find(|tracker| tracker.tracker == "none")?;
    let cost = |tracker: &DirtyTracker| {
        let collect = tracker.collect_nanoseconds?.mean;
        let extra = mean(&tracker.write_samples_ns) - mean(&untracked.write_samples_ns);
        Some((collect, extra.max(0.0)))
    };
    let candidates = trackers.iter().filter_map(|tracker| Some((tracker, cost(tracker)?)));
    let (best, (collect, extra)) =
        candidates.min_by(|(_, a), (_, b)| (a.0 + a.1).total_cmp(&(b.0 + b.1)))?;
    let close = trackers.iter().filter(|tracker| tracker.tracker != best.tracker).filter(|other| {
        cost(other).is_some_and(|other| other.0 + other.1 < 1.1 * (collect + extra))
    });
    let close: Vec<&str> = close.map(|tracker| tracker.tracker.as_str()).collect();
    let close = match close.is_empty() {
        true => String::new(),
        false => format!("; within 10 %: {}", close.join(", ")),
    };
    let mut sums: Vec<(&str, f64)> = Vec::new();
    for row in rows {
        match sums.iter_mut().find(|(name, _)| *name == row.strategy) {
            Some((_, sum)) => *sum += row.nanoseconds,
            None => sums.push((&row.strategy, row.nanoseconds)),
        }
    }
    let (strategy, _) = sums.into_iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let us = |ns: f64| {
        if ns < 10_000.0 {
            format!("{:.1} us", ns / 1e3)
        } else {
            format!("{:.2} ms", ns / 1e6)
        }
    };
    let faults = best.slowdown.map_or(String::new(), |s| format!(" ({s:.1} times its writes)"));
    Some(DirtyAdvice {
        tracker: best.tracker.clone(),
        strategy: strategy.into(),
        reason: format!(
            "the least of all trackers in a pass: {} to tell the pages, {} more for the \
             guest's writes{faults}{close}",
            us(collect),
            us(extra)
        ),
    })
}
