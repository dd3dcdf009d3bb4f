//! A session's folder: `session.json` and one folder for each finished run.
//!
//! A run is recorded into `runs/NNNN.partial` and renamed to `runs/NNNN` once
//! its `run.json` is on disk, so a folder with a plain number is a whole run,
//! whatever happened to vmeter after it.

use crate::dirs::{fresh_dir, goes_on, has_runs, SESSION};
use crate::failure::{class, usage, Class};
use crate::folder::{self, names::RUN, names::RUNS, Folder};
use crate::run_file::RunFile;
use crate::trust;
use crate::{host, identity, shares};
use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;
use vmeter_base::files;
use vmeter_model::run::{AnyPlanned, Planned, PlannedRun, RunHead, RunRecord, SessionRecord};
use vmeter_model::SCHEMA;

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
    held: Option<Folder>,
    /// True if this vmeter began it.
    begun: bool,
    /// Back to where vmeter was called, once it has gone where the session was begun.
    pub(crate) away: Option<Away>,
    /// True if what is written carries the user's seal ([`trust`]).
    ours: bool,
    /// Texts that were noted when it began and that its runs write themselves.
    written: Mutex<BTreeSet<String>>,
}

/// The folder that vmeter was called in, while it works in another.
#[derive(Debug)]
pub(crate) struct Away(PathBuf);

impl Away {
    /// Goes to `dir`, until it is dropped.
    pub fn to(dir: &Path) -> std::io::Result<Self> {
        let from = std::env::current_dir()?;
        std::env::set_current_dir(dir)?;
        Ok(Away(from))
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        // It may be gone; then there is nothing to go back to.
        let _ = std::env::set_current_dir(&self.0);
    }
}

/// A session of any kind, as far as all kinds agree.
pub type AnySession = Session<AnyPlanned>;

impl<P: Planned> Session<P> {
    /// A session in a folder that is there, or will be.
    pub fn at(dir: PathBuf, record: SessionRecord<P>) -> Self {
        Session {
            dir,
            record,
            held: None,
            begun: false,
            away: None,
            ours: false,
            written: Mutex::default(),
        }
    }

    /// A session that is going to be saved in a folder that this vmeter holds.
    pub fn of(folder: Folder, record: SessionRecord<P>) -> Self {
        let dir = folder.dir().to_owned();
        Session { held: Some(folder), begun: true, ..Session::at(dir, record) }
    }

    /// Makes a session's folder: `dir`, or a fresh one under the state folder; this vmeter
    /// then holds it as long as the session lives.
    ///
    /// # Errors
    /// When the folder cannot be made or written, or holds a session or anything of somebody
    /// else's already ([`Folder::make`]).
    pub fn create(dir: Option<&Path>, record: SessionRecord<P>) -> Result<Self> {
        let dir = dir.map_or_else(|| fresh_dir(&record), |dir| Ok(dir.to_owned()))?;
        Self::create_in(Folder::make(&dir)?, record, |_| Ok(()))
    }

    /// Makes a session in a folder that was made for it. `beside` writes what else it is made
    /// of: before `session.json`, so that a folder with that is whole.
    ///
    /// # Errors
    /// When it cannot be written; `beside`'s.
    pub fn create_in(
        folder: Folder,
        record: SessionRecord<P>,
        beside: impl FnOnce(&Self) -> Result<()>,
    ) -> Result<Self> {
        folder::own_folder(folder.dir(), RUNS)?;
        let mut session = Session::of(folder, record);
        session.is_ours();
        beside(&session)?;
        session.save()?;
        Ok(session)
    }

    /// Opens a saved session: its folder, or the `session.json` in it.
    ///
    /// # Errors
    /// Class usage: there is none, or it is not of a version or kind that is read so.
    pub fn open(path: &Path) -> Result<Self> {
        let dir = folder_of(path);
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

    /// What is written from now on is this user's own: it was made here, or is trusted.
    pub fn is_ours(&mut self) {
        self.ours = true;
    }

    /// Writes a file that says what is executed, whole; sealed if the session is the user's.
    ///
    /// # Errors
    /// Any error of the file system, a full disk among them.
    pub fn write(&self, name: &str, text: Vec<u8>) -> Result<()> {
        trust::write(&self.dir, name, text, self.ours)
    }

    /// Writes `session.json`.
    ///
    /// # Errors
    /// Any error of the file system, a full disk among them.
    pub fn save(&self) -> Result<()> {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if written.is_empty() {
            return self.write(SESSION, serde_json::to_vec_pretty(&self.record)?);
        }
        let mut record = self.record.clone();
        record.programs.retain(|path, _| !written.contains(path));
        self.write(SESSION, serde_json::to_vec_pretty(&record)?)
    }

    /// Forgets of the texts that were noted those that a run, which began then, has written: it
    /// writes them each time, as a log, and one that is cut off does so too.
    ///
    /// # Errors
    /// As [`Session::save`].
    pub(crate) fn forget_written(&self, begin: SystemTime) -> Result<()> {
        let found = identity::written_since(&self.record, begin);
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let before = written.len();
        written.extend(found);
        let more = written.len() > before;
        drop(written);
        if more {
            self.save()?;
        }
        Ok(())
    }

    /// Keeps other vmeters out of the folder as long as the session lives ([`folder`]), if
    /// they are not kept out already.
    ///
    /// # Errors
    /// When another vmeter is at work in it.
    pub fn hold(&mut self) -> Result<()> {
        if self.held.is_none() {
            self.held = Some(Folder::hold(&self.dir)?);
        }
        Ok(())
    }

    /// Takes a session back that this vmeter began and that turned out to be a mistake, or to measure
    /// nothing, before any run was finished; `error` is what was found.
    pub fn withdraw(&self, error: &anyhow::Error) {
        if matches!(class(error), Class::Usage | Class::Answer) {
            self.abandon();
        }
    }

    /// Takes a session back that this vmeter began, if no run was finished.
    pub fn abandon(&self) {
        let empty = || self.finished_as::<RunHead>().is_ok_and(|(runs, _)| runs.is_empty());
        let (true, Some(folder)) = (self.begun, &self.held) else { return };
        if empty() {
            // What stays is no session, and may be begun again.
            if let Ok(removal) = folder::Removal::of(folder) {
                let _ = removal.carry_out(folder);
            }
        }
    }

    /// What was asked, in the kind's own words.
    ///
    /// # Errors
    /// Class usage: `session.json` does not say it as this vmeter does.
    pub fn asked<A: DeserializeOwned>(&self) -> Result<A> {
        let empty = serde_json::json!({});
        let asked = if self.record.asked.is_null() { &empty } else { &self.record.asked };
        A::deserialize(asked).map_err(|error| {
            usage(format!("{}: \"asked\": {error}", self.dir.join(SESSION).display()))
        })
    }

    /// True if the finished run `index` is there.
    pub fn has_run(&self, index: u32) -> bool {
        self.run_dir(index).join(RUN).exists()
    }

    /// Folder of the finished run `index`.
    pub fn run_dir(&self, index: u32) -> PathBuf {
        self.dir.join(RUNS).join(format!("{index:04}"))
    }

    fn partial_dir(&self, index: u32) -> PathBuf {
        self.dir.join(RUNS).join(format!("{index:04}.partial"))
    }

    /// An empty folder to record run `index` into: an absolute path, as the VMM is given names
    /// of files in it, and a launcher may go to another folder first.
    ///
    /// # Errors
    /// Any error of the file system, a full disk among them.
    pub fn begin_run(&self, index: u32) -> Result<PathBuf> {
        self.check_there()?;
        let dir = self.partial_dir(index);
        folder::clear_run(&dir)
            .and_then(|()| files::private_folder(&dir))
            .and_then(|()| std::path::absolute(&dir))
            .with_context(|| format!("cannot make {}", dir.display()))
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
        self.check_there()?;
        for file in run.files() {
            if let Ok(file) = fs::File::open(partial.join(file)) {
                file.sync_all().with_context(context)?;
            }
        }
        let bytes = serde_json::to_vec_pretty(run)?;
        files::write_atomic(&partial.join(RUN), &bytes).with_context(context)?;
        files::keep_private(&partial).with_context(context)?;
        if whole.symlink_metadata().is_ok() {
            // What cannot be read as a run is made again, and kept beside it.
            folder::move_aside(&whole, "damaged").with_context(context)?;
        }
        fs::rename(&partial, &whole).with_context(context)?;
        files::sync_folder(&self.dir.join(RUNS)).with_context(context)?;
        Ok(whole)
    }

    /// Refuses to save into a folder that somebody has removed or moved: it would hold runs without
    /// their session.
    pub(crate) fn check_there(&self) -> Result<()> {
        let runs = self.dir.join(RUNS);
        let gone = match (folder::is_session(&self.dir), runs.is_dir()) {
            (true, true) if self.dir.join(SESSION).is_file() => return Ok(()),
            // All that it said is known.
            (true, true) => return self.save(),
            (true, false) => &runs,
            (false, _) => &self.dir,
        };
        Err(crate::failure::host(format!(
            "{} was removed or moved while its session ran. If you moved it, continue with \
             `vmeter {} --resume` and the new path. If you removed it, its runs are lost: start \
             again with --save DIR in a folder that stays",
            gone.display(),
            self.record.command
        )))
    }

    /// Removes what an unfinished run left.
    pub fn discard_run(&self, index: u32) {
        let _ = folder::clear_run(&self.partial_dir(index));
    }

    /// The finished runs in order of their numbers, with their folders; and a
    /// warning for each that cannot be read.
    ///
    /// # Errors
    /// When the folder itself cannot be read.
    pub fn finished_as<R: RunFile>(&self) -> Result<(Vec<Finished<R>>, Vec<String>)> {
        let runs = self.dir.join(RUNS);
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
                Ok(run) => match self.foreign(&dir, &run) {
                    Some(why) => warnings.push(why),
                    None => found.push((dir, run)),
                },
                Err(error) => warnings.push(format!("{error:#}")),
            }
        }
        Ok((found, warnings))
    }

    /// Why a run in the session's folder is none of its own, if so.
    fn foreign(&self, dir: &Path, run: &impl RunFile) -> Option<String> {
        let file = dir.join(RUN);
        let said =
            |what: String| Some(format!("{}: not a run of this session: {what}", file.display()));
        let number = dir.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
        if number.is_some_and(|number| number != run.index()) {
            return said(format!(
                "the run number in this file is {}, which differs from the number in the folder's name",
                run.index()
            ));
        }
        let machines = &self.record.machines;
        if machines.is_empty() || machines.iter().any(|machine| machine.label == run.label()) {
            return None;
        }
        said(format!("it belongs to machine {:?}, which session.json does not list", run.label()))
    }

    /// Notes that this host carries out what is left.
    ///
    /// # Errors
    /// When the folder itself cannot be read.
    pub fn take_over(&mut self) -> Result<()> {
        let (finished, _) = self.finished_as::<RunHead>()?;
        let finished = finished.into_iter().map(|(_, head)| head.index).collect();
        shares::take_over(&mut self.record, host::describe(), &finished);
        Ok(())
    }

    /// What a command says of a session without a finished run; `unread` is what
    /// [`Session::finished_as`] said of those that it could not read.
    pub fn no_runs(&self, unread: &[String]) -> anyhow::Error {
        if let Some(first) = unread.first() {
            let more = match unread.len() {
                1 => String::new(),
                n => format!(" (and {} more)", n - 1),
            };
            return usage(format!("{}: no run can be read: {first}{more}", self.dir.display()));
        }
        if self.record.machines.is_empty() && has_runs(&self.dir) {
            let dir = self.dir.display();
            return usage(format!(
                "{dir}: session.json names no machines, so no run belongs to a \
                machine"
            ));
        }
        if !goes_on(&self.record.command) {
            return usage(format!(
                "{}: no run was finished: vmeter is still at work in this folder, or was stopped",
                self.dir.display()
            ));
        }
        usage(format!(
            "{}: no run was finished: resume it with vmeter {} --resume {}",
            self.dir.display(),
            self.record.command,
            vmeter_base::shell::path(&self.dir)
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

/// The session's folder that `path` means: itself, or the one of the `session.json` that it is.
fn folder_of(path: &Path) -> &Path {
    match path.file_name() {
        Some(name) if name == SESSION => path.parent().unwrap_or(path),
        _ => path,
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
    match run.impossible() {
        Some(what) => Err(usage(format!("{}: not a run of vmeter: {what}", file.display()))),
        None => Ok(run),
    }
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

    fn record(index: u32) -> RunRecord {
        RunRecord { schema: SCHEMA.into(), index, total_ns: 1_000_000, ..RunRecord::default() }
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

    /// A launcher may `cd` before it starts the VMM, whose options name files in this folder.
    #[test]
    fn a_run_is_recorded_in_a_folder_whose_name_holds_everywhere() {
        let here = std::env::current_dir().unwrap();
        let folder = tempfile::tempdir_in(&here).unwrap();
        let session = session(folder.path().strip_prefix(&here).unwrap());
        let dir = session.begin_run(0).unwrap();
        assert!(dir.is_absolute() && dir.is_dir(), "{}", dir.display());
        assert_eq!(dir, folder.path().join(RUNS).join("0000.partial"));
        session.commit_run(&record(0)).unwrap();
        assert!(session.has_run(0));
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
