//! `vmeter bench`: whole boots with nothing attached, machines in turn.

use crate::analysis;
use crate::boot::recorder;
use crate::experiment::{execute, Progress};
use crate::failure::usage;
use crate::interrupt::Interrupt;
use crate::prepare::{prepare, Prepared};
use crate::session::{cache_dir, Session};
use crate::start::{start, RunOptions};
use anyhow::Result;
use vmeter_model::result::{BenchMachine, BenchResult, Comparison};
use vmeter_model::run::{Outcome, PlannedRun, RunRecord, WatchLevel};
use vmeter_model::time::seconds;
use vmeter_model::MachineSpec;
use vmeter_stats::compare::Options;
use vmeter_stats::Verdict;
use vmeter_stats::{compare, estimate, holm, outliers};

/// Measured boots of each machine, unless `--runs` says otherwise.
const DEFAULT_RUNS: u32 = 10;

/// Times machines against the first of them.
///
/// # Errors
/// A machine that is not valid, a host that can't boot it, an interruption.
pub fn bench(
    machines: &[(String, MachineSpec)],
    options: &RunOptions,
    progress: &mut dyn Progress,
    interrupt: &Interrupt,
) -> Result<BenchResult> {
    for (i, (label, _)) in machines.iter().enumerate() {
        if machines.iter().take(i).any(|(other, _)| other == label) {
            return Err(usage(format!(
                "two machines are called {label:?}: tell them apart by --label"
            )));
        }
    }
    let mut session = start("bench", machines, options)?;
    let prepared: Result<Vec<Prepared>> = session
        .record
        .machines
        .iter()
        .map(|machine| prepare(&machine.label, &machine.spec, &cache_dir()))
        .collect();
    let prepared = prepared?;
    session.record.machines = prepared.iter().map(|p| p.session.clone()).collect();
    if session.record.plan.is_empty() {
        let runs = options.runs.unwrap_or(DEFAULT_RUNS) as usize;
        let slots = vmeter_stats::plan(
            session.record.machines.len(),
            options.warmup as usize,
            runs,
            session.record.seed,
        );
        session.record.plan = slots
            .into_iter()
            .map(|slot| PlannedRun {
                machine: slot.machine,
                warmup: slot.warmup,
                watch: WatchLevel::None,
            })
            .collect();
    }
    session.save()?;
    let recorder = recorder(prepared, options)?;
    execute(&session, &recorder, options.prepare.as_deref(), progress, interrupt)?;
    result(&session)
}

/// The result of a saved bench.
///
/// # Errors
/// When the session's folder cannot be read.
pub fn result(session: &Session) -> Result<BenchResult> {
    let (finished, warnings) = session.finished()?;
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
    let comparisons = comparisons(session, &records);
    let mut hints = Vec::new();
    if comparisons.iter().any(|c| c.verdict == Verdict::NoDifference) {
        hints.push("more --runs resolve smaller differences".to_owned());
    }
    Ok(BenchResult {
        envelope: analysis::envelope(&session.record),
        machines,
        comparisons,
        warnings,
        hints,
        saved_in: session.dir.display().to_string(),
    })
}

fn cpu(record: &RunRecord) -> f64 {
    record.usage.user_s + record.usage.system_s
}

fn summarise(machine: &vmeter_model::run::SessionMachine, runs: &[&RunRecord]) -> BenchMachine {
    let done: Vec<&&RunRecord> = runs.iter().filter(|r| r.outcome == Outcome::Done).collect();
    let samples_s: Vec<f64> = done.iter().map(|r| seconds(r.total_ns)).collect();
    let cpu_samples_s: Vec<f64> = done.iter().map(|r| cpu(r)).collect();
    BenchMachine {
        label: machine.label.clone(),
        estimate: estimate(&samples_s),
        cpu: estimate(&cpu_samples_s),
        max_rss_bytes: done.iter().map(|r| r.usage.max_rss_bytes).max().unwrap_or(0),
        failures: runs
            .iter()
            .filter(|r| r.outcome != Outcome::Done)
            .map(|r| (r.index, r.outcome.clone()))
            .collect(),
        outliers: outliers(&samples_s),
        machine: machine.clone(),
        samples_s,
        cpu_samples_s,
    }
}

/// Each other machine against the first, block by block, p-values corrected for
/// their number (Holm).
fn comparisons(session: &Session, records: &[RunRecord]) -> Vec<Comparison> {
    let labels: Vec<&str> = session.record.machines.iter().map(|m| m.label.as_str()).collect();
    let Some((base, others)) = labels.split_first() else { return Vec::new() };
    let options = Options { paired: true, seed: session.record.seed, ..Options::default() };
    let samples = |label: &str, of: &dyn Fn(&RunRecord) -> f64| -> Vec<f64> {
        let measured = records.iter().filter(|r| !r.warmup && r.label == label);
        let value = |r: &RunRecord| if r.outcome == Outcome::Done { of(r) } else { f64::NAN };
        measured.map(value).collect()
    };
    let wall = |r: &RunRecord| seconds(r.total_ns);
    let compared: Vec<_> = others
        .iter()
        .filter_map(|other| {
            let walls = compare(&samples(base, &wall), &samples(other, &wall), &options)?;
            let cpus = compare(&samples(base, &cpu), &samples(other, &cpu), &options);
            Some((other, walls, cpus.map_or(walls.ratio, |c| c.ratio)))
        })
        .collect();
    let corrected = holm(&compared.iter().map(|(_, c, _)| c.p_value.p).collect::<Vec<_>>());
    compared
        .into_iter()
        .zip(corrected)
        .map(|((other, compared, cpu_ratio), p)| Comparison {
            a: (*base).to_owned(),
            b: (*other).to_owned(),
            ratio: compared.ratio,
            cpu_ratio,
            p_value: p,
            verdict: options.verdict(p, compared.ratio.mean),
        })
        .collect()
}
