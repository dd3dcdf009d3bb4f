//! What an appliance was made of, so that a cached one is known to be still right.

use crate::error::{At, Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// What says that a file is unchanged without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    size: u64,
    modified_s: i64,
    modified_ns: i64,
    inode: u64,
}

impl From<&Metadata> for Stamp {
    fn from(metadata: &Metadata) -> Self {
        Stamp {
            size: metadata.size(),
            modified_s: metadata.mtime(),
            modified_ns: metadata.mtime_nsec(),
            inode: metadata.ino(),
        }
    }
}

/// Files and folders of the host that were looked at; a missing one has no stamp.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Inputs {
    seen: BTreeMap<PathBuf, Option<Stamp>>,
}

impl Inputs {
    /// Permission bits and content of a file.
    pub fn read(&mut self, path: &Path) -> Result<(u32, Vec<u8>)> {
        let metadata = fs::metadata(path).at(path)?;
        if !metadata.is_file() {
            return Err(Error::Malformed {
                path: path.to_owned(),
                problem: "expected a regular file".into(),
            });
        }
        self.seen.insert(path.to_owned(), Some(Stamp::from(&metadata)));
        Ok((metadata.permissions().mode() & 0o7777, fs::read(path).at(path)?))
    }

    /// Content of a file that may be missing, as text; bytes that are not UTF-8 are replaced.
    pub fn read_text(&mut self, path: &Path) -> Result<Option<String>> {
        if !self.exists(path) {
            return Ok(None);
        }
        let (_, bytes) = self.read(path)?;
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// True when there is such a file or folder.
    pub fn exists(&mut self, path: &Path) -> bool {
        let stamp = fs::metadata(path).ok().map(|m| Stamp::from(&m));
        self.seen.insert(path.to_owned(), stamp);
        stamp.is_some()
    }

    /// The path with links resolved.
    pub fn real_path(&mut self, path: &Path) -> Result<PathBuf> {
        self.exists(path);
        fs::canonicalize(path).at(path)
    }

    /// Entries of a folder by name; none if it does not exist.
    pub fn list(&mut self, folder: &Path) -> Result<Vec<PathBuf>> {
        if !self.exists(folder) {
            return Ok(Vec::new());
        }
        let entries = fs::read_dir(folder).at(folder)?;
        let mut paths = Vec::new();
        for entry in entries {
            paths.push(entry.at(folder)?.path());
        }
        paths.sort();
        Ok(paths)
    }

    /// True when everything is as it was.
    pub fn unchanged(&self) -> bool {
        self.seen
            .iter()
            .all(|(path, stamp)| *stamp == fs::metadata(path).ok().map(|m| Stamp::from(&m)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_or_new_file_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let (file, absent) = (folder.path().join("a"), folder.path().join("b"));
        fs::write(&file, "one").unwrap();
        let mut inputs = Inputs::default();
        assert_eq!(inputs.read(&file).unwrap().1, b"one");
        assert_eq!(inputs.read_text(&absent).unwrap(), None);
        assert!(inputs.unchanged());
        fs::write(&absent, "").unwrap();
        assert!(!inputs.unchanged());
        fs::remove_file(&absent).unwrap();
        assert!(inputs.unchanged());
        fs::write(&file, "three").unwrap();
        assert!(!inputs.unchanged());
    }
}
