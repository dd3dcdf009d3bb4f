//! Where sessions are: the user's folders, and what is finished in a session's.

use crate::failure::{host, usage};
pub(crate) use crate::folder::names::SESSION;
use crate::folder::names::{RUN, RUNS};
use anyhow::Result;
use std::fs;
use std::path::{Path, PathBuf};
use vmeter_model::run::SessionRecord;

/// `$XDG_STATE_HOME/vmeter`, or `~/.local/state/vmeter`.
///
/// # Errors
/// Neither variable says where.
pub fn state_dir() -> Result<PathBuf> {
    base("XDG_STATE_HOME", ".local/state")
}

/// `$XDG_CACHE_HOME/vmeter`, or `~/.cache/vmeter`.
///
/// # Errors
/// Neither variable says where.
pub fn cache_dir() -> Result<PathBuf> {
    base("XDG_CACHE_HOME", ".cache")
}

/// Of relative paths the XDG Base Directory Specification says that they are ignored.
fn base(variable: &str, below_home: &str) -> Result<PathBuf> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let base = absolute(variable).or_else(|| Some(absolute("HOME")?.join(below_home)));
    let base = base.ok_or_else(|| {
        host(format!(
            "neither {variable} nor HOME is an absolute path, so there is no folder for vmeter's \
             files: set one of these variables, e.g. HOME=/root"
        ))
    })?;
    Ok(base.join("vmeter"))
}

/// A name of its own under the state folder.
///
/// # Errors
/// As [`state_dir`].
pub fn fresh_dir<P>(record: &SessionRecord<P>) -> Result<PathBuf> {
    let stamp: String = record.started_at.chars().filter(char::is_ascii_alphanumeric).collect();
    let name = format!("{stamp}-{}-{}", record.command, std::process::id());
    Ok(state_dir()?.join("runs").join(name))
}

/// The folder of the latest session under the state folder.
///
/// # Errors
/// When there is none.
pub fn latest() -> Result<PathBuf> {
    let runs = state_dir()?.join("runs");
    let newest = fs::read_dir(&runs)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.join(SESSION).exists() && has_runs(path))
        .max_by_key(|path| fs::metadata(path.join(SESSION)).and_then(|m| m.modified()).ok());
    newest.ok_or_else(|| {
        usage(format!(
            "no saved session under {} has a finished run: make a new session with vmeter boot",
            runs.display()
        ))
    })
}

/// The folders of the finished runs.
pub(crate) fn runs_in(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let runs = fs::read_dir(dir.join(RUNS)).into_iter().flatten().flatten();
    let whole = |path: &PathBuf| path.extension().is_none() && path.join(RUN).exists();
    runs.map(|entry| entry.path()).filter(whole)
}

/// False for a kind whose VMs somebody else starts: its sessions are not gone on with.
pub(crate) fn goes_on(kind: &str) -> bool {
    !matches!(kind, "next" | "look")
}

/// True if a run was finished in the session's folder.
pub(crate) fn has_runs(dir: &Path) -> bool {
    runs_in(dir).next().is_some()
}

/// True if a session is saved in `dir`.
pub fn is_saved(dir: &Path) -> bool {
    dir.join(SESSION).exists()
}
