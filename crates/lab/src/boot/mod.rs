//! `vmeter boot`: the same machine several times, every millisecond accounted for.

pub mod overhead;
pub mod regression;
pub mod report;

use crate::analysis;
use crate::booter::Recorder;
use crate::boots::Boots;
use crate::kinds::Shown;
use crate::prepare::{prepare, Prepared};
use anyhow::Result;
use report::{BootReport, BootView, TreeView};
use std::path::Path;
use vmeter_model::result::{BootResult, Overhead};
use vmeter_model::run::{Outcome, PlannedRun, RunRecord, SessionRecord, WatchLevel};
use vmeter_model::MachineSpec;
use vmeter_render::Report;
use vmeter_session::{begin, cache_dir, execute, record, resumed, RunOptions, Session, Watch};
use vmeter_session::{Answer, Cut, Experiment, Views};
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
pub fn boot(options: &BootOptions, watch: &mut Watch<'_>) -> Result<BootResult> {
    // Machine and plan are worked out before the folder is made: a typo leaves none behind.
    let saved = resumed("boot", &options.runs)?;
    let known = saved.as_ref().and_then(|session| session.record.machines.first());
    let spec = known.map_or_else(|| options.spec.clone(), |machine| machine.spec.clone());
    let prepared = prepare("default", &spec, &cache_dir())?;
    let machine = prepared.session.clone();
    let recorder = recorder(vec![prepared], &options.runs)?;
    let mut session = match saved {
        Some(session) => session,
        None => {
            let machines = vec![machine.clone()];
            begin(
                SessionRecord { machines, ..record("boot", &options.runs) },
                &options.runs,
                watch,
            )?
        }
    };
    session.record.machines = vec![machine];
    let cost = if options.overhead {
        Some(measure_overhead(&mut session, &recorder, options, watch)?)
    } else {
        if session.record.plan.is_empty() {
            session.record.plan = plan(options, Levels::of(options.watch, &recorder));
        }
        session.save()?;
        execute(&session, &mut Boots(&recorder), options.runs.prepare.as_deref(), watch)?;
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
        let by_plugin = recorder.machines.iter().any(Prepared::is_slowed_by_counting);
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
    let warmups = options.runs.warmups().max(u32::from(levels.counts_apart()));
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
    watch: &mut Watch<'_>,
) -> Result<Overhead> {
    let asked = match options.watch {
        WatchLevel::None => WatchLevel::Light,
        watch => watch,
    };
    let levels = Levels::of(asked, recorder);
    let rule = rule(options.runs.runs);
    let warmups = (options.runs.warmups() as usize).max(usize::from(levels.counts_apart()));
    let whole = blocks(levels, warmups, rule.max_pairs, session.record.seed);
    let per_block = if levels.counts_apart() { 3 } else { 2 };
    let mut look = rule.schedule().first().map_or(rule.max_pairs, |(pairs, _)| *pairs);
    loop {
        let length = (per_block * (warmups + look)).min(whole.len());
        session.record.plan = whole.get(..length).unwrap_or(&whole).to_vec();
        session.save()?;
        let prepare = options.runs.prepare.as_deref();
        execute(session, &mut Boots(recorder), prepare, watch)?;
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

/// The kind `boot`.
pub(crate) struct Kind;

impl Experiment for Kind {
    fn kind(&self) -> &'static str {
        "boot"
    }

    fn answer(&self, dir: &Path) -> Result<Box<dyn Answer>> {
        Ok(Box::new(Shown(analysis::load_boot(&Session::open(dir)?)?)))
    }

    fn cut(&self) -> Result<&dyn Cut, &'static str> {
        Err("only sweeps and ranges are cut into shards")
    }

    fn boots(&self) -> Result<(), &'static str> {
        Ok(())
    }
}

impl Answer for Shown<BootResult> {
    fn report(&self, views: &Views) -> Box<dyn Report + '_> {
        let view = BootView {
            blame: views.blame,
            critical_chain: views.critical_chain,
            tree: views.tree.then_some(TreeView { run: None, min_duration: 500_000 }),
            ..BootView::default()
        };
        Box::new(BootReport { result: &self.0, view })
    }

    fn is_bad(&self) -> bool {
        self.0.runs.iter().any(|run| run.record.outcome != Outcome::Done)
    }

    fn warn(&mut self, warnings: Vec<String>) {
        self.0.warnings.extend(warnings);
    }
}
