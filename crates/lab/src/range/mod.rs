//! `vmeter range`: which commit made it slower.
//!
//! A range is an ordinary session whose machines are commits: each is built once, what the
//! machine names of it is kept, and it is booted from there as often as wanted, in any
//! order. `range.json` beside `session.json` says which commits there are; what is on disk
//! is all that a resumed range needs.

mod added;
mod builds;
mod config;
mod decision;
mod detect;
mod found;
pub mod gate;
mod git;
pub mod history;
mod level;
mod levels;
mod lock;
mod merged;
mod outcome;
mod place;
mod record;
mod samples;
mod search;
mod shards;
mod sizing;
mod slow;
pub mod template;
mod times;

pub use config::RangeOptions;
pub use outcome::result;
pub(crate) use record::{load, save};

pub mod report;

use crate::shown::Shown;
use anyhow::Result;
use config::{DEFAULT_RUNS, KIND};
use record::RECORD;
use report::RangeReport;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use vmeter_model::range::{RangeRecord, RangeResult};
use vmeter_model::run::{SessionRecord, WatchLevel};
use vmeter_model::shard::ShardPlan;
use vmeter_model::SCHEMA;
use vmeter_render::Report;
use vmeter_session::failure::usage;
use vmeter_session::folder;
use vmeter_session::{Answer, Experiment, ResumeOverrides, Shardable, Views};
use vmeter_session::{Session, Watch};

/// Probability at which a search ends.
const DEFAULT_CONFIDENCE: f64 = 0.97;
/// Runs after which a search ends undecided.
const DEFAULT_MAX_BOOTS: usize = 500;
/// Runs of each end after which a search accepts that nothing changed.
const DEFAULT_END_RUNS: usize = 30;
/// Measures a range, or searches it.
///
/// # Errors
/// A range, machine or folder that is not valid, an interruption (finished runs and builds
/// are saved), a full disk.
pub fn range(options: &RangeOptions, watch: &mut Watch<'_>) -> Result<RangeResult> {
    let saved = vmeter_session::resumed(KIND, &options.runs, watch, |session: &Session, given| {
        note_given(options, &load(&session.dir)?, session.record.shard.is_some(), given);
        Ok(())
    })?;
    let (session, record) = match saved {
        Some(session) => resumed(session, options)?,
        None => begun(options, watch)?,
    };
    let session = search::Search::open(session, &record)?.run(watch)?;
    result(&session)
}

/// The range is worked out before the folder is made, so that a typo leaves none behind.
fn begun(options: &RangeOptions, watch: &mut Watch<'_>) -> Result<(Session, RangeRecord)> {
    let record = described(options, watch)?;
    detect::check(&record, options.runs.shard.is_some())?;
    let planned = shards::session(&record, options)?;
    let beside = |session: &Session| save(session, &record);
    let session = vmeter_session::begin_with(planned, &options.runs, watch, beside)?;
    Ok((session, record))
}

/// The range that every shard carries out a part of: its record, the session, the parts.
///
/// # Errors
/// As [`range`].
pub(crate) fn cut(
    options: &RangeOptions,
    shards: u32,
    watch: &mut Watch<'_>,
) -> Result<(RangeRecord, SessionRecord, Vec<ShardPlan>)> {
    let record = described(options, watch)?;
    detect::check(&record, true)?;
    let (session, parts) = shards::cut(&record, options, shards)?;
    Ok((record, session, parts))
}

/// What the options are about.
fn described(options: &RangeOptions, watch: &mut Watch<'_>) -> Result<RangeRecord> {
    let missing = || usage("which commits? give --repo DIR and A..B, or --resume DIR");
    let repo = options.repo.as_deref().ok_or_else(missing)?;
    let range = options.range.as_deref().ok_or_else(missing)?;
    let confidence = options.confidence.unwrap_or(DEFAULT_CONFIDENCE);
    if !(0.5..1.0).contains(&confidence) {
        return Err(usage(format!("--confidence {confidence}: expected 0.5 to 0.9999")));
    }
    let unwatched = options.run.is_some().then_some(WatchLevel::None);
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
    let history = history::history(&repo, range, watch.interrupt)?;
    if history.filtered {
        watch.progress.warn(
            "some files have a git filter (\"filter=\" in .gitattributes, as Git LFS uses): \
                vmeter runs no filter, so the build gets those files as git stores them",
        );
    }
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
        watch: options.watch.or(unwatched).unwrap_or_default(),
        metric: options.metric.unwrap_or_default(),
        confidence,
        max_boots: options.max_boots.unwrap_or(DEFAULT_MAX_BOOTS),
        end_runs: options.end_runs.unwrap_or(DEFAULT_END_RUNS),
        builds: options.builds.unwrap_or(1),
        reference: options.reference,
        detect: options.detect,
        place: !options.no_place && !options.bisect,
        builds_in: None,
    })
}

/// What is said beside `--resume`, and what the range was begun with. A shard is no search, and
/// is told so in words of its own.
fn note_given(
    options: &RangeOptions,
    record: &RangeRecord,
    is_shard: bool,
    given: &mut ResumeOverrides,
) {
    given.option("--build", options.build.as_ref().map(Some), record.build.as_ref());
    given.option("--run", options.run.as_ref().map(Some), record.run.as_ref());
    given.option("--clean", options.clean.then_some(true), record.clean);
    given.option("--metric", options.metric, record.metric);
    given.option("--confidence", options.confidence, record.confidence);
    given.option("--watch", options.watch, record.watch);
    given.fields(&options.spec, &record.machine);
    given.option("--warmup", options.runs.warmup, record.warmup);
    given.option("--builds", options.builds, record.builds);
    given.option("--reference", options.reference.then_some(true), record.reference);
    given.option("--detect", options.detect.map(Some), record.detect);
    // More is measured, but not of a shard, whose plan is that of the others as well.
    let fewer = options.max_boots.filter(|boots| *boots < record.max_boots);
    given.option("--max-boots", fewer, record.max_boots);
    let other = options.runs.runs.filter(|runs| is_shard || *runs < record.runs);
    given.option("--runs", other, record.runs);
    if !is_shard {
        given.option("--bisect", options.bisect.then_some(true), record.bisect);
    }
}

/// A saved range says itself what it is about; only how much is measured may change.
fn resumed(mut session: Session, options: &RangeOptions) -> Result<(Session, RangeRecord)> {
    let mut record = load(&session.dir)?;
    if let Some(store) = record.builds_in.as_deref().filter(|dir| !folder::is_session(dir)) {
        return Err(usage(format!(
            "{}: \"builds_in\" names {}, a folder that vmeter did not make, so vmeter builds \
                nothing there",
            session.dir.join(RECORD).display(),
            store.display()
        )));
    }
    if options.range.as_ref().is_some_and(|range| *range != record.range) {
        return Err(usage(format!(
            "{} measures the commits {}: resume it without a range of commits",
            session.dir.display(),
            record.range
        )));
    }
    let own = session.record.shard.as_ref().map(|own| own.shard);
    if own.is_some() && options.bisect || options.runs.shard.is_some_and(|s| Some(s) != own) {
        let dir = session.dir.display();
        return Err(usage(match own {
            Some(own) => {
                format!("{dir} is shard {own} of a range: resume it without --shard and --bisect")
            }
            None => format!("{dir} is not a shard of a range: resume it without --shard"),
        }));
    }
    session.take_over()?;
    session.save()?;
    record.runs = options.runs.runs.unwrap_or(record.runs);
    record.max_boots = options.max_boots.unwrap_or(record.max_boots);
    record.end_runs = options.end_runs.unwrap_or(record.end_runs);
    record.place &= !options.no_place;
    save(&session, &record)?;
    Ok((session, record))
}

/// The kind `range`.
pub(crate) struct Kind;

impl Experiment for Kind {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn answer(&self, dir: &Path) -> Result<Box<dyn Answer>> {
        Ok(Box::new(Shown(result(&Session::open(dir)?)?)))
    }

    fn cut(&self) -> Result<&dyn Shardable, &'static str> {
        Ok(self)
    }

    fn boots(&self) -> Result<(), &'static str> {
        Ok(())
    }
}

impl Shardable for Kind {
    fn check(&self, shards: &[PathBuf]) -> Result<()> {
        merged::common(shards).map(|_| ())
    }

    fn copy_extra(&self, shards: &[PathBuf], to: &Path) -> Result<()> {
        merged::carry(shards, to)
    }

    fn ignore_missing(&self, dir: &Path) -> BTreeSet<String> {
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
    fn failure(&self) -> Option<String> {
        (self.0.verdict == vmeter_model::RangeVerdict::NotMeasurable)
            .then(|| "fewer than two commits could be measured".to_owned())
    }
}
