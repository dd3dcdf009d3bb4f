//! `vmeter boot`: the same machine several times, every millisecond accounted for.

mod baseline;
pub mod overhead;
mod plan;
pub mod regression;
pub mod report;
mod result;

use crate::booter::Recorder;
use crate::boots::{watched, Boots};
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
    /// How runs are repeated.
    pub runs: RunOptions,
}

/// What a session of its own keeps besides machine and plan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Asked {
    /// `--overhead`.
    overhead: bool,
    /// `--runs`.
    runs: Option<u32>,
    /// `--warmup`.
    warmup: Option<u32>,
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
        })
    }
}

/// Boots, saves, analyses.
///
/// # Errors
/// A machine that is not valid, a host that can't boot it, an interruption.
pub fn boot(options: &BootOptions, watch: &mut Watch<'_>) -> Result<BootResult> {
    // Machine and plan are worked out before the folder is made: a typo leaves none behind.
    let saved = resumed(KIND, &options.runs, watch, |session, given| {
        given.fields(&options.spec, &spec_of(session));
        if let Some(begun) = watched(&session.record.plan) {
            given.option("--watch", options.watch, begun);
        }
        let begun = Asked::of_session(session)?;
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
    let asked = Asked::of(options, saved.as_ref())?;
    let begun = saved.as_ref().and_then(|session| watched(&session.record.plan));
    let levels = Levels::of(options.watch.or(begun).unwrap_or_default(), &recorder);
    let mut session = match saved {
        Some(session) => session,
        None => {
            // Saved with its plan, or not at all; pairs are planned as they are needed, from
            // what was asked.
            let seed = given.order();
            let plan =
                if asked.overhead { Vec::new() } else { plan(given, levels, machines.len(), seed) };
            let asked = serde_json::to_value(asked)?;
            let record = SessionRecord { seed, ..record(KIND, given) };
            let machines = machines.clone();
            begin(SessionRecord { machines, plan, asked, ..record }, given, watch)?
        }
    };
    session.record.machines = machines;
    session.record.asked = serde_json::to_value(asked)?;
    if asked.overhead {
        overhead::measure(&mut session, &recorder, levels, asked, watch)?;
    } else {
        session.record.plan = lengthened(&session, given, levels)?;
        session.save()?;
        let prepare = session.record.prepare.as_deref();
        execute(&session, &mut Boots(&recorder), prepare, watch)?;
    }
    result(&session)
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
