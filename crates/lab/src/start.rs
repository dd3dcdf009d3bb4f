//! Beginning a session, or going on with one.

use crate::failure::usage;
use crate::host;
use crate::session::Session;
use anyhow::Result;
use std::path::PathBuf;
use vmeter_base::CpuList;
use vmeter_model::run::{SessionMachine, SessionRecord};
use vmeter_model::shard::Shard;
use vmeter_model::{MachineSpec, SCHEMA};

/// How runs are repeated, wherever they are (INTERFACE: run options).
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    /// Warm-ups of each machine.
    pub warmup: u32,
    /// Measured runs of each machine; the command's own default if absent.
    pub runs: Option<u32>,
    /// Seed of the order.
    pub seed: u64,
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

/// A session for `command` with these machines: a new one, or the one to go on with,
/// whose own machines and plan then count.
///
/// # Errors
/// A folder that cannot be used; a session of another command.
pub fn start(
    command: &str,
    machines: &[(String, MachineSpec)],
    options: &RunOptions,
) -> Result<Session> {
    if let Some(dir) = &options.resume {
        let session = Session::open(dir).map_err(|e| usage(format!("{e:#}")))?;
        if session.record.command != command {
            return Err(usage(format!(
                "{} is a session of vmeter {}: go on with it by `vmeter {} --resume {}`",
                dir.display(),
                session.record.command,
                session.record.command,
                dir.display()
            )));
        }
        return Ok(session);
    }
    Session::create(options.save.as_deref(), record(command, machines, options))
}

/// The record of a session that has not begun: machines as they were asked for, no plan.
pub(crate) fn record(
    command: &str,
    machines: &[(String, MachineSpec)],
    options: &RunOptions,
) -> SessionRecord {
    let machine = |(label, spec): &(String, MachineSpec)| SessionMachine {
        label: label.clone(),
        spec: spec.clone(),
        ..SessionMachine::default()
    };
    SessionRecord {
        schema: SCHEMA.into(),
        command: command.into(),
        argv: options.argv.clone(),
        started_at: host::now(),
        host: host::describe(),
        machines: machines.iter().map(machine).collect(),
        plan: Vec::new(),
        seed: options.seed,
        prepare: options.prepare.clone(),
        shard: None,
        shares: Vec::new(),
    }
}
