//! The JSON body of harvests. Field names are fixed by schema `vmeter/1`.

use crate::result::*;
use crate::source::label;
use std::collections::BTreeMap;
use vmeter_render::exported;
use vmeter_render::exported::{Estimate, Word};

exported! {
    /// The fields after the envelope.
    pub(super) struct Body<'a> of DirtyResult {
        workload: Workload<'a>,
        layout: Layout<'a>,
        speedup: Option<Speedup>,
        summaries: Vec<Summary>,
        rows: Vec<Row<'a>>,
        verified: bool,
        checked_bits: u64,
        mismatches: Vec<Mismatch<'a>>,
        trackers: Vec<Tracker<'a>>,
        skipped: Vec<Skipped<'a>>,
        points: Vec<Point>,
        crossovers: Vec<Crossover>,
        advice: Option<Advice<'a>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        together: Vec<Together<'a>>,
        tsc_hz: f64,
        warnings: &'a [String],
        hints: &'a [String],
    }

    struct Speedup of DirtySpeedup {
        strategy: &'static str = |speedup| speedup.strategy.name(),
        over: &'static str = |speedup| speedup.over.name(),
        slots_from_bytes: u64,
        smallest: f64,
        largest: f64,
    }

    struct Summary of DirtySummary {
        slot: u32,
        slot_bytes: u64,
        clean: bool,
        harvests: usize,
        median_nanoseconds: BTreeMap<&'static str, f64> = |summary| {
            summary.medians.iter().map(|(strategy, ns)| (strategy.name(), *ns)).collect()
        },
        ratio: Option<f64>,
    }

    struct Row<'a> of DirtyRow {
        pass: u32,
        slot: u32,
        slot_bytes: u64,
        dirty_pages: u64,
        strategy: &'static str = |row| row.strategy.name(),
        tracker: Word,
        nanoseconds: f64,
        tsc_cycles: f64,
        first_nanoseconds: f64,
        collect_nanoseconds: Option<f64>,
        samples_tsc_cycles: &'a [f64],
        calls: u32,
    }

    struct Workload<'a> of DirtyWorkload {
        name: &'a str,
        description: &'a str,
        buffer_bytes: u64,
        share: Option<f64>,
        hz: Option<u32>,
        ring: u8,
        passes: u32,
        seed: u64,
    }

    struct Layout<'a> of DirtyLayout {
        source: &'a str,
        scale: f64,
        scaling: &'a str,
        memory_bytes: u64,
        slots: Vec<Slot>,
    }

    struct Slot of DirtySlot {
        slot: u32,
        slot_bytes: u64,
        gpa: u64,
    }

    struct Tracker<'a> of DirtyTracker {
        tracker: &'static str = |tracker| label(tracker.tracker),
        start_nanoseconds: f64,
        collect_nanoseconds: Option<Estimate>,
        collect_samples_ns: &'a [f64],
        pages_per_s: Option<Estimate>,
        write_samples_ns: &'a [f64],
        pages: &'a [u64],
        slowdown: Option<f64>,
        counts: BTreeMap<&'a str, f64>,
        interruptions: f64,
        model: Option<Model>,
    }

    struct Model of DirtyModel {
        collect_clean_ns: f64,
        collect_page_ns: f64,
        write_page_ns: f64,
    }

    struct Point of DirtyPoint {
        tracker: &'static str = |point| label(point.tracker),
        dirty_pages: u64,
        collect_nanoseconds: Option<f64>,
        write_nanoseconds: f64,
    }

    struct Crossover of DirtyCrossover {
        of: Word,
        below: Word,
        above: Word,
        dirty_pages: f64,
        share: f64,
        saved_per_page: f64,
    }

    struct Advice<'a> of DirtyAdvice {
        tracker: Option<&'static str> = |advice| super::alone(&advice.trackers).map(|t| t.word()),
        strategy: Option<&'static str> = |advice| super::alone(&advice.strategies).map(|s| s.name()),
        trackers: Vec<&'static str> = |advice| advice.trackers.iter().map(|t| t.word()).collect(),
        strategies: Vec<&'static str> = |a| a.strategies.iter().map(|s| s.name()).collect(),
        reason: &'a str,
    }

    struct Together<'a> of DirtyTogether {
        vms: usize,
        what: &'a str,
        p50_s: f64,
        p99_s: f64,
        all_s: f64,
        rounds: usize,
        samples_s: &'a [f64],
    }

    struct Mismatch<'a> of DirtyMismatch {
        pass: u32,
        tracker: &'static str = |wrong| label(wrong.tracker),
        source: &'a str,
        slot: u32,
        page: u64,
        written: bool,
    }

    struct Skipped<'a> of DirtySkipped {
        tracker: Word,
        reason: &'a str,
    }
}
