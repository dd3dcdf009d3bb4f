//! From a session on disk to its result: pure, and the same for a live run and an old one.

use crate::asked::Begun;
use crate::check::KEPT;
use crate::layout::{Layout, PAGE};
use crate::plan::{PlannedPass, Step};
use crate::result::{
    DirtyLayout, DirtyMismatch, DirtyModel, DirtyPoint, DirtyResult, DirtyRow, DirtySlot,
    DirtyTracker, DirtyWorkload,
};
use crate::run::{Data, Harvest};
use crate::workload::Kind;
use crate::{advice, fits, summary, DirtyError, PUBLISHED_BUFFER};
use anyhow::Result;
use std::collections::BTreeMap;
use vmeter_model::run::{DataRun, Outcome};
use vmeter_session::{envelope, Session};
use vmeter_stats::estimate;

/// A finished run with what the plan says of it.
struct Done<'a> {
    tracker: &'a str,
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
            Step::Pass { .. } | Step::Fit { .. } => None,
        }
    }
}

/// What a session comes to.
///
/// # Errors
/// Class usage: a folder that cannot be read, or without a finished run.
pub(crate) fn result(session: &Session<PlannedPass>) -> Result<DirtyResult> {
    let begun: Begun = session.asked()?;
    begun.asked.check().map_err(DirtyError::classified)?;
    let layout = begun.layout().map_err(DirtyError::classified)?;
    let (runs, mut warnings) = session.finished_as::<DataRun<Data>>()?;
    let runs: Vec<Done<'_>> = runs.into_iter().filter_map(|(_, run)| done(session, run)).collect();
    let Some(last) = runs.last() else { return Err(session.no_runs()) };
    let tsc_hz = last.data.tsc_hz;
    let planned = session.record.plan.len();
    if runs.len() < planned {
        let dir = session.dir.display();
        warnings.push(format!(
            "{} of {planned} runs are finished: vmeter dirty --resume {dir} adds the others",
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
        advice: advice::advice(&trackers, &rows),
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
    sound.then_some(Done { tracker: &machine.label, planned, data: run.data })
}

/// The harvests of a measured pass.
fn rows<'a>(run: &'a Done<'_>, layout: &'a Layout) -> impl Iterator<Item = DirtyRow> + 'a {
    let harvests = run.pass().map(|pass| run.data.harvests.iter().map(move |h| (pass, h)));
    harvests.into_iter().flatten().filter_map(move |(pass, harvest)| {
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
            strategy: strategy.name().into(),
            tracker: run.tracker.into(),
            nanoseconds: tsc_cycles * run.ns(),
            tsc_cycles,
            first_nanoseconds: first_tsc_cycles * run.ns(),
            collect_nanoseconds: told.and_then(|ns| ns.get(harvest.slot).copied()),
            samples_tsc_cycles: samples_tsc_cycles.clone(),
            calls: *calls,
        })
    })
}

/// What the fits are made of: their own runs, and the measured passes.
fn points(runs: &[Done<'_>]) -> Vec<DirtyPoint> {
    let point = |run: &Done<'_>| DirtyPoint {
        tracker: run.tracker.into(),
        dirty_pages: run.data.pages,
        collect_nanoseconds: run.data.collect.as_ref().map(|collect| collect.nanoseconds),
        write_nanoseconds: run.write_ns(),
    };
    runs.iter().filter(|run| !run.planned.warmup).map(point).collect()
}

fn trackers(
    session: &Session<PlannedPass>,
    runs: &[Done<'_>],
    models: &BTreeMap<String, DirtyModel>,
) -> Vec<DirtyTracker> {
    let passes = |machine: usize| -> BTreeMap<u32, &Done<'_>> {
        let own = runs.iter().filter(|run| run.planned.machine == machine);
        own.filter_map(|run| Some((run.pass()?, run))).collect()
    };
    let untracked = passes(0);
    let machines = session.record.machines.iter().enumerate();
    let known = machines.filter(|(at, _)| runs.iter().any(|run| run.planned.machine == *at));
    known
        .map(|(at, machine)| {
            let own = passes(at);
            let started = runs.iter().filter(|run| run.planned.machine == at);
            let started = started.filter_map(|run| run.data.start_nanoseconds).next();
            DirtyTracker {
                start_nanoseconds: started.unwrap_or(0.0),
                slowdown: (at > 0).then(|| slowdown(&own, &untracked)).flatten(),
                model: models.get(&machine.label).copied(),
                ..tracker(&machine.label, own.values().copied())
            }
        })
        .collect()
}

/// What the passes of one guest say of its tracker.
fn tracker<'a>(label: &str, passes: impl Iterator<Item = &'a Done<'a>>) -> DirtyTracker {
    let passes: Vec<&Done<'_>> = passes.collect();
    let collects = passes.iter().filter_map(|run| run.data.collect.as_ref());
    let collect: Vec<f64> = collects.map(|collect| collect.nanoseconds).collect();
    let rates = passes.iter().filter(|run| run.data.pages > 0);
    let rates: Vec<f64> = rates.map(|run| run.data.pages as f64 / run.write_ns() * 1e9).collect();
    let stops: u32 = passes.iter().map(|run| run.data.write.interruptions).sum();
    DirtyTracker {
        tracker: label.into(),
        start_nanoseconds: 0.0,
        collect_nanoseconds: (!collect.is_empty()).then(|| estimate(&collect)),
        collect_samples_ns: collect,
        pages_per_s: (!rates.is_empty()).then(|| estimate(&rates)),
        slowdown: None,
        write_samples_ns: passes.iter().map(|run| run.write_ns()).collect(),
        pages: passes.iter().map(|run| run.data.pages).collect(),
        counts: mean_counts(&passes),
        interruptions: f64::from(stops) / passes.len().max(1) as f64,
        model: None,
    }
}

/// Time of the writes over that of the untracked guest, in the passes that both have done.
fn slowdown(own: &BTreeMap<u32, &Done<'_>>, untracked: &BTreeMap<u32, &Done<'_>>) -> Option<f64> {
    let pairs = own.iter().filter_map(|(pass, run)| Some((run.write_ns(), untracked.get(pass)?)));
    let (own, untracked) =
        pairs.fold((0.0, 0.0), |(a, b), (own, other)| (a + own, b + other.write_ns()));
    (untracked > 0.0).then_some(own / untracked)
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
    fn of(begun: &Begun, runs: &[Done<'_>]) -> Self {
        let mut all = Checked::default();
        for run in runs {
            let Some(check) = &run.data.check else { continue };
            all.bits += check.bits;
            all.wrong += check.wrong;
            let room = KEPT.saturating_sub(all.mismatches.len());
            all.mismatches.extend(check.mismatches.iter().take(room).map(|wrong| DirtyMismatch {
                pass: number(begun, run.planned),
                tracker: run.tracker.into(),
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
fn number(begun: &Begun, planned: &PlannedPass) -> u32 {
    let passes = begun.asked.passes;
    match planned.step {
        Step::Pass { pass, .. } if planned.warmup => {
            passes.saturating_add(crate::plan::FIT_ROUNDS).saturating_add(pass)
        }
        Step::Pass { pass, .. } => pass,
        Step::Fit { round, .. } => passes.saturating_add(round),
    }
}

fn workload(begun: &Begun, seed: u64) -> DirtyWorkload {
    let asked = &begun.asked;
    DirtyWorkload {
        name: asked.workload.name().into(),
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
    begun: &Begun,
    runs: &[Done<'_>],
    trackers: &[DirtyTracker],
    checked: &Checked,
    warnings: &mut Vec<String>,
) {
    if checked.wrong > 0 {
        warnings.push(format!(
            "{} of {} bits are wrong: this tracker or this KVM can't be relied on",
            checked.wrong, checked.bits
        ));
    }
    if runs.iter().any(|run| !run.data.apart) {
        warnings.push(
            "one CPU: the guest did not run while its pages were harvested, so no harvest \
             waited for it"
                .into(),
        );
    }
    let asked = &begun.asked;
    if asked.no_verify {
        warnings.push("no bit was checked (--no-verify)".into());
    }
    if trackers.iter().any(|tracker| tracker.tracker != "none" && tracker.counts.is_empty())
        && asked.workload.share(asked.share()) != Some(0.0)
    {
        warnings.push("KVM counts neither exits nor faults here (KVM_GET_STATS_FD)".into());
    }
}

fn hints(begun: &Begun) -> Vec<String> {
    let asked = &begun.asked;
    if asked.workload == Kind::Migration && asked.buffer.is_none() {
        return vec!["vmeter dirty --workload migration --buffer 1024".into()];
    }
    Vec::new()
}

/// What was made smaller, and why.
fn scaling(begun: &Begun, layout: &Layout) -> String {
    let mib = |bytes: u64| bytes >> 20;
    let slots = if layout.scale < 1.0 {
        format!(
            "slots above 32 MiB at {:.3} of their size: {} MiB may be used, they would take {}",
            layout.scale,
            mib(begun.budget_bytes),
            mib(begun.asked.layout().bytes())
        )
    } else {
        "slots at full size".into()
    };
    match begun.asked.workload {
        Kind::Migration if begun.buffer_bytes != PUBLISHED_BUFFER => format!(
            "{slots}; a buffer of {} MiB where the publication's guest has 1024",
            mib(begun.buffer_bytes)
        ),
        _ => slots,
    }
}
