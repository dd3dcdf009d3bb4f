//! `vmeter bench`: whole boots with nothing attached, machines in turn.

pub mod report;

use crate::blocks::{blocks, ByBlock};
use crate::booter::Recorder;
use crate::boots::Boots;
use crate::compare::{against_the_first, needed_runs, too_few, Compared, Sampled};
use crate::ends::Ends;
use crate::gate::{Gate, Limit};
use crate::looks::Asked;
use crate::prepare::{check_same, prepare, Prepared};
use crate::shown::Shown;
use crate::steady;
use anyhow::Result;
use report::BenchReport;
use std::collections::BTreeMap;
use std::path::Path;
use vmeter_model::result::{BenchMachine, BenchResult, FailedRun};
use vmeter_model::run::{
    Outcome, PlannedRun, RunRecord, SessionMachine, SessionRecord, WatchLevel,
};
use vmeter_model::time::seconds;
use vmeter_model::{Cause, MachineSpec};
use vmeter_render::quantity::plural;
use vmeter_render::Report;
use vmeter_session::failure::usage;
use vmeter_session::{
    begin, cache_dir, envelope, execute, record, resumed, Given, RunOptions, Session, Watch,
};
use vmeter_session::{Answer, Experiment, Views};
use vmeter_stats::{estimate, outliers, Verdict};

const KIND: &str = "bench";

/// Measured boots of each machine, unless `--runs` says otherwise or more are needed to compare
/// so many machines.
const DEFAULT_RUNS: u32 = 10;

fn default_runs(machines: usize) -> u32 {
    DEFAULT_RUNS.max(u32::try_from(needed_runs(machines)).unwrap_or(u32::MAX))
}

/// Times machines against the first of them.
///
/// # Errors
/// A machine that is not valid, a host that can't boot it, an interruption.
pub fn bench(
    machines: &[(String, MachineSpec)],
    detect: Option<f64>,
    options: &RunOptions,
    watch: &mut Watch<'_>,
) -> Result<BenchResult> {
    if detect.is_some() && machines.len() < 2 && options.resume.is_none() {
        return Err(usage("--detect: a difference to what? --vs SPEC, another machine"));
    }
    for (i, (label, _)) in machines.iter().enumerate() {
        if machines.iter().take(i).any(|(other, _)| other == label) {
            return Err(usage(format!(
                "two machines are called {label:?}: tell them apart by --label"
            )));
        }
    }
    // Machines are worked out before the folder is made: a typo leaves none behind.
    let saved = resumed(KIND, options, watch, |session, given| {
        note_given(machines, session, given);
        given.option("--detect", detect.map(Some), asked(session)?.detect);
        Ok(())
    })?;
    let one = |label: &str, spec: &MachineSpec| {
        prepare(label, spec, &cache_dir()?).map_err(|error| match machines.len() {
            0 | 1 => error,
            _ => error.context(format!("the machine {label:?}, which is what stands outside of --vs and what its own --vs says")),
        })
    };
    let prepared: Result<Vec<Prepared>> = match &saved {
        Some(session) => session.record.machines.iter().map(|m| one(&m.label, &m.spec)).collect(),
        None => machines.iter().map(|(label, spec)| one(label, spec)).collect(),
    };
    let prepared = prepared?;
    saved.as_ref().map_or(Ok(()), |session| check_same(session, &prepared))?;
    let described: Vec<_> = prepared.iter().map(|p| p.session.clone()).collect();
    let mut session = match saved {
        Some(session) => session,
        None => {
            let machines = described.clone();
            let asked = Asked { detect, ..Asked::default() };
            let runs = detect.map(|_| asked.first(options.runs) as u32).or(options.runs);
            let asked = serde_json::to_value(asked)?;
            let record = SessionRecord { machines, asked, ..record(KIND, options) };
            // Saved with its plan, or not at all.
            let options = &RunOptions { runs, ..options.clone() };
            let plan = lengthened(&record, Path::new(""), options)?;
            begin(SessionRecord { plan, ..record }, options, watch)?
        }
    };
    session.record.machines = described;
    let mut asked = asked(&session)?;
    if asked.detect.is_none() {
        session.record.plan = lengthened(&session.record, &session.dir, options)?;
    }
    session.save()?;
    if let Some(few) = too_few(runs_each(&session), session.record.machines.len()) {
        watch.progress.warn(&few);
    }
    let pin = session.record.pin.as_deref().or(options.pin.as_deref());
    let recorder = Recorder::of(prepared, pin)?;
    loop {
        execute(&session, &mut Boots(&recorder), session.record.prepare.as_deref(), watch)?;
        let more = looked(&session, &mut asked, options.runs)?;
        session.record.asked = serde_json::to_value(&asked)?;
        if let Some(runs) = more {
            let runs = u32::try_from(runs).ok();
            let options = &RunOptions { runs, warmup: None, ..options.clone() };
            session.record.plan = lengthened(&session.record, &session.dir, options)?;
        }
        session.save()?;
        if more.is_none() {
            return result(&session);
        }
    }
}

/// What a session of its own keeps besides machines and plan; an older one keeps nothing.
fn asked(session: &Session) -> Result<Asked> {
    if session.record.asked.is_null() {
        return Ok(Asked::default());
    }
    session.asked()
}

/// Measured runs of each machine that are planned.
fn runs_each(session: &Session) -> usize {
    session.record.plan.iter().filter(|p| p.machine == 0 && !p.warmup).count()
}

/// Looks at the runs; how many there must be at the next look, if there is to be one.
fn looked(session: &Session, asked: &mut Asked, most: Option<u32>) -> Result<Option<usize>> {
    let (finished, _) = session.finished()?;
    let records: Vec<RunRecord> = finished.into_iter().map(|(_, record)| record).collect();
    let machines = machines(session, &records);
    let failed = records.iter().any(|run| run.outcome != Outcome::Done);
    Ok(asked.look(&machines, (runs_each(session), most), failed))
}

/// Refuses a gate that these runs could not decide, before anything is booted.
///
/// # Errors
/// Class usage: nothing to compare with, or too few runs, and how many are needed.
pub fn check_gate(machines: usize, runs: Option<u32>) -> Result<()> {
    if machines < 2 {
        return Err(usage("--fail-if-slower: slower than what? --vs SPEC, another machine"));
    }
    let runs = runs.unwrap_or_else(|| default_runs(machines)) as usize;
    too_few(runs, machines).map_or(Ok(()), |few| Err(usage(format!("--fail-if-slower: {few}"))))
}

/// What the gate says of each machine against the first.
pub fn gates(result: &BenchResult, limit: &Limit) -> Vec<Gate> {
    let refused = result.not_compared.iter().map(|n| limit.nothing(&n.why));
    let gates: Vec<Gate> =
        result.comparisons.iter().map(|c| limit.of_comparison(c)).chain(refused).collect();
    if gates.is_empty() {
        return vec![limit.nothing("there are no two machines with runs of one block")];
    }
    gates
}

/// The machines beside `--resume`, and those of the session.
fn note_given(machines: &[(String, MachineSpec)], session: &Session, given: &mut Given) {
    let begun = &session.record.machines;
    if let ([(_, base), ..], [first, ..]) = (machines, begun.as_slice()) {
        given.fields(base, &first.spec);
    }
    if machines.len() > 1 {
        let labels = machines.iter().map(|(label, _)| label);
        given.option("--vs", Some(true), labels.eq(begun.iter().map(|m| &m.label)));
    }
}

/// The session's plan, or a longer one if more runs are asked for than it has.
fn lengthened(record: &SessionRecord, dir: &Path, options: &RunOptions) -> Result<Vec<PlannedRun>> {
    let begun = &record.plan;
    let machines = record.machines.len();
    let each =
        |warmup: bool| begun.iter().filter(|p| p.machine == 0 && p.warmup == warmup).count() as u32;
    let (had_warmups, had_runs) = if begun.is_empty() {
        (options.warmups(), default_runs(machines))
    } else {
        (each(true), each(false))
    };
    let warmups = options.warmup.unwrap_or(had_warmups) as usize;
    let runs = options.runs.unwrap_or(had_runs);
    let slots = vmeter_stats::plan(machines, warmups, runs as usize, record.seed);
    let watch = WatchLevel::None;
    let planned =
        |slot: vmeter_stats::Slot| PlannedRun { machine: slot.machine, warmup: slot.warmup, watch };
    let wanted: Vec<PlannedRun> = slots.into_iter().map(planned).collect();
    if wanted.starts_with(begun) {
        return Ok(wanted);
    }
    Err(usage(format!(
        "{} was begun with {} and {} of each machine: resume it with more --runs, or without --runs and --warmup",
        dir.display(),
        plural(had_runs.into(), "run"),
        plural(had_warmups.into(), "warm-up")
    )))
}

/// The result of a saved bench.
///
/// # Errors
/// When the session's folder cannot be read.
pub fn result(session: &Session) -> Result<BenchResult> {
    let (finished, mut warnings) = session.finished()?;
    if finished.is_empty() {
        return Err(session.no_runs(&warnings));
    }
    warnings.extend(crate::missing::warning(session, &finished));
    let records: Vec<RunRecord> = finished.into_iter().map(|(_, record)| record).collect();
    let machines: Vec<BenchMachine> = session
        .record
        .machines
        .iter()
        .map(|machine| {
            let own = |r: &&RunRecord| r.is_told() && r.label == machine.label;
            summarise(machine, &records.iter().filter(own).collect::<Vec<_>>())
        })
        .collect();
    let Compared { comparisons, refused, warnings: left_out } = comparisons(session, &records);
    warnings.extend(left_out);
    let sampled = self::machines(session, &records);
    warnings.extend(asked(session)?.fell_short(&sampled, &comparisons, runs_each(session)));
    let of = machines.len();
    for machine in &machines {
        let own: Vec<&RunRecord> = records.iter().filter(|r| r.label == machine.label).collect();
        warnings.extend(steady::remarks(&machine.label, &machine.samples_s, of));
        warnings.extend(steady::host_remarks(&machine.label, &own, of));
    }
    let hints = comparisons
        .iter()
        .filter(|c| c.verdict == Verdict::Undecidable)
        .map(|c| format!("vmeter bench … --runs {}  # fewer decide nothing", c.pairs_needed));
    let hints = hints.take(1).collect();
    Ok(BenchResult {
        envelope: envelope::envelope(&session.record),
        machines,
        comparisons,
        not_compared: refused,
        said: Vec::new(),
        warnings,
        hints,
        saved_in: session.dir.display().to_string(),
    })
}

fn summarise(machine: &SessionMachine, runs: &[&RunRecord]) -> BenchMachine {
    let done: Vec<&&RunRecord> = runs.iter().filter(|r| r.outcome == Outcome::Done).collect();
    let samples_s: Vec<f64> = done.iter().map(|r| seconds(r.total_ns)).collect();
    let cpu_samples_s: Vec<f64> = done.iter().map(|r| r.usage.cpu_s()).collect();
    BenchMachine {
        label: machine.label.clone(),
        estimate: estimate(&samples_s),
        cpu: estimate(&cpu_samples_s),
        max_rss_bytes: done.iter().map(|r| r.usage.max_rss_bytes).max().unwrap_or(0),
        failures: runs
            .iter()
            .filter(|r| r.outcome != Outcome::Done)
            .map(|r| FailedRun { run: r.index, outcome: r.outcome.clone(), end: r.end.clone() })
            .collect(),
        end: common_cause(&done),
        outliers: outliers(&samples_s),
        machine: machine.clone(),
        samples_s,
        cpu_samples_s,
    }
}

/// What ended all of these runs, if it is the same; an exit, if of one no more is known.
fn common_cause(runs: &[&&RunRecord]) -> Option<Cause> {
    let mut causes = runs.iter().map(|run| run.end.as_ref().map(|end| end.cause));
    if causes.clone().any(|cause| cause == Some(Cause::Exit)) {
        return Some(Cause::Exit);
    }
    let first = causes.next()??;
    causes.all(|cause| cause == Some(first)).then_some(first)
}

/// Each other machine against the first.
fn comparisons(session: &Session, records: &[RunRecord]) -> Compared {
    let rule = asked(session).unwrap_or_default().rule();
    against_the_first(&machines(session, records), rule)
}

fn machines<'s>(session: &'s Session, records: &[RunRecord]) -> Vec<Sampled<'s>> {
    let blocks = blocks(&session.record.plan);
    let labels = session.record.machines.iter().map(|machine| machine.label.as_str());
    labels.map(|label| sampled(label, records, &blocks)).collect()
}

fn sampled<'l>(
    label: &'l str,
    records: &[RunRecord],
    blocks: &BTreeMap<u32, usize>,
) -> Sampled<'l> {
    let own = || records.iter().filter(|r| r.label == label);
    let measured = || own().filter(|r| !r.warmup && r.outcome == Outcome::Done);
    let samples = |of: fn(&RunRecord) -> f64| -> ByBlock {
        measured().filter_map(|r| Some((*blocks.get(&r.index)?, of(r)))).collect()
    };
    Sampled {
        label,
        wall: samples(|r| seconds(r.total_ns)),
        cpu: samples(|r| r.usage.cpu_s()),
        ends: Ends::of_records(own()),
        // An unwatched boot is timed by the wall clock, whatever the guest's own time is.
        exact: false,
    }
}

/// The kind `bench`.
pub(crate) struct Kind;

impl Experiment for Kind {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn answer(&self, dir: &Path) -> Result<Box<dyn Answer>> {
        Ok(Box::new(Shown(result(&Session::open(dir)?)?)))
    }
}

impl Answer for Shown<BenchResult> {
    fn report(&self, _: &Views) -> Box<dyn Report + '_> {
        Box::new(BenchReport::new(&self.0))
    }

    fn is_bad(&self) -> bool {
        self.0.machines.iter().any(|machine| !machine.failures.is_empty())
    }
}
