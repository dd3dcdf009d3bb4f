//! A file that is being written, until it is whole.
//!
//! It has no name where the file system can do without (`O_TMPFILE`, open(2)), so that of a
//! writer that is killed nothing stays, wherever it wrote. It gets one for the moment between
//! linkat(2), which replaces nothing, and rename(2).

use crate::owner::Owner;
use rustix::fs::{AtFlags, Mode, OFlags, CWD};
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempPath;

/// Of some files at a time in a folder, one finds a name within so many tries.
const TRIES: u32 = 100;

/// A file that is not there yet.
pub(super) struct Fresh {
    file: File,
    /// What it is called where it can't be without a name; it goes with it.
    name: Option<TempPath>,
}

impl Fresh {
    /// In the folder of `path`, with these permissions as far as the umask allows.
    pub fn beside(path: &Path, mode: u32) -> io::Result<Self> {
        let folder = folder_of(path);
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        if let Ok(fd) = rustix::fs::open(folder, flags, Mode::from_raw_mode(mode)) {
            let file = File::from(fd);
            if link_of(&file).symlink_metadata().is_ok() {
                return Ok(Fresh { file, name: None });
            }
        }
        Self::named(folder, mode)
    }

    /// With a name that begins with a dot, tells whose it is, and ends with `.partial`: what a
    /// crash leaves behind is known by that.
    fn named(folder: &Path, mode: u32) -> io::Result<Self> {
        let (file, name) = tempfile::Builder::new()
            .prefix(&format!(".{}-", Owner::process()))
            .suffix(".partial")
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(folder)
            .map_err(|e| io::Error::new(e.kind(), strip_path(&e)))?
            .into_parts();
        Ok(Fresh { file, name: Some(name) })
    }

    /// Makes it durable, and puts it in its place: a file that was there is replaced.
    pub fn become_whole(self, path: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        let name = match self.name {
            Some(name) => name,
            None => linked(&self.file, folder_of(path))?,
        };
        name.persist(path).map_err(|error| error.error)
    }

    /// As [`Fresh::become_whole`], unless there is a file in its place.
    pub fn become_new(self, path: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        match self.name {
            Some(name) => name.persist_noclobber(path).map_err(|error| error.error),
            None => Ok(rustix::fs::linkat(
                CWD,
                link_of(&self.file),
                CWD,
                path,
                AtFlags::SYMLINK_FOLLOW,
            )?),
        }
    }
}

impl Write for Fresh {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Gives a file without a name one of its own in `folder`.
fn linked(file: &File, folder: &Path) -> io::Result<TempPath> {
    for _ in 0..TRIES {
        let path = folder.join(format!(".{}.partial", Owner::numbered()));
        match rustix::fs::linkat(CWD, link_of(file), CWD, &path, AtFlags::SYMLINK_FOLLOW) {
            Ok(()) => return TempPath::try_from_path(path),
            Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

fn link_of(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// The reason alone: `tempfile` appends the temporary path, which the user never named.
fn strip_path(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" at path ").next().unwrap_or(&text).to_owned()
}

pub(super) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_and_without_a_name_it_is_the_same_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        let entries = || std::fs::read_dir(folder.path()).expect("listed").count();
        for named in [false, true] {
            let make = || match named {
                false => Fresh::beside(&path, 0o640),
                true => Fresh::named(folder.path(), 0o640),
            };
            let mut begun = make().expect("begun");
            begun.write_all(b"half").expect("written");
            drop(begun);
            assert_eq!(entries(), usize::from(named), "nothing stays of what was begun");
            let mut whole = make().expect("begun");
            whole.write_all(b"whole").expect("written");
            whole.become_whole(&path).expect("in its place");
            assert_eq!(std::fs::read(&path).expect("read"), b"whole");
            let mode = std::fs::metadata(&path).expect("there").permissions().mode();
            assert_eq!(mode & 0o137, 0, "{mode:o}");
            assert_eq!(entries(), 1);
        }
    }
}
