//! Removing sessions.
//!
//! What vmeter wrote is removed, by name, and nothing else ([`vmeter_session::folder`]). A
//! session of the state folder that holds nothing else is renamed first, so that one that is
//! half removed is never taken for a session. Elsewhere, and where something else is in it,
//! `session.json` goes first, and the folder stays with what is not vmeter's.

use crate::query::name;
use crate::{Index, IndexError};
use std::path::{Path, PathBuf};
use vmeter_session::folder::{self, Folder, Removal};

/// Begins the name of a session that is being removed.
const REMOVING: &str = ".removing-";

/// A session that was removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    /// Its name.
    pub id: String,
    /// Its folder.
    pub path: PathBuf,
    /// Files of others that were in it; the folder stays for them.
    pub left: Vec<String>,
}

impl Index {
    /// Removes a session, by its folder; `force` if with what has come into its checkout or
    /// into what is kept of commits.
    ///
    /// # Errors
    /// [`IndexError::Busy`] when a vmeter is at work in it, [`IndexError::NoSession`],
    /// [`IndexError::Link`], [`IndexError::Doubt`] unless `force`, and those of the file system; the session is then still there, or
    /// hidden.
    pub fn remove(&mut self, path: &Path, force: bool) -> Result<Removed, IndexError> {
        let id = name(path);
        if path.is_symlink() {
            let target = path.canonicalize().unwrap_or_default();
            return Err(IndexError::Link(path.to_owned(), target));
        }
        let runs = self.state.join("runs");
        let in_place = path.parent() != Some(&runs);
        // In its own state folder vmeter removes a session that cannot be read as well.
        if !folder::is_session(path) || in_place && !folder::is_vmeters(path) {
            return Err(IndexError::NoSession(path.to_owned()));
        }
        let left = remove(path, (!in_place).then_some(runs.as_path()), &id, force)?;
        self.sessions.remove(path);
        Ok(Removed { id, path: path.to_owned(), left })
    }
}

/// Removes what is vmeter's in a session's folder; what is left. `runs` is the folder of the
/// state folder's sessions, if it is one of them.
fn remove(
    path: &Path,
    runs: Option<&Path>,
    id: &str,
    force: bool,
) -> Result<Vec<String>, IndexError> {
    let mut held = Folder::take(path)?;
    let mut removal = Removal::of(&held).map_err(IndexError::io("cannot read", path))?;
    let doubts: Vec<&str> = removal.doubts().collect();
    if !doubts.is_empty() && !force {
        return Err(IndexError::Doubt(path.to_owned(), doubts.join(", ")));
    }
    removal.force();
    let Some(runs) = runs.filter(|_| removal.left().is_empty()) else {
        return carried_out(removal, &held);
    };
    let hidden = runs.join(format!("{REMOVING}{id}"));
    // One that was being removed when a vmeter was killed.
    finish(&hidden)?;
    held.move_to(&hidden).map_err(IndexError::io("cannot remove", path))?;
    let mut removal = Removal::of(&held).map_err(IndexError::io("cannot read", &hidden))?;
    removal.force();
    let left = carried_out(removal, &held)?;
    for entry in std::fs::read_dir(runs).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(REMOVING) {
            finish(&entry.path())?;
        }
    }
    Ok(left)
}

/// Removes what is left of a session that was being removed.
fn finish(hidden: &Path) -> Result<(), IndexError> {
    if !hidden.is_dir() || hidden.is_symlink() {
        return Ok(());
    }
    // Who is at it now does it.
    let Ok(held) = Folder::take(hidden) else { return Ok(()) };
    let mut removal = Removal::of(&held).map_err(IndexError::io("cannot read", hidden))?;
    // It was asked about before it got this name.
    removal.force();
    carried_out(removal, &held).map(drop)
}

fn carried_out(removal: Removal, held: &Folder) -> Result<Vec<String>, IndexError> {
    removal.carry_out(held).map_err(|(path, error)| IndexError::io("cannot remove", path)(error))
}
