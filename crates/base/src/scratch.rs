//! Temporary folders that are known by their names as vmeter's, and whose.

use crate::owner::Owner;
use rustix::fs::{flock, FlockOperation};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// A folder in `TMPDIR`, nobody else's to read; removed when dropped. Its lock is held as long,
/// so that a process that cannot see this one knows that it is in use.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    _lock: File,
}

impl Scratch {
    /// Makes one.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn new() -> io::Result<Self> {
        let path = std::env::temp_dir().join(Owner::this().to_string());
        // Fails where somebody else has put something there.
        DirBuilder::new().mode(0o700).create(&path)?;
        let folder = File::open(&path)?;
        // A file system without locks has none to ask for either.
        let _ = flock(&folder, FlockOperation::NonBlockingLockExclusive);
        Ok(Scratch { path, _lock: folder })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What can't be removed now is found by its name later.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn it_is_private_named_after_its_owner_and_goes() {
        let scratch = Scratch::new().expect("a folder");
        let path = scratch.path().to_owned();
        let mode = path.metadata().expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        assert!(Owner::parse(name).is_some_and(|owner| owner.is_same_process(&Owner::process())));
        std::fs::write(path.join("file"), b"").expect("written");
        drop(scratch);
        assert!(!path.exists());
    }
}
