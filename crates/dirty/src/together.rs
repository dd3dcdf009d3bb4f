//! Several guests at once: what a host sees that migrates many VMs off itself. Each has memory of
//! its own, and a thread that asks and harvests; once all have written, all are asked from the
//! same moment on, and once all were told, all are harvested, while their guests run. A figure is
//! the time that one VM takes.

use crate::bitmaps::Harvested;
use crate::check::{compared, in_memory, Check};
use crate::layout::Layout;
use crate::memory;
use crate::placement::stay_on;
use crate::result::DirtyTogether;
use crate::source::TrackerKind;
use crate::station::{Pass, Setting, TrackedGuest};
use crate::workload::{Page, Workload};
use crate::{DirtyError, StrategyKind};
use rustix::thread::CpuSet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Barrier;
use vmeter_stats::quantile;
use vmeter_stats::rng::Rng;

/// What one guest of several took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OfOne {
    /// Telling the pages of all its slots, ns.
    pub collect_nanoseconds: f64,
    /// Harvesting the bitmaps of all its slots, by strategy, cycles.
    pub harvest_tsc_cycles: BTreeMap<String, f64>,
}

/// The guests' memory, which they keep from one run to the next: made when the first run
/// needs it.
#[derive(Debug)]
pub(crate) struct ConcurrentVms {
    pub(crate) layout: Layout,
    pub(crate) load: Workload,
    memories: Vec<Vec<File>>,
}

impl ConcurrentVms {
    /// Guests of this layout and workload.
    pub(crate) fn new(layout: Layout, load: Workload) -> Self {
        Self { layout, load, memories: Vec::new() }
    }

    /// Lets so many guests write to `pages`, and asks all of them at once.
    ///
    /// # Errors
    /// A guest can't be made, or dies; an interruption.
    pub(crate) fn run(
        &mut self,
        setting: Setting<'_>,
        vms: usize,
        (kind, all): (TrackerKind, Option<CpuSet>),
        (pages, generation, seed): (&[Page], u64, u64),
        verify: bool,
    ) -> Result<(Vec<OfOne>, Option<Check>), DirtyError> {
        let go_on = || match setting.interrupt.is_raised() {
            true => Err(DirtyError::Interrupted),
            false => Ok(()),
        };
        while self.memories.len() < vms {
            self.memories.push(memory::files(&self.layout, go_on)?);
        }
        let warm = self.load.all();
        let together = Barrier::new(vms);
        let one = |files: &Vec<File>, number: u64| {
            // Guests and harvesters share all CPUs, as those of a host do.
            stay_on(all);
            let setting = Setting {
                layout: &self.layout,
                files,
                most_pages: warm.len(),
                cpus: all,
                ..setting
            };
            let made = TrackedGuest::new(setting, Some(kind), &warm, 1).and_then(|mut station| {
                let wrote = station.write(pages, generation)?;
                Ok((station, wrote))
            });
            // Whoever failed is waited for, too.
            together.wait();
            let told = made.and_then(|(mut station, wrote)| {
                let (collected, told) = station.collect()?;
                Ok((station, wrote, collected, told))
            });
            together.wait();
            let (mut station, wrote, collected, told) = told?;
            let collect_nanoseconds = collected.total_ns;
            let harvested = station.harvest(&told, &mut Rng::new(seed ^ number))?;
            let of_one = OfOne { collect_nanoseconds, harvest_tsc_cycles: cycles(&harvested) };
            let check: Option<Result<Check, DirtyError>> = verify.then(|| {
                let memory = in_memory(station.slots(), generation)?;
                let pass = Pass { wrote, collected: Some(collected), told, harvested, same: true };
                Ok(compared(&self.layout, &memory, pages, &pass))
            });
            Ok((of_one, check.transpose()?))
        };
        let one = &one;
        let done: Vec<Result<_, DirtyError>> = std::thread::scope(|scope| {
            let memories = self.memories.iter().take(vms).zip(1..);
            let threads: Vec<_> =
                memories.map(|(files, n)| scope.spawn(move || one(files, n))).collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined.map(|done| done.unwrap_or(Err(DirtyError::ThreadGone))).collect()
        });
        go_on()?;
        let mut all = Vec::new();
        let mut sum: Option<Check> = None;
        for done in done {
            let (of_one, check) = done?;
            all.push(of_one);
            if let Some(check) = check {
                sum.get_or_insert_with(Check::default).add(check);
            }
        }
        Ok((all, sum))
    }
}

/// All slots' harvests, by strategy.
fn cycles(harvested: &[Harvested]) -> BTreeMap<String, f64> {
    let mut all = BTreeMap::new();
    for one in harvested {
        *all.entry(one.strategy.name().to_owned()).or_insert(0.0) += one.first_cycles;
    }
    all
}

/// What was measured of one number of guests under one tracker, a round each.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    /// By tracker or strategy: times of each round's guests, s.
    samples: BTreeMap<(usize, String), Vec<Vec<f64>>>,
}

impl Rounds {
    /// Adds a round.
    pub(crate) fn add(&mut self, tracker: TrackerKind, of: &[OfOne], tsc_hz: f64) {
        let mut put = |what: &str, times: Vec<f64>| {
            self.samples.entry((of.len(), what.to_owned())).or_default().push(times);
        };
        put(tracker.word(), of.iter().map(|one| one.collect_nanoseconds * 1e-9).collect());
        for strategy in StrategyKind::ALL {
            let own = of.iter().filter_map(|one| one.harvest_tsc_cycles.get(strategy.name()));
            let own: Vec<f64> = own.map(|cycles| cycles / tsc_hz).collect();
            if !own.is_empty() {
                put(strategy.name(), own);
            }
        }
    }

    /// A row for each number of guests, trackers first, in the order of their names.
    pub(crate) fn rows(&self) -> Vec<DirtyTogether> {
        let row = |((vms, what), rounds): (&(usize, String), &Vec<Vec<f64>>)| {
            let samples_s: Vec<f64> = rounds.concat();
            let last = |round: &Vec<f64>| round.iter().copied().reduce(f64::max);
            let all_s: Vec<f64> = rounds.iter().filter_map(last).collect();
            Some(DirtyTogether {
                vms: *vms,
                what: what.clone(),
                tells: what.parse::<TrackerKind>().is_ok(),
                p50_s: quantile(&samples_s, 0.5)?,
                p99_s: quantile(&samples_s, 0.99)?,
                all_s: quantile(&all_s, 0.5)?,
                rounds: rounds.len(),
                samples_s,
            })
        };
        let mut rows: Vec<DirtyTogether> = self.samples.iter().filter_map(row).collect();
        rows.sort_by_key(|row| (row.vms, !row.tells));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_guest_is_a_sample_and_the_last_one_ends_the_round() {
        let one = |ns: f64| OfOne {
            collect_nanoseconds: ns,
            harvest_tsc_cycles: [("switch_opt".to_owned(), 2.0 * ns)].into(),
        };
        let mut rounds = Rounds::default();
        rounds.add(TrackerKind::Ring, &[one(100.0), one(300.0)], 1e9);
        rounds.add(TrackerKind::Ring, &[one(200.0), one(500.0)], 1e9);
        let rows = rounds.rows();
        let found: Vec<(&str, usize, usize)> =
            rows.iter().map(|row| (row.what.as_str(), row.samples_s.len(), row.rounds)).collect();
        assert_eq!(found, [("kvm-ring", 4, 2), ("switch_opt", 4, 2)]);
        assert!((rows[0].all_s - 400e-9).abs() < 1e-12, "{rows:?}");
    }
}
