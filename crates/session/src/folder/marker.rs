//! `vmeter-session`: says that vmeter made the folder that it lies in.

use crate::failure::usage;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use vmeter_base::files;

/// Says that vmeter made the folder.
pub(super) const MARKER: &str = "vmeter-session";
const MAX: u64 = 1 << 20;
/// What the file says of itself, so that one of the user's with its name is none.
const WHAT: &str = "a folder that vmeter made; `vmeter runs rm` removes what vmeter put into it";

/// The file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Marker {
    what: String,
    /// Of this folder and no other.
    id: String,
    /// Folders in it of which all is vmeter's, whatever it is called.
    #[serde(default)]
    trees: Vec<String>,
}

/// True if vmeter made the folder.
pub(super) fn is_in(dir: &Path) -> bool {
    read(dir).is_some()
}

fn read(dir: &Path) -> Option<Marker> {
    let path = dir.join(MARKER);
    // A link may lead anywhere.
    if !path.symlink_metadata().is_ok_and(|found| found.is_file()) {
        return None;
    }
    let bytes = files::read_limited(&path, MAX).ok()?;
    serde_json::from_slice(&bytes).ok().filter(|marker: &Marker| marker.what == WHAT)
}

fn write(dir: &Path, marker: &Marker) -> Result<()> {
    let path = dir.join(MARKER);
    let mut bytes = serde_json::to_vec_pretty(marker)?;
    bytes.push(b'\n');
    files::write_atomic(&path, &bytes).with_context(|| format!("cannot write {}", path.display()))
}

/// Marks a folder as vmeter's, if it is not.
pub(super) fn put(dir: &Path) -> Result<()> {
    if is_in(dir) {
        return Ok(());
    }
    let id = fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
    write(dir, &Marker { what: WHAT.into(), id: id.trim().to_owned(), trees: Vec::new() })
}

/// True if vmeter made the folder `name` in the session's folder `dir`, with all that is in it.
pub(super) fn is_tree(dir: &Path, name: &str) -> bool {
    read(dir).is_some_and(|marker| marker.trees.iter().any(|tree| tree == name))
}

/// The folder `name` in the session's folder `dir`, which is vmeter's from now on, whatever
/// will be in it. It is not made.
///
/// # Errors
/// Class usage: it is there, and vmeter did not make it. Any error of the file system.
pub fn own_tree(dir: &Path, name: &str) -> Result<PathBuf> {
    let path = dir.join(name);
    let found = path.symlink_metadata();
    if found.as_ref().is_ok_and(|found| !found.is_dir()) || found.is_ok() && !is_tree(dir, name) {
        return Err(usage(format!(
            "{} is there, and vmeter did not make it: move it away, or choose another folder with --save DIR",
            path.display()
        )));
    }
    if let Some(mut marker) = read(dir).filter(|marker| !marker.trees.iter().any(|t| t == name)) {
        marker.trees.push(name.to_owned());
        write(dir, &marker)?;
    }
    Ok(path)
}

/// The folder `name` in the session's folder `dir`, made if it is not there: one of those in
/// which vmeter knows its own by their names.
///
/// # Errors
/// Class usage: something else has its name, a link say. Any error of the file system.
pub fn own_folder(dir: &Path, name: &str) -> Result<PathBuf> {
    let path = dir.join(name);
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => {}
        Ok(_) => {
            return Err(usage(format!(
                "{}: expected a folder of vmeter's, found something else: move it away",
                path.display()
            )));
        }
        Err(_) => files::private_folder(&path)
            .with_context(|| format!("cannot make {}", path.display()))?,
    }
    Ok(path)
}
