//! `vmeter tune`: the fastest equivalent of a machine, found and proven.
//!
//! One watched boot predicts what each known cause's remedy should save, and what can't be worth it is
//! never booted. Each of the others is booted alone: does it boot, and is it still the same machine? Then
//! all of them together, and all but some in turn, until each is proven or dropped. What is left is
//! measured afresh beside the original, by runs that chose nothing: these alone say how much faster it is.

mod booted;
mod candidates;
mod config;
mod driver;
mod inventory;
mod predict;
pub mod report;
mod result;
mod round;
pub mod script;
mod search;
mod state;

use crate::shown::Shown;
use anyhow::Result;
use config::{own_machine, with, Config, Planned, ORIGINAL};
use driver::Driver;
use report::TuneReport;
pub use result::result;
use state::State;
use std::path::Path;
use vmeter_appliance::kernel_build;
use vmeter_model::run::SessionRecord;
use vmeter_model::tune::{Allow, Keep, TuneResult};
use vmeter_model::MachineSpec;
use vmeter_render::Report;
use vmeter_session::failure::usage;
use vmeter_session::{
    begin, cache_dir, record, resumed, Answer, Experiment, ResumeOverrides, RunOptions,
};
use vmeter_session::{Session, Shardable, Views, Watch, NOT_CUT};

const KIND: &str = "tune";
/// What it may take, s, unless `--budget` says otherwise.
pub const DEFAULT_BUDGET_S: f64 = 900.0;
/// Share of the boot below which a step is not worth it, unless `--worth` says otherwise.
pub const DEFAULT_WORTH: f64 = 0.01;

/// What is asked.
#[derive(Debug, Clone, Default)]
pub struct TuneOptions {
    /// The machine.
    pub spec: MachineSpec,
    /// What its boots may take, s.
    pub budget_s: Option<f64>,
    /// Share of the boot below which a step is not worth it, 0 to 1.
    pub worth: Option<f64>,
    /// What it must keep besides what is always checked.
    pub keep: Vec<Keep>,
    /// What may be tried besides what makes nothing less safe.
    pub allow: Vec<Allow>,
    /// How runs are repeated.
    pub runs: RunOptions,
}

/// Finds the fastest equivalent of a machine.
///
/// # Errors
/// A machine that is not valid, a host that can't boot it, an interruption (finished runs are saved).
pub fn tune(options: &TuneOptions, watch: &mut Watch<'_>) -> Result<TuneResult> {
    let saved = resumed(KIND, &options.runs, watch, |session: &Session, given| {
        note_given(options, &session.asked()?, given);
        Ok(())
    })?;
    let session = saved.map_or_else(|| begun(options, watch), Ok)?;
    let mut asked: Config = session.asked()?;
    let mut driver = Driver::open(session)?;
    let read = booted::Read::default();
    loop {
        driver.carry_out(watch)?;
        let (boots, _) = booted::Boots::of(&driver.session, &read)?;
        let known = asked.clone();
        let mut state = State::of(&known, &boots);
        let Some(next) = search::next(&mut state) else { break };
        watch.progress.note(&said(&next));
        driver.add(&next, &mut asked, state.original_s())?;
    }
    result(&driver.session)
}

/// What is said of a stage that begins.
fn said(next: &search::Next) -> String {
    let machines = next.machines.len();
    format!(
        "{} of {machines}",
        vmeter_render::quantity::plural((machines * next.blocks) as u64, "boot")
    )
}

fn note_given(options: &TuneOptions, begun: &Config, given: &mut ResumeOverrides) {
    given.fields(&options.spec, &begun.given);
    given.option("--budget", options.budget_s, begun.budget_s);
    given.option("--worth", options.worth, begun.worth);
    let listed = |list: &Vec<Keep>| (!list.is_empty()).then(|| list.clone());
    given.option("--keep", listed(&options.keep), begun.keep.clone());
    let allowed = (!options.allow.is_empty()).then(|| options.allow.clone());
    given.option("--allow", allowed, begun.allow.clone());
    given.option("--runs", options.runs.runs.map(Some), begun.runs);
}

/// The machine and what may be tried are worked out before the folder is made: a typo leaves none behind.
fn begun(options: &TuneOptions, watch: &mut Watch<'_>) -> Result<Session> {
    let cache = cache_dir()?;
    if options.allow.contains(&Allow::KernelBuild) && kernel_build::list_in(&cache).is_empty() {
        return Err(usage(
            "--allow kernel-build: there is no kernel that vmeter built earlier, and vmeter tune \
                itself builds none; first run `vmeter kernel diet` or `vmeter kernel build \
                --config minimal`",
        ));
    }
    watch.progress.note("looking for what may be tried");
    let (base, prepared) = driver::as_command(&options.spec)?;
    let machine = own_machine(&base, &prepared.machine);
    let planned = candidates::all().into_iter().map(|candidate| {
        let id = candidate.id().to_owned();
        let barred = candidate.barred(&machine, &options.allow, &options.keep);
        // What it takes may not be there.
        let made = || with(&base, &prepared.machine, std::slice::from_ref(&id), &cache).err();
        Planned { barred: barred.or_else(made), id }
    });
    let asked = Config {
        given: options.spec.clone(),
        candidates: planned.collect(),
        budget_s: options.budget_s.unwrap_or(DEFAULT_BUDGET_S),
        worth: options.worth.unwrap_or(DEFAULT_WORTH),
        keep: options.keep.clone(),
        allow: options.allow.clone(),
        runs: options.runs.runs,
        sets: [(ORIGINAL.to_owned(), Vec::new())].into(),
        stages: Vec::new(),
        base,
    };
    let record = SessionRecord {
        machines: vec![prepared.session],
        asked: serde_json::to_value(asked)?,
        ..record(KIND, &options.runs)
    };
    begin(record, &options.runs, watch)
}

/// The kind `tune`.
pub(crate) struct Kind;

impl Experiment for Kind {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn answer(&self, dir: &Path) -> Result<Box<dyn Answer>> {
        Ok(Box::new(Shown(result(&Session::open(dir)?)?)))
    }

    fn cut(&self) -> Result<&dyn Shardable, &'static str> {
        Err(NOT_CUT)
    }

    fn boots(&self) -> Result<(), &'static str> {
        Ok(())
    }
}

impl Answer for Shown<TuneResult> {
    fn report(&self, views: &Views) -> Box<dyn Report + '_> {
        Box::new(TuneReport { result: &self.0, long: views.long })
    }

    /// That nothing is to be gained is an answer; that the machine does not boot is none.
    fn failure(&self) -> Option<String> {
        self.0.before.is_none().then(|| "the original machine did not boot".to_owned())
    }
}
