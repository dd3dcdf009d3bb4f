//! What the index takes from a session's folder, and the list of sessions elsewhere.

use crate::IndexError;
use rustix::fs::{statat, AtFlags};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use vmeter_base::files;
use vmeter_model::run::{AnyPlanned, Outcome, SessionRecord, Usage};
use vmeter_model::time::{ClockReading, Ns};
use vmeter_session::{impossible_total, AnySession, RunFile};

/// A longer list of sessions is not vmeter's.
const MAX_LIST: u64 = 64 << 20;
/// Stamps younger than this may still be those of a change to come: file systems tick in
/// steps of up to 2 s (FAT; others some ms).
const RACY_NS: i128 = 2_000_000_000;
/// Sessions saved with `--save`, a path a line.
const ELSEWHERE: &str = "saved-elsewhere";

/// When a session's folder and its `runs` last changed, ns since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Serialize, Deserialize)]
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

impl RunFile for Run {
    fn schema(&self) -> &str {
        &self.schema
    }

    fn index(&self) -> u32 {
        self.index
    }

    fn label(&self) -> &str {
        &self.label
    }

    fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    fn impossible(&self) -> Option<String> {
        impossible_total(self.total_ns, &self.outcome)
    }
}

impl Run {
    /// When its VMM was executed, ns since the epoch.
    pub(crate) fn started_ns(&self) -> Option<i64> {
        let clock = self.clocks.first()?;
        let offset = i128::from(clock.realtime_ns) - i128::from(clock.monotonic_ns);
        i64::try_from(offset + i128::from(self.exec_ns)).ok()
    }
}

/// A session as read from its folder.
#[derive(Debug)]
pub(crate) struct Saved {
    /// None if `session.json` cannot be read.
    pub record: Option<SessionRecord<AnyPlanned>>,
    pub runs: Vec<Run>,
    /// What cannot be read of it.
    pub problem: Option<String>,
}

/// Reads a session; none if the folder holds no `session.json`.
pub(crate) fn read(dir: &Path) -> Option<Saved> {
    if !vmeter_session::is_saved(dir) {
        return None;
    }
    let unread = |problem| Saved { record: None, runs: Vec::new(), problem: Some(problem) };
    let session = match AnySession::open(dir) {
        Ok(session) => session,
        Err(problem) => return Some(unread(format!("{problem:#}"))),
    };
    let (finished, damaged) = session.finished_as::<Run>().unwrap_or_default();
    let weighed = |(dir, run): (PathBuf, Run)| Run { bytes: folder_bytes(&dir), ..run };
    let mut runs: Vec<Run> = finished.into_iter().map(weighed).collect();
    runs.sort_by_key(|run| run.index);
    runs.dedup_by_key(|run| run.index);
    let problem = damaged.first().map(|first| match damaged.len() {
        1 => first.clone(),
        n => format!("{n} runs cannot be read: {first}"),
    });
    Some(Saved { record: Some(session.record), runs, problem })
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
    vmeter_base::files::private_folder(state)?;
    let mut line = session.into_os_string().into_vec();
    line.push(b'\n');
    // One write, in append mode: lines of vmeters at the same time do not mix.
    let mut file =
        std::fs::File::options().append(true).create(true).open(state.join(ELSEWHERE))?;
    file.write_all(&line)
}

/// The sessions saved outside of the state folder, each once.
pub(crate) fn elsewhere(state: &Path) -> Vec<PathBuf> {
    let bytes = files::read_limited(&state.join(ELSEWHERE), MAX_LIST).unwrap_or_default();
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
