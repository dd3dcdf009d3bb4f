//! What to use for the workload that was measured, or that it can't be told.
//!
//! Every tracker has the same passes, and every strategy the same harvests, in random order. So
//! two of them are compared pass by pass: by Student's paired t of the logarithms of what each
//! pass cost, and all comparisons together by Holm. What is not dearer than the cheapest beyond
//! that is not told from it.

use crate::result::{DirtyAdvice, DirtyRow};
use crate::source::TrackerKind;
use std::collections::BTreeMap;
use vmeter_dirty_switch::StrategyKind;
use vmeter_stats::{holm, median, paired_t};

/// Chance of any false difference among the comparisons of an advice.
const ALPHA: f64 = 0.05;

/// What a pass cost, ns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Cost {
    /// Telling the dirty pages of all slots; 0 for the untracked guest.
    pub(crate) collect: f64,
    /// The guest's writes.
    pub(crate) write: f64,
}

/// Costs by pass.
pub(crate) type Costs = BTreeMap<u32, Cost>;

/// The tracker whose passes cost least, host and guest together, and the strategy whose
/// harvests do; those that can't be told from it with it.
pub(crate) fn advice(
    untracked: &Costs,
    trackers: &[(TrackerKind, Costs)],
    rows: &[DirtyRow],
) -> Option<DirtyAdvice> {
    let whole = |cost: &Cost| cost.collect + cost.write;
    let costs = |of: &dyn Fn(&Cost) -> f64| -> Vec<BTreeMap<u32, f64>> {
        let values = |costs: &Costs| costs.iter().map(|(pass, cost)| (*pass, of(cost))).collect();
        trackers.iter().map(|(_, costs)| values(costs)).collect()
    };
    let mut cheapest = untold(&costs(&whole));
    let told = cheapest.len();
    if told > 1 {
        // Among equals the host's time decides.
        let collects = costs(&|cost| cost.collect);
        let collects: Vec<_> = cheapest.iter().map(|&at| collects[at].clone()).collect();
        cheapest = untold(&collects).into_iter().map(|at| cheapest[at]).collect();
    }
    let kinds = |at: &[usize]| at.iter().map(|&at| trackers[at].0).collect::<Vec<_>>();
    let (_, best) = trackers.get(*cheapest.first()?)?;
    let collect = median(&best.values().map(|cost| cost.collect).collect::<Vec<_>>());
    let extra = |(pass, cost): (&u32, &Cost)| Some(cost.write - untracked.get(pass)?.write);
    let extra = median(&best.iter().filter_map(extra).collect::<Vec<_>>()).max(0.0);
    let mut reason = format!(
        "in each pass, collecting the dirty pages takes {}, and the guest's writes take {} longer \
            than without tracking",
        duration(collect),
        duration(extra)
    );
    if cheapest.len() > 1 {
        let passes = best.len();
        let host = match told > cheapest.len() {
            true => {
                "; of these trackers, vmeter recommends the one with the shortest `collect`, and \
                those whose `collect` is not significantly longer"
            }
            false => "",
        };
        reason = format!(
            "vmeter adds up the time to collect the dirty pages and the time of the guest's \
                writes. By this sum, the fastest {told} trackers do not differ significantly over \
                {passes} passes{host}. With the tracker {}, {reason}",
            trackers[cheapest[0]].0
        );
    } else if told > 1 {
        reason.push_str(
            "; vmeter adds up the time to collect the dirty pages and the time of the guest's \
                writes. For at least one other tracker this sum is not significantly larger, but \
                its `collect` is longer",
        );
    }
    let strategies = strategies(rows);
    (!strategies.is_empty()).then(|| DirtyAdvice { trackers: kinds(&cheapest), strategies, reason })
}

fn duration(ns: f64) -> String {
    if ns < 10_000.0 {
        format!("{:.1} us", ns / 1e3)
    } else if ns >= 1e9 {
        format!("{:.2} s", ns / 1e9)
    } else {
        format!("{:.2} ms", ns / 1e6)
    }
}

/// The strategies whose harvests of all slots take least, by guest and pass.
fn strategies(rows: &[DirtyRow]) -> Vec<StrategyKind> {
    let mut sums: BTreeMap<StrategyKind, BTreeMap<(TrackerKind, u32), f64>> = BTreeMap::new();
    for row in rows {
        let blocks = sums.entry(row.strategy).or_default();
        *blocks.entry((row.tracker, row.pass)).or_default() += row.nanoseconds;
    }
    let (kinds, blocks): (Vec<_>, Vec<_>) = sums.into_iter().unzip();
    untold(&blocks).into_iter().map(|at| kinds[at]).collect()
}

/// The cheapest, and those that are not dearer beyond noise, by place; cheapest first. Values are
/// compared where both have the block.
fn untold<K: Ord>(costs: &[BTreeMap<K, f64>]) -> Vec<usize> {
    let middle = |at: &usize| {
        let values: Vec<f64> = costs[*at].values().copied().collect();
        (!values.is_empty()).then(|| median(&values))
    };
    let mut order: Vec<(f64, usize)> =
        (0..costs.len()).filter_map(|at| Some((middle(&at)?, at))).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    let order: Vec<usize> = order.into_iter().map(|(_, at)| at).collect();
    // Which is cheapest is known from the same values, so all pairs are asked about.
    let pairs: Vec<(usize, usize)> = (0..order.len())
        .flat_map(|a| (a + 1..order.len()).map(move |b| (a, b)))
        .map(|(a, b)| (order[a], order[b]))
        .collect();
    let p_value = |&(a, b): &(usize, usize)| {
        let both = |(block, cost): (&K, &f64)| Some((*cost, *costs[b].get(block)?));
        let blocks: Vec<(f64, f64)> = costs[a].iter().filter_map(both).collect();
        paired_t(&blocks).unwrap_or(1.0)
    };
    let p_values = holm(&pairs.iter().map(p_value).collect::<Vec<_>>());
    let dearer = |at: &usize| {
        let asked = pairs.iter().zip(&p_values);
        let mut of_best = asked.filter(|((a, b), _)| *a == order[0] && b == at);
        of_best.any(|(_, p)| *p <= ALPHA)
    };
    order.iter().copied().filter(|at| !dearer(at)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_stats::rng::Rng;

    const TRACKERS: [TrackerKind; 3] =
        [TrackerKind::Legacy, TrackerKind::ManualProtect, TrackerKind::Ring];

    /// Passes whose own cost scatters by `noise`.
    fn costs(collect: f64, noise: f64, passes: u32, rng: &mut Rng) -> Costs {
        let mut value = |of: f64| of * (1.0 + noise * rng.normal()).max(0.1);
        (0..passes)
            .map(|pass| (pass, Cost { collect: value(collect), write: value(1e6) }))
            .collect()
    }

    fn row(pass: u32, strategy: StrategyKind, nanoseconds: f64) -> DirtyRow {
        DirtyRow {
            pass,
            slot: 0,
            slot_bytes: 4096,
            dirty_pages: 1,
            strategy,
            tracker: TrackerKind::Ring,
            nanoseconds,
            tsc_cycles: nanoseconds,
            first_nanoseconds: nanoseconds,
            collect_nanoseconds: None,
            samples_tsc_cycles: vec![nanoseconds],
            calls: 1,
        }
    }

    fn advised(collects: [f64; 3], noise: f64, passes: u32, rng: &mut Rng) -> DirtyAdvice {
        let untracked = costs(0.0, noise, passes, rng);
        let trackers = TRACKERS.map(|kind| {
            let at = TRACKERS.iter().position(|other| *other == kind).unwrap();
            (kind, costs(collects[at], noise, passes, rng))
        });
        let rows: Vec<DirtyRow> = (0..passes)
            .flat_map(|pass| StrategyKind::ALL.map(|kind| (pass, kind)))
            .map(|(pass, kind)| row(pass, kind, 100.0 * (1.0 + noise * rng.normal()).max(0.1)))
            .collect();
        advice(&untracked, &trackers, &rows).unwrap()
    }

    #[test]
    fn equals_are_rarely_told_apart() {
        let mut rng = Rng::new(11);
        let (mut trackers, mut strategies) = (0, 0);
        for _ in 0..300 {
            let advice = advised([50e3; 3], 0.1, 5, &mut rng);
            trackers += usize::from(advice.trackers.len() < 3);
            strategies += usize::from(advice.strategies.len() < 3);
        }
        println!("of 300: {trackers} named trackers, {strategies} named strategies of equals");
        // Trackers are asked about twice: 5 % each.
        assert!(trackers <= 45 && strategies <= 30, "{trackers} {strategies}");
    }

    #[test]
    fn what_is_far_cheaper_is_named_after_few_passes() {
        let mut rng = Rng::new(12);
        let named = |collects: [f64; 3], rng: &mut Rng| {
            let advices = (0..100).map(|_| advised(collects, 0.03, 3, rng).trackers);
            advices.filter(|trackers| *trackers == [TrackerKind::ManualProtect]).count()
        };
        // The whole pass tells, or else what the host spends.
        assert!(named([40e6, 4e6, 40e6], &mut rng) >= 95);
        assert!(named([40e3, 1e3, 40e3], &mut rng) >= 95);
    }

    /// Review E14: a winner was always named.
    #[test]
    fn it_says_that_it_cannot_tell_and_of_what() {
        let mut rng = Rng::new(13);
        let advice = advised([50e3, 50e3, 900e6], 0.05, 4, &mut rng);
        assert_eq!(advice.trackers.len(), 2, "{advice:?}");
        assert!(!advice.trackers.contains(&TrackerKind::Ring));
        assert!(advice
            .reason
            .contains("fastest 2 trackers do not differ significantly over 4 passes"));
        // One pass tells nothing.
        let advice = advised([1e3, 50e3, 900e6], 0.05, 1, &mut rng);
        assert_eq!((advice.trackers.len(), advice.strategies.len()), (3, 3));
    }
}
