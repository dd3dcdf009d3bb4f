//! From passes with different numbers of dirty pages to what a tracker costs at any number,
//! and to where one becomes cheaper than another.

use crate::result::CrossoverOf;
use crate::result::{DirtyCrossover, DirtyModel, DirtyPoint};
use crate::source::TrackerKind;
use std::collections::{BTreeMap, BTreeSet};
use vmeter_stats::theil_sen;

/// Lines through the points of each tracker (Theil and Sen: a pass that was disturbed does
/// not bend them). Writes are compared with those of the guest that is not tracked.
pub(crate) fn models(points: &[DirtyPoint]) -> BTreeMap<TrackerKind, DirtyModel> {
    let line = |tracker: Option<TrackerKind>, cost: &dyn Fn(&DirtyPoint) -> Option<f64>| {
        let own = points.iter().filter(|point| point.tracker == tracker);
        let xy: Vec<(f64, f64)> =
            own.filter_map(|point| Some((point.dirty_pages as f64, cost(point)?))).collect();
        theil_sen(&xy)
    };
    let writes = |tracker| line(tracker, &|point| Some(point.write_nanoseconds));
    let untracked = writes(None).map_or(0.0, |line| line.slope);
    let trackers: BTreeSet<TrackerKind> = points.iter().filter_map(|p| p.tracker).collect();
    let model = |tracker: TrackerKind| {
        let collect = line(Some(tracker), &|point| point.collect_nanoseconds)?;
        let clean: Vec<f64> = points
            .iter()
            .filter(|point| point.tracker == Some(tracker) && point.dirty_pages == 0)
            .filter_map(|point| point.collect_nanoseconds)
            .collect();
        let clean_ns =
            if clean.is_empty() { collect.intercept } else { vmeter_stats::median(&clean) };
        let model = DirtyModel {
            collect_clean_ns: clean_ns.max(0.0),
            collect_page_ns: collect.slope.max(0.0),
            write_page_ns: (writes(Some(tracker))?.slope - untracked).max(0.0),
        };
        Some((tracker, model))
    };
    trackers.into_iter().filter_map(model).collect()
}

/// Cost of a pass, ns.
fn cost(model: &DirtyModel, of: CrossoverOf, pages: f64) -> f64 {
    let page = match of {
        CrossoverOf::Collect => model.collect_page_ns,
        CrossoverOf::Total => model.collect_page_ns + model.write_page_ns,
    };
    model.collect_clean_ns + page * pages
}

/// Where the cheapest tracker changes, from nothing dirty to as many pages as were measured
/// at most; shares are of `pages`.
pub(crate) fn crossovers(
    models: &BTreeMap<TrackerKind, DirtyModel>,
    measured: u64,
    pages: u64,
) -> Vec<DirtyCrossover> {
    let mut all = Vec::new();
    for &of in CrossoverOf::ALL {
        let slope = |model: &DirtyModel| cost(model, of, 1.0) - cost(model, of, 0.0);
        let cheapest = models.iter().min_by(|a, b| {
            cost(a.1, of, 0.0)
                .total_cmp(&cost(b.1, of, 0.0))
                .then(slope(a.1).total_cmp(&slope(b.1)))
        });
        let Some((mut name, mut model)) = cheapest else { return all };
        let mut at = 0.0_f64;
        // The lower envelope: each next line is less steep, so there are as many steps as
        // there are lines at most.
        for _ in 0..models.len() {
            let meets = |(other, line): (&'_ TrackerKind, &'_ DirtyModel)| {
                let gain = slope(model) - slope(line);
                let x = (cost(line, of, 0.0) - cost(model, of, 0.0)) / gain;
                let later = gain > 0.0 && x >= at.max(1.0) && x <= measured as f64;
                (other != name && later).then_some(x)
            };
            let next = models
                .iter()
                .filter_map(|entry| Some((meets(entry)?, entry)))
                .min_by(|a, b| a.0.total_cmp(&b.0));
            let Some((x, (other, line))) = next else { break };
            all.push(DirtyCrossover {
                of,
                below: *name,
                above: *other,
                dirty_pages: x,
                share: x / pages as f64,
                saved_per_page: 1.0 - slope(line) / slope(model),
            });
            (name, model, at) = (other, line, x);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: TrackerKind = TrackerKind::Legacy;
    const RING: TrackerKind = TrackerKind::Ring;

    fn point(
        tracker: Option<TrackerKind>,
        dirty_pages: u64,
        collect: Option<f64>,
        write: f64,
    ) -> DirtyPoint {
        DirtyPoint { tracker, dirty_pages, collect_nanoseconds: collect, write_nanoseconds: write }
    }

    #[test]
    fn lines_cross_where_they_should() {
        let mut points = Vec::new();
        for pages in [0u64, 10, 100, 1000] {
            let n = pages as f64;
            points.push(point(None, pages, None, 10.0 * n));
            points.push(point(Some(LOG), pages, Some(4000.0 + 20.0 * n), 110.0 * n));
            points.push(point(Some(RING), pages, Some(200.0 + 60.0 * n), 60.0 * n));
        }
        let models = models(&points);
        assert_eq!(models.len(), 2);
        let log = models[&LOG];
        assert!(
            (log.collect_clean_ns - 4000.0).abs() < 1e-6
                && (log.write_page_ns - 100.0).abs() < 1e-6
        );
        let found = crossovers(&models, 1000, 100_000);
        // Collecting: 200 + 60 x = 4000 + 20 x at 95. In all, the ring is always cheaper.
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].below, found[0].above), (RING, LOG));
        assert!((found[0].dirty_pages - 95.0).abs() < 1e-6);
        assert!((found[0].saved_per_page - 2.0 / 3.0).abs() < 1e-6, "20 of 60 ns");
        assert!(crossovers(&models, 90, 100_000).is_empty());
        assert!(crossovers(&BTreeMap::new(), 90, 90).is_empty());
    }

    /// Whatever is said to be the cheapest between two places is the cheapest there.
    #[test]
    fn no_other_line_is_below_the_envelope() {
        let line = |clean: f64, page: f64| DirtyModel {
            collect_clean_ns: clean,
            collect_page_ns: page,
            write_page_ns: 0.0,
        };
        let models: BTreeMap<_, _> = [
            (RING, line(21e3, 24.3e3)),
            (TrackerKind::ManualProtect, line(1.48e6, 18.7e3)),
            (TrackerKind::PagemapScan, line(8.89e6, 16e3)),
            (LOG, line(1.92e6, 36e3)),
        ]
        .into();
        let found = crossovers(&models, 6_553, 1 << 20);
        let found: Vec<_> = found.iter().filter(|c| c.of == CrossoverOf::Total).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        for pages in [1.0, 100.0, 300.0, 1_000.0, 2_000.0, 3_000.0, 6_000.0] {
            let named = found.iter().rfind(|c| c.dirty_pages <= pages);
            let named = named.map_or(found[0].below, |c| c.above);
            let of = |kind| cost(&models[kind], CrossoverOf::Total, pages);
            assert!(models.keys().all(|other| of(&named) <= of(other)), "{named} at {pages}");
        }
    }
}
