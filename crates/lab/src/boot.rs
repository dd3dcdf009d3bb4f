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
use vmeter_model::time::seconds;
use vmeter_model::MachineSpec;
use vmeter_stats::sequential::{Decision, OverheadRule};
use vmeter_stats::{estimate, paired_ratio};

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
            session.record.plan = plan(options);
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

fn plan(options: &BootOptions) -> Vec<PlannedRun> {
    let run = |warmup| PlannedRun { machine: 0, warmup, watch: options.watch };
    let measured = options.runs.runs.unwrap_or(DEFAULT_RUNS);
    let warmups = (0..options.runs.warmup).map(|_| run(true));
    warmups.chain((0..measured).map(|_| run(false))).collect()
}

/// The bound that each level promises (INTERFACE: "watching is free").
fn rule(watch: WatchLevel, max_pairs: Option<u32>) -> OverheadRule {
    let bound = if watch == WatchLevel::Full { 1.10 } else { 1.03 };
    let default = OverheadRule::default();
    let max_pairs = max_pairs.map_or(default.max_pairs, |n| n as usize);
    OverheadRule { bound, max_pairs, min_pairs: default.min_pairs.min(max_pairs), ..default }
}

/// Watched and unwatched boots in turn, until the pairs say whether the bound holds.
fn measure_overhead(
    session: &mut Session,
    recorder: &Recorder,
    options: &BootOptions,
    progress: &mut dyn Progress,
    interrupt: &Interrupt,
) -> Result<Overhead> {
    let watch = if options.watch == WatchLevel::None { WatchLevel::Light } else { options.watch };
    let rule = rule(watch, options.runs.runs);
    let warmups = options.runs.warmup as usize;
    let whole: Vec<PlannedRun> =
        vmeter_stats::plan(2, warmups, rule.max_pairs, session.record.seed)
            .into_iter()
            .map(|slot| PlannedRun {
                machine: 0,
                warmup: slot.warmup,
                watch: if slot.machine == 0 { watch } else { WatchLevel::None },
            })
            .collect();
    let mut look = rule.schedule().first().map_or(rule.max_pairs, |(pairs, _)| *pairs);
    loop {
        let length = (2 * (warmups + look)).min(whole.len());
        session.record.plan = whole.get(..length).unwrap_or(&whole).to_vec();
        session.save()?;
        execute(session, recorder, options.runs.prepare.as_deref(), progress, interrupt)?;
        let records: Vec<RunRecord> =
            session.finished()?.0.into_iter().map(|(_, record)| record).collect();
        let failed = records.iter().any(|r| r.outcome != Outcome::Done);
        let pairs = overhead::pairs(&records);
        let walls: Vec<(f64, f64)> =
            pairs.iter().map(|(w, b)| (seconds(w.total_ns), seconds(b.total_ns))).collect();
        let decision = rule.decide(&walls);
        match decision {
            Decision::Continue { next_look } if !failed && next_look > look => look = next_look,
            _ => {
                let cost = summarise(watch, &pairs, &walls);
                if !failed {
                    overhead::remember(&recorder.machines[0].session, &cost);
                }
                return Ok(cost);
            }
        }
    }
}

fn summarise(
    watch: WatchLevel,
    pairs: &[(&RunRecord, &RunRecord)],
    walls: &[(f64, f64)],
) -> Overhead {
    let cpu = |r: &RunRecord| r.usage.user_s + r.usage.system_s;
    let cpus: Vec<(f64, f64)> = pairs.iter().map(|(w, b)| (cpu(w), cpu(b))).collect();
    let ratio = |pairs: &[(f64, f64)]| {
        paired_ratio(pairs).map_or_else(|| estimate(&[]), |ratio| ratio.estimate)
    };
    Overhead {
        watch,
        ratio: ratio(walls),
        cpu_ratio: ratio(&cpus),
        pairs: pairs.len(),
        measured_at: crate::host::now(),
        samples_s: walls.to_vec(),
    }
}

/// Commands worth trying next.
fn hints(result: &BootResult, options: &BootOptions) -> Vec<String> {
    let mut hints = Vec::new();
    if result.overhead.is_none() && options.watch != WatchLevel::None {
        hints.push("vmeter boot --overhead    # what watching costs on this host".to_owned());
    }
    if options.watch == WatchLevel::Light {
        hints.push("vmeter boot --watch full  # with guest instruction counts".to_owned());
    }
    hints.push(format!("vmeter show --tree {}", result.saved_in));
    hints
}
