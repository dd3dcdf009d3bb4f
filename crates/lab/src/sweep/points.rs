//! Many machines measured in turn: the engine of a sweep, and of whatever else compares
//! more machines than a bench does.

use crate::boot::recorder;
use crate::booter::Recorder;
use crate::experiment::{execute, run_prepare, BootRequest, Booter, Progress};
use crate::failure::usage;
use crate::interrupt::Interrupt;
use crate::prepare::{prepare, Prepared};
use crate::session::{cache_dir, Session};
use crate::start::{start, RunOptions};
use crate::sweep::parameters::{filled, Point};
use anyhow::{Context, Result};
use vmeter_model::run::{PlannedRun, RunRecord, WatchLevel};
use vmeter_model::sweep::Settings;
use vmeter_model::MachineSpec;

/// Measured boots of each point, unless `--runs` says otherwise.
const DEFAULT_RUNS: u32 = 5;

/// Boots every point as often as asked, interleaved, each run saved before the next; or
/// goes on with a saved session, whose own points and plan then count. `command` names it.
///
/// # Errors
/// A machine that is not valid, a host that can't boot it, a folder that can't be written,
/// an interruption (finished runs are saved).
pub fn measure(
    command: &str,
    points: &[Point],
    watch: WatchLevel,
    options: &RunOptions,
    progress: &mut dyn Progress,
    interrupt: &Interrupt,
) -> Result<Session> {
    let (mut session, prepared) = match &options.resume {
        Some(_) => resumed(command, points, options)?,
        None => begun(command, points, options)?,
    };
    let wanted = plan(&prepared, watch, options, session.record.seed);
    // More runs of the same plan begin with the runs that are there.
    let longer = options.runs.is_some() && wanted.starts_with(&session.record.plan);
    if session.record.plan.is_empty() || longer {
        session.record.plan = wanted;
    }
    session.save()?;
    let booter = PointBooter {
        prepare: session.record.prepare.clone(),
        parameters: session.record.machines.iter().map(|m| m.parameters.clone()).collect(),
        recorder: recorder(prepared, options)?,
    };
    execute(&session, &booter, None, progress, interrupt)?;
    Ok(session)
}

/// Machines are worked out before the folder is made, so that a typo leaves none behind.
fn begun(
    command: &str,
    points: &[Point],
    options: &RunOptions,
) -> Result<(Session, Vec<Prepared>)> {
    let machines: Vec<(String, MachineSpec)> =
        points.iter().map(|p| (p.label.clone(), p.spec.clone())).collect();
    let prepared: Result<Vec<Prepared>> =
        points.iter().map(|point| one(&point.label, &point.spec, &point.parameters)).collect();
    let prepared = prepared?;
    let mut session = start(command, &machines, options)?;
    session.record.machines = prepared.iter().map(|p| p.session.clone()).collect();
    Ok((session, prepared))
}

fn resumed(
    command: &str,
    points: &[Point],
    options: &RunOptions,
) -> Result<(Session, Vec<Prepared>)> {
    let mut session = start(command, &[], options)?;
    let machines = &session.record.machines;
    let same = machines.iter().map(|m| &m.label).eq(points.iter().map(|p| &p.label));
    if !points.is_empty() && !same {
        return Err(usage(format!(
            "{} has other points ({}): go on with it without -L and -P, or begin anew without --resume",
            session.dir.display(),
            crate::diff::listed(machines.iter().map(|m| m.label.as_str()))
        )));
    }
    let prepared: Result<Vec<Prepared>> =
        machines.iter().map(|m| one(&m.label, &m.spec, &m.parameters)).collect();
    let prepared = prepared?;
    session.record.machines = prepared.iter().map(|p| p.session.clone()).collect();
    if options.prepare.is_some() {
        session.record.prepare.clone_from(&options.prepare);
    }
    Ok((session, prepared))
}

fn one(label: &str, spec: &MachineSpec, parameters: &Settings) -> Result<Prepared> {
    let mut prepared = prepare(label, spec, &cache_dir()).with_context(|| format!("at {label}"))?;
    prepared.session.parameters.clone_from(parameters);
    Ok(prepared)
}

/// Blocks of all points, warm-ups first. In virtual time all runs are the same: one is
/// enough, and nothing needs to get warm. Where counting instructions costs time (the TCG
/// plugin), the warm-ups count and the measured boots are watched lightly.
fn plan(
    prepared: &[Prepared],
    watch: WatchLevel,
    options: &RunOptions,
    seed: u64,
) -> Vec<PlannedRun> {
    let is_virtual = |p: &Prepared| p.machine.accel.as_deref() == Some("icount");
    let by_plugin =
        |p: &Prepared| p.machine.accel.as_deref() == Some("tcg") && p.machine.script.is_none();
    let counts_apart = |p: &Prepared| watch == WatchLevel::Full && by_plugin(p);
    let all_virtual = !prepared.is_empty() && prepared.iter().all(is_virtual);
    let runs = options.runs.unwrap_or(if all_virtual { 1 } else { DEFAULT_RUNS });
    let counting = u32::from(prepared.iter().any(counts_apart));
    let warmups = if all_virtual { 0 } else { options.warmup.max(counting) };
    let planned = |slot: vmeter_stats::Slot| {
        let apart = prepared.get(slot.machine).is_some_and(counts_apart);
        let watch = if apart && !slot.warmup { WatchLevel::Light } else { watch };
        PlannedRun { machine: slot.machine, warmup: slot.warmup, watch }
    };
    let slots = vmeter_stats::plan(prepared.len(), warmups as usize, runs as usize, seed);
    slots.into_iter().map(planned).collect()
}

/// The recorder, with each point's own `--prepare` before its runs.
struct PointBooter {
    recorder: Recorder,
    prepare: Option<String>,
    parameters: Vec<Settings>,
}

impl Booter for PointBooter {
    fn boot(&self, request: &BootRequest<'_>) -> Result<RunRecord> {
        if let Some(command) = &self.prepare {
            let parameters = self.parameters.get(request.planned.machine);
            run_prepare(&filled(command, parameters.unwrap_or(&Vec::new())))?;
        }
        self.recorder.boot(request)
    }
}
