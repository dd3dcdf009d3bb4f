//! `--on slurm`: a sweep or a range as a job array.
//!
//! Scheduling is Slurm's: nodes, queues, priorities, time limits, requeueing after a node
//! failed. vmeter cuts the plan into shards, submits one task each on a node of its own,
//! counts the runs as they appear in the shards' folders, submits shards again that were
//! lost, and merges. The folder must be on a file system that all nodes share:
//!
//! ```text
//! DIR/slurm.json    what was submitted
//! DIR/job.sh        the batch script
//! DIR/shards/1/     an ordinary session folder for each shard
//! DIR/log/1.txt     what its tasks printed
//! DIR/builds, kept  a range: every commit is built by one of the shards, for all
//! DIR/session.json  the merged session, once all is done
//! ```

mod client;
mod follow;
mod job;

use crate::merge::{merge_into, MergeOptions, Merged};
use crate::range::{self, RangeOptions};
use crate::sweep::{points, SweepOptions};
use anyhow::{Context, Result};
use job::{shard_dir, Job, SCRIPT};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use vmeter_base::{files, shell};
use vmeter_model::range::RangeRecord;
use vmeter_model::run::SessionRecord;
use vmeter_model::shard::ShardPlan;
use vmeter_model::SCHEMA;
use vmeter_session::failure::{failure, host, usage, Class};
use vmeter_session::folder::{own_folder, Folder, Removal};
use vmeter_session::{fresh_dir, trust, RunOptions, Session, Watch};

const RECORD: &str = "slurm.json";
const MAX_JSON: u64 = 1 << 20;

/// How a sweep goes to a cluster.
#[derive(Debug, Clone, Default)]
pub struct SlurmOptions {
    /// Tasks of the array.
    pub shards: u32,
    /// Partition; the cluster's default if absent.
    pub partition: Option<String>,
    /// More options for sbatch, e.g. `--time=30`.
    pub sbatch: Vec<String>,
    /// Merge hosts that differ in more than their names.
    pub mixed_hosts: bool,
}

/// What was submitted, beside the shards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct JobRecord {
    schema: String,
    shards: u32,
    mixed_hosts: bool,
    /// What is cut: the command that goes on with a shard.
    #[serde(default = "sweeps")]
    command: String,
    /// Numbers of the jobs, the first submission first.
    jobs: Vec<String>,
}

fn sweeps() -> String {
    "sweep".to_owned()
}

/// What is cut into tasks.
struct Work {
    /// The session of which each shard carries out a part.
    record: SessionRecord,
    parts: Vec<ShardPlan>,
    /// A range: what it is about.
    range: Option<RangeRecord>,
}

/// True for a folder whose shards are on a cluster, or were, and are not merged yet.
pub fn is_underway(dir: &Path) -> bool {
    dir.join(RECORD).exists() && !dir.join("session.json").exists()
}

/// Submits the sweep, follows it to its end and merges it.
///
/// # Errors
/// As a sweep's; class host where Slurm is missing or refuses, or shards are lost again and
/// again; class interrupted on Ctrl-C, which leaves the jobs to Slurm.
pub fn sweep(
    options: &SweepOptions,
    slurm: &SlurmOptions,
    watch: &mut Watch<'_>,
) -> Result<Merged> {
    let (record, parts) = points::cut(options, slurm.shards)?;
    let work = Work { record, parts, range: None };
    submit(work, &options.runs, slurm, watch)
}

/// Submits the range, follows it to its end and merges it.
///
/// # Errors
/// As [`sweep`]; class usage for a search, which cannot be cut.
pub fn range(
    options: &RangeOptions,
    slurm: &SlurmOptions,
    watch: &mut Watch<'_>,
) -> Result<Merged> {
    let (range, record, parts) = range::cut(options, slurm.shards, watch)?;
    let work = Work { record, parts, range: Some(range) };
    submit(work, &options.runs, slurm, watch)
}

fn submit(
    work: Work,
    runs: &RunOptions,
    slurm: &SlurmOptions,
    watch: &mut Watch<'_>,
) -> Result<Merged> {
    let command = work.record.command.clone();
    let dir = runs.save.clone().map_or_else(|| fresh_dir(&work.record), Ok)?;
    let dir = std::path::absolute(&dir).with_context(|| format!("{}", dir.display()))?;
    let script = script(&dir, &command, runs, slurm)?;
    let folder = Folder::make(&dir)?;
    shards(&dir, work, &script).with_context(|| {
        format!(
            "cannot prepare {}: with --save DIR, choose a folder that all nodes share",
            dir.display()
        )
    })?;
    let all: Vec<u32> = (1..=slurm.shards).collect();
    let job = client::submit(&dir.join(SCRIPT), &all).inspect_err(|_| discard(&folder))?;
    let job = JobRecord {
        schema: SCHEMA.into(),
        shards: slurm.shards,
        mixed_hosts: slurm.mixed_hosts,
        command,
        jobs: vec![job],
    };
    save(&dir, &job)?;
    finish(folder, job, watch)
}

/// Makes the folders of all shards, and the script.
fn shards(dir: &Path, work: Work, script: &str) -> Result<()> {
    for part in work.parts {
        let own = shard_dir(dir, part.shard.index);
        let record = SessionRecord { shard: Some(part), ..work.record.clone() };
        Session::create_in(Folder::make_within(&own)?, record, |session| match &work.range {
            Some(range) => {
                let range = RangeRecord { builds_in: Some(dir.to_owned()), ..range.clone() };
                range::save(session, &range)
            }
            None => Ok(()),
        })?;
    }
    own_folder(dir, "log")?;
    files::write_atomic(&dir.join(SCRIPT), &trust::sign_script(dir, SCRIPT, script))?;
    Ok(())
}

/// Goes on with what [`sweep`] began: follows the jobs, submits again what was lost, merges.
///
/// # Errors
/// As [`sweep`].
pub fn resume(
    dir: &Path,
    mixed_hosts: bool,
    trusted: bool,
    watch: &mut Watch<'_>,
) -> Result<Merged> {
    let dir = std::path::absolute(dir).with_context(|| format!("{}", dir.display()))?;
    trust::check(&dir, trusted, watch)?;
    let folder = Folder::hold(&dir)?;
    let path = dir.join(RECORD);
    let wrong = |e: &dyn std::fmt::Display| usage(format!("{}: {e}", path.display()));
    let bytes = files::read_limited(&path, MAX_JSON).map_err(|e| wrong(&e))?;
    let mut job: JobRecord = serde_json::from_slice(&bytes).map_err(|e| wrong(&e))?;
    if job.schema != SCHEMA || job.shards == 0 || job.shards > vmeter_model::shard::MAX_SHARDS {
        let found = &job.schema;
        return Err(wrong(&format!("format {found:?}, and this vmeter reads {SCHEMA:?}")));
    }
    job.mixed_hosts |= mixed_hosts;
    finish(folder, job, watch)
}

/// Removes what was made for a job that was never submitted.
fn discard(folder: &Folder) {
    if let Ok(removal) = Removal::of(folder) {
        let _ = removal.carry_out(folder);
    }
}

fn script(dir: &Path, command: &str, runs: &RunOptions, slurm: &SlurmOptions) -> Result<String> {
    let vmeter = std::env::current_exe().context("cannot find the path of vmeter's program")?;
    let working_dir = std::env::current_dir().context("cannot find the working folder")?;
    let mut sbatch = Vec::new();
    if let Some(partition) = &slurm.partition {
        sbatch.push(format!("--partition={partition}"));
    }
    sbatch.extend(slurm.sbatch.iter().cloned());
    let pin = runs.pin.as_deref();
    Job { command, dir, vmeter: &vmeter, working_dir: &working_dir, options: &sbatch, pin }.script()
}

fn save(dir: &Path, job: &JobRecord) -> Result<()> {
    trust::write(dir, RECORD, serde_json::to_vec_pretty(job)?, true)
}

fn finish(folder: Folder, job: JobRecord, watch: &mut Watch<'_>) -> Result<Merged> {
    let (shards, mixed_hosts) = (job.shards, job.mixed_hosts);
    let dir = folder.dir().to_owned();
    let command = job.command.clone();
    let followed = follow::Follow::open(&dir, job)?.run(watch);
    watch.progress.end();
    followed?;
    let dirs: Vec<PathBuf> = (1..=shards).map(|index| shard_dir(&dir, index)).collect();
    merge_into(folder, &MergeOptions { dirs, save: None, mixed_hosts }).map_err(|error| {
        let shown = shell::path(&dir);
        error.context(format!(
            "all shards are done, but vmeter cannot merge their results in {shown}/shards (to \
                try again: vmeter {command} --resume {shown})"
        ))
    })
}

fn interrupted(dir: &Path, job: &JobRecord) -> anyhow::Error {
    let (jobs, command) = (job.jobs.join(" "), &job.command);
    failure(
        Class::Interrupted,
        format!(
            "interrupted; the tasks go on in Slurm (job {jobs}): follow them again with vmeter {command} --resume {}, or end them with scancel {jobs}",
            shell::path(dir)
        ),
    )
}

fn lost(dir: &Path, command: &str, shards: &[u32], times: u32) -> anyhow::Error {
    let named: Vec<String> = shards.iter().map(u32::to_string).collect();
    let log = shards.first().map(|s| job::log(dir, *s).display().to_string()).unwrap_or_default();
    let dir = shell::path(dir);
    host(format!(
        "shards {} did not finish in {times} attempts (see {log}); finished runs are saved. Fix \
         the cause, then run vmeter {command} --resume {dir}. To merge what exists: vmeter merge \
         {dir}/shards/* --save DIR",
        named.join(", ")
    ))
}
