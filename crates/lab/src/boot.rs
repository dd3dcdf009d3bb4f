//! `vmeter boot`: the same machine several times, every millisecond accounted for.

use crate::analysis;
use crate::booter::Recorder;
use crate::experiment::{execute, Progress};
use crate::interrupt::Interrupt;
use crate::overhead;
use crate::prepare::{prepare, Prepared};
use crate::session::{cache_dir, Session};
use crate::start::{start, RunOptions};
use anyhow::Result;
use vmeter_model::result::{BootResult, Overhead};
use vmeter_model::run::{Outcome, PlannedRun, RunRecord, WatchLevel};
use vmeter_model::{Accel, MachineSpec};
use vmeter_stats::sequential::{Decision, OverheadRule};

/// Measured boots of a machine, unless `--runs` says otherwise.
const DEFAULT_RUNS: u32 = 5;

/// What to boot and how.
#[derive(Debug, Clone)]
pub struct BootOptions {
    /// The machine.
    pub spec: MachineSpec,
    /// How closely to watch.
    pub watch: WatchLevel,
    /// Take turns with unwatched boots, to measure what watching costs.
    pub overhead: bool,
    /// How runs are repeated.
    pub runs: RunOptions,
}

/// Boots, saves, analyses.
///
/// # Errors
/// A machine that is not valid, a host that can't boot it, an interruption.
pub fn boot(
    options: &BootOptions,
    progress: &mut dyn Progress,
    interrupt: &Interrupt,
) -> Result<BootResult> {
    let mut session = start("boot", &[("default".into(), options.spec.clone())], &options.runs)?;
    let specs: Vec<MachineSpec> = session.record.machines.iter().map(|m| m.spec.clone()).collect();
    let spec = specs.first().unwrap_or(&options.spec);
    let prepared = prepare("default", spec, &cache_dir())?;
    session.record.machines = vec![prepared.session.clone()];
    let recorder = recorder(vec![prepared], &options.runs)?;
    let cost = if options.overhead {
        Some(measure_overhead(&mut session, &recorder, options, progress, interrupt)?)
    } else {
        if session.record.plan.is_empty() {
            session.record.plan = plan(options, Levels::of(options.watch, &recorder));
        }
        session.save()?;
        execute(&session, &recorder, options.runs.prepare.as_deref(), progress, interrupt)?;
        overhead::last(&session)
    };
    let mut result = analysis::boot_result(&session, cost)?;
    result.hints = hints(&result, options);
    Ok(result)
}

/// The recorder for machines that were prepared.
///
/// # Errors
/// A `--pin` list that is not one.
pub fn recorder(machines: Vec<Prepared>, runs: &RunOptions) -> Result<Recorder> {
    Ok(Recorder { machines, cache: cache_dir(), pin: runs.pinned()? })
}

/// How the boots that are timed, and those that count instructions, are watched. They
/// are the same where counting costs nothing: not by the plugin, or in virtual time.
#[derive(Debug, Clone, Copy)]
struct Levels {
    asked: WatchLevel,
    timed: WatchLevel,
}

impl Levels {
    fn of(watch: WatchLevel, recorder: &Recorder) -> Self {
        let by_plugin = recorder.machines.iter().any(|prepared| {
            prepared.machine.accel == Some(Accel::Tcg) && prepared.machine.script.is_none()
        });
        let timed = match watch {
            WatchLevel::Full if by_plugin => WatchLevel::Light,
            other => other,
        };
        Levels { asked: watch, timed }
    }

    fn counts_apart(self) -> bool {
        self.asked != self.timed
    }
}

/// Warm-ups, then measured boots. Where counting has boots of its own, the warm-ups are these.
fn plan(options: &BootOptions, levels: Levels) -> Vec<PlannedRun> {
    let run = |warmup, watch| PlannedRun { machine: 0, warmup, watch };
    let measured = options.runs.runs.unwrap_or(DEFAULT_RUNS);
    let warmups = options.runs.warmup.max(u32::from(levels.counts_apart()));
    let warmups = (0..warmups).map(|_| run(true, levels.asked));
    warmups.chain((0..measured).map(|_| run(false, levels.timed))).collect()
}

/// The bound that is promised for boots that are timed.
const BOUND: f64 = 1.03;

fn rule(max_pairs: Option<u32>) -> OverheadRule {
    let default = OverheadRule::default();
    let max_pairs = max_pairs.map_or(default.max_pairs, |n| n as usize);
    OverheadRule { bound: BOUND, max_pairs, min_pairs: default.min_pairs.min(max_pairs), ..default }
}

/// Blocks of one timed boot and one unwatched (and, where counting has boots of its own,
/// one of those), each block in random order.
fn blocks(levels: Levels, warmups: usize, blocks: usize, seed: u64) -> Vec<PlannedRun> {
    let mut kinds = vec![levels.timed, WatchLevel::None];
    if levels.counts_apart() {
        kinds.push(levels.asked);
    }
    vmeter_stats::plan(kinds.len(), warmups, blocks, seed)
        .into_iter()
        .map(|slot| PlannedRun { machine: 0, warmup: slot.warmup, watch: kinds[slot.machine] })
        .collect()
}

/// Watched and unwatched boots in turn, until the pairs say whether the bound holds.
fn measure_overhead(
    session: &mut Session,
    recorder: &Recorder,
    options: &BootOptions,
    progress: &mut dyn Progress,
    interrupt: &Interrupt,
) -> Result<Overhead> {
    let asked = match options.watch {
        WatchLevel::None => WatchLevel::Light,
        watch => watch,
    };
    let levels = Levels::of(asked, recorder);
    let rule = rule(options.runs.runs);
    let warmups = (options.runs.warmup as usize).max(usize::from(levels.counts_apart()));
    let whole = blocks(levels, warmups, rule.max_pairs, session.record.seed);
    let per_block = if levels.counts_apart() { 3 } else { 2 };
    let mut look = rule.schedule().first().map_or(rule.max_pairs, |(pairs, _)| *pairs);
    loop {
        let length = (per_block * (warmups + look)).min(whole.len());
        session.record.plan = whole.get(..length).unwrap_or(&whole).to_vec();
        session.save()?;
        execute(session, recorder, options.runs.prepare.as_deref(), progress, interrupt)?;
        let records: Vec<RunRecord> =
            session.finished()?.0.into_iter().map(|(_, record)| record).collect();
        let failed = records.iter().any(|r| r.outcome != Outcome::Done);
        let pairs = overhead::pairs(&records, levels.timed, per_block as u32);
        match rule.decide(&overhead::walls(&pairs)) {
            Decision::Continue { next_look } if !failed && next_look > look => look = next_look,
            _ => {
                let counting = levels
                    .counts_apart()
                    .then(|| overhead::pairs(&records, levels.asked, per_block as u32));
                let cost = overhead::summarise(asked, &pairs, counting.as_deref());
                if !failed {
                    overhead::remember(&recorder.machines[0].session, &cost);
                }
                return Ok(cost);
            }
        }
    }
}

/// Commands worth trying next.
fn hints(result: &BootResult, options: &BootOptions) -> Vec<String> {
    let mut hints = Vec::new();
    if result.overhead.is_none() && options.watch != WatchLevel::None {
        hints.push("vmeter boot --overhead    # what watching costs on this host".to_owned());
    }
    if options.watch == WatchLevel::Light && !result.counts.contains_key("guest_insns") {
        hints.push("vmeter boot --watch full  # with guest instruction counts".to_owned());
    }
    hints.push(format!("vmeter show --tree {}", result.saved_in));
    hints
}
