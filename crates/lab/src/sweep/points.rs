//! Many machines measured in turn: the engine of a sweep, and of whatever else compares
//! more machines than a bench does.

use crate::booter::Recorder;
use crate::boots::{watched, BootRequest, Booter, Boots};
use crate::compare::{needed_runs, too_few};
use crate::prepare::{check_same, prepare, Prepared};
use crate::sweep::parameters::{filled, Point};
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use vmeter_model::run::{PlannedRun, RunRecord, SessionRecord, WatchLevel};
use vmeter_model::shard::{Shard, ShardPlan};
use vmeter_model::sweep::Settings;
use vmeter_model::{Accel, MachineSpec};
use vmeter_session::failure::usage;
use vmeter_session::{begin, cache_dir, execute, record, run_prepare, RunOptions, Session, Watch};
use vmeter_stats::{sharded_plan, Slot};

/// Measured boots of each point, unless `--runs` says otherwise or more are needed to compare
/// so many points.
const DEFAULT_RUNS: u32 = 5;

/// How many boots of each point a parameter without an order needs, whose points are compared
/// with the first; none where every parameter is a number.
fn needed(prepared: &[Prepared]) -> Option<usize> {
    let mut settings = prepared.iter().flat_map(|p| &p.session.parameters);
    let is_number = |value: &str| value.parse::<f64>().is_ok_and(f64::is_finite);
    let unordered = settings.any(|(_, value)| !is_number(value));
    (unordered && prepared.len() > 1).then(|| needed_runs(prepared.len()))
}

/// The command whose sessions these are.
pub(super) const KIND: &str = "sweep";

/// Boots every point as often as asked, interleaved, each run saved before the next; or
/// goes on with a saved session, whose own points and plan then count. `spec` is the machine
/// that the points change.
///
/// # Errors
/// A machine that is not valid, a host that can't boot it, a folder that can't be written,
/// an interruption (finished runs are saved).
pub fn measure(
    spec: &MachineSpec,
    points: &[Point],
    level: Option<WatchLevel>,
    options: &RunOptions,
    watch: &mut Watch<'_>,
) -> Result<Session> {
    let saved = vmeter_session::resumed(KIND, options, watch, |session: &Session, given| {
        if let Some(first) = session.record.machines.first() {
            given.fields(spec, &first.spec);
        }
        if let Some(begun) = watched(&session.record.plan) {
            given.option("--watch", level, begun);
        }
        Ok(())
    })?;
    let begun_with = saved.as_ref().and_then(|session| watched(&session.record.plan));
    let level = level.or(begun_with).unwrap_or_default();
    let (session, prepared) = match saved {
        Some(session) => resumed(session, points, level, options)?,
        None => begun(points, level, options, watch)?,
    };
    session.save()?;
    let pin = session.record.pin.as_deref().or(options.pin.as_deref());
    let booter = PointBooter {
        prepare: session.record.prepare.clone(),
        parameters: session.record.machines.iter().map(|m| m.parameters.clone()).collect(),
        recorder: Recorder::of(prepared, pin)?,
    };
    execute(&session, &mut Boots(&booter), None, watch)?;
    Ok(session)
}

/// Machines and plan are worked out before the folder is made, so that a typo leaves none
/// behind.
fn begun(
    points: &[Point],
    level: WatchLevel,
    options: &RunOptions,
    watch: &mut Watch<'_>,
) -> Result<(Session, Vec<Prepared>)> {
    let prepared = prepared(points)?;
    let amounts = Amounts::of(&prepared, level, options);
    let few = needed(&prepared).and_then(|_| too_few(amounts.runs, prepared.len()));
    if let Some(few) = few.filter(|_| !amounts.all_virtual) {
        watch.progress.warn(&few);
    }
    let (plan, shard) = match options.shard {
        None => (plan(&prepared, level, options, options.order()), None),
        Some(shard) => {
            let (plan, mut parts) = sharded(&prepared, level, options, shard.of)?;
            (plan, Some(parts.swap_remove(shard.index as usize - 1)))
        }
    };
    let machines = prepared.iter().map(|p| p.session.clone()).collect();
    let record = SessionRecord { machines, plan, shard, ..record(KIND, options) };
    Ok((begin(record, options, watch)?, prepared))
}

fn prepared(points: &[Point]) -> Result<Vec<Prepared>> {
    points.iter().map(|point| one(&point.label, &point.spec, &point.parameters)).collect()
}

/// The session of which every shard carries out a part, and the parts.
///
/// # Errors
/// A machine that is not valid, a host that can't boot it, more shards than runs.
pub(crate) fn cut(
    points: &[Point],
    watch: WatchLevel,
    options: &RunOptions,
    shards: u32,
) -> Result<(SessionRecord, Vec<ShardPlan>)> {
    let prepared = prepared(points)?;
    let (plan, parts) = sharded(&prepared, watch, options, shards)?;
    let machines = prepared.into_iter().map(|p| p.session).collect();
    Ok((SessionRecord { machines, plan, ..record(KIND, options) }, parts))
}

fn resumed(
    mut session: Session,
    points: &[Point],
    watch: WatchLevel,
    options: &RunOptions,
) -> Result<(Session, Vec<Prepared>)> {
    let own = session.record.shard.as_ref().map(|own| own.shard);
    if options.shard.is_some() && options.shard != own {
        let what = own.map_or("no shard".to_owned(), |own| format!("shard {own}"));
        return Err(usage(format!(
            "{} is {what}: resume it without --shard",
            session.dir.display()
        )));
    }
    let machines = &session.record.machines;
    let same = machines.iter().map(|m| &m.label).eq(points.iter().map(|p| &p.label));
    if !points.is_empty() && !same {
        return Err(usage(format!(
            "{} has other points ({}): resume it without -L and -P, or begin anew without --resume",
            session.dir.display(),
            crate::diff::listed(machines.iter().map(|m| m.label.as_str()))
        )));
    }
    let prepared: Result<Vec<Prepared>> =
        machines.iter().map(|m| one(&m.label, &m.spec, &m.parameters)).collect();
    let prepared = prepared?;
    check_same(&session, &prepared)?;
    session.record.machines = prepared.iter().map(|p| p.session.clone()).collect();
    let seed = session.record.seed;
    check_amounts(&session, &Amounts::of(&prepared, watch, options), options)?;
    // A shard's plan is also that of the other shards, and stays.
    if own.is_none() {
        lengthen(&mut session.record, plan(&prepared, watch, options, seed), options.runs);
    }
    session.take_over()?;
    Ok((session, prepared))
}

/// Refuses fewer runs than were planned, other warm-ups, and for a shard, whose plan is that
/// of the others as well, any other amount.
fn check_amounts(session: &Session, wanted: &Amounts, options: &RunOptions) -> Result<()> {
    let record = &session.record;
    let each =
        |warmup: bool| record.plan.iter().filter(|p| p.machine == 0 && p.warmup == warmup).count();
    let (warmups, runs) = (each(true), each(false));
    let fewer = options.runs.is_some() && wanted.runs < runs;
    let other = record.shard.is_some() && options.runs.is_some() && wanted.runs != runs;
    let colder = options.warmup.is_some() && wanted.warmups != warmups && record.shard.is_none();
    if record.plan.is_empty() || !(fewer || other || colder) {
        return Ok(());
    }
    Err(usage(format!(
        "{} was begun with {runs} runs and {warmups} warm-ups of each point: resume it with more --runs (not a shard), or without --runs and --warmup",
        session.dir.display()
    )))
}

/// Adds the blocks that `runs` asks for and the plan lacks. A plan that was cut into shards
/// began in another order, which a longer one need not repeat.
fn lengthen(record: &mut SessionRecord, wanted: Vec<PlannedRun>, runs: Option<u32>) {
    if record.plan.is_empty() || runs.is_some() && wanted.starts_with(&record.plan) {
        record.plan = wanted;
        return;
    }
    let measured = record.plan.iter().filter(|planned| !planned.warmup).count();
    let all = runs.unwrap_or(0) as usize * record.machines.len();
    let more = wanted.len().saturating_sub(all.saturating_sub(measured));
    record.plan.extend(wanted.into_iter().skip(more));
}

fn one(label: &str, spec: &MachineSpec, parameters: &Settings) -> Result<Prepared> {
    let mut prepared =
        prepare(label, spec, &cache_dir()?).with_context(|| format!("at {label}"))?;
    prepared.session.parameters.clone_from(parameters);
    Ok(prepared)
}

/// How often each point is booted, and how it is watched.
///
/// In virtual time all runs are the same: one is enough, and nothing needs to get warm. Where
/// counting instructions costs time (the TCG plugin), the warm-ups count and the measured
/// boots are watched lightly.
struct Amounts {
    warmups: usize,
    runs: usize,
    watch: WatchLevel,
    /// Points whose warm-ups count.
    counts_apart: Vec<bool>,
    /// True if no point's time has noise.
    all_virtual: bool,
}

impl Amounts {
    fn of(prepared: &[Prepared], watch: WatchLevel, options: &RunOptions) -> Self {
        let is_virtual = |p: &Prepared| p.machine.accel == Some(Accel::Icount);
        let apart = |p: &Prepared| watch == WatchLevel::Full && p.is_slowed_by_counting();
        let counts_apart: Vec<bool> = prepared.iter().map(apart).collect();
        let all_virtual = !prepared.is_empty() && prepared.iter().all(is_virtual);
        let default = needed(prepared).map_or(DEFAULT_RUNS, |n| DEFAULT_RUNS.max(n as u32));
        let runs = options.runs.unwrap_or(if all_virtual { 1 } else { default });
        let counting = u32::from(counts_apart.contains(&true));
        let warmups = if all_virtual { 0 } else { options.warmups().max(counting) };
        Amounts { warmups: warmups as usize, runs: runs as usize, watch, counts_apart, all_virtual }
    }

    fn planned(&self, slot: &Slot) -> PlannedRun {
        let apart = self.counts_apart.get(slot.machine) == Some(&true);
        let watch = if apart && !slot.warmup { WatchLevel::Light } else { self.watch };
        PlannedRun { machine: slot.machine, warmup: slot.warmup, watch }
    }
}

/// Blocks of all points, warm-ups first.
fn plan(
    prepared: &[Prepared],
    watch: WatchLevel,
    options: &RunOptions,
    seed: u64,
) -> Vec<PlannedRun> {
    let amounts = Amounts::of(prepared, watch, options);
    let slots = vmeter_stats::plan(prepared.len(), amounts.warmups, amounts.runs, seed);
    slots.iter().map(|slot| amounts.planned(slot)).collect()
}

/// The plan of all shards, and each one's part of it.
fn sharded(
    prepared: &[Prepared],
    watch: WatchLevel,
    options: &RunOptions,
    shards: u32,
) -> Result<(Vec<PlannedRun>, Vec<ShardPlan>)> {
    let amounts = Amounts::of(prepared, watch, options);
    let plan = Plan { of: prepared.len(), warmups: amounts.warmups, runs: amounts.runs };
    let (slots, parts) = plan.cut(options.order(), shards, "points")?;
    Ok((slots.iter().map(|slot| amounts.planned(slot)).collect(), parts))
}

/// How much is to be run, before it is cut.
pub(crate) struct Plan {
    /// Machines.
    pub of: usize,
    /// Warm-ups of each, on every shard.
    pub warmups: usize,
    /// Measured runs of each, on all shards together.
    pub runs: usize,
}

impl Plan {
    /// The runs of all shards, and each one's part of them; `what` names the machines.
    ///
    /// # Errors
    /// Class usage: more shards than there is work for.
    pub fn cut(&self, seed: u64, shards: u32, what: &str) -> Result<(Vec<Slot>, Vec<ShardPlan>)> {
        let Plan { of, warmups, runs } = *self;
        let slots = |warmups, shards: u32| sharded_plan(of, warmups, runs, seed, shards as usize);
        let idle = |shards: u32| {
            let busy: BTreeSet<usize> = slots(0, shards).iter().map(|s| s.shard).collect();
            busy.len() < shards as usize
        };
        if idle(shards) {
            let most = (1..shards).rev().find(|fewer| !idle(*fewer)).unwrap_or(1);
            return Err(usage(format!(
                "{shards} shards of {of} {what} with {runs} runs each: some would have nothing to do; at most {most} shards, or more --runs"
            )));
        }
        let slots = slots(warmups, shards);
        let part = |index: u32| {
            let own = (0u32..).zip(&slots).filter(|(_, s)| s.shard == index as usize);
            let runs = own.map(|(number, _)| number).collect();
            ShardPlan { shard: Shard { index: index + 1, of: shards }, runs }
        };
        let parts = (0..shards).map(part).collect();
        Ok((slots.into_iter().map(|s| s.slot).collect(), parts))
    }
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
            let command = filled(command, parameters.unwrap_or(&Vec::new()));
            run_prepare(&command, request.interrupt)?;
        }
        self.recorder.boot(request)
    }
}
