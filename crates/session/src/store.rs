//! A session's folder: `session.json` and one folder for each finished run.
//!
//! A run is recorded into `runs/NNNN.partial` and renamed to `runs/NNNN` once
//! its `run.json` is on disk, so a folder with a plain number is a whole run,
//! whatever happened to vmeter after it.

use crate::failure::usage;
use anyhow::{bail, Context, Result};
use serde::de::DeserializeOwned;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use vmeter_base::files;
use vmeter_model::run::{
    AnyPlanned, DataRun, Planned, PlannedRun, RunHead, RunRecord, SessionRecord,
};
use vmeter_model::SCHEMA;

const SESSION: &str = "session.json";
const RUN: &str = "run.json";
const MAX_JSON: u64 = 64 << 20;

/// A finished run: its folder and its record.
pub type Finished<R> = (PathBuf, R);

/// A finished boot: its folder and its record.
pub type SavedRun = Finished<RunRecord>;

/// A session on disk, with what its plan says of each run.
#[derive(Debug)]
pub struct Session<P = PlannedRun> {
    /// Its folder.
    pub dir: PathBuf,
    /// What it is.
    pub record: SessionRecord<P>,
    /// The right to add runs to it, once it was taken.
    lock: Option<fs::File>,
}

/// A session of any kind, as far as all kinds agree.
pub type AnySession = Session<AnyPlanned>;

/// What `run.json` holds, whatever the kind of experiment.
pub trait RunFile: Serialize + DeserializeOwned {
    /// The format, [`SCHEMA`].
    fn schema(&self) -> &str;
    /// Number of the run in its session.
    fn index(&self) -> u32;
    /// Names of the files beside it that belong to the run.
    fn files(&self) -> Vec<&str> {
        Vec::new()
    }
}

impl RunFile for RunRecord {
    fn schema(&self) -> &str {
        &self.schema
    }

    fn index(&self) -> u32 {
        self.index
    }

    fn files(&self) -> Vec<&str> {
        self.sources.iter().flat_map(|source| &source.files).map(String::as_str).collect()
    }
}

impl RunFile for RunHead {
    fn schema(&self) -> &str {
        &self.schema
    }

    fn index(&self) -> u32 {
        self.index
    }
}

impl<T: Serialize + DeserializeOwned> RunFile for DataRun<T> {
    fn schema(&self) -> &str {
        &self.head.schema
    }

    fn index(&self) -> u32 {
        self.head.index
    }
}

/// `$XDG_STATE_HOME/vmeter`, or `~/.local/state/vmeter`.
pub fn state_dir() -> PathBuf {
    base("XDG_STATE_HOME", ".local/state")
}

/// `$XDG_CACHE_HOME/vmeter`, or `~/.cache/vmeter`.
pub fn cache_dir() -> PathBuf {
    base("XDG_CACHE_HOME", ".cache")
}

fn base(variable: &str, below_home: &str) -> PathBuf {
    let base = std::env::var_os(variable).map(PathBuf::from).filter(|p| p.is_absolute());
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/".into()));
    base.unwrap_or_else(|| home().join(below_home)).join("vmeter")
}

/// A name of its own under the state folder.
pub fn fresh_dir<P>(record: &SessionRecord<P>) -> PathBuf {
    let stamp: String = record.started_at.chars().filter(char::is_ascii_alphanumeric).collect();
    let name = format!("{stamp}-{}-{}", record.command, std::process::id());
    state_dir().join("runs").join(name)
}

/// The folder of the latest session under the state folder.
///
/// # Errors
/// When there is none.
pub fn latest() -> Result<PathBuf> {
    let runs = state_dir().join("runs");
    let newest = fs::read_dir(&runs)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.join(SESSION).exists())
        .max_by_key(|path| fs::metadata(path.join(SESSION)).and_then(|m| m.modified()).ok());
    newest.ok_or_else(|| {
        usage(format!("no saved session under {}: make one with vmeter boot", runs.display()))
    })
}

/// True if a session is saved in `dir`.
pub fn is_saved(dir: &Path) -> bool {
    dir.join(SESSION).exists()
}

impl<P: Planned> Session<P> {
    /// A session in a folder that is there, or will be.
    pub fn at(dir: PathBuf, record: SessionRecord<P>) -> Self {
        Session { dir, record, lock: None }
    }

    /// Makes a session's folder: `dir`, or a fresh one under the state folder.
    ///
    /// # Errors
    /// When the folder cannot be made or written, or holds a session already.
    pub fn create(dir: Option<&Path>, record: SessionRecord<P>) -> Result<Self> {
        let dir = match dir {
            Some(dir) => dir.to_owned(),
            None => fresh_dir(&record),
        };
        if is_saved(&dir) {
            return Err(usage(format!(
                "{} holds a session already: choose another folder, or go on with it by --resume {}",
                dir.display(),
                dir.display()
            )));
        }
        fs::create_dir_all(dir.join("runs")).with_context(|| {
            format!(
                "cannot make the folder {} for the runs: choose one that can be written with --save DIR",
                dir.display()
            )
        })?;
        let session = Session::at(dir, record);
        session.save()?;
        Ok(session)
    }

    /// Opens a saved session: its folder, or the `session.json` in it.
    ///
    /// # Errors
    /// Class usage: there is none, or it is not of a version or kind that is read so.
    pub fn open(path: &Path) -> Result<Self> {
        let dir = match path.file_name() {
            Some(name) if name == SESSION => path.parent().unwrap_or(path),
            _ => path,
        };
        let file = dir.join(SESSION);
        let bytes = files::read_limited(&file, MAX_JSON).map_err(|error| {
            usage(format!(
                "{} is not a saved session: expected {}, as `vmeter boot --save DIR` writes it: {error}",
                path.display(),
                file.display()
            ))
        })?;
        let record: SessionRecord<P> = serde_json::from_slice(&bytes).map_err(|error| {
            usage(format!("{}: not a session of vmeter: {error}", file.display()))
        })?;
        check_schema(&record.schema, &file)?;
        Ok(Session::at(dir.to_owned(), record))
    }

    /// Writes `session.json`.
    ///
    /// # Errors
    /// Any error of the file system, a full disk among them.
    pub fn save(&self) -> Result<()> {
        let bytes = serde_json::to_vec_pretty(&self.record)?;
        let path = self.dir.join(SESSION);
        files::write_atomic(&path, &bytes)
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Keeps other processes from adding runs as long as the session lives: a task that a
    /// scheduler has given up may still be alive. Where the file system has no locks, nobody
    /// is kept out.
    ///
    /// # Errors
    /// When another process is at work in the folder.
    pub fn hold(&mut self) -> Result<()> {
        use rustix::fs::{flock, FlockOperation};
        use rustix::io::Errno;
        let path = self.dir.join("lock");
        let file =
            fs::File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => self.lock = Some(file),
            Err(Errno::WOULDBLOCK) => {
                bail!("another vmeter adds runs to {}: wait for it, or end it", self.dir.display())
            }
            Err(_) => {}
        }
        Ok(())
    }

    /// What was asked, in the kind's own words.
    ///
    /// # Errors
    /// Class usage: `session.json` does not say it as this vmeter does.
    pub fn asked<A: DeserializeOwned>(&self) -> Result<A> {
        A::deserialize(&self.record.asked).map_err(|error| {
            usage(format!("{}: \"asked\": {error}", self.dir.join(SESSION).display()))
        })
    }

    /// True if the finished run `index` is there.
    pub fn has_run(&self, index: u32) -> bool {
        self.run_dir(index).join(RUN).exists()
    }

    /// Folder of the finished run `index`.
    pub fn run_dir(&self, index: u32) -> PathBuf {
        self.dir.join("runs").join(format!("{index:04}"))
    }

    fn partial_dir(&self, index: u32) -> PathBuf {
        self.dir.join("runs").join(format!("{index:04}.partial"))
    }

    /// An empty folder to record run `index` into.
    ///
    /// # Errors
    /// Any error of the file system, a full disk among them.
    pub fn begin_run(&self, index: u32) -> Result<PathBuf> {
        let dir = self.partial_dir(index);
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(dir)
    }

    /// Makes the run recorded into [`Session::begin_run`]'s folder a finished one.
    ///
    /// # Errors
    /// Any error of the file system; earlier runs are untouched then.
    pub fn commit_run(&self, run: &impl RunFile) -> Result<PathBuf> {
        let (partial, whole) = (self.partial_dir(run.index()), self.run_dir(run.index()));
        let context = || {
            format!(
                "cannot save run {} in {}; the runs before it are safe there",
                run.index(),
                self.dir.display()
            )
        };
        for file in run.files() {
            if let Ok(file) = fs::File::open(partial.join(file)) {
                file.sync_all().with_context(context)?;
            }
        }
        let bytes = serde_json::to_vec_pretty(run)?;
        files::write_atomic(&partial.join(RUN), &bytes).with_context(context)?;
        if whole.exists() {
            // What cannot be read as a run is made again, and kept beside it.
            let damaged = whole.with_extension("damaged");
            if damaged.exists() {
                fs::remove_dir_all(&damaged).with_context(context)?;
            }
            fs::rename(&whole, &damaged).with_context(context)?;
        }
        fs::rename(&partial, &whole).with_context(context)?;
        files::sync_folder(&self.dir.join("runs")).with_context(context)?;
        Ok(whole)
    }

    /// Removes what an unfinished run left.
    pub fn discard_run(&self, index: u32) {
        let _ = fs::remove_dir_all(self.partial_dir(index));
    }

    /// The finished runs in order of their numbers, with their folders; and a
    /// warning for each that cannot be read.
    ///
    /// # Errors
    /// When the folder itself cannot be read.
    pub fn finished_as<R: RunFile>(&self) -> Result<(Vec<Finished<R>>, Vec<String>)> {
        let runs = self.dir.join("runs");
        let mut dirs: Vec<PathBuf> = fs::read_dir(&runs)
            .with_context(|| format!("cannot read {}", runs.display()))?
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_none())
            .collect();
        dirs.sort();
        let (mut found, mut warnings) = (Vec::new(), Vec::new());
        for dir in dirs {
            match read_run_as(&dir) {
                Ok(run) => found.push((dir, run)),
                Err(error) => warnings.push(format!("{error:#}")),
            }
        }
        Ok((found, warnings))
    }

    /// What a command says of a session without a finished run.
    pub fn no_runs(&self) -> anyhow::Error {
        let dir = self.dir.display();
        usage(format!(
            "{dir}: no run was finished: go on with it by vmeter {} --resume {dir}",
            self.record.command
        ))
    }
}

impl Session {
    /// The finished boots; see [`Session::finished_as`].
    ///
    /// # Errors
    /// When the folder itself cannot be read.
    pub fn finished(&self) -> Result<(Vec<SavedRun>, Vec<String>)> {
        self.finished_as()
    }
}

/// Reads a boot's `run.json`.
///
/// # Errors
/// As [`read_run_as`].
pub fn read_run(dir: &Path) -> Result<RunRecord> {
    read_run_as(dir)
}

/// Reads a run's `run.json`.
///
/// # Errors
/// Class usage: it is missing, not vmeter's, of another kind or of another version.
pub fn read_run_as<R: RunFile>(dir: &Path) -> Result<R> {
    let file = dir.join(RUN);
    let bytes = files::read_limited(&file, MAX_JSON)
        .map_err(|error| usage(format!("{}: not a finished run: {error}", dir.display())))?;
    let run: R = serde_json::from_slice(&bytes)
        .map_err(|error| usage(format!("{}: not a run of vmeter: {error}", file.display())))?;
    check_schema(run.schema(), &file)?;
    Ok(run)
}

fn check_schema(found: &str, file: &Path) -> Result<()> {
    if found == SCHEMA {
        return Ok(());
    }
    Err(usage(format!(
        "{}: format {found:?}, and this vmeter reads {SCHEMA:?}: use the vmeter that wrote it",
        file.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_model::run::{Outcome, Usage, WatchLevel};

    fn record(index: u32) -> RunRecord {
        RunRecord {
            schema: SCHEMA.into(),
            index,
            label: "m".into(),
            warmup: false,
            watch: WatchLevel::Light,
            argv: vec![],
            injected: vec![],
            exec_ns: 0,
            total_ns: 5,
            clocks: vec![],
            outcome: Outcome::Done,
            usage: Usage::default(),
            steal_s: 0.0,
            moments: vec![],
            sources: vec![],
            icount: false,
            warnings: vec![],
        }
    }

    fn session(dir: &Path) -> Session {
        let record = SessionRecord { schema: SCHEMA.into(), ..SessionRecord::default() };
        Session::create(Some(dir), record).unwrap()
    }

    #[test]
    fn only_committed_runs_are_finished() {
        let folder = tempfile::tempdir().unwrap();
        let session = session(folder.path());
        for index in [0, 2] {
            session.begin_run(index).unwrap();
            session.commit_run(&record(index)).unwrap();
        }
        session.begin_run(3).unwrap();
        let (found, warnings) = Session::open(folder.path()).unwrap().finished().unwrap();
        let indices: Vec<u32> = found.iter().map(|(_, r)| r.index).collect();
        assert_eq!((indices, warnings.len()), (vec![0, 2], 0));
    }

    #[test]
    fn a_damaged_run_is_a_warning_and_the_others_stand() {
        let folder = tempfile::tempdir().unwrap();
        let session = session(folder.path());
        for index in [0, 1] {
            session.begin_run(index).unwrap();
            session.commit_run(&record(index)).unwrap();
        }
        fs::write(session.run_dir(0).join(RUN), b"{ torn").unwrap();
        let (found, warnings) = session.finished().unwrap();
        assert_eq!((found.len(), warnings.len()), (1, 1));
        session.begin_run(0).unwrap();
        session.commit_run(&record(0)).unwrap();
        let (found, warnings) = session.finished().unwrap();
        assert_eq!((found.len(), warnings.len()), (2, 0));
        assert!(session.run_dir(0).with_extension("damaged").join(RUN).exists());
        assert!(Session::<PlannedRun>::create(Some(folder.path()), SessionRecord::default())
            .unwrap_err()
            .to_string()
            .contains("--resume"));
    }
}
