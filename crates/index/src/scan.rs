//! Comparing the folders with the cache, and reading what has changed.

use crate::cache::{self, Entry, Machines, Sessions, Share};
use crate::filter::started_s;
use crate::machine::Machine;
use crate::saved::{self, Run, Saved, Stamp};
use crate::IndexError;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use vmeter_model::run::{Outcome, SessionRecord};
use vmeter_model::time::seconds;

/// What comparing the folders with the cache found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scan {
    /// Sessions in the folders.
    pub sessions: usize,
    /// Of these, read because they are new or have changed.
    pub read: usize,
    /// Sessions that are no longer there.
    pub gone: usize,
}

/// The sessions of a state folder.
#[derive(Debug)]
pub struct Index {
    pub(crate) state: PathBuf,
    pub(crate) sessions: Sessions,
    pub(crate) machines: Machines,
    notes: Vec<String>,
    scanned: Scan,
}

impl Index {
    /// Reads the cache of `state` (`$XDG_STATE_HOME/vmeter`) and what has changed since.
    ///
    /// # Errors
    /// When the folders cannot be read.
    pub fn open(state: &Path) -> Result<Self, IndexError> {
        Self::beside(state, cache::load(state))
    }

    /// Reads every session, and replaces the cache.
    ///
    /// # Errors
    /// When the folders cannot be read.
    pub fn rebuild(state: &Path) -> Result<Self, IndexError> {
        Self::beside(state, Default::default())
    }

    fn beside(state: &Path, cached: (Sessions, Machines)) -> Result<Self, IndexError> {
        let state = std::path::absolute(state).map_err(IndexError::io("cannot find", state))?;
        let (sessions, machines) = cached;
        let (notes, scanned) = (Vec::new(), Scan::default());
        let mut index = Index { state, sessions, machines, notes, scanned };
        index.refresh()?;
        Ok(index)
    }

    /// The file of the cache.
    pub fn path(&self) -> PathBuf {
        cache::path(&self.state)
    }

    /// What the user should know of it, in sentences.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// What the comparison with the folders found.
    pub fn scanned(&self) -> &Scan {
        &self.scanned
    }

    /// Compares the folders with the index again.
    ///
    /// # Errors
    /// As [`Index::open`].
    pub fn refresh(&mut self) -> Result<(), IndexError> {
        let mut known = std::mem::take(&mut self.sessions);
        let mut scan = Scan::default();
        for (path, stamp) in stamped(&self.state)? {
            let cached = known.remove(&path);
            let entry = match cached {
                Some(entry) if entry.stamp == stamp => Some(entry),
                _ => {
                    let read = saved::read(&path);
                    scan.read += usize::from(read.is_some());
                    read.map(|saved| self.entry(&saved, stamp))
                }
            };
            if let Some(entry) = entry {
                self.sessions.insert(path, entry);
            }
        }
        scan.sessions = self.sessions.len();
        scan.gone = known.len();
        self.scanned = scan;
        self.notes.clear();
        if scan.read + scan.gone > 0 {
            self.write();
        }
        Ok(())
    }

    fn write(&mut self) {
        let used = self.sessions.values().flat_map(|entry| &entry.machines);
        let used: HashSet<&str> = used.map(|share| share.machine.as_str()).collect();
        self.machines.retain(|id, _| used.contains(id.as_str()));
        if let Err(error) = cache::store(&self.state, &self.sessions, &self.machines) {
            let path = self.path();
            let path = path.display();
            self.notes.push(format!(
                "cannot write the index {path}: {error}; without it, vmeter reads \
                    every session folder each time"
            ));
        }
    }

    /// What is kept of a session, after its machines.
    fn entry(&mut self, saved: &Saved, stamp: Stamp) -> Entry {
        let Some(record) = &saved.record else {
            return Entry {
                stamp: stamp.trusted(),
                command: "?".into(),
                // So that it can be removed by age.
                started_s: stamp.session_ns.max(0) / 1_000_000_000,
                problem: saved.problem.clone(),
                ..Entry::default()
            };
        };
        let mut machines = shares(record, &saved.runs);
        for (share, machine) in machines.iter_mut().zip(&record.machines) {
            let machine = Machine::of(machine);
            share.machine.clone_from(&machine.id);
            self.machines.entry(machine.id.clone()).or_insert(machine);
        }
        let cpu_model = record.host.get("cpu_model").and_then(|model| model.as_str());
        Entry {
            stamp: stamp.trusted(),
            command: record.command.clone(),
            started_at: record.started_at.clone(),
            started_s: started_s(&record.started_at),
            argv: record.argv.clone(),
            cpu_model: cpu_model.unwrap_or_default().into(),
            planned: record.plan.len(),
            problem: saved.problem.clone(),
            machines,
        }
    }
}

/// The folders that may be sessions, with their stamps.
fn stamped(state: &Path) -> Result<Vec<(PathBuf, Stamp)>, IndexError> {
    let runs = state.join("runs");
    let names = saved::names(&runs)?;
    let mut found = Vec::with_capacity(names.len());
    if !names.is_empty() {
        let folder = File::open(&runs).map_err(IndexError::io("cannot read", &runs))?;
        let here =
            names.iter().filter_map(|name| Some((runs.join(name), Stamp::of(&folder, name)?)));
        found.extend(here);
    }
    let elsewhere = saved::elsewhere(state).into_iter();
    found.extend(elsewhere.filter_map(|path| {
        let stamp = Stamp::of(rustix::fs::CWD, &path)?;
        Some((path, stamp))
    }));
    Ok(found)
}

/// The runs of each machine of a session, in the order of its machines.
fn shares<P>(record: &SessionRecord<P>, runs: &[Run]) -> Vec<Share> {
    let share = |label: &String| Share { label: label.clone(), ..Share::default() };
    let mut shares: Vec<Share> = record.machines.iter().map(|m| share(&m.label)).collect();
    // A sweep can have thousands of machines.
    let machines = record.machines.iter().enumerate();
    let position: HashMap<&str, usize> = machines.map(|(at, m)| (m.label.as_str(), at)).collect();
    for run in runs {
        let Some(at) = position.get(run.label.as_str()) else { continue };
        let share = &mut shares[*at];
        share.bytes = share.bytes.saturating_add(run.bytes);
        match (run.warmup, &run.outcome) {
            (true, _) => share.warmups += 1,
            (false, Outcome::Done) => {
                share.runs += 1;
                share.sum_s += seconds(run.total_ns);
            }
            (false, _) => share.failed += 1,
        }
    }
    shares
}
