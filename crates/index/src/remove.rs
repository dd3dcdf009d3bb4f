//! Removing sessions.
//!
//! What vmeter wrote is removed and nothing else. A session of the state folder is renamed
//! first, so that one that is half removed is never taken for a session. In a folder of the
//! user's own (`--save`) only vmeter's own names are removed, and the folder if it is then
//! empty.

use crate::filter::literal;
use crate::{Index, IndexError};
use rustix::fs::{flock, FlockOperation};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// What vmeter writes into a session's folder.
const OWN: [&str; 9] = [
    "session.json",
    LOCK,
    "runs",
    "range.json",
    "builds",
    "kept",
    "checkout",
    "checkout.cloned",
    "shards",
];
/// Locked by the vmeter that adds runs.
const LOCK: &str = "lock";
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
    /// The folder of the session called `given`: a name, the beginning of one, or a path.
    ///
    /// # Errors
    /// [`IndexError::Unknown`], [`IndexError::Ambiguous`].
    pub fn find(&mut self, given: &str) -> Result<PathBuf, IndexError> {
        let text = given.trim_end_matches('/');
        let found = self.healing(|index| index.paths("name = ?1", text))?;
        let found = if found.is_empty() { self.by_path(text)? } else { found };
        let found = if found.is_empty() && !text.is_empty() {
            let pattern = format!("{}%", literal(text));
            self.healing(|index| index.paths("name LIKE ?1 ESCAPE '\\'", &pattern))?
        } else {
            found
        };
        match found.as_slice() {
            [] => Err(IndexError::Unknown(given.to_owned())),
            [one] => Ok(one.clone()),
            [first, ..] => Err(IndexError::Ambiguous {
                given: given.to_owned(),
                count: found.len(),
                first: first.display().to_string(),
            }),
        }
    }

    fn by_path(&self, text: &str) -> Result<Vec<PathBuf>, IndexError> {
        let path = std::path::absolute(text).unwrap_or_else(|_| text.into());
        Ok(if path.join("session.json").is_file() { vec![path] } else { Vec::new() })
    }

    fn paths(&self, condition: &str, value: &str) -> Result<Vec<PathBuf>, IndexError> {
        let sql = format!("SELECT path FROM session WHERE {condition} ORDER BY started_s");
        let mut query = self.db.prepare_cached(&sql)?;
        let rows = query.query_map([value], |row| {
            Ok(PathBuf::from(std::ffi::OsString::from_vec(row.get(0)?)))
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Removes a session, by its folder.
    ///
    /// # Errors
    /// [`IndexError::Busy`] when a vmeter is at work in it, [`IndexError::NoSession`], and
    /// those of the file system; the session is then still there, or hidden.
    pub fn remove(&mut self, path: &Path) -> Result<Removed, IndexError> {
        let id = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        if !path.join("session.json").is_file() {
            return Err(IndexError::NoSession(path.to_owned()));
        }
        // A file system without locks cannot tell.
        let lock = File::open(path.join(LOCK)).ok();
        let held = lock.as_ref().map(|file| flock(file, FlockOperation::NonBlockingLockExclusive));
        if held == Some(Err(rustix::io::Errno::WOULDBLOCK)) {
            return Err(IndexError::Busy(path.to_owned()));
        }
        let runs = self.state.join("runs");
        let left = if path.parent() == Some(&runs) && !path.is_symlink() {
            remove_whole(path, &runs, &id)?
        } else {
            remove_own(path)?
        };
        let path = path.to_owned();
        self.healing(|index| {
            let write = index.db.transaction()?;
            crate::scan::forget(&write, &path)?;
            Ok(write.commit()?)
        })?;
        Ok(Removed { id, path, left })
    }
}

fn remove_whole(path: &Path, runs: &Path, id: &str) -> Result<Vec<String>, IndexError> {
    let hidden = runs.join(format!("{REMOVING}{id}"));
    std::fs::rename(path, &hidden).map_err(IndexError::io("cannot remove", path))?;
    // With those that were being removed when a vmeter was killed.
    for entry in std::fs::read_dir(runs).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(REMOVING) {
            let path = entry.path();
            gone(std::fs::remove_dir_all(&path))
                .map_err(IndexError::io("cannot remove all of", path))?;
        }
    }
    Ok(Vec::new())
}

/// `session.json` goes first: what is left is no session.
fn remove_own(path: &Path) -> Result<Vec<String>, IndexError> {
    for name in OWN {
        let own = path.join(name);
        let removed = match own.symlink_metadata() {
            Ok(found) if found.is_dir() => std::fs::remove_dir_all(&own),
            Ok(_) => std::fs::remove_file(&own),
            Err(error) => Err(error),
        };
        gone(removed).map_err(IndexError::io("cannot remove", own))?;
    }
    let others = std::fs::read_dir(path).map_err(IndexError::io("cannot read", path))?;
    let left: Vec<String> =
        others.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    // A link to the folder, or the folder itself where it is a mount point, stays.
    if left.is_empty() && !path.is_symlink() {
        let _ = std::fs::remove_dir(path);
    }
    Ok(left)
}

fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
