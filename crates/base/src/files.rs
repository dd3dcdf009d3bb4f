//! Writing files so that nobody ever sees half of one, and reading no more than a file of
//! its kind can hold.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Writes `bytes` to `path` by a temporary file beside it, fsync and rename. A symbolic link
/// at `path` is replaced, not followed.
///
/// # Errors
/// Any error of the file system; the old file, if there was one, is then unchanged.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = temporary_beside(path)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|e| e.error)?;
    sync_folder(folder_of(path))
}

/// [`write_atomic`] into a folder that may not be there yet.
///
/// # Errors
/// As [`write_atomic`]; and when the folder cannot be made.
pub fn write_in_new_folder(path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(folder_of(path))?;
    write_atomic(path, bytes)
}

/// Writes a file that a user named: whole or not at all, by way of a temporary one in the same
/// folder.
///
/// A symbolic link is followed, so it stays one. What is not a regular file (a FIFO,
/// `/dev/null`) is opened and written as it is. `failed` makes the caller's error of one of
/// the file system.
///
/// # Errors
/// What `failed` makes of an error of the file system, or what `write` returned.
pub fn replace<E>(
    path: &Path,
    failed: impl Fn(io::Error) -> E,
    write: impl FnOnce(&mut dyn Write) -> Result<(), E>,
) -> Result<(), E> {
    if is_special(path) {
        let mut out = BufWriter::new(OpenOptions::new().write(true).open(path).map_err(&failed)?);
        write(&mut out)?;
        return out.flush().map_err(failed);
    }
    let place = resolve(path);
    let mut out = BufWriter::new(temporary_beside(&place).map_err(&failed)?);
    write(&mut out)?;
    let file = out.into_inner().map_err(|e| failed(e.into_error()))?;
    file.as_file().sync_all().map_err(&failed)?;
    file.persist(&place).map(drop).map_err(|e| failed(e.error))
}

/// Checks that [`replace`] could write to `path`, without leaving anything there.
///
/// # Errors
/// The reason why not.
pub fn check_replaceable(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if is_special(path) {
        return Ok(rustix::fs::access(path, rustix::fs::Access::WRITE_OK)?);
    }
    temporary_beside(&resolve(path)).map(drop)
}

/// Makes a rename inside `folder` durable.
///
/// # Errors
/// Any error of the file system.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Reads a file that should not be larger than `limit` bytes.
///
/// # Errors
/// Any error of the file system, or `InvalidData` when it is larger.
pub fn read_limited(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        let message = format!("larger than the {limit} bytes that such a file can have");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(bytes)
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn is_special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

fn resolve(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// A temporary file in the folder of `path`, with the permissions of a new file. Its name
/// begins with a dot and ends with `.partial`: what a crash leaves behind is known by that.
fn temporary_beside(path: &Path) -> io::Result<NamedTempFile<File>> {
    tempfile::Builder::new()
        .prefix(".vmeter-")
        .suffix(".partial")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder_of(path))
        .map_err(|e| io::Error::new(e.kind(), strip_path(&e)))
}

/// The reason alone: `tempfile` appends the temporary path, which the user never named.
fn strip_path(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" at path ").next().unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(folder: &Path) -> usize {
        fs::read_dir(folder).expect("listed").count()
    }

    #[test]
    fn a_file_is_replaced_whole_and_nothing_temporary_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("sub/file");
        write_in_new_folder(&file, b"one").expect("written");
        write_atomic(&file, b"two").expect("replaced");
        assert_eq!(read_limited(&file, 3).expect("read"), b"two");
        assert_eq!(
            read_limited(&file, 2).expect_err("too large").kind(),
            io::ErrorKind::InvalidData
        );
        assert_eq!(entries(&folder.path().join("sub")), 1);
        assert!(write_atomic(&folder.path().join("no/file"), b"").is_err());
    }

    /// Run folders can be anyone's: a link in one must not lead a write elsewhere. A file that
    /// the user named may be a link of their own.
    #[test]
    fn links_are_replaced_in_run_folders_and_followed_for_users() {
        let folder = tempfile::tempdir().expect("a folder");
        let (link, target) = (folder.path().join("link"), folder.path().join("target"));
        fs::write(&target, b"old").expect("written");
        std::os::unix::fs::symlink(&target, &link).expect("linked");
        check_replaceable(&link).expect("writable");
        replace(&link, |e| e, |out| out.write_all(b"new")).expect("written");
        assert_eq!(fs::read(&target).expect("read"), b"new");
        write_atomic(&link, b"own").expect("written");
        assert_eq!(fs::read(&target).expect("read"), b"new");
        assert!(!link.is_symlink());
    }

    #[test]
    fn a_failed_writer_leaves_the_old_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        fs::write(&file, b"old").expect("written");
        let failed = replace(&file, |e| e, |_| Err(io::ErrorKind::StorageFull.into()));
        assert_eq!(failed.expect_err("failed").kind(), io::ErrorKind::StorageFull);
        assert_eq!((fs::read(&file).expect("read"), entries(folder.path())), (b"old".to_vec(), 1));
        assert!(check_replaceable(folder.path()).is_err());
    }
}
