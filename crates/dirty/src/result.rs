//! What a session of `vmeter dirty` comes to.

use crate::source::TrackerKind;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use vmeter_base::{Envelope, Estimate};
use vmeter_dirty_switch::StrategyKind;

/// One harvest of one slot.
#[derive(Debug, Clone, PartialEq)]
pub struct DirtyRow {
    /// Pass, from 0.
    pub pass: u32,
    /// Slot's number in the layout.
    pub slot: u32,
    /// Its size, bytes.
    pub slot_bytes: u64,
    /// Pages found dirty.
    pub dirty_pages: u64,
    /// How the bitmap was harvested.
    pub strategy: StrategyKind,
    /// The tracker that reported which pages the guest wrote.
    pub tracker: TrackerKind,
    /// The strategy's harvest, its wait for writers included, ns: the median of
    /// `samples_tsc_cycles`.
    pub nanoseconds: f64,
    /// The same in cycles of the time stamp counter.
    pub tsc_cycles: f64,
    /// The first harvest of this pass, caches as the guest left them, ns.
    pub first_nanoseconds: f64,
    /// What the tracker took to tell this slot's pages, ns; none for a tracker that tells
    /// those of all slots at once.
    pub collect_nanoseconds: Option<f64>,
    /// Cycles of a call, each sample the mean of `calls` calls: more than one for a clean
    /// slot, which can be harvested as it is. A dirty one is marked again for each sample.
    pub samples_tsc_cycles: Vec<f64>,
    /// Calls in a sample.
    pub calls: u32,
}

/// What the guest did.
#[derive(Debug, Clone, PartialEq)]
pub struct DirtyWorkload {
    /// `gui`, `migration`, `idle`, `random`, `sequential`.
    pub name: String,
    /// In words.
    pub description: String,
    /// Pages that are written to, at most, bytes.
    pub buffer_bytes: u64,
    /// Share of the buffer written in each pass, 0 to 1; none for `gui`.
    pub share: Option<f64>,
    /// Passes a second; none where one follows the other.
    pub hz: Option<u32>,
    /// Guest's privilege level, 0 or 3.
    pub ring: u8,
    /// Passes.
    pub passes: u32,
    /// Seed of pages and orders.
    pub seed: u64,
}

/// The guest's memory.
#[derive(Debug, Clone, PartialEq)]
pub struct DirtyLayout {
    /// Where the slots come from.
    pub source: String,
    /// Size of the large slots and of the buffer over what was asked for; 1: not scaled.
    pub scale: f64,
    /// Why it is so.
    pub scaling: String,
    /// All slots, bytes.
    pub memory_bytes: u64,
    /// Numbers and sizes.
    pub slots: Vec<DirtySlot>,
}

/// A memory slot.
#[derive(Debug, Clone, PartialEq)]
pub struct DirtySlot {
    /// Number.
    pub slot: u32,
    /// Size, bytes.
    pub slot_bytes: u64,
    /// Guest-physical address here.
    pub gpa: u64,
}

/// What a tracker costs, guest and host.
#[derive(Debug, Clone, PartialEq)]
pub struct DirtyTracker {
    /// Which; none is the guest untracked.
    pub tracker: Option<TrackerKind>,
    /// Switching it on for all slots, ns.
    pub start_nanoseconds: f64,
    /// Telling the dirty pages of all slots, once a pass, ns.
    pub collect_nanoseconds: Option<Estimate>,
    /// Each pass, ns.
    pub collect_samples_ns: Vec<f64>,
    /// Pages that the guest wrote a second.
    pub pages_per_s: Option<Estimate>,
    /// Each pass: the guest's time for its writes, ns.
    pub write_samples_ns: Vec<f64>,
    /// Each pass: pages written.
    pub pages: Vec<u64>,
    /// Time of the guest's writes over that of an untracked guest, in the same passes.
    pub slowdown: Option<f64>,
    /// What KVM counted during the writes of a pass, mean (KVM_GET_STATS_FD; those that
    /// changed).
    pub counts: BTreeMap<String, f64>,
    /// Times that a ring was full, or a fault was resolved, in a pass, mean.
    pub interruptions: f64,
    /// A fit to passes with different numbers of dirty pages.
    pub model: Option<DirtyModel>,
}

/// Cost of a pass, linear in the pages dirtied.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DirtyModel {
    /// Telling that nothing is dirty, ns.
    pub collect_clean_ns: f64,
    /// Telling one dirty page more, ns.
    pub collect_page_ns: f64,
    /// What the guest's first write to a page costs it more than untracked, ns.
    pub write_page_ns: f64,
}

/// One pass of the fit.
#[derive(Debug, Clone, PartialEq)]
pub struct DirtyPoint {
    /// Tracker.
    pub tracker: Option<TrackerKind>,
    /// Pages dirtied.
    pub dirty_pages: u64,
    /// Telling them, ns.
    pub collect_nanoseconds: Option<f64>,
    /// Writing them, ns.
    pub write_nanoseconds: f64,
}

vmeter_base::words! {
    /// A cost by which trackers are compared.
    pub enum CrossoverOf {
        /// The host's time.
        Collect = "collect",
        /// With the guest's write faults.
        Total = "total",
    }
}

/// Where one tracker becomes cheaper than another.
#[derive(Debug, Clone, PartialEq)]
pub struct DirtyCrossover {
    /// Which cost.
    pub of: CrossoverOf,
    /// Cheaper below.
    pub below: TrackerKind,
    /// Cheaper above.
    pub above: TrackerKind,
    /// Dirty pages in a pass.
    pub dirty_pages: f64,
    /// The same as a share of the guest's memory.
    pub share: f64,
    /// What each further page costs less above, as a share of what it costs below.
    pub saved_per_page: f64,
}

/// What to use for the workload measured.
#[derive(Debug, Clone, PartialEq)]
pub struct DirtyAdvice {
    /// The tracker; those that can't be told from it, cheapest first, where it is not alone.
    pub trackers: Vec<TrackerKind>,
    /// Strategies, likewise.
    pub strategies: Vec<StrategyKind>,
    /// With figures, of the first.
    pub reason: String,
}

/// A bit that was wrong.
#[derive(Debug, Clone, PartialEq)]
pub struct DirtyMismatch {
    /// Pass.
    pub pass: u32,
    /// Tracker.
    pub tracker: Option<TrackerKind>,
    /// `tracker`, `memory`, or a strategy's name.
    pub source: String,
    /// Slot.
    pub slot: u32,
    /// Page in it.
    pub page: u64,
    /// The guest wrote to it.
    pub written: bool,
}

/// A slot in one state, over all passes and trackers.
#[derive(Debug, Clone, PartialEq)]
pub struct DirtySummary {
    /// Slot's number.
    pub slot: u32,
    /// Its size, bytes.
    pub slot_bytes: u64,
    /// True for the passes in which no page of it was dirty.
    pub clean: bool,
    /// Harvests by each strategy.
    pub harvests: usize,
    /// Median of a harvest by each strategy, ns, in the order of the rows.
    pub medians: Vec<(StrategyKind, f64)>,
    /// Of the first strategy over the last.
    pub ratio: Option<f64>,
}

/// How much faster one strategy harvests large clean slots than another.
#[derive(Debug, Clone, PartialEq)]
pub struct DirtySpeedup {
    /// The faster.
    pub strategy: StrategyKind,
    /// The other.
    pub over: StrategyKind,
    /// Of clean slots from this size on, bytes.
    pub slots_from_bytes: u64,
    /// Ratio of the medians of the slot where it is smallest.
    pub smallest: f64,
    /// And largest.
    pub largest: f64,
}

/// Several VMs that are asked at once.
#[derive(Debug, Clone, PartialEq)]
pub struct DirtyTogether {
    /// VMs.
    pub vms: usize,
    /// A tracker, which tells, or a strategy, by which bitmaps are harvested.
    pub what: String,
    /// It is a tracker.
    pub tells: bool,
    /// Median of the VMs' times for all slots, s.
    pub p50_s: f64,
    /// 99th percentile of them, s.
    pub p99_s: f64,
    /// Until the last VM is done, median of the rounds, s.
    pub all_s: f64,
    /// Rounds.
    pub rounds: usize,
    /// Each VM's time, s.
    pub samples_s: Vec<f64>,
}

/// A tracker that this host has not got.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DirtySkipped {
    /// Tracker.
    pub tracker: TrackerKind,
    /// Why.
    pub reason: String,
}

/// Result of `vmeter dirty`.
#[derive(Debug, Clone, PartialEq)]
pub struct DirtyResult {
    /// Head.
    pub envelope: Envelope,
    /// What the guest did.
    pub workload: DirtyWorkload,
    /// Its memory.
    pub layout: DirtyLayout,
    /// Harvests, in the order they were made.
    pub rows: Vec<DirtyRow>,
    /// Slot by slot, clean and dirty.
    pub summaries: Vec<DirtySummary>,
    /// The answer, where both strategies and large slots were measured.
    pub speedup: Option<DirtySpeedup>,
    /// Every bit was checked against what the guest wrote, and none was wrong.
    pub verified: bool,
    /// Bits compared; 0 with `--no-verify`.
    pub checked_bits: u64,
    /// Those that were wrong, at most a hundred.
    pub mismatches: Vec<DirtyMismatch>,
    /// Trackers, the untracked guest first.
    pub trackers: Vec<DirtyTracker>,
    /// Trackers that were asked for and are not to be had.
    pub skipped: Vec<DirtySkipped>,
    /// What the fits are made of.
    pub points: Vec<DirtyPoint>,
    /// Where one tracker becomes cheaper than another.
    pub crossovers: Vec<DirtyCrossover>,
    /// What to use.
    pub advice: Option<DirtyAdvice>,
    /// Several VMs at once, where that was asked.
    pub together: Vec<DirtyTogether>,
    /// Frequency of the time stamp counter, measured, Hz.
    pub tsc_hz: f64,
    /// Warnings in words.
    pub warnings: Vec<String>,
    /// What to try next.
    pub hints: Vec<String>,
}
