//! The cache: a line of JSON for each machine and each session.

use crate::machine::Machine;
use crate::saved::Stamp;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use vmeter_base::files;

/// Changes with what a line means; a cache of another version counts as none.
const VERSION: u32 = 2;
/// A larger cache counts as none, bytes. Ten thousand sessions take some 6 MB.
const MAX_BYTES: u64 = 256 << 20;

/// What is kept of the sessions, by their folders.
pub(crate) type Sessions = HashMap<PathBuf, Entry>;
/// What is kept of their machines, by id.
pub(crate) type Machines = HashMap<String, Machine>;

/// What is kept of a session.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub stamp: Stamp,
    pub command: String,
    pub started_at: String,
    /// The same, s since the epoch; of one that cannot be read, when its folder changed.
    pub started_s: i64,
    pub argv: Vec<String>,
    pub cpu_model: String,
    pub planned: usize,
    pub problem: Option<String>,
    pub machines: Vec<Share>,
}

/// The runs of one machine in a session.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Share {
    /// The machine's label in this session.
    pub label: String,
    /// The machine's id.
    pub machine: String,
    /// Measured runs that reached their end, and the sum of their times, s.
    pub runs: usize,
    pub sum_s: f64,
    pub warmups: usize,
    /// Measured runs that did not reach their end.
    pub failed: usize,
    /// Size of all their files, bytes.
    pub bytes: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line<S, M> {
    Version(u32),
    Machine(M),
    Session(PathBuf, S),
}

pub(crate) fn path(state: &Path) -> PathBuf {
    state.join("index.jsonl")
}

/// Reads the cache. One that is not there, is damaged or of another version gives less, or nothing.
pub(crate) fn load(state: &Path) -> (Sessions, Machines) {
    let bytes = files::read_limited(&path(state), MAX_BYTES).unwrap_or_default();
    let lines = bytes.split(|byte| *byte == b'\n');
    let mut lines = lines.filter_map(|line| serde_json::from_slice(line).ok());
    let (mut sessions, mut machines) = (Sessions::new(), Machines::new());
    if !matches!(lines.next(), Some(Line::Version(VERSION))) {
        return (sessions, machines);
    }
    for line in lines {
        match line {
            Line::Version(_) => {}
            Line::Machine(machine) => {
                let machine: Machine = machine;
                machines.insert(machine.id.clone(), machine);
            }
            Line::Session(path, entry) => {
                sessions.insert(path, entry);
            }
        }
    }
    sessions.retain(|_, entry: &mut Entry| {
        entry.machines.iter().all(|share| machines.contains_key(&share.machine))
    });
    (sessions, machines)
}

/// Replaces the cache. Sessions whose path is no UTF-8 are left out, so they are always read.
pub(crate) fn store(state: &Path, sessions: &Sessions, machines: &Machines) -> io::Result<()> {
    let mut text = Vec::new();
    let mut write = |line: &Line<&Entry, &Machine>| -> io::Result<()> {
        serde_json::to_writer(&mut text, line)?;
        text.push(b'\n');
        Ok(())
    };
    write(&Line::Version(VERSION))?;
    for machine in machines.values() {
        write(&Line::Machine(machine))?;
    }
    for (path, entry) in sessions.iter().filter(|(path, _)| path.to_str().is_some()) {
        write(&Line::Session(path.clone(), entry))?;
    }
    files::write_in_new_folder(&path(state), &text)
}
