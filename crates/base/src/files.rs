//! Writing files so that nobody ever sees half of one, and reading no more than a file of
//! its kind can hold.

mod unnamed;

use crate::bounds::{self, Allowance};
use crate::owner::Owner;
use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use unnamed::Fresh;

/// Of a file that is read whole: file systems that pack make text 10 to 50 times smaller.
const WHOLE: Allowance = Allowance { floor: 64 << 20, factor: 64, most: u64::MAX };

/// Writes `bytes` to `path` by a temporary file beside it, fsync and rename. A symbolic link
/// at `path` is replaced, not followed. Nobody but the user can read it.
///
/// # Errors
/// Any error of the file system; the old file, if there was one, is then unchanged.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_with_mode(path, bytes, 0o600)
}

/// As [`write_atomic`], of a program that the user may execute.
///
/// # Errors
/// As [`write_atomic`].
pub fn write_program(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_with_mode(path, bytes, 0o700)
}

/// As [`write_atomic`], of a file that must not be there yet.
///
/// # Errors
/// As [`write_atomic`]; `AlreadyExists`.
pub fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = Fresh::beside(path, 0o600)?;
    file.write_all(bytes)?;
    file.become_new(path)?;
    sync_folder(unnamed::folder_of(path))
}

fn write_with_mode(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut file = Fresh::beside(path, mode)?;
    file.write_all(bytes)?;
    file.become_whole(path)?;
    sync_folder(unnamed::folder_of(path))
}

/// [`write_atomic`] into a folder that may not be there yet.
///
/// # Errors
/// As [`write_atomic`]; and when the folder cannot be made.
pub fn write_in_new_folder(path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(unnamed::folder_of(path))?;
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
        let mut out = BufWriter::new(open_special(path).map_err(&failed)?);
        write(&mut out)?;
        return out.flush().map_err(failed);
    }
    let place = resolve(path);
    let mut out = BufWriter::new(Fresh::beside(&place, 0o666).map_err(&failed)?);
    write(&mut out)?;
    let file = out.into_inner().map_err(|e| failed(e.into_error()))?;
    file.become_whole(&place).map_err(failed)
}

/// How long a FIFO that is to be written may be without a reader.
const READER_WITHIN: Duration = Duration::from_secs(3);

/// Opens what is no regular file to write, without waiting for ever: a FIFO may have no reader.
fn open_special(path: &Path) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let begin = Instant::now();
    loop {
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(file) => {
                let flags = rustix::fs::fcntl_getfl(&file)?;
                rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
                return Ok(File::from(file));
            }
            Err(rustix::io::Errno::NXIO) if begin.elapsed() < READER_WITHIN => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(rustix::io::Errno::NXIO) => {
                let why = "no process reads from this FIFO: start the reading process first, or \
                    export to `-`";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
            Err(error) => return Err(error.into()),
        }
    }
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
    Fresh::beside(&resolve(path), 0o666).map(drop)
}

/// Removes from a folder what processes that are gone have begun to write there. Only for
/// folders in which no other host writes: its processes are not known here.
pub fn remove_begun(folder: &Path) {
    for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let begun = name.starts_with('.') && name.ends_with(".partial");
        if begun && Owner::within(name).is_some_and(|owner| !owner.is_alive()) {
            // What can't be removed is in nobody's way.
            let _ = fs::remove_file(path);
        }
    }
}

/// Makes a folder, with those above it that are not there, which nobody else can look into.
///
/// # Errors
/// Any error of the file system.
pub fn private_folder(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Takes from everybody but the user what they may do with the files of a folder, whoever wrote
/// them.
///
/// # Errors
/// Any error of the file system.
pub fn keep_private(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let mode = entry.metadata()?.permissions().mode();
        if entry.file_type()?.is_file() && mode & 0o077 != 0 {
            fs::set_permissions(entry.path(), Permissions::from_mode(mode & 0o700))?;
        }
    }
    Ok(())
}

/// Makes a rename inside `folder` durable.
///
/// # Errors
/// Any error of the file system.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Opens a regular file to read, without waiting: a FIFO, a device, a socket or a folder is
/// refused by what it is. Links are followed.
///
/// # Errors
/// Any error of the file system, or `InvalidInput` that says what it is instead.
pub fn open_regular(path: &Path) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags};
    // Before it is opened: opening alone can wait, or set a device off.
    regular(&fs::metadata(path)?)?;
    // And behind it, as it can have been replaced meanwhile.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    regular(&file.metadata()?)?;
    Ok(file)
}

/// Opens a regular file, or a pipe, to read from front to back: `<(command)` of a shell is one.
/// A FIFO that nobody writes to is waited for.
///
/// # Errors
/// As [`open_regular`], but for pipes.
pub fn open_stream(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::FileTypeExt;
    if fs::metadata(path)?.file_type().is_fifo() {
        return File::open(path);
    }
    open_regular(path)
}

fn regular(metadata: &fs::Metadata) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    let kind = metadata.file_type();
    if kind.is_file() {
        return Ok(());
    }
    if kind.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let found = match () {
        () if kind.is_fifo() => "a FIFO",
        () if kind.is_socket() => "a socket",
        () if kind.is_char_device() || kind.is_block_device() => "a device",
        () => "no file",
    };
    let message = format!("expected a regular file, found {found}");
    Err(io::Error::new(io::ErrorKind::InvalidInput, message))
}

/// Reads a regular file that should not be larger than `limit` bytes; a larger one is not begun
/// with, nor is a large one that is nothing but holes.
///
/// # Errors
/// As [`open_regular`], any error of the file system, or `InvalidData` when it is larger.
pub fn read_limited(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = open_regular(path)?;
    let metadata = file.metadata()?;
    let length = metadata.len();
    let limit = limit.min(WHOLE.of(bounds::stored(&metadata)));
    let mut bytes = Vec::new();
    if length <= limit {
        // It can grow meanwhile.
        file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    }
    if length > limit || bytes.len() as u64 > limit {
        let message = format!(
            "the file is larger than {limit} bytes, the limit for a file of \
            this kind"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(bytes)
}

/// As [`read_limited`], of text.
///
/// # Errors
/// As [`read_limited`], and `InvalidData` when it is not UTF-8.
pub fn read_text_limited(path: &Path, limit: u64) -> io::Result<String> {
    String::from_utf8(read_limited(path, limit)?)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()))
}

fn is_special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

fn resolve(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
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

    #[test]
    fn only_regular_files_are_opened_and_nothing_waits() {
        let folder = tempfile::tempdir().expect("a folder");
        let fifo = folder.path().join("fifo");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0)
            .expect("a FIFO");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/dev/zero", &link).expect("linked");
        for (path, found) in [
            (fifo.as_path(), "found a FIFO"),
            (&link, "found a device"),
            (Path::new("/dev/null"), "found a device"),
            (folder.path(), "directory"),
        ] {
            let error = read_limited(path, 10).expect_err("refused").to_string();
            assert!(error.contains(found), "{}: {error}", path.display());
        }
        let sparse = folder.path().join("sparse");
        File::create(&sparse).and_then(|file| file.set_len(1 << 40)).expect("sparse");
        let error = read_limited(&sparse, 1 << 20).expect_err("too large").to_string();
        assert!(error.contains("larger than 1048576 bytes"), "{error}");
        fs::write(&sparse, [0xff]).expect("written");
        assert!(read_text_limited(&sparse, 10).is_err());
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
    fn what_is_private_is_the_users_alone() {
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        let folder = tempfile::tempdir().expect("a folder");
        let inner = folder.path().join("a/b");
        private_folder(&inner).expect("made");
        assert_eq!((mode(&folder.path().join("a")), mode(&inner)), (0o700, 0o700));
        write_atomic(&inner.join("own"), b"").expect("written");
        fs::write(inner.join("other"), b"").expect("written");
        keep_private(&inner).expect("changed");
        assert_eq!((mode(&inner.join("own")), mode(&inner.join("other"))), (0o600, 0o600));
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
