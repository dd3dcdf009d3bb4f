//! How runs are repeated; beginning a session, or going on with one.

use crate::dirs::fresh_dir;
use crate::failure::usage;
use crate::folder::Folder;
use crate::host;
use crate::identity;
use crate::progress::Watch;
use crate::saved_in::saved_in;
use crate::store::Session;
use anyhow::Result;
use std::path::PathBuf;
use vmeter_base::CpuList;
use vmeter_model::run::{AskedGate, Planned, SessionRecord};
use vmeter_model::shard::Shard;
use vmeter_model::SCHEMA;

/// Most runs of a session.
pub const MAX_PLANNED: u64 = 1_000_000;

/// How runs are repeated, wherever they are (docs/INTERFACE.md: run options).
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    /// Warm-ups of each machine; the command's own default if absent.
    pub warmup: Option<u32>,
    /// Measured runs of each machine; the command's own default if absent.
    pub runs: Option<u32>,
    /// Seed of the order, if one was given.
    pub seed: Option<u64>,
    /// The seed where none was given and nobody else has to come to the same plan.
    pub drawn: Option<u64>,
    /// Folder to save in.
    pub save: Option<PathBuf>,
    /// Session to go on with.
    pub resume: Option<PathBuf>,
    /// CPU list, e.g. `0,2-3`.
    pub pin: Option<String>,
    /// Command before every run.
    pub prepare: Option<String>,
    /// Go on with a session whoever made it: what it says is executed.
    pub trust: bool,
    /// The part of the plan to carry out; the whole if absent.
    pub shard: Option<Shard>,
    /// What it is held to.
    pub gate: AskedGate,
    /// vmeter's own argument vector, for the record.
    pub argv: Vec<String>,
}

impl RunOptions {
    /// Warm-ups of each machine: those asked for, or one.
    pub fn warmups(&self) -> u32 {
        self.warmup.unwrap_or(1)
    }

    /// Refuses a plan that nobody lives to see the end of, and whose list alone would take the
    /// memory of the host.
    ///
    /// # Errors
    /// Class usage: that many machines times that many runs are more than [`MAX_PLANNED`].
    pub fn check_size(&self, machines: usize) -> Result<()> {
        let each = u64::from(self.runs.unwrap_or(1)) + u64::from(self.warmups());
        let all = each.saturating_mul(machines as u64);
        if all <= MAX_PLANNED {
            return Ok(());
        }
        Err(usage(format!(
            "{machines} machines with {each} runs per machine make {all} runs, but a session can \
                have at most {MAX_PLANNED}: use fewer --runs, or vary fewer values"
        )))
    }

    /// The seed of the order: the one asked for; else the one that was drawn, so that a fault of
    /// one order is not repeated in every session; or 1, where every host of a session that is
    /// cut into shards works out the same plan from the same command line.
    pub fn order(&self) -> u64 {
        let drawn = self.drawn.filter(|_| self.shard.is_none());
        self.seed.or(drawn).unwrap_or(1)
    }
}

/// The CPUs of a list such as `0,2-3`, as `--pin` takes it; none without a list.
///
/// # Errors
/// Class usage: a list that is not one, or names a CPU that this process cannot run on.
pub fn pinned(pin: Option<&str>) -> Result<Vec<usize>> {
    let Some(text) = pin else { return Ok(Vec::new()) };
    let wrong = |error| usage(format!("--pin {text}: {error}"));
    let cpus: CpuList = text.parse().map_err(wrong)?;
    cpus.check_runnable().map_err(wrong)?;
    Ok(cpus.as_slice().to_vec())
}

/// Makes the folder of a session that begins, and says where it is.
///
/// # Errors
/// A folder that cannot be used.
pub fn begin<P: Planned>(
    record: SessionRecord<P>,
    options: &RunOptions,
    watch: &mut Watch<'_>,
) -> Result<Session<P>> {
    begin_with(record, options, watch, |_| Ok(()))
}

/// As [`begin`]; `beside` writes what else the session is made of.
///
/// # Errors
/// As [`begin`]; `beside`'s.
pub fn begin_with<P: Planned>(
    record: SessionRecord<P>,
    options: &RunOptions,
    watch: &mut Watch<'_>,
    beside: impl FnOnce(&Session<P>) -> Result<()>,
) -> Result<Session<P>> {
    let dir = options.save.clone().map_or_else(|| fresh_dir(&record), Ok)?;
    let mut record = record;
    record.programs.extend(identity::of_machines(&record.machines));
    let session = Session::create_in(Folder::make(&dir)?, record, beside)?;
    let dir = session.dir.clone();
    watch.interrupt.says_at_the_end(move || saved_in(&dir));
    watch.progress.saved_in(&session.dir);
    Ok(session)
}

/// The record of a session that has not begun: no machines, no plan.
pub fn record<P>(kind: &str, options: &RunOptions) -> SessionRecord<P> {
    SessionRecord {
        schema: SCHEMA.into(),
        command: kind.into(),
        argv: options.argv.clone(),
        started_at: host::now(),
        host: host::describe(),
        machines: Vec::new(),
        plan: Vec::new(),
        seed: options.order(),
        prepare: options.prepare.clone(),
        pin: options.pin.clone(),
        gate: Some(options.gate.clone()).filter(|gate| *gate != AskedGate::default()),
        asked: serde_json::Value::Null,
        shard: None,
        notes: Vec::new(),
        shares: Vec::new(),
        working_dir: std::env::current_dir().ok(),
        programs: Default::default(),
    }
}
