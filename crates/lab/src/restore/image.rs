//! The files of a snapshot: which they are, what they take, and whether they are in the page cache.

use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use vmeter_machine::page_cache;
use vmeter_record::recorder::ImageFile;
use vmeter_session::failure::host;

vmeter_base::words! {
    /// What is done to a snapshot's files before each restore.
    pub enum Cache {
        /// They are read, so that they are in the page cache.
        Warm = "warm",
        /// They are dropped from the page cache, and looked for there.
        Cold = "cold",
    }
}

/// More of a snapshot in the page cache than this is not cold.
const COLD: f64 = 0.01;
/// How deep the folder of a snapshot is looked into.
const FOLDERS: usize = 4;

/// Files below a folder, and how deep it is looked into.
fn below(folder: &Path, depth: usize, found: &mut BTreeSet<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, kind) = (entry.path(), entry.file_type());
        match kind {
            Ok(kind) if kind.is_dir() && depth > 0 => below(&path, depth - 1, found),
            Ok(kind) if kind.is_file() => drop(found.insert(path)),
            _ => {}
        }
    }
}

/// The files in a folder that vmeter made for a snapshot.
pub(super) fn files_in(folder: &Path) -> Vec<PathBuf> {
    let mut found = BTreeSet::new();
    below(folder, FOLDERS, &mut found);
    found.into_iter().collect()
}

/// The files that a command names, or that are in a folder that it names, and that were written since.
pub(super) fn named_by(command: &[String], since: SystemTime) -> Vec<PathBuf> {
    let mut found = BTreeSet::new();
    let pieces = command.iter().flat_map(|word| word.split(|c: char| " =,'\"<".contains(c)));
    for piece in pieces {
        let path = Path::new(piece.strip_prefix("file://").unwrap_or(piece));
        match path.metadata() {
            Ok(file) if file.is_file() => drop(found.insert(path.to_owned())),
            Ok(file) if file.is_dir() && path.is_absolute() => below(path, 1, &mut found),
            _ => {}
        }
    }
    let is_data = |path: &PathBuf| {
        let file = path.metadata().ok()?;
        // A program is no part of a snapshot, however new it is.
        Some(file.modified().ok()? >= since && file.permissions().mode() & 0o111 == 0)
    };
    found.retain(|path| is_data(path) == Some(true));
    found.into_iter().collect()
}

/// What the files take on their disks, bytes.
pub(super) fn stored(files: &[PathBuf]) -> u64 {
    files.iter().filter_map(|file| page_cache::stored(file).ok()).sum()
}

/// Brings the files into the page cache, or drops them from it; how much is there then.
///
/// # Errors
/// Class host: files that cannot be read, or cannot be dropped.
pub(super) fn placed(files: &[PathBuf], cache: Cache) -> Result<Vec<ImageFile>> {
    let failed = |path: &Path| format!("{}: a file of the snapshot", path.display());
    for path in files {
        match cache {
            Cache::Warm => page_cache::read_through(path),
            Cache::Cold => page_cache::drop_file(path),
        }
        .map_err(host)
        .with_context(|| failed(path))?;
    }
    let known = resident(files)?;
    if cache == Cache::Cold {
        check_cold(&known)?;
    }
    Ok(known)
}

/// How much of the files is in the page cache.
///
/// # Errors
/// Class host: a file that cannot be read.
pub(super) fn resident(files: &[PathBuf]) -> Result<Vec<ImageFile>> {
    let of = |path: &PathBuf| {
        let resident = page_cache::resident(path).map_err(host);
        let resident =
            resident.with_context(|| format!("{}: a file of the snapshot", path.display()))?;
        Ok(ImageFile { path: path.clone(), resident_bytes: Some(resident) })
    };
    files.iter().map(of).collect()
}

/// Refuses to call cold what is not.
fn check_cold(files: &[ImageFile]) -> Result<()> {
    let length = |file: &ImageFile| file.path.metadata().map_or(0, |found| found.len());
    let all: u64 = files.iter().map(length).sum();
    let kept: u64 = files.iter().filter_map(|file| file.resident_bytes).sum();
    if kept as f64 <= COLD * all as f64 {
        return Ok(());
    }
    let most = files.iter().max_by_key(|file| file.resident_bytes);
    let most = most.map_or_else(String::new, |file| file.path.display().to_string());
    Err(host(format!(
        "--cold: vmeter dropped the snapshot's files from the page cache, but {kept} of their \
         {all} bytes are still in the page cache, mostly bytes of {most}: a restore would not be \
         cold. A file in a tmpfs is always in memory (use --save DIR on a disk). A file that \
         another program has mapped stays in memory too"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_command_are_those_that_were_written_for_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let (old, new) = (folder.path().join("kernel"), folder.path().join("state"));
        std::fs::write(&old, "k").expect("written");
        let ago = SystemTime::now() - std::time::Duration::from_secs(3600);
        std::fs::File::options()
            .append(true)
            .open(&old)
            .and_then(|f| f.set_modified(ago))
            .expect("set");
        let since = SystemTime::now() - std::time::Duration::from_secs(60);
        std::fs::write(&new, "s").expect("written");
        let shown = |path: &Path| path.display().to_string();
        let command =
            [format!("--kernel={}", shown(&old)), format!("source=file://{},x", shown(&new))];
        assert_eq!(named_by(&command, since), std::slice::from_ref(&new));
        let command = [format!("--restore={}", shown(folder.path()))];
        assert_eq!(named_by(&command, since), std::slice::from_ref(&new));
        assert_eq!(files_in(folder.path()), [old, new]);
    }
}
