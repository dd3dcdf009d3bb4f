//! Where built and fetched things stay, and how they get there in one piece.

use crate::cache_root;
use crate::error::{At, Error, Result};
use sha2::{Digest, Sha256};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// vmeter's cache: `$XDG_CACHE_HOME/vmeter`, or `~/.cache/vmeter`.
///
/// # Errors
/// [`Error::NoCache`] when neither variable is an absolute path.
pub fn root() -> Result<PathBuf> {
    cache_root::of_variables().ok_or(Error::NoCache)
}

/// SHA-256 of some bytes, hexadecimal.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// SHA-256 of a file, hexadecimal, as `sha256sum` prints it.
pub(crate) fn sha256_file(path: &Path) -> Result<String> {
    let mut digest = Sha256::new();
    let mut file = fs::File::open(path).at(path)?;
    std::io::copy(&mut file, &mut digest).at(path)?;
    Ok(hex(&digest.finalize()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// A name for what is being made that tells whose it is, should vmeter be killed meanwhile.
pub(crate) fn own(prefix: &str) -> String {
    format!("{prefix}{}-", vmeter_base::owner::Owner::this())
}

/// A temporary folder that goes with its owner, should vmeter be killed.
pub(crate) fn scratch() -> Result<tempfile::TempDir> {
    let folder = std::env::temp_dir();
    tempfile::Builder::new().prefix(&own("")).tempdir_in(&folder).at(&folder)
}

/// Moves a finished folder to its place. One that another process put there first is
/// replaced.
pub(crate) fn publish(fresh: tempfile::TempDir, folder: &Path) -> Result<()> {
    let parent = folder.parent().unwrap_or(Path::new("/"));
    fs::set_permissions(fresh.path(), fs::Permissions::from_mode(0o755)).at(fresh.path())?;
    // A folder cannot be renamed onto one that has files: the old one moves away first.
    for _ in 0..2 {
        if fs::rename(fresh.path(), folder).is_ok() {
            let _ = fresh.keep();
            return Ok(());
        }
        let old = tempfile::Builder::new().prefix(&own(".old-")).tempdir_in(parent).at(parent)?;
        let _ = fs::rename(folder, old.path().join("it"));
    }
    fs::rename(fresh.path(), folder).at(folder)?;
    let _ = fresh.keep();
    Ok(())
}

/// Gives a temporary file the permissions of an ordinary one.
pub(crate) fn readable(path: &Path) -> Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).at(path)
}
