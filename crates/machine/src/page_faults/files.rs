//! The files whose mappings are of interest: which of them a mapping is of, and when one is opened.

use rustix::fd::OwnedFd;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Device and number.
type Inode = (u64, u64);

pub(super) struct Files(Vec<(PathBuf, Option<Inode>)>);

impl Files {
    pub fn new(paths: &[PathBuf]) -> Self {
        Files(paths.iter().map(|path| (path.clone(), inode(path))).collect())
    }

    /// Which of them this is. In a root directory of its own a process has other names; some file systems tell
    /// other devices.
    pub fn number(&self, of: Inode, name: &[u8]) -> Option<usize> {
        let same = |(path, inode): &(PathBuf, Option<Inode>)| {
            *inode == Some(of) || path.as_os_str().as_bytes() == name
        };
        self.0.iter().position(same)
    }

    /// Hears of it when one is opened, by whomever; none if a process may have one open by now, or if inotify(7)
    /// is not to be had.
    pub fn listen(&self, process: i32) -> Option<OwnedFd> {
        let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
        for (path, _) in &self.0 {
            inotify::add_watch(&watch, path, WatchFlags::OPEN).ok()?;
        }
        (!self.may_be_open(process)).then_some(watch)
    }

    fn may_be_open(&self, process: i32) -> bool {
        let Ok(all) = std::fs::read_dir(format!("/proc/{process}/fd")) else { return true };
        let open = |found: Inode| self.0.iter().any(|(_, inode)| *inode == Some(found));
        all.flatten().filter_map(|fd| inode(&fd.path())).any(open)
    }
}

fn inode(path: &Path) -> Option<Inode> {
    path.metadata().ok().map(|found| (found.dev(), found.ino()))
}
