//! `vmeter range`: which commit made it slower.
//!
//! A range is an ordinary session whose machines are commits: each is built once, what the
//! machine names of it is kept, and it is booted from there as often as wanted, in any
//! order. `range.json` beside `session.json` says which commits there are; what is on disk
//! is all that a resumed range needs.

mod builds;
mod decision;
pub mod history;
mod lock;
mod merged;
mod outcome;
mod search;
mod shards;
pub mod template;

pub use outcome::result;

pub mod report;

use crate::shown::Shown;
use anyhow::{Context, Result};
use report::RangeReport;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use vmeter_base::files;
use vmeter_model::range::{Metric, RangeRecord, RangeResult};
use vmeter_model::run::{SessionRecord, WatchLevel};
use vmeter_model::shard::ShardPlan;
use vmeter_model::{MachineSpec, SCHEMA};
use vmeter_render::Report;
use vmeter_session::failure::usage;
use vmeter_session::host;
use vmeter_session::shares;
use vmeter_session::RunOptions;
use vmeter_session::{Answer, Cut, Experiment, Given, Views};
use vmeter_session::{Session, Watch};

/// Measured runs of each commit, unless `--runs` says otherwise.
pub(crate) const DEFAULT_RUNS: u32 = 5;
/// Runs of each end after which a search accepts that nothing changed.
const DEFAULT_END_RUNS: usize = 30;
pub(crate) const RECORD: &str = "range.json";
const MAX_JSON: u64 = 64 << 20;

/// What to measure and how.
#[derive(Debug, Clone)]
pub struct RangeOptions {
    /// The repository; none when a session is resumed.
    pub repo: Option<PathBuf>,
    /// `A..B`; none when a session is resumed.
    pub range: Option<String>,
    /// Command line that builds a commit, for sh.
    pub build: Option<String>,
    /// Command line that is measured in the place of a machine.
    pub run: Option<String>,
    /// The machine, with `{worktree}` where files of the commit belong.
    pub spec: MachineSpec,
    /// Search for the first slow commit.
    pub bisect: bool,
    /// Remove what is not in the commit before each build.
    pub clean: bool,
    /// What is compared.
    pub metric: Metric,
    /// Probability at which a search ends, 0.5 to 1.
    pub confidence: f64,
    /// Runs after which a search ends undecided.
    pub max_boots: usize,
    /// Runs of each end after which a search accepts that nothing changed; a resumed
    /// search may be given more.
    pub end_runs: Option<usize>,
    /// How closely to watch.
    pub watch: WatchLevel,
    /// How runs are repeated.
    pub runs: RunOptions,
}

/// Measures a range, or searches it.
///
/// # Errors
/// A range, machine or folder that is not valid, an interruption (finished runs and builds
/// are saved), a full disk.
pub fn range(options: &RangeOptions, watch: &mut Watch<'_>) -> Result<RangeResult> {
    let (session, record) = match vmeter_session::resumed("range", &options.runs)? {
        Some(session) => resumed(session, options)?,
        None => begun(options, watch)?,
    };
    let session = search::Search::open(session, &record, options)?.run(watch)?;
    result(&session)
}

/// The range is worked out before the folder is made, so that a typo leaves none behind.
fn begun(options: &RangeOptions, watch: &mut Watch<'_>) -> Result<(Session, RangeRecord)> {
    let record = described(options)?;
    let planned = match options.runs.shard {
        None => vmeter_session::record("range", &options.runs),
        Some(shard) => shards::part(&record, options, shard)?,
    };
    let session = vmeter_session::begin(planned, &options.runs, watch)?;
    save(&session.dir, &record)?;
    Ok((session, record))
}

/// The range that every shard carries out a part of: its record, the session, the parts.
///
/// # Errors
/// As [`range`].
pub(crate) fn cut(
    options: &RangeOptions,
    shards: u32,
) -> Result<(RangeRecord, SessionRecord, Vec<ShardPlan>)> {
    let record = described(options)?;
    let (session, parts) = shards::cut(&record, options, shards)?;
    Ok((record, session, parts))
}

/// What the options are about.
fn described(options: &RangeOptions) -> Result<RangeRecord> {
    let missing = || usage("which commits? give --repo DIR and A..B, or --resume DIR");
    let repo = options.repo.as_deref().ok_or_else(missing)?;
    let range = options.range.as_deref().ok_or_else(missing)?;
    if !(0.5..1.0).contains(&options.confidence) {
        return Err(usage(format!("--confidence {}: expected 0.5 to 0.9999", options.confidence)));
    }
    let machine = match &options.run {
        Some(_) if !options.spec.command.is_empty() => {
            return Err(usage("either --run CMD or a VMM command line after --, not both"));
        }
        Some(run) => template::command(run, options.spec.clone()),
        None => options.spec.clone(),
    };
    template::references(&machine)?;
    crate::prepare::until(&machine)?;
    let repo = repo
        .canonicalize()
        .map_err(|e| usage(format!("--repo {}: {e}; expected a git repository", repo.display())))?;
    let history = history::history(&repo, range)?;
    Ok(RangeRecord {
        schema: SCHEMA.into(),
        repo: repo.display().to_string(),
        range: range.to_owned(),
        commits: history.commits,
        merged: history.merged,
        build: options.build.clone(),
        run: options.run.clone(),
        machine,
        bisect: options.bisect,
        clean: options.clean,
        runs: options.runs.runs.unwrap_or(DEFAULT_RUNS),
        warmup: options.runs.warmups(),
        watch: options.watch,
        metric: options.metric,
        confidence: options.confidence,
        max_boots: options.max_boots,
        end_runs: options.end_runs.unwrap_or(DEFAULT_END_RUNS),
        builds_in: None,
    })
}

/// A saved range says itself what it is about; only how much is measured may change.
fn resumed(mut session: Session, options: &RangeOptions) -> Result<(Session, RangeRecord)> {
    let mut record = load(&session.dir)?;
    if options.range.as_ref().is_some_and(|range| *range != record.range) {
        return Err(usage(format!(
            "{} is about {}: go on with it without a range of commits",
            session.dir.display(),
            record.range
        )));
    }
    let mut given = Given::of(&options.runs, &session.record);
    given.option("--build", options.build.as_ref().map(Some), record.build.as_ref());
    given.option("--run", options.run.as_ref().map(Some), record.run.as_ref());
    given.option("--clean", options.clean.then_some(true), record.clean);
    given.fields(&options.spec, &record.machine);
    let own = session.record.shard.as_ref().map(|own| own.shard);
    if own.is_none() {
        given.option("--bisect", options.bisect.then_some(true), record.bisect);
    }
    given.check(&session.dir)?;
    if own.is_some() && options.bisect || options.runs.shard.is_some_and(|s| Some(s) != own) {
        let what = own.map_or("no shard".to_owned(), |own| format!("shard {own}"));
        return Err(usage(format!(
            "{} is {what}: go on with it without --shard and --bisect",
            session.dir.display()
        )));
    }
    let (finished, _) = session.finished()?;
    let finished = finished.iter().map(|(_, run)| run.index).collect();
    shares::take_over(&mut session.record, host::describe(), &finished);
    session.save()?;
    record.runs = options.runs.runs.unwrap_or(record.runs);
    record.end_runs = options.end_runs.unwrap_or(record.end_runs);
    save(&session.dir, &record)?;
    Ok((session, record))
}

/// Writes `range.json`.
///
/// # Errors
/// Any error of the file system.
pub(crate) fn save(dir: &Path, record: &RangeRecord) -> Result<()> {
    let path = dir.join(RECORD);
    files::write_atomic(&path, &serde_json::to_vec_pretty(record)?)
        .with_context(|| format!("cannot write {}", path.display()))
}

/// What a saved range is about.
///
/// # Errors
/// Class usage: a file that is missing or not of this version.
pub(crate) fn load(dir: &Path) -> Result<RangeRecord> {
    let path = dir.join(RECORD);
    let wrong = |e: &dyn std::fmt::Display| usage(format!("{}: {e}", path.display()));
    let bytes = files::read_limited(&path, MAX_JSON).map_err(|e| wrong(&e))?;
    let record: RangeRecord = serde_json::from_slice(&bytes).map_err(|e| wrong(&e))?;
    if record.schema != SCHEMA {
        let found = &record.schema;
        return Err(wrong(&format!("format {found:?}, and this vmeter reads {SCHEMA:?}")));
    }
    Ok(record)
}

/// The kind `range`.
pub(crate) struct Kind;

impl Experiment for Kind {
    fn kind(&self) -> &'static str {
        "range"
    }

    fn answer(&self, dir: &Path) -> Result<Box<dyn Answer>> {
        Ok(Box::new(Shown(result(&Session::open(dir)?)?)))
    }

    fn cut(&self) -> Result<&dyn Cut, &'static str> {
        Ok(self)
    }

    fn boots(&self) -> Result<(), &'static str> {
        Ok(())
    }
}

impl Cut for Kind {
    fn check(&self, shards: &[PathBuf]) -> Result<()> {
        merged::common(shards).map(|_| ())
    }

    fn carry(&self, shards: &[PathBuf], to: &Path) -> Result<()> {
        merged::carry(shards, to)
    }

    fn forgiven(&self, dir: &Path) -> BTreeSet<String> {
        merged::failed_builds(dir)
    }

    fn builds(&self) -> bool {
        true
    }
}

impl Answer for Shown<RangeResult> {
    fn report(&self, _: &Views) -> Box<dyn Report + '_> {
        Box::new(RangeReport::new(&self.0))
    }

    /// There is nothing to compare; a shard alone has nothing.
    fn is_bad(&self) -> bool {
        self.0.verdict == vmeter_model::RangeVerdict::NotMeasurable
    }
}
