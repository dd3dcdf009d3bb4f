//! What the index takes from a session's folder, and the list of sessions elsewhere.

use crate::IndexError;
use rustix::fs::{statat, AtFlags};
use serde::Deserialize;
use std::collections::HashSet;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use vmeter_base::files;
use vmeter_model::run::{AnyPlanned, Outcome, SessionRecord, Usage};
use vmeter_model::time::{ClockReading, Ns};
use vmeter_model::SCHEMA;

/// Larger files are not vmeter's.
const MAX_JSON: u64 = 64 << 20;
/// Stamps younger than this may still be those of a change to come: file systems tick in
/// steps of up to 2 s (FAT; others some ms).
const RACY_NS: i128 = 2_000_000_000;
/// Sessions saved with `--save`, a path a line.
const ELSEWHERE: &str = "saved-elsewhere";

/// When a session's folder and its `runs` last changed, ns since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Stamp {
    pub session_ns: i64,
    pub runs_ns: i64,
}

impl Stamp {
    /// Of the session `name` in `folder`; none if there is none.
    pub(crate) fn of(folder: impl AsFd, name: &Path) -> Option<Stamp> {
        let changed = |path: &Path| {
            let stat = statat(&folder, path, AtFlags::empty()).ok()?;
            stat.st_mtime
                .checked_mul(1_000_000_000)?
                .checked_add(i64::try_from(stat.st_mtime_nsec).ok()?)
        };
        Some(Stamp { session_ns: changed(name)?, runs_ns: changed(&name.join("runs"))? })
    }

    /// The stamp to store for what was read after it was taken: one that never matches if
    /// a change could still come under it.
    pub(crate) fn trusted(self) -> Stamp {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as i128);
        let newest = i128::from(self.session_ns.max(self.runs_ns));
        if now - newest < RACY_NS {
            return Stamp { session_ns: -1, runs_ns: -1 };
        }
        self
    }
}

/// A run, as far as the index goes.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Run {
    schema: String,
    pub index: u32,
    pub label: String,
    pub warmup: bool,
    exec_ns: Ns,
    pub total_ns: Ns,
    #[serde(default)]
    clocks: Vec<ClockReading>,
    pub outcome: Outcome,
    #[serde(default)]
    pub usage: Usage,
    #[serde(default)]
    pub steal_s: f64,
    /// Of its files, bytes; not in the file.
    #[serde(skip)]
    pub bytes: u64,
}

impl Run {
    /// When its VMM was executed, ns since the epoch.
    pub(crate) fn started_ns(&self) -> Option<i64> {
        let clock = self.clocks.first()?;
        let offset = i128::from(clock.realtime_ns) - i128::from(clock.monotonic_ns);
        i64::try_from(offset + i128::from(self.exec_ns)).ok()
    }

    /// How it ended, in a word.
    pub(crate) fn ended(&self) -> &'static str {
        match self.outcome {
            Outcome::Done => "done",
            Outcome::Panicked { .. } => "panicked",
            Outcome::NotReady => "not-ready",
            Outcome::VmmFailed { .. } => "vmm-failed",
            Outcome::TimedOut { .. } => "timed-out",
            Outcome::Interrupted => "interrupted",
        }
    }
}

/// A session as read from its folder.
#[derive(Debug)]
pub(crate) struct Saved {
    pub stamp: Stamp,
    /// None if `session.json` cannot be read.
    pub record: Option<SessionRecord<AnyPlanned>>,
    pub runs: Vec<Run>,
    /// What cannot be read of it.
    pub problem: Option<String>,
}

/// Reads a session; none if the folder holds no `session.json`.
pub(crate) fn read(dir: &Path, stamp: Stamp) -> Option<Saved> {
    let stamp = stamp.trusted();
    let file = dir.join("session.json");
    if !file.is_file() {
        return None;
    }
    let record = match session(&file) {
        Ok(record) => record,
        Err(problem) => {
            return Some(Saved { stamp, record: None, runs: Vec::new(), problem: Some(problem) })
        }
    };
    let mut runs = Vec::new();
    let mut damaged: Vec<String> = Vec::new();
    for entry in std::fs::read_dir(dir.join("runs")).into_iter().flatten().flatten() {
        let path = entry.path();
        // An unfinished run is NNNN.partial.
        if path.extension().is_none() {
            match run(&path) {
                Ok(run) => runs.push(run),
                Err(problem) => damaged.push(problem),
            }
        }
    }
    runs.sort_by_key(|run| run.index);
    runs.dedup_by_key(|run| run.index);
    let problem = damaged.first().map(|first| match damaged.len() {
        1 => first.clone(),
        n => format!("{n} runs cannot be read: {first}"),
    });
    Some(Saved { stamp, record: Some(record), runs, problem })
}

fn session(file: &Path) -> Result<SessionRecord<AnyPlanned>, String> {
    let say = |error: &dyn std::fmt::Display| format!("session.json: {error}");
    let bytes = files::read_limited(file, MAX_JSON).map_err(|e| say(&e))?;
    let record: SessionRecord<AnyPlanned> = serde_json::from_slice(&bytes).map_err(|e| say(&e))?;
    if record.schema == SCHEMA {
        Ok(record)
    } else {
        Err(say(&format!("format {:?}, expected {SCHEMA:?}", record.schema)))
    }
}

fn run(dir: &Path) -> Result<Run, String> {
    let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let say = |error: &dyn std::fmt::Display| format!("run {name}: {error}");
    let bytes =
        files::read_limited(&dir.join("run.json"), MAX_JSON).map_err(|error| say(&error))?;
    let mut run: Run = serde_json::from_slice(&bytes).map_err(|e| say(&e))?;
    if run.schema != SCHEMA {
        return Err(say(&format!("format {:?}, expected {SCHEMA:?}", run.schema)));
    }
    run.bytes = folder_bytes(dir);
    Ok(run)
}

/// Of the files in a folder, bytes.
fn folder_bytes(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|m| m.len()).sum()
}

/// Notes that a session was saved outside of the state folder, so that it is found there.
///
/// # Errors
/// Any error of the file system.
pub fn remember(state: &Path, session: &Path) -> std::io::Result<()> {
    let session = std::path::absolute(session)?;
    if session.parent() == Some(&state.join("runs"))
        || session.as_os_str().as_bytes().contains(&b'\n')
    {
        return Ok(());
    }
    if elsewhere(state).contains(&session) {
        return Ok(());
    }
    std::fs::create_dir_all(state)?;
    let mut line = session.into_os_string().into_vec();
    line.push(b'\n');
    // One write, in append mode: lines of vmeters at the same time do not mix.
    let mut file =
        std::fs::File::options().append(true).create(true).open(state.join(ELSEWHERE))?;
    file.write_all(&line)
}

/// The sessions saved outside of the state folder, each once.
pub(crate) fn elsewhere(state: &Path) -> Vec<PathBuf> {
    let bytes = files::read_limited(&state.join(ELSEWHERE), MAX_JSON).unwrap_or_default();
    let mut seen = HashSet::new();
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"/"));
    let paths = lines.map(|line| PathBuf::from(std::ffi::OsString::from_vec(line.to_vec())));
    paths.filter(|path| seen.insert(path.clone())).collect()
}

/// Folders below the state folder's `runs` that may be sessions, by name.
pub(crate) fn names(runs: &Path) -> Result<Vec<PathBuf>, IndexError> {
    let entries = match std::fs::read_dir(runs) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(IndexError::io("cannot read", runs)(error)),
    };
    let hidden = |name: &std::ffi::OsString| name.as_bytes().starts_with(b".");
    let folders = entries.flatten().filter(|e| !e.file_type().is_ok_and(|kind| kind.is_file()));
    Ok(folders.map(|e| e.file_name()).filter(|name| !hidden(name)).map(PathBuf::from).collect())
}
