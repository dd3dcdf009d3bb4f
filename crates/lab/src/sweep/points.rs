//! Many machines measured in turn: the engine of a sweep, and of whatever else compares
//! more machines than a bench does.

use super::{points_of, SweepOptions};
use crate::blocks::{in_blocks, planned, runs_each};
use crate::booter::{Ready, Recorder};
use crate::boots::Boots;
use crate::compare::{needed_runs, too_few};
use crate::looks::Repeats;
use crate::prepare::{prepare, Prepared};
use crate::sweep::parameters::Point;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use vmeter_model::run::{PlannedRun, SessionRecord, WatchLevel};
use vmeter_model::shard::{Shard, ShardPlan};
use vmeter_model::sweep::Settings;
use vmeter_model::{Accel, MachineSpec};
use vmeter_session::failure::usage;
use vmeter_session::{cache_dir, record, Measurement, ResumeOverrides, Watch};
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

/// What a session is begun with.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// The machine that the parameters change.
    #[serde(default)]
    spec: MachineSpec,
    /// Labels of the points.
    #[serde(default)]
    points: Vec<String>,
    /// `--watch`.
    #[serde(default)]
    watch: WatchLevel,
    #[serde(flatten)]
    repeats: Repeats,
}

impl Config {
    fn of(options: &SweepOptions, points: &[Point]) -> Self {
        Config {
            spec: options.spec.clone(),
            points: points.iter().map(|point| point.label.clone()).collect(),
            watch: options.watch.unwrap_or_default(),
            repeats: Repeats::of(&options.runs, None),
        }
    }
}

impl Measurement for SweepOptions {
    type Planned = PlannedRun;
    type Config = Config;
    type Runner = Boots<Recorder>;

    fn config(&self) -> Result<Config> {
        Ok(Config::of(self, &points_of(self)?))
    }

    fn note_given(&self, begun: &Config, given: &mut ResumeOverrides) {
        given.fields(&self.spec, &begun.spec);
        given.option("--watch", self.watch, begun.watch);
        given.option("--warmup", self.runs.warmup, begun.repeats.warmups());
        let points = points_of(self).ok().map(|points| Config::of(self, &points).points);
        given.option("-L and -P", points, begun.points.clone());
    }

    fn grow(&self, config: &mut Config) {
        config.repeats.grow(&self.runs);
    }

    fn prepare(
        &self,
        config: &mut Config,
        record: &SessionRecord,
        watch: &mut Watch<'_>,
    ) -> Result<Ready> {
        let own = record.shard.as_ref().map(|own| own.shard);
        if !record.machines.is_empty() && self.runs.shard.is_some() && self.runs.shard != own {
            let what = own.map_or("not a shard".to_owned(), |own| format!("shard {own}"));
            return Err(usage(format!(
                "--shard does not fit this session, which is {what}; resume it without --shard"
            )));
        }
        let prepared: Vec<Prepared> = if record.machines.is_empty() {
            prepared(&points_of(self)?)?
        } else {
            let saved = record.machines.iter();
            saved.map(|m| one(&m.label, &m.spec, &m.parameters)).collect::<Result<_>>()?
        };
        let amounts = Amounts::of(&prepared, config);
        let few = needed(&prepared).and_then(|_| too_few(amounts.runs as usize, prepared.len()));
        if let Some(few) = few.filter(|_| !amounts.all_virtual) {
            watch.progress.warn(&few);
        }
        Recorder::ready(prepared, record)
    }

    fn plan(
        &self,
        config: &Config,
        runner: &Boots<Recorder>,
        record: &mut SessionRecord,
    ) -> Result<()> {
        let prepared = &runner.0.machines;
        let amounts = Amounts::of(prepared, config);
        if let Some(own) = &record.shard {
            if amounts.runs as usize != runs_each(&record.plan) {
                return Err(usage(format!(
                    "--runs: all shards share one plan, so shard {} cannot change the plan: \
                        resume the shard without --runs",
                    own.shard
                )));
            }
            return Ok(());
        }
        match self.runs.shard.filter(|_| record.plan.is_empty()) {
            None => lengthen(record, plan(prepared, &amounts, record.seed), &amounts),
            Some(shard) => {
                let (plan, mut parts) = sharded(prepared, &amounts, record.seed, shard.of)?;
                record.plan = plan;
                record.shard = Some(parts.swap_remove(shard.index as usize - 1));
            }
        }
        Ok(())
    }
}

fn prepared(points: &[Point]) -> Result<Vec<Prepared>> {
    points.iter().map(|point| one(&point.label, &point.spec, &point.parameters)).collect()
}

/// The session of which every shard carries out a part, and the parts.
///
/// # Errors
/// A machine that is not valid, a host that can't boot it, more shards than runs.
pub(crate) fn cut(options: &SweepOptions, shards: u32) -> Result<(SessionRecord, Vec<ShardPlan>)> {
    let points = points_of(options)?;
    let prepared = prepared(&points)?;
    let config = Config::of(options, &points);
    let record = record(KIND, &options.runs);
    let amounts = Amounts::of(&prepared, &config);
    let (plan, parts) = sharded(&prepared, &amounts, record.seed, shards)?;
    let machines = prepared.into_iter().map(|p| p.session).collect();
    let asked = serde_json::to_value(config)?;
    Ok((SessionRecord { machines, plan, asked, ..record }, parts))
}

/// Adds the blocks that are wanted and that the plan lacks. A plan that was cut into shards began
/// in another order, which a longer one need not repeat; fewer runs are another plan.
fn lengthen(record: &mut SessionRecord, wanted: Vec<PlannedRun>, amounts: &Amounts) {
    let had = runs_each(&record.plan);
    let fewer = (amounts.runs as usize) < had;
    if record.plan.is_empty() || fewer || wanted.starts_with(&record.plan) {
        record.plan = wanted;
        return;
    }
    let more = (amounts.runs as usize - had) * record.machines.len();
    let known = wanted.len().saturating_sub(more);
    record.plan.extend(wanted.into_iter().skip(known));
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
    warmups: u32,
    runs: u32,
    watch: WatchLevel,
    /// Points whose warm-ups count.
    counts_apart: Vec<bool>,
    /// True if no point's time has noise.
    all_virtual: bool,
}

impl Amounts {
    fn of(prepared: &[Prepared], config: &Config) -> Self {
        let Config { watch, repeats, .. } = config;
        let is_virtual = |p: &Prepared| p.machine.accel == Some(Accel::Icount);
        let apart = |p: &Prepared| *watch == WatchLevel::Full && p.is_slowed_by_counting();
        let counts_apart: Vec<bool> = prepared.iter().map(apart).collect();
        let all_virtual = !prepared.is_empty() && prepared.iter().all(is_virtual);
        let default = needed(prepared).map_or(DEFAULT_RUNS, |n| DEFAULT_RUNS.max(n as u32));
        let counting = u32::from(counts_apart.contains(&true));
        Amounts {
            warmups: if all_virtual { 0 } else { repeats.warmups().max(counting) },
            runs: repeats.planned(if all_virtual { 1 } else { default }),
            watch: *watch,
            counts_apart,
            all_virtual,
        }
    }

    fn level(&self, slot: &Slot) -> WatchLevel {
        let apart = self.counts_apart.get(slot.machine) == Some(&true);
        if apart && !slot.warmup {
            WatchLevel::Light
        } else {
            self.watch
        }
    }
}

/// Blocks of all points, warm-ups first.
fn plan(prepared: &[Prepared], amounts: &Amounts, seed: u64) -> Vec<PlannedRun> {
    let amount = (amounts.warmups, amounts.runs);
    in_blocks(prepared.len(), amount, seed, |slot| amounts.level(slot))
}

/// The plan of all shards, and each one's part of it.
fn sharded(
    prepared: &[Prepared],
    amounts: &Amounts,
    seed: u64,
    shards: u32,
) -> Result<(Vec<PlannedRun>, Vec<ShardPlan>)> {
    let (warmups, runs) = (amounts.warmups as usize, amounts.runs as usize);
    let (slots, parts) = Plan { of: prepared.len(), warmups, runs }.cut(seed, shards, "points")?;
    Ok((planned(slots, |slot| amounts.level(slot)), parts))
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
                "{shards} shards are too many for {of} {what} with {runs} runs each, because \
                 some shards would have nothing to do; use at most {most} shards, or more --runs"
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
