//! How runs are repeated; beginning a session, or going on with one.

use crate::failure::usage;
use crate::host;
use crate::progress::Watch;
use crate::store::{AnySession, Session};
use anyhow::Result;
use std::path::PathBuf;
use vmeter_base::CpuList;
use vmeter_model::run::{Planned, SessionRecord};
use vmeter_model::shard::Shard;
use vmeter_model::SCHEMA;

/// How runs are repeated, wherever they are (docs/INTERFACE.md: run options).
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    /// Warm-ups of each machine; the command's own default if absent.
    pub warmup: Option<u32>,
    /// Measured runs of each machine; the command's own default if absent.
    pub runs: Option<u32>,
    /// Seed of the order, if one was given.
    pub seed: Option<u64>,
    /// Folder to save in.
    pub save: Option<PathBuf>,
    /// Session to go on with.
    pub resume: Option<PathBuf>,
    /// CPU list, e.g. `0,2-3`.
    pub pin: Option<String>,
    /// Command before every run.
    pub prepare: Option<String>,
    /// The part of the plan to carry out; the whole if absent.
    pub shard: Option<Shard>,
    /// vmeter's own argument vector, for the record.
    pub argv: Vec<String>,
}

impl RunOptions {
    /// Warm-ups of each machine: those asked for, or one.
    pub fn warmups(&self) -> u32 {
        self.warmup.unwrap_or(1)
    }

    /// The seed of the order: the one asked for, or 1.
    pub fn order(&self) -> u64 {
        self.seed.unwrap_or(1)
    }

    /// The CPUs of `pin`.
    ///
    /// # Errors
    /// A list that is not one, or names a CPU that this process cannot run on.
    pub fn pinned(&self) -> Result<Vec<usize>> {
        let Some(text) = self.pin.as_deref() else { return Ok(Vec::new()) };
        let wrong = |error| usage(format!("--pin {text}: {error}"));
        let cpus: CpuList = text.parse().map_err(wrong)?;
        cpus.check_runnable().map_err(wrong)?;
        Ok(cpus.as_slice().to_vec())
    }
}

/// The session of `kind` that the options go on with, if they go on with one.
///
/// # Errors
/// Class usage: a folder that holds none, or one of another kind.
pub fn resumed<P: Planned>(kind: &str, options: &RunOptions) -> Result<Option<Session<P>>> {
    let Some(dir) = &options.resume else { return Ok(None) };
    let command = AnySession::open(dir)?.record.command;
    if command != kind {
        let dir = dir.display();
        return Err(usage(format!(
            "{dir} is a session of vmeter {command}: go on with it by `vmeter {command} --resume {dir}`"
        )));
    }
    let mut session = Session::open(dir)?;
    session.hold()?;
    Ok(Some(session))
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
    // A typo leaves no folder behind.
    options.pinned()?;
    let mut session = Session::create(options.save.as_deref(), record)?;
    session.hold()?;
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
        asked: serde_json::Value::Null,
        shard: None,
        notes: Vec::new(),
        shares: Vec::new(),
    }
}
