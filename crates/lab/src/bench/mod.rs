//! `vmeter bench`: whole boots with nothing attached, machines in turn.

pub mod report;

use crate::booter::Recorder;
use crate::boots::Boots;
use crate::compare::{against_the_first, Compared, Sampled};
use crate::ends::Ends;
use crate::prepare::{check_same, prepare, Prepared};
use crate::shown::Shown;
use anyhow::Result;
use report::BenchReport;
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
use vmeter_stats::Verdict;
use vmeter_stats::{estimate, outliers};

const KIND: &str = "bench";

/// Measured boots of each machine, unless `--runs` says otherwise.
const DEFAULT_RUNS: u32 = 10;

/// Times machines against the first of them.
///
/// # Errors
/// A machine that is not valid, a host that can't boot it, an interruption.
pub fn bench(
    machines: &[(String, MachineSpec)],
    options: &RunOptions,
    watch: &mut Watch<'_>,
) -> Result<BenchResult> {
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
            let record = SessionRecord { machines, ..record(KIND, options) };
            // Saved with its plan, or not at all.
            let plan = lengthened(&record, Path::new(""), options)?;
            begin(SessionRecord { plan, ..record }, options, watch)?
        }
    };
    session.record.machines = described;
    session.record.plan = lengthened(&session.record, &session.dir, options)?;
    session.save()?;
    let pin = session.record.pin.as_deref().or(options.pin.as_deref());
    let recorder = Recorder::of(prepared, pin)?;
    execute(&session, &mut Boots(&recorder), session.record.prepare.as_deref(), watch)?;
    result(&session)
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
    let each =
        |warmup: bool| begun.iter().filter(|p| p.machine == 0 && p.warmup == warmup).count() as u32;
    let (default_warmups, default_runs) = if begun.is_empty() {
        (options.warmups(), DEFAULT_RUNS)
    } else {
        (each(true), each(false))
    };
    let slots = vmeter_stats::plan(
        record.machines.len(),
        options.warmup.unwrap_or(default_warmups) as usize,
        options.runs.unwrap_or(default_runs) as usize,
        record.seed,
    );
    let watch = WatchLevel::None;
    let planned =
        |slot: vmeter_stats::Slot| PlannedRun { machine: slot.machine, warmup: slot.warmup, watch };
    let wanted: Vec<PlannedRun> = slots.into_iter().map(planned).collect();
    if wanted.starts_with(begun) {
        return Ok(wanted);
    }
    Err(usage(format!(
        "{} was begun with {} and {} of each machine: go on with it with more --runs, or without --runs and --warmup",
        dir.display(),
        plural(default_runs.into(), "run"),
        plural(default_warmups.into(), "warm-up")
    )))
}

/// The result of a saved bench.
///
/// # Errors
/// When the session's folder cannot be read.
pub fn result(session: &Session) -> Result<BenchResult> {
    let (finished, mut warnings) = session.finished()?;
    warnings.extend(crate::missing::warning(session, &finished));
    if finished.is_empty() {
        return Err(session.no_runs());
    }
    let records: Vec<RunRecord> = finished.into_iter().map(|(_, record)| record).collect();
    let machines: Vec<BenchMachine> = session
        .record
        .machines
        .iter()
        .map(|machine| {
            let own = |r: &&RunRecord| !r.warmup && r.label == machine.label;
            summarise(machine, &records.iter().filter(own).collect::<Vec<_>>())
        })
        .collect();
    let Compared { comparisons, refused } = comparisons(session, &records);
    let mut hints = Vec::new();
    if comparisons.iter().any(|c| c.verdict == Verdict::NoDifference) {
        hints.push("more --runs resolve smaller differences".to_owned());
    }
    Ok(BenchResult {
        envelope: envelope::envelope(&session.record),
        machines,
        comparisons,
        not_compared: refused,
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
    let labels = session.record.machines.iter().map(|machine| machine.label.as_str());
    let machines: Vec<_> = labels.map(|label| sampled(label, records)).collect();
    against_the_first(&machines, session.record.seed)
}

fn sampled<'l>(label: &'l str, records: &[RunRecord]) -> Sampled<'l> {
    let samples = |of: fn(&RunRecord) -> f64| {
        let measured = records.iter().filter(|r| !r.warmup && r.label == label);
        let value = |r: &RunRecord| if r.outcome == Outcome::Done { of(r) } else { f64::NAN };
        measured.map(value).collect()
    };
    Sampled {
        label,
        wall: samples(|r| seconds(r.total_ns)),
        cpu: samples(|r| r.usage.cpu_s()),
        ends: Ends::of_records(records.iter().filter(|r| r.label == label)),
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
