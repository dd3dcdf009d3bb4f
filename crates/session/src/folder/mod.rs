//! A session's folder: whose it is, and who is at work in it.
//!
//! vmeter saves only in a folder that it made, or that was empty, and marks it at once
//! ([`marker`]); it removes only what it wrote, by name ([`names`], [`remove`]); and one vmeter
//! is at work in it at a time ([`lock`]).

mod lock;
mod marker;
pub(crate) mod names;
mod remove;
mod tree;

pub use lock::LockError;
pub use marker::{own_folder, own_tree};
pub use names::{checkout_of, is_hash, IMAGE};
pub(crate) use remove::move_aside;
pub use remove::{clear_run, Removal};
pub use tree::{note_tree, set_checkout_aside, strangers, Strangers};

use crate::failure::usage;
use anyhow::{Context, Result};
use lock::Lock;
use names::{Kind, CLUSTER, RUNS, SESSION};
use std::fs;
use std::path::{Path, PathBuf};
use vmeter_base::{files, shell};

/// What goes last.
const MARKER_AND_LOCK: [&str; 2] = [marker::MARKER, lock::NAME];
/// Entries that a message names.
const NAMED: usize = 5;

/// A session's folder in which this vmeter is at work, until it is dropped.
#[derive(Debug)]
pub struct Folder {
    dir: PathBuf,
    /// Held until the folder is dropped.
    _lock: Lock,
}

impl Folder {
    /// Makes the folder of a session that begins: one that is not there, or is empty, and is
    /// in no other session's.
    ///
    /// # Errors
    /// Class usage: a folder with a session or with anything of somebody else's. When it
    /// cannot be made, or another vmeter is at work in it.
    pub fn make(dir: &Path) -> Result<Self> {
        check_new(dir)?;
        Self::make_within(dir)
    }

    /// As [`Folder::make`], inside of another session's folder: that of a shard.
    ///
    /// # Errors
    /// As [`Folder::make`].
    pub fn make_within(dir: &Path) -> Result<Self> {
        check_free(dir)?;
        files::private_folder(dir).with_context(|| {
            format!(
                "cannot make the folder {} for the runs: with --save DIR, choose a folder that \
                 you can write to",
                dir.display()
            )
        })?;
        let lock = taken(dir)?;
        let folder = Folder { dir: dir.to_owned(), _lock: lock };
        // Another vmeter may have been here since.
        check_free(dir)?;
        marker::put(dir)?;
        Ok(folder)
    }

    /// The folder of a session that is there.
    ///
    /// # Errors
    /// Class usage: there is no session, or no lock can be where it belongs. When another
    /// vmeter is at work in it.
    pub fn hold(dir: &Path) -> Result<Self> {
        if !is_session(dir) {
            return Err(usage(format!(
                "{}: expected a session's folder with {SESSION}, found none",
                dir.display()
            )));
        }
        let folder = Folder { dir: dir.to_owned(), _lock: taken(dir)? };
        let runs = dir.join(RUNS);
        if runs.is_symlink() {
            return Err(usage(format!(
                "{} is a symbolic link that vmeter did not make: replace the link with the \
                 folder itself",
                runs.display()
            )));
        }
        Ok(folder)
    }

    /// A folder as it is, to be removed.
    ///
    /// # Errors
    /// When another vmeter is at work in it, or it cannot be locked.
    pub fn take(dir: &Path) -> Result<Self, LockError> {
        Ok(Folder { dir: dir.to_owned(), _lock: Lock::take(dir)? })
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Gives the folder another name.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn move_to(&mut self, to: &Path) -> std::io::Result<()> {
        fs::rename(&self.dir, to)?;
        self.dir = to.to_owned();
        Ok(())
    }
}

/// The lock of a folder. What no vmeter put in its place is an unreadable input.
fn taken(dir: &Path) -> Result<Lock> {
    Lock::take(dir).map_err(|error| match error {
        LockError::Foreign { .. } => usage(error),
        LockError::Busy { .. } | LockError::Elsewhere { .. } | LockError::Io { .. } => error.into(),
    })
}

/// True if vmeter made the folder, by its marker.
pub fn is_vmeters(dir: &Path) -> bool {
    marker::is_in(dir)
}

/// True for the folder of a session, or of one that was only begun.
pub fn is_session(dir: &Path) -> bool {
    dir.join(SESSION).is_file() || dir.join(CLUSTER).is_file() || marker::is_in(dir)
}

/// The session's folder that `dir` would be in, if any.
pub fn outer_session(dir: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(dir).ok()?;
    let there = absolute.ancestors().skip(1).find(|above| above.exists())?;
    let there = there.canonicalize().ok()?;
    there.ancestors().find(|above| is_session(above)).map(Path::to_owned)
}

/// Refuses a folder in which no session can begin. Nothing is written.
///
/// # Errors
/// Class usage: as [`Folder::make`].
pub fn check_new(dir: &Path) -> Result<()> {
    if let Some(outer) = outer_session(dir) {
        return Err(usage(format!(
            "{} is inside of {}, which is a session's folder: choose another folder with --save DIR",
            dir.display(),
            outer.display()
        )));
    }
    check_free(dir)
}

/// Refuses a folder that is somebody else's, or is taken. Nothing is written.
fn check_free(dir: &Path) -> Result<()> {
    let shown = dir.display();
    if dir.join(SESSION).exists() || dir.join(CLUSTER).exists() {
        return Err(usage(format!(
            "{shown} holds a session already: choose another folder, or resume it with --resume {}",
            shell::path(dir)
        )));
    }
    let mut others = others(dir);
    if !others.is_empty() {
        others.sort();
        return Err(usage(format!(
            "{shown} holds files that vmeter did not make ({}). vmeter does not mix its files \
                with others: with --save DIR, choose a folder that is empty or does not exist",
            listed(&others)
        )));
    }
    let begun = fs::read_dir(dir.join(RUNS)).into_iter().flatten().flatten();
    if begun.into_iter().any(|run| run.path().join(names::RUN).exists()) {
        return Err(usage(format!(
            "{shown} contains runs of an incomplete session: remove them with vmeter runs rm \
                {shown}, or choose another folder with --save DIR"
        )));
    }
    Ok(())
}

/// What in a folder is not vmeter's.
fn others(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let names: Vec<String> = names.collect();
    // Another vmeter may just be beginning: the marker comes after the lock.
    let marked = marker::is_in(dir);
    let own = |name: &str| match name {
        // The root of a file system of its own has one.
        "lost+found" | lock::NAME => true,
        _ if names::is_temporary(name) => true,
        _ => marked && Kind::Session.own(dir, name).is_some(),
    };
    names.into_iter().filter(|name| !own(name)).collect()
}

fn listed(names: &[String]) -> String {
    let mut text = names.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > NAMED {
        text += &format!(" and {} more", names.len() - NAMED);
    }
    text
}

/// Refuses a file to write results to that is vmeter's own in a session's folder.
///
/// # Errors
/// Class usage.
pub fn check_output(path: &Path) -> Result<()> {
    let Ok(absolute) = std::path::absolute(path) else { return Ok(()) };
    let place = absolute.canonicalize().ok().or_else(|| {
        let folder = absolute.parent()?.canonicalize().ok()?;
        Some(folder.join(absolute.file_name()?))
    });
    let Some(place) = place else { return Ok(()) };
    for dir in place.ancestors().skip(1).filter(|dir| is_session(dir)) {
        let inside = place.strip_prefix(dir).ok().and_then(|inside| inside.iter().next());
        let name = inside.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if Kind::Session.own(dir, &name).is_some() {
            return Err(usage(format!(
                "{} is part of the session saved in {}: choose another file",
                path.display(),
                dir.display()
            )));
        }
    }
    // What is saved beside the sessions: a recording of `explain`.
    let runs = crate::state_dir().ok().and_then(|state| state.join("runs").canonicalize().ok());
    if place.is_file() && runs.is_some_and(|runs| place.starts_with(runs)) {
        return Err(usage(format!(
            "{} is among the files that vmeter saved: choose another file",
            path.display()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_empty_folders_are_taken_and_what_is_in_others_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("p");
        let held = Folder::make(&dir).unwrap();
        assert!(is_session(&dir));
        assert!(Folder::make(&dir).unwrap_err().to_string().contains("another vmeter"));
        drop(held);
        // Begun, and nothing was saved: it may be begun again.
        drop(Folder::make(&dir).unwrap());
        for mine in ["weights", "notes.txt", "runs/exp1", "checkout"] {
            let dir = folder.path().join("mine");
            fs::create_dir_all(dir.join(mine)).unwrap();
            let said = Folder::make(&dir).unwrap_err().to_string();
            let name = mine.split('/').next().unwrap();
            assert!(said.contains(name) && said.contains("--save"), "{said}");
            assert!(!dir.join(lock::NAME).exists() && !is_session(&dir));
            fs::remove_dir_all(&dir).unwrap();
        }
        let inside = dir.join("runs/x");
        assert!(Folder::make(&inside).unwrap_err().to_string().contains("inside of"));
        assert!(!inside.exists());
    }

    #[test]
    fn a_sessions_own_files_are_no_place_for_results() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("p");
        drop(Folder::make(&dir).unwrap());
        fs::create_dir_all(dir.join("runs/0000")).unwrap();
        std::os::unix::fs::symlink(dir.join("session.json"), folder.path().join("link")).unwrap();
        fs::write(dir.join("session.json"), "{}").unwrap();
        for own in
            ["p/session.json", "p/runs/0000/run.json", "p/runs/0000/x", "p/range.json", "link"]
        {
            check_output(&folder.path().join(own)).unwrap_err();
        }
        for other in ["p/report.html", "x.json", "no/where.json"] {
            check_output(&folder.path().join(other)).unwrap();
        }
    }

    #[test]
    fn a_tree_that_was_there_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        drop(Folder::make(folder.path()).unwrap());
        let tree = own_tree(folder.path(), "checkout").unwrap();
        fs::create_dir(&tree).unwrap();
        own_tree(folder.path(), "checkout").unwrap();
        fs::create_dir(folder.path().join("mine")).unwrap();
        assert!(own_tree(folder.path(), "mine").unwrap_err().to_string().contains("did not make"));
    }
}
