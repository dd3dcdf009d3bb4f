//! From a session on disk to its result: pure, and the same for a live run and an old one.

use crate::check::KEPT;
use crate::config::SavedConfig;
use crate::layout::{Layout, PAGE};
use crate::plan::{PlannedPass, Step};
use crate::result::{
    DirtyAdvice, DirtyLayout, DirtyMismatch, DirtyModel, DirtyPoint, DirtyResult, DirtyRow,
    DirtySlot, DirtyTogether, DirtyTracker, DirtyWorkload,
};
use crate::run::{Data, Harvest};
use crate::source::{label, TrackerKind};
use crate::together::Rounds;
use crate::workload::{in_words, Kind};
use crate::{advice, fits, summary, DirtyError, PUBLISHED_BUFFER};
use anyhow::Result;
use std::collections::BTreeMap;
use vmeter_model::run::{DataRun, Outcome};
use vmeter_session::{envelope, Session};
use vmeter_stats::estimate;

/// A finished run with what the plan says of it.
struct Done<'a> {
    tracker: Option<TrackerKind>,
    planned: &'a PlannedPass,
    data: Data,
}

impl Done<'_> {
    /// Nanoseconds of a cycle.
    fn ns(&self) -> f64 {
        1e9 / self.data.tsc_hz
    }

    fn write_ns(&self) -> f64 {
        self.data.write.tsc_cycles as f64 * self.ns()
    }

    /// The pass, if this is one that is measured.
    fn pass(&self) -> Option<u32> {
        match self.planned.step {
            Step::Pass { pass, .. } if !self.planned.warmup => Some(pass),
            Step::Pass { .. } | Step::Fit { .. } | Step::Together { .. } => None,
        }
    }
}

/// What a session comes to.
///
/// # Errors
/// Class usage: a folder that cannot be read, or without a finished run.
pub(crate) fn result(session: &Session<PlannedPass>) -> Result<DirtyResult> {
    let begun: SavedConfig = session.asked()?;
    begun.asked.check().map_err(DirtyError::classified)?;
    let layout = begun.layout().map_err(DirtyError::classified)?;
    let (runs, mut warnings) = session.finished_as::<DataRun<Data>>()?;
    let runs: Vec<Done<'_>> = runs.into_iter().filter_map(|(_, run)| done(session, run)).collect();
    let Some(last) = runs.last() else { return Err(session.no_runs(&warnings)) };
    let tsc_hz = last.data.tsc_hz;
    let planned = session.record.plan.len();
    if runs.len() < planned {
        let dir = vmeter_base::shell::path(&session.dir);
        warnings.push(format!(
            "{} of {planned} runs are finished; make the remaining runs with `vmeter dirty \
                --resume {dir}`",
            runs.len()
        ));
    }
    let rows: Vec<DirtyRow> = runs.iter().flat_map(|run| rows(run, &layout)).collect();
    let points = points(&runs);
    let models = fits::models(&points);
    let trackers = trackers(session, &runs, &models);
    let measured = points.iter().map(|point| point.dirty_pages).max().unwrap_or(0);
    let checked = Checked::of(&begun, &runs);
    remarks(&begun, &runs, &trackers, &checked, &mut warnings);
    let places = layout.places().into_iter().zip(&layout.slots);
    let slots: Vec<DirtySlot> =
        places.map(|(gpa, s)| DirtySlot { slot: s.number, slot_bytes: s.bytes, gpa }).collect();
    let summaries = summary::summaries(&slots, &rows);
    Ok(DirtyResult {
        envelope: envelope::envelope(&session.record),
        workload: workload(&begun, session.record.seed),
        layout: DirtyLayout {
            source: layout.source.clone(),
            scale: layout.scale,
            scaling: scaling(&begun, &layout),
            memory_bytes: layout.bytes(),
            slots,
        },
        verified: checked.bits > 0 && checked.wrong == 0,
        checked_bits: checked.bits,
        mismatches: checked.mismatches,
        crossovers: fits::crossovers(&models, measured, layout.bytes() / PAGE),
        advice: advise(session, &runs, &rows),
        together: together(&runs),
        rows,
        speedup: summary::speedup(&summaries),
        summaries,
        trackers,
        skipped: begun.skipped.clone(),
        points,
        tsc_hz,
        warnings,
        hints: hints(&begun),
    })
}

/// A run that the plan knows; clocks that stand still are nobody's.
fn done(session: &Session<PlannedPass>, run: DataRun<Data>) -> Option<Done<'_>> {
    let planned = session.record.plan.get(run.head.index as usize)?;
    let machine = session.record.machines.get(planned.machine)?;
    let sound = run.head.outcome == Outcome::Done && run.data.tsc_hz > 0.0;
    // A guest is labelled by its tracker, or by none.
    let tracker = machine.label.parse().ok();
    (sound && label(tracker) == machine.label).then_some(Done { tracker, planned, data: run.data })
}

/// The harvests of a measured pass.
fn rows<'a>(run: &'a Done<'_>, layout: &'a Layout) -> impl Iterator<Item = DirtyRow> + 'a {
    let tracked = run.pass().zip(run.tracker);
    let harvests = tracked.map(|of| run.data.harvests.iter().map(move |h| (of, h)));
    harvests.into_iter().flatten().filter_map(move |((pass, tracker), harvest)| {
        let slot = layout.slots.get(harvest.slot)?;
        let Harvest { strategy, dirty_pages, first_tsc_cycles, samples_tsc_cycles, calls, .. } =
            harvest;
        let told = run.data.collect.as_ref().and_then(|c| c.slot_nanoseconds.as_ref());
        let tsc_cycles = vmeter_stats::median(samples_tsc_cycles);
        Some(DirtyRow {
            pass,
            slot: slot.number,
            slot_bytes: slot.bytes,
            dirty_pages: *dirty_pages,
            strategy: *strategy,
            tracker,
            nanoseconds: tsc_cycles * run.ns(),
            tsc_cycles,
            first_nanoseconds: first_tsc_cycles * run.ns(),
            collect_nanoseconds: told.and_then(|ns| ns.get(harvest.slot).copied()),
            samples_tsc_cycles: samples_tsc_cycles.clone(),
            calls: *calls,
        })
    })
}

fn together(runs: &[Done<'_>]) -> Vec<DirtyTogether> {
    let mut rounds = Rounds::default();
    for run in runs.iter().filter(|run| !run.data.together.is_empty()) {
        run.tracker
            .into_iter()
            .for_each(|kind| rounds.add(kind, &run.data.together, run.data.tsc_hz));
    }
    rounds.rows()
}

/// What the fits are made of: passes whose pages lie at random places. The workload's own
/// passes are left out: pages written in order share a mask when KVM protects them again, so a
/// ring takes a fifth of the time per page for them.
fn points(runs: &[Done<'_>]) -> Vec<DirtyPoint> {
    let point = |run: &Done<'_>| DirtyPoint {
        tracker: run.tracker,
        dirty_pages: run.data.pages,
        collect_nanoseconds: run.data.collect.as_ref().map(|collect| collect.nanoseconds),
        write_nanoseconds: run.write_ns(),
    };
    let scattered = |run: &&Done<'_>| matches!(run.planned.step, Step::Fit { .. });
    runs.iter().filter(scattered).map(point).collect()
}

fn trackers(
    session: &Session<PlannedPass>,
    runs: &[Done<'_>],
    models: &BTreeMap<TrackerKind, DirtyModel>,
) -> Vec<DirtyTracker> {
    let passes = |machine: usize| -> BTreeMap<u32, &Done<'_>> {
        let own = runs.iter().filter(|run| run.planned.machine == machine);
        own.filter_map(|run| Some((run.pass()?, run))).collect()
    };
    let untracked = tracker(None, passes(0).values().copied()).pages_per_s;
    let machines = session.record.machines.iter().enumerate();
    let known = machines.filter(|(at, _)| runs.iter().any(|run| run.planned.machine == *at));
    known
        .map(|(at, machine)| {
            let own = passes(at);
            let started = runs.iter().filter(|run| run.planned.machine == at);
            let started = started.filter_map(|run| run.data.start_nanoseconds).next();
            let kind: Option<TrackerKind> = machine.label.parse().ok();
            let tracker = tracker(kind, own.values().copied());
            let rates = tracker.pages_per_s.as_ref().zip(untracked.as_ref()).filter(|_| at > 0);
            DirtyTracker {
                start_nanoseconds: started.unwrap_or(0.0),
                slowdown: rates.map(|(own, untracked)| untracked.median / own.median),
                model: kind.and_then(|kind| models.get(&kind).copied()),
                ..tracker
            }
        })
        .collect()
}

/// What the passes of one guest say of its tracker.
fn tracker<'a>(
    kind: Option<TrackerKind>,
    passes: impl Iterator<Item = &'a Done<'a>>,
) -> DirtyTracker {
    let passes: Vec<&Done<'_>> = passes.collect();
    let collects = passes.iter().filter_map(|run| run.data.collect.as_ref());
    let collect: Vec<f64> = collects.map(|collect| collect.nanoseconds).collect();
    let rates = passes.iter().filter(|run| run.data.pages > 0);
    let rates: Vec<f64> = rates.map(|run| run.data.pages as f64 / run.write_ns() * 1e9).collect();
    let stops: f64 = passes.iter().map(|run| f64::from(run.data.write.interruptions)).sum();
    DirtyTracker {
        tracker: kind,
        start_nanoseconds: 0.0,
        collect_nanoseconds: (!collect.is_empty()).then(|| estimate(&collect)),
        collect_samples_ns: collect,
        pages_per_s: (!rates.is_empty()).then(|| estimate(&rates)),
        slowdown: None,
        write_samples_ns: passes.iter().map(|run| run.write_ns()).collect(),
        pages: passes.iter().map(|run| run.data.pages).collect(),
        counts: mean_counts(&passes),
        interruptions: stops / passes.len().max(1) as f64,
        model: None,
    }
}

/// What each guest's passes cost, and what follows from that.
fn advise(
    session: &Session<PlannedPass>,
    runs: &[Done<'_>],
    rows: &[DirtyRow],
) -> Option<DirtyAdvice> {
    let costs = |machine: usize| -> advice::Costs {
        let own = runs.iter().filter(|run| run.planned.machine == machine);
        own.filter_map(|run| {
            let collect = run.data.collect.as_ref().map_or(0.0, |collect| collect.nanoseconds);
            Some((run.pass()?, advice::Cost { collect, write: run.write_ns() }))
        })
        .collect()
    };
    let machines = session.record.machines.iter().enumerate();
    let kinds = machines.filter_map(|(at, machine)| Some((machine.label.parse().ok()?, costs(at))));
    let trackers: Vec<(TrackerKind, advice::Costs)> =
        kinds.filter(|(_, costs)| !costs.is_empty()).collect();
    advice::advice(&costs(0), &trackers, rows)
}

/// Means over passes of what KVM counted.
fn mean_counts(passes: &[&Done<'_>]) -> BTreeMap<String, f64> {
    let mut means = BTreeMap::new();
    for (name, value) in passes.iter().flat_map(|run| &run.data.write.counts) {
        *means.entry(name.clone()).or_insert(0.0) += *value as f64 / passes.len() as f64;
    }
    means
}

/// All comparisons of a session.
#[derive(Default)]
struct Checked {
    bits: u64,
    wrong: u64,
    mismatches: Vec<DirtyMismatch>,
}

impl Checked {
    fn of(begun: &SavedConfig, runs: &[Done<'_>]) -> Self {
        let mut all = Checked::default();
        for run in runs {
            let Some(check) = &run.data.check else { continue };
            all.bits = all.bits.saturating_add(check.bits);
            all.wrong = all.wrong.saturating_add(check.wrong);
            let room = KEPT.saturating_sub(all.mismatches.len());
            all.mismatches.extend(check.mismatches.iter().take(room).map(|wrong| DirtyMismatch {
                pass: number(begun, run.planned),
                tracker: run.tracker,
                source: wrong.source.clone(),
                slot: wrong.slot,
                page: wrong.page,
                written: wrong.written,
            }));
        }
        all
    }
}

/// The number by which a wrong bit's pass is known: the fits come after the measured passes,
/// the warm-ups after them.
fn number(begun: &SavedConfig, planned: &PlannedPass) -> u32 {
    let passes = begun.asked.passes;
    match planned.step {
        Step::Pass { pass, .. } if planned.warmup => {
            passes.saturating_add(crate::plan::FIT_ROUNDS).saturating_add(pass)
        }
        Step::Pass { pass, .. } => pass,
        Step::Fit { round, .. } => passes.saturating_add(round),
        Step::Together { round, .. } => round,
    }
}

fn workload(begun: &SavedConfig, seed: u64) -> DirtyWorkload {
    let asked = &begun.asked;
    DirtyWorkload {
        name: asked.workload.word().into(),
        description: asked.workload.description(begun.buffer_bytes, asked.share()),
        buffer_bytes: begun.buffer_bytes,
        share: asked.workload.share(asked.share()),
        hz: (asked.workload == Kind::Gui).then_some(asked.hz),
        ring: asked.ring,
        passes: asked.passes,
        seed,
    }
}

fn remarks(
    begun: &SavedConfig,
    runs: &[Done<'_>],
    trackers: &[DirtyTracker],
    checked: &Checked,
    warnings: &mut Vec<String>,
) {
    if checked.wrong > 0 {
        warnings.push(format!(
            "{} of {} bits of the dirty bitmap are wrong: this tracker or this host's KVM is \
                unreliable",
            checked.wrong, checked.bits
        ));
    }
    if runs.iter().any(|run| !run.data.apart) {
        warnings.push(
            "this host, or --pin, leaves the guest no CPU of its own: the guest did not run while \
                vmeter harvested its dirty pages, so no harvest had to wait for the guest"
                .into(),
        );
    }
    let asked = &begun.asked;
    if asked.no_verify {
        warnings.push("no bit was checked (--no-verify)".into());
    }
    if trackers.iter().any(|tracker| tracker.tracker.is_some() && tracker.counts.is_empty())
        && asked.workload.share(asked.share()) != Some(0.0)
    {
        warnings
            .push("this host's KVM has no counters of exits and faults (KVM_GET_STATS_FD)".into());
    }
}

fn hints(begun: &SavedConfig) -> Vec<String> {
    let asked = &begun.asked;
    if asked.workload == Kind::Migration && asked.buffer.is_none() {
        return vec!["vmeter dirty --workload migration --buffer 1024 # the buffer size of the \
            published measurement"
            .into()];
    }
    Vec::new()
}

/// What was made smaller, and why.
fn scaling(begun: &SavedConfig, layout: &Layout) -> String {
    let mib = |bytes: u64| bytes >> 20;
    let slots = if layout.scale < 1.0 {
        format!(
            "vmeter multiplies the size of each slot of more than 32 MiB by {:.3}: all slots \
                together may use at most {} MiB, but at full size they would need {} MiB",
            layout.scale,
            mib(begun.asked.limit(begun.budget_bytes)),
            mib(begun.asked.layout().bytes())
        )
    } else {
        "slots at full size".into()
    };
    match begun.asked.workload {
        Kind::Migration if begun.buffer_bytes != PUBLISHED_BUFFER => format!(
            "{slots}; the buffer has {}; in the published measurement (docs/DIRTY.md) it had \
                1024 MiB",
            in_words(begun.buffer_bytes)
        ),
        _ => slots,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Check, Wrong};
    use crate::config::{CliOptions, Config};
    use crate::run::{Collect, Write};
    use crate::{StrategyKind, WorkloadKind};
    use std::path::Path;
    use vmeter_model::run::{Planned, RunHead, SessionMachine, SessionRecord};
    use vmeter_model::SCHEMA;
    use vmeter_session::failure::class;
    use vmeter_session::RunOptions;

    fn begun() -> SavedConfig {
        let given = CliOptions {
            workload: Some(WorkloadKind::Gui),
            tracker: Some(vec![TrackerKind::Legacy]),
            ..CliOptions::default()
        };
        let asked = Config::new(&given, Some(2)).unwrap();
        SavedConfig { asked, budget_bytes: 1 << 30, buffer_bytes: 32 << 10, skipped: vec![] }
    }

    /// A warm-up and two passes of two guests, the first of them the untracked one.
    fn session(dir: &Path, asked: serde_json::Value) -> Session<PlannedPass> {
        let step = |pass| Step::Pass { pass, seed: 0 };
        let plan = [(true, 0), (false, 0), (false, 1)].into_iter().flat_map(|(warmup, pass)| {
            [0, 1].map(|machine| PlannedPass { machine, warmup, step: step(pass) })
        });
        let machine =
            |label: &str| SessionMachine { label: label.into(), ..SessionMachine::default() };
        let record = SessionRecord {
            machines: ["none", "kvm-legacy"].map(machine).into(),
            plan: plan.collect(),
            asked,
            ..vmeter_session::record("dirty", &RunOptions::default())
        };
        Session::create(Some(dir), record).unwrap()
    }

    /// A GHz, so that a cycle is a nanosecond.
    fn data(tracked: bool, write: u64) -> Data {
        let harvest = Harvest {
            slot: 0,
            strategy: StrategyKind::GetOrg,
            dirty_pages: 8,
            first_tsc_cycles: 90.0,
            samples_tsc_cycles: vec![50.0, 70.0, 60.0],
            calls: 1,
        };
        let wrong = Wrong { source: "memory".into(), slot: 7, page: 3, written: true };
        Data {
            tsc_hz: 1e9,
            apart: true,
            generation: 1,
            pages: 8,
            start_nanoseconds: tracked.then_some(500.0),
            write: Write {
                tsc_cycles: write,
                interruptions: 1,
                counts: [("exits".into(), 4)].into(),
            },
            collect: tracked.then(|| Collect {
                nanoseconds: 300.0,
                slot_nanoseconds: Some(vec![200.0, 100.0]),
            }),
            harvests: if tracked {
                vec![harvest.clone(), Harvest { slot: 99, ..harvest }]
            } else {
                vec![]
            },
            check: Some(Check { bits: 16, wrong: 1, mismatches: vec![wrong] }),
            together: Vec::new(),
        }
    }

    fn save(session: &Session<PlannedPass>, index: u32, data: Data) {
        let planned = session.record.plan[index as usize];
        let head = RunHead {
            schema: SCHEMA.into(),
            index,
            label: session.record.machines[planned.machine()].label.clone(),
            warmup: planned.warmup,
            ..RunHead::default()
        };
        session.begin_run(index).unwrap();
        session.commit_run(&DataRun { head, data }).unwrap();
    }

    #[test]
    fn a_result_is_of_the_measured_passes_that_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let session = session(folder.path(), serde_json::to_value(begun()).unwrap());
        assert_eq!(class(&result(&session).unwrap_err()).status(), 2);
        // The second pass of the tracked guest is missing.
        for (index, tracked, write) in
            [(0, false, 9_000), (1, true, 9_000), (2, false, 100), (3, true, 300), (4, false, 7)]
        {
            save(&session, index, data(tracked, write));
        }
        let result = result(&session).unwrap();
        assert!(result.warnings[0].contains("5 of 6 runs are finished"), "{:?}", result.warnings);
        // What lies in no slot of the layout is no row.
        assert_eq!(result.rows.len(), 1);
        let row = &result.rows[0];
        assert_eq!((row.pass, row.slot, row.slot_bytes, row.dirty_pages), (0, 7, 32_768, 8));
        assert!((row.nanoseconds - 60.0).abs() < 1e-9 && (row.tsc_cycles - 60.0).abs() < 1e-9);
        assert_eq!(row.collect_nanoseconds, Some(200.0));
        let [none, legacy] = &result.trackers[..] else { panic!("{:?}", result.trackers) };
        assert_eq!((none.pages.as_slice(), legacy.pages.as_slice()), (&[8, 8][..], &[8][..]));
        let rates = [none, legacy].map(|tracker| tracker.pages_per_s.as_ref().unwrap().median);
        assert_eq!((none.slowdown, legacy.slowdown), (None, Some(rates[0] / rates[1])));
        assert_eq!((legacy.start_nanoseconds, legacy.counts["exits"]), (500.0, 4.0));
        // Wrong bits count wherever they were, warm-ups included.
        assert_eq!((result.checked_bits, result.verified), (5 * 16, false));
        let passes: Vec<u32> = result.mismatches.iter().map(|wrong| wrong.pass).collect();
        assert_eq!(passes, [5, 5, 0, 0, 1]);
    }

    #[test]
    fn folders_of_others_are_refused_or_read_without_harm() {
        let folder = tempfile::tempdir().unwrap();
        let mut asked = serde_json::to_value(begun()).unwrap();
        asked["slots"] = serde_json::json!({
            "slots": [{"number": 0, "bytes": u64::MAX, "buffer": true}], "source": "x", "scale": 1.0
        });
        for (i, asked) in [serde_json::Value::Null, asked].into_iter().enumerate() {
            let session = session(&folder.path().join(i.to_string()), asked);
            save(&session, 2, data(false, 1));
            let error = result(&session).unwrap_err();
            assert_eq!(class(&error).status(), 2, "{error:#}");
        }
        let session = session(&folder.path().join("odd"), serde_json::to_value(begun()).unwrap());
        let check = Check { bits: u64::MAX, wrong: u64::MAX, mismatches: vec![] };
        let odd = Data { pages: u64::MAX, check: Some(check), ..data(true, 0) };
        save(&session, 2, odd.clone());
        save(&session, 3, odd);
        save(&session, 4, Data { tsc_hz: 0.0, ..data(false, 1) });
        assert!(!result(&session).unwrap().verified);
    }
}
