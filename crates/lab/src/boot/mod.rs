//! `vmeter boot`: the same machine several times, every millisecond accounted for.

mod baseline;
pub mod overhead;
mod plan;
pub mod regression;
pub mod report;
mod result;

use crate::booter::Recorder;
use crate::boots::{watched, Boots};
use crate::looks;
use crate::prepare::{check_same, prepare, Prepared};
use crate::shown::Shown;
use anyhow::Result;
use baseline::LABELS;
use plan::{lengthened, plan, Levels};
use report::{BootReport, BootView, TreeView};
pub use result::{marked, result};
use serde::{Deserialize, Serialize};
use std::path::Path;
use vmeter_model::result::BootResult;
use vmeter_model::run::{Outcome, SessionMachine, SessionRecord, WatchLevel};
use vmeter_model::MachineSpec;
use vmeter_render::Report;
use vmeter_session::failure::usage;
use vmeter_session::{begin, cache_dir, execute, record, resumed, RunOptions, Session};
use vmeter_session::{Answer, Experiment, Views, Watch};

pub(crate) const KIND: &str = "boot";

/// What to boot and how.
#[derive(Debug, Clone)]
pub struct BootOptions {
    /// The machine.
    pub spec: MachineSpec,
    /// How closely to watch; `light`, or as the session that is gone on with, if absent.
    pub watch: Option<WatchLevel>,
    /// Take turns with unwatched boots, to measure what watching costs.
    pub overhead: bool,
    /// Saved session whose machine is booted beside this one, if it can be.
    pub baseline: Option<std::path::PathBuf>,
    /// The difference, %, to that machine which the runs are to find: as many as it needs.
    pub detect: Option<f64>,
    /// How runs are repeated.
    pub runs: RunOptions,
}

/// What a session of its own keeps besides machine and plan.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Asked {
    /// `--overhead`.
    overhead: bool,
    /// `--runs`.
    runs: Option<u32>,
    /// `--warmup`.
    warmup: Option<u32>,
    /// How the runs beside a baseline's are judged.
    #[serde(flatten)]
    looks: looks::Asked,
}

impl Asked {
    /// What a session was begun with.
    fn of_session(session: &Session) -> Result<Self> {
        if session.record.asked.is_null() {
            let overhead = overhead::is_measured(&session.record.plan);
            return Ok(Asked { overhead, ..Asked::default() });
        }
        session.asked()
    }

    /// What was asked for by these options, or when the session was begun.
    fn of(options: &BootOptions, session: Option<&Session>) -> Result<Self> {
        let begun = session.map_or_else(|| Ok(Asked::default()), Asked::of_session)?;
        Ok(Asked {
            overhead: options.overhead || begun.overhead,
            runs: options.runs.runs.or(begun.runs),
            warmup: options.runs.warmup.or(begun.warmup),
            looks: looks::Asked { detect: options.detect.or(begun.looks.detect), ..begun.looks },
        })
    }
}

/// Boots, saves, analyses.
///
/// # Errors
/// A machine that is not valid, a host that can't boot it, an interruption.
pub fn boot(options: &BootOptions, watch: &mut Watch<'_>) -> Result<BootResult> {
    if options.detect.is_some() && options.baseline.is_none() && options.runs.resume.is_none() {
        return Err(usage("--detect: a difference to what? --baseline DIR, a saved session"));
    }
    // Machine and plan are worked out before the folder is made: a typo leaves none behind.
    let saved = resumed(KIND, &options.runs, watch, |session, given| {
        given.fields(&options.spec, &spec_of(session));
        if let Some(begun) = watched(&session.record.plan) {
            given.option("--watch", options.watch, begun);
        }
        let begun = Asked::of_session(session)?;
        given.option("--detect", options.detect.map(Some), begun.looks.detect);
        given.option("--overhead", options.overhead.then_some(true), begun.overhead);
        if begun.overhead {
            let pairs = overhead::most_pairs(begun.runs);
            given.option("--runs", options.runs.runs.filter(|runs| *runs < pairs), pairs);
            given.option("--warmup", options.runs.warmup, begun.warmup.unwrap_or(1));
        }
        Ok(())
    })?;
    let spec = saved.as_ref().map_or_else(|| options.spec.clone(), spec_of);
    let mut prepared = vec![prepare(LABELS[0], &spec, &cache_dir()?)?];
    prepared.extend(other(options, saved.as_ref(), watch)?);
    saved.as_ref().map_or(Ok(()), |session| check_same(session, &prepared))?;
    let machines: Vec<SessionMachine> = prepared.iter().map(|one| one.session.clone()).collect();
    let given = &options.runs;
    let pin = saved.as_ref().and_then(|session| session.record.pin.clone());
    let recorder = Recorder::of(prepared, pin.as_deref().or(given.pin.as_deref()))?;
    let mut asked = Asked::of(options, saved.as_ref())?;
    if asked.looks.detect.is_some() && machines.len() < 2 {
        return Err(usage(
            "--detect: the baseline's machine takes turns with this one, and cannot be booted",
        ));
    }
    let begun = saved.as_ref().and_then(|session| watched(&session.record.plan));
    let levels = Levels::of(options.watch.or(begun).unwrap_or_default(), &recorder);
    let mut session = match saved {
        Some(session) => session,
        None => {
            // Saved with its plan, or not at all; pairs are planned as they are needed, from
            // what was asked.
            let seed = given.order();
            let runs = asked.looks.detect.map(|_| asked.looks.first(given.runs) as u32);
            let first = RunOptions { runs: runs.or(given.runs), ..given.clone() };
            let plan = if asked.overhead {
                Vec::new()
            } else {
                plan(&first, levels, machines.len(), seed)
            };
            let asked = serde_json::to_value(&asked)?;
            let record = SessionRecord { seed, ..record(KIND, given) };
            let machines = machines.clone();
            begin(SessionRecord { machines, plan, asked, ..record }, given, watch)?
        }
    };
    session.record.machines = machines;
    session.record.asked = serde_json::to_value(&asked)?;
    if asked.overhead {
        overhead::measure(&mut session, &recorder, levels, asked, watch)?;
    } else {
        if asked.looks.detect.is_none() {
            session.record.plan = lengthened(&session, given, levels)?;
        }
        session.save()?;
        in_turn(&mut session, &recorder, levels, &mut asked, watch)?;
    }
    result(&session)
}

/// Boots as is planned; beside a baseline, until what is there to be found would have been.
fn in_turn(
    session: &mut Session,
    recorder: &Recorder,
    levels: Levels,
    asked: &mut Asked,
    watch: &mut Watch<'_>,
) -> Result<()> {
    loop {
        execute(session, &mut Boots(recorder), session.record.prepare.as_deref(), watch)?;
        let (finished, _) = session.finished()?;
        let Some(sides) = regression::sides(session, &finished) else { return Ok(()) };
        let failed = finished.iter().any(|(_, run)| run.outcome != Outcome::Done);
        let runs = session.record.plan.iter().filter(|p| p.machine == 0 && !p.warmup).count();
        let more = asked.looks.look(&sides, (runs, asked.runs), failed);
        session.record.asked = serde_json::to_value(&*asked)?;
        if let Some(runs) = more {
            let options = RunOptions { runs: u32::try_from(runs).ok(), ..RunOptions::default() };
            session.record.plan = lengthened(session, &options, levels)?;
        }
        session.save()?;
        if more.is_none() {
            return Ok(());
        }
    }
}

/// The machine that takes turns with the one that is asked about: the baseline's, if it can be
/// booted as it was, or that of the session which is gone on with.
fn other(
    options: &BootOptions,
    saved: Option<&Session>,
    watch: &mut Watch<'_>,
) -> Result<Option<Prepared>> {
    if let Some(session) = saved {
        let machine = session.record.machines.get(1);
        return machine.map(|m| prepare(&m.label, &m.spec, &cache_dir()?)).transpose();
    }
    let Some(dir) = options.baseline.as_deref().filter(|_| !options.overhead) else {
        return Ok(None);
    };
    match baseline::bootable(dir) {
        Ok(prepared) => Ok(Some(prepared)),
        Err(why) => {
            watch.progress.warn(&format!(
                "the baseline is not booted again beside this machine, only its saved runs are \
                 there to compare with: {why}"
            ));
            Ok(None)
        }
    }
}

/// The machine that a session boots.
fn spec_of(session: &Session) -> MachineSpec {
    session.record.machines.first().map(|machine| machine.spec.clone()).unwrap_or_default()
}

/// The kind `boot`.
pub(crate) struct Kind;

impl Experiment for Kind {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn answer(&self, dir: &Path) -> Result<Box<dyn Answer>> {
        self.marked(dir, &[])
    }

    fn marked(&self, dir: &Path, marks: &[String]) -> Result<Box<dyn Answer>> {
        Ok(Box::new(Shown(marked(&Session::open(dir)?, marks)?)))
    }
}

impl Answer for Shown<BootResult> {
    fn report(&self, views: &Views) -> Box<dyn Report + '_> {
        let view = BootView {
            long: views.long,
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
}
