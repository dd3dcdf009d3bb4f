//! `vmeter bench`: whole boots with nothing attached, machines in turn.

pub mod report;

use crate::at_once::{self, Spread};
use crate::autocorrelation;
use crate::blocks::{blocks, in_blocks, runs_each, ByBlock};
use crate::booter::{Ready, Recorder};
use crate::boots::Boots;
use crate::compare::{against_the_first, needed_runs, too_few, Compared, Sampled};
use crate::ends::Ends;
use crate::gate::{Gate, Limit};
use crate::looks::Repeats;
use crate::prepare::{prepare, Prepared};
use crate::shown::Shown;
use anyhow::Result;
use report::BenchReport;
use serde::{Deserialize, Serialize};
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
use vmeter_session::NOT_CUT;
use vmeter_session::{cache_dir, carry_out, envelope, Measurement, ResumeOverrides};
use vmeter_session::{Answer, Experiment, RunOptions, Session, Shardable, Views, Watch};
use vmeter_stats::{estimate, outliers, Verdict};

const KIND: &str = "bench";

/// Measured boots of each machine, unless `--runs` says otherwise or more are needed to compare
/// so many machines.
const DEFAULT_RUNS: u32 = 10;

fn default_runs(machines: usize) -> u32 {
    DEFAULT_RUNS.max(u32::try_from(needed_runs(machines)).unwrap_or(u32::MAX))
}

/// What to time.
#[derive(Debug, Clone)]
pub struct BenchOptions {
    /// Machines with their labels, the baseline first.
    pub machines: Vec<(String, MachineSpec)>,
    /// The difference, %, that the runs are to find.
    pub detect: Option<f64>,
    /// So many at once, each number in turn; one, if empty.
    pub concurrency: Vec<u32>,
    /// How runs are repeated.
    pub runs: RunOptions,
}

/// What a session of its own is begun with.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Config {
    #[serde(default)]
    machines: Vec<(String, MachineSpec)>,
    #[serde(flatten)]
    repeats: Repeats,
}

impl Config {
    fn runs(&self, machines: usize) -> u32 {
        self.repeats.planned(default_runs(machines))
    }
}

/// Times machines against the first of them.
///
/// # Errors
/// A machine that is not valid, a host that can't boot it, an interruption.
pub fn bench(options: &BenchOptions, watch: &mut Watch<'_>) -> Result<(Spread, BenchResult)> {
    if options.detect.is_some() && options.machines.len() < 2 && options.runs.resume.is_none() {
        return Err(usage("--detect needs a machine to compare with: add --vs SPEC"));
    }
    let session = carry_out(KIND, &options.runs, options, watch)?;
    let result = result(&session)?;
    Ok((Spread::of(&session)?, result))
}

impl Measurement for BenchOptions {
    type Planned = PlannedRun;
    type Config = Config;
    type Runner = Boots<Recorder>;

    fn config(&self) -> Result<Config> {
        distinct(&self.machines)?;
        let repeats = Repeats::of(&self.runs, self.detect).at_once(&self.concurrency)?;
        Ok(Config { machines: self.machines.clone(), repeats })
    }

    fn note_given(&self, begun: &Config, given: &mut ResumeOverrides) {
        given.machines("--vs", &self.machines, &begun.machines);
        given.option("--detect", self.detect.map(Some), begun.repeats.detect);
        begun.repeats.note_given(given, &self.concurrency);
    }

    fn grow(&self, config: &mut Config) {
        config.repeats.grow(&self.runs);
    }

    fn prepare(
        &self,
        config: &mut Config,
        record: &SessionRecord,
        _: &mut Watch<'_>,
    ) -> Result<Ready> {
        let saved = record.machines.iter().map(|m| (m.label.clone(), m.spec.clone()));
        let machines = match record.machines.is_empty() || !config.repeats.concurrency.is_empty() {
            true => config.machines.clone(),
            false => saved.collect(),
        };
        let one = |(label, spec): &(String, MachineSpec)| {
            prepare(label, spec, &cache_dir()?).map_err(|error| match machines.len() {
                0 | 1 => error,
                _ => error.context(format!(
                    "the machine {label:?} (a machine of --vs also has the options outside of \
                        --vs)"
                )),
            })
        };
        let prepared: Result<Vec<Prepared>> = machines.iter().map(one).collect();
        let spread = |one| at_once::spread(one, &config.repeats.concurrency);
        Recorder::ready(prepared?.into_iter().flat_map(spread).collect(), record)
    }

    fn plan(
        &self,
        config: &Config,
        runner: &Boots<Recorder>,
        record: &mut SessionRecord,
    ) -> Result<()> {
        let machines = record.machines.len();
        let compared = if config.repeats.concurrency.is_empty() { machines } else { 1 };
        let amount = (config.repeats.warmups(), config.runs(compared));
        record.plan = in_blocks(machines, amount, record.seed, |_| WatchLevel::None);
        runner.0.widen(record);
        Ok(())
    }

    fn start(
        &self,
        _: &mut Config,
        _: &mut Boots<Recorder>,
        session: &mut Session,
        watch: &mut Watch<'_>,
    ) -> Result<()> {
        let record = &session.record;
        if record.machines.iter().any(at_once::is_spread) {
            return Ok(());
        }
        if let Some(few) = too_few(runs_each(&record.plan), record.machines.len()) {
            watch.progress.warn(&few);
        }
        Ok(())
    }

    fn extend(&self, config: &mut Config, session: &Session) -> Result<bool> {
        if !config.repeats.concurrency.is_empty() {
            return Ok(false);
        }
        let (finished, _) = session.finished()?;
        let records: Vec<RunRecord> = finished.into_iter().map(|(_, record)| record).collect();
        let machines = machines(session, &records);
        let failed = records.iter().any(|run| run.outcome != Outcome::Done);
        Ok(config.repeats.look(&machines, runs_each(&session.record.plan), failed))
    }
}

/// Refuses two machines of one label.
///
/// # Errors
/// Class usage.
pub(crate) fn distinct(machines: &[(String, MachineSpec)]) -> Result<()> {
    for (i, (label, _)) in machines.iter().enumerate() {
        if machines.iter().take(i).any(|(other, _)| other == label) {
            return Err(usage(format!(
                "two machines have the label {label:?}: give them different labels with --label"
            )));
        }
    }
    Ok(())
}

/// Refuses a gate that these runs could not decide, before anything is booted.
///
/// # Errors
/// Class usage: nothing to compare with, or too few runs, and how many are needed.
pub fn check_gate(machines: usize, runs: Option<u32>) -> Result<()> {
    if machines < 2 {
        return Err(usage("--fail-if-slower needs a machine to compare with: add --vs SPEC"));
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
        return vec![limit.nothing("no block has runs of two machines")];
    }
    gates
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
    let Config { repeats, .. } = session.asked::<Config>()?;
    let runs = runs_each(&session.record.plan);
    if repeats.concurrency.is_empty() {
        warnings.extend(repeats.fell_short(&sampled, &comparisons, runs));
    }
    let of = machines.len();
    for machine in &machines {
        let own: Vec<&RunRecord> = records.iter().filter(|r| r.label == machine.label).collect();
        warnings.extend(autocorrelation::remarks(&machine.label, &machine.samples_s, of));
        warnings.extend(autocorrelation::host_remarks(&machine.label, &own, of));
    }
    let hints = comparisons.iter().filter(|c| c.verdict == Verdict::Undecidable).map(|c| {
        format!("vmeter bench … --runs {}  # fewer runs cannot show a difference", c.pairs_needed)
    });
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
    let config = session.asked::<Config>().unwrap_or_default();
    // VMs that run at once are no independent runs: their quantiles tell of them.
    match config.repeats.concurrency.is_empty() {
        true => against_the_first(&machines(session, records), config.repeats.rule()),
        false => Compared::default(),
    }
}

fn machines<'s>(session: &'s Session, records: &[RunRecord]) -> Vec<Sampled<'s>> {
    let blocks = blocks(&session.record.plan);
    let labels = session.record.machines.iter().map(|machine| machine.label.as_str());
    labels.map(|label| sampled(label, records, &blocks)).collect()
}

/// The measured runs of one machine, to be compared with others block by block.
pub(crate) fn sampled<'l>(
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
        let session = Session::open(dir)?;
        Ok(Spread::of(&session)?.shown(Shown(result(&session)?)))
    }

    fn cut(&self) -> Result<&dyn Shardable, &'static str> {
        Err(NOT_CUT)
    }

    fn boots(&self) -> Result<(), &'static str> {
        Ok(())
    }
}

impl Answer for Shown<BenchResult> {
    fn report(&self, _: &Views) -> Box<dyn Report + '_> {
        Box::new(BenchReport::new(&self.0))
    }

    fn failure(&self) -> Option<String> {
        match self.0.machines.iter().map(|machine| machine.failures.len()).sum::<usize>() {
            0 => None,
            n => Some(format!("{} failed", plural(n as u64, "boot"))),
        }
    }
}
