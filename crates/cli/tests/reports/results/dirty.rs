//! A small result of `vmeter dirty`: two slots, two trackers, two passes.

use super::{envelope, estimate};
use vmeter_dirty::result::*;
use vmeter_dirty::{StrategyKind, TrackerKind};

const TRACKERS: [TrackerKind; 2] = [TrackerKind::Legacy, TrackerKind::Ring];
const SLOTS: [(u32, u64); 2] = [(0, 640 << 10), (1, 64 << 20)];

fn row(pass: u32, slot: (u32, u64), strategy: StrategyKind, tracker: TrackerKind) -> DirtyRow {
    let dirty = if slot.0 == 0 { u64::from(pass) * 7 } else { u64::from(pass) * 500 };
    let base = match strategy {
        StrategyKind::GetOrg => slot.1 as f64 / 4096.0 * 0.6,
        StrategyKind::GetOpt => slot.1 as f64 / 4096.0 * 0.2,
        StrategyKind::SwitchOpt => 40.0,
    };
    let nanoseconds = base + dirty as f64 * 1.5;
    DirtyRow {
        pass,
        slot: slot.0,
        slot_bytes: slot.1,
        dirty_pages: dirty,
        strategy,
        tracker,
        nanoseconds,
        tsc_cycles: nanoseconds * 2.5,
        first_nanoseconds: nanoseconds * 1.75,
        collect_nanoseconds: (tracker == TrackerKind::Legacy).then_some(1200.0 + dirty as f64),
        samples_tsc_cycles: [0.98, 1.0, 1.02].map(|f| f * nanoseconds * 2.5).to_vec(),
        calls: if dirty == 0 { 100 } else { 1 },
    }
}

fn tracker(tracker: Option<TrackerKind>) -> DirtyTracker {
    let tracked = tracker.is_some();
    DirtyTracker {
        tracker,
        start_nanoseconds: if tracked { 15_000.0 } else { 0.0 },
        collect_nanoseconds: tracked.then(|| estimate(&[21_000.0, 20_000.0])),
        collect_samples_ns: if tracked { vec![21_000.0, 20_000.0] } else { vec![] },
        pages_per_s: Some(estimate(&[1.2e6, 1.25e6])),
        write_samples_ns: vec![400_000.0, 410_000.0],
        pages: vec![0, 507],
        slowdown: tracked.then_some(3.25),
        counts: [("exits".to_owned(), 12.0), ("pf_taken".to_owned(), 507.0)].into(),
        interruptions: if tracker == Some(TrackerKind::Ring) { 1.5 } else { 0.0 },
        model: tracked.then_some(DirtyModel {
            collect_clean_ns: 9_000.0,
            collect_page_ns: 12.5,
            write_page_ns: 820.0,
        }),
    }
}

pub fn result() -> DirtyResult {
    let mut rows = Vec::new();
    for pass in 0..2 {
        for slot in SLOTS {
            for name in TRACKERS {
                for strategy in StrategyKind::ALL {
                    rows.push(row(pass, slot, strategy, name));
                }
            }
        }
    }
    let slot = |(n, (slot, slot_bytes)): (usize, (u32, u64))| DirtySlot {
        slot,
        slot_bytes,
        gpa: (n as u64) << 32,
    };
    let slots: Vec<DirtySlot> = SLOTS.into_iter().enumerate().map(slot).collect();
    let summaries = vmeter_dirty::summary::summaries(&slots, &rows);
    DirtyResult {
        speedup: vmeter_dirty::summary::speedup(&summaries),
        summaries,
        envelope: envelope("dirty"),
        workload: DirtyWorkload {
            name: "random".into(),
            description: "10 % of the buffer, pages in random order".into(),
            buffer_bytes: 64 << 20,
            share: Some(0.1),
            hz: None,
            ring: 3,
            passes: 2,
            seed: 42,
        },
        layout: DirtyLayout {
            source: "the publication's two slots".into(),
            scale: 0.5,
            scaling: "the host has less memory".into(),
            memory_bytes: SLOTS.iter().map(|slot| slot.1).sum(),
            slots,
        },
        rows,
        verified: false,
        checked_bits: 16_544,
        mismatches: vec![DirtyMismatch {
            pass: 1,
            tracker: Some(TrackerKind::Ring),
            source: "memory".into(),
            slot: 1,
            page: 77,
            written: true,
        }],
        trackers: [None, Some(TrackerKind::Legacy), Some(TrackerKind::Ring)].map(tracker).into(),
        skipped: vec![DirtySkipped {
            tracker: TrackerKind::PagemapScan,
            reason: "PAGEMAP_SCAN says ENOTTY".into(),
        }],
        points: vec![DirtyPoint {
            tracker: Some(TrackerKind::Legacy),
            dirty_pages: 160,
            collect_nanoseconds: Some(11_000.0),
            write_nanoseconds: 131_000.0,
        }],
        crossovers: vec![DirtyCrossover {
            of: CrossoverOf::Collect,
            below: TrackerKind::Ring,
            above: TrackerKind::Legacy,
            dirty_pages: 410.0,
            share: 0.024,
            saved_per_page: 0.31,
        }],
        together: Vec::new(),
        advice: Some(DirtyAdvice {
            trackers: vec![TrackerKind::Legacy],
            strategies: vec![StrategyKind::SwitchOpt],
            reason: "20 µs a pass to tell, 40 ns a clean slot".into(),
        }),
        tsc_hz: 2.5e9,
        warnings: vec!["another VM ran meanwhile".into()],
        hints: vec!["vmeter dirty --workload gui".into()],
    }
}
