//! Beginning a session, or going on with one.

use crate::failure::usage;
use crate::host;
use crate::session::Session;
use anyhow::Result;
use std::path::PathBuf;
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
    /// A list that is not one.
    pub fn pinned(&self) -> Result<Vec<usize>> {
        self.pin.as_deref().map_or_else(|| Ok(Vec::new()), cpu_list)
    }
}

/// Reads a CPU list as the kernel writes it: `0,2-3`.
fn cpu_list(text: &str) -> Result<Vec<usize>> {
    let wrong = || usage(format!("--pin {text}: expected CPUs such as 0,2-3"));
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: usize = first.trim().parse().map_err(|_| wrong())?;
        let last: usize = last.trim().parse().map_err(|_| wrong())?;
        if last < first || last > 8191 {
            return Err(wrong());
        }
        cpus.extend(first..=last);
    }
    Ok(cpus)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists() {
        assert_eq!(cpu_list("0,2-3").unwrap(), [0, 2, 3]);
        for wrong in ["", "a", "3-1", "1,,2", "0-99999"] {
            assert!(cpu_list(wrong).is_err(), "{wrong}");
        }
    }
}
