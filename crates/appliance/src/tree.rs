//! The guest's files before they become an archive.
//!
//! Folders are made as they are needed; `/bin`, `/sbin`, `/lib` and `/lib64` are
//! links into `/usr` once something goes there, as on every current distribution,
//! so a host path means the same file in the guest.

use crate::cpio::{self, Writer};
use crate::error::{Error, Result};
use crate::inputs::Inputs;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Folders that are links into `/usr`.
const MERGED: [&str; 4] = ["bin", "sbin", "lib", "lib64"];

/// Bytes of an appliance, part by part; they add up to the archive before compression.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeReport {
    /// (name, bytes), largest first. `headers` is what the cpio format itself takes.
    pub parts: Vec<(String, u64)>,
    /// The archive before compression, bytes.
    pub unpacked: u64,
    /// The file as it is, bytes.
    pub file: u64,
}

#[derive(Debug)]
enum Kind {
    Folder,
    File(Vec<u8>),
    Link(String),
    Device(u32, u32),
}

impl Kind {
    fn name(&self) -> &'static str {
        match self {
            Kind::Folder => "a folder",
            Kind::File(_) => "a file",
            Kind::Link(_) => "a symbolic link",
            Kind::Device(..) => "a device node",
        }
    }
}

#[derive(Debug)]
struct Node {
    kind: Kind,
    mode: u32,
    part: &'static str,
}

/// Files of a guest by path.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    nodes: BTreeMap<String, Node>,
}

impl Tree {
    /// Adds a folder.
    pub fn folder(&mut self, path: &str) -> Result<()> {
        let path = self.place(path)?;
        self.insert(path, Node { kind: Kind::Folder, mode: 0o755, part: "folders" })
    }

    /// Adds a file; a later one at the same path replaces it.
    pub fn file(
        &mut self,
        path: &str,
        mode: u32,
        bytes: Vec<u8>,
        part: &'static str,
    ) -> Result<()> {
        let path = self.place(path)?;
        self.insert(path, Node { kind: Kind::File(bytes), mode: mode & 0o7777, part })
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, target: &str, part: &'static str) -> Result<()> {
        let path = self.place(path)?;
        self.insert(path, Node { kind: Kind::Link(target.into()), mode: 0o777, part })
    }

    /// Adds a character device.
    pub fn device(&mut self, path: &str, mode: u32, major: u32, minor: u32) -> Result<()> {
        let path = self.place(path)?;
        self.insert(path, Node { kind: Kind::Device(major, minor), mode, part: "folders" })
    }

    /// Adds a file of the host under its own path, and a link where that path is one.
    pub fn host_file(
        &mut self,
        inputs: &mut Inputs,
        path: &Path,
        part: &'static str,
    ) -> Result<()> {
        let real = inputs.real_path(path)?;
        let (wanted, target) = (utf8(path)?, utf8(&real)?);
        let (from, to) = (guest_path(wanted)?, guest_path(target)?);
        if !self.nodes.contains_key(&to) {
            let (mode, bytes) = inputs.read(&real)?;
            self.file(target, mode, bytes, part)?;
        }
        if from != to && !self.nodes.contains_key(&from) {
            self.link(wanted, &format!("/{to}"), part)?;
        }
        Ok(())
    }

    /// True when something is at this path.
    pub fn contains(&self, path: &str) -> bool {
        guest_path(path).is_ok_and(|path| self.nodes.contains_key(&path))
    }

    /// The archive and what is in it.
    pub fn archive(&self) -> Result<(Vec<u8>, SizeReport)> {
        let mut writer = Writer::default();
        let mut parts = BTreeMap::<&str, u64>::new();
        for (path, node) in &self.nodes {
            let (bits, device, content): (_, _, &[u8]) = match &node.kind {
                Kind::Folder => (cpio::S_IFDIR, (0, 0), &[]),
                Kind::File(bytes) => (cpio::S_IFREG, (0, 0), bytes),
                Kind::Link(target) => (cpio::S_IFLNK, (0, 0), target.as_bytes()),
                Kind::Device(major, minor) => (cpio::S_IFCHR, (*major, *minor), &[]),
            };
            *parts.entry(node.part).or_default() += content.len() as u64;
            writer.entry(path, bits | node.mode, device, content)?;
        }
        let bytes = writer.finish()?;
        parts.remove("folders");
        let content: u64 = parts.values().sum();
        parts.insert("headers", bytes.len() as u64 - content);
        let mut parts: Vec<_> = parts.into_iter().map(|(name, n)| (name.to_owned(), n)).collect();
        parts.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        let unpacked = bytes.len() as u64;
        Ok((bytes, SizeReport { parts, unpacked, file: unpacked }))
    }

    /// Path in the archive, with everything above it made.
    fn place(&mut self, path: &str) -> Result<String> {
        let path = guest_path(path)?;
        if let Some(merged) = path.strip_prefix("usr/").and_then(|rest| rest.split('/').next()) {
            if MERGED.contains(&merged) && !self.nodes.contains_key(merged) {
                let kind = Kind::Link(format!("usr/{merged}"));
                self.nodes.insert(merged.into(), Node { kind, mode: 0o777, part: "folders" });
            }
        }
        for (at, _) in path.match_indices('/') {
            let parent = path[..at].to_owned();
            self.insert(parent, Node { kind: Kind::Folder, mode: 0o755, part: "folders" })?;
        }
        Ok(path)
    }

    fn insert(&mut self, path: String, node: Node) -> Result<()> {
        match self.nodes.get_mut(&path) {
            Some(old) if old.kind.name() != node.kind.name() => {
                Err(Error::Conflict { path, first: old.kind.name(), second: node.kind.name() })
            }
            Some(old) => {
                *old = node;
                Ok(())
            }
            None => {
                self.nodes.insert(path, node);
                Ok(())
            }
        }
    }
}

/// The path as the archive has it: without the leading slash, `/usr` merged.
fn guest_path(path: &str) -> Result<String> {
    let bad = || Error::GuestPath { path: path.into() };
    let relative = path.strip_prefix('/').ok_or_else(bad)?;
    let wrong = |part: &str| part.is_empty() || part == "." || part == "..";
    if relative.split('/').any(wrong) || relative.contains('\0') {
        return Err(bad());
    }
    let first = relative.split('/').next().unwrap_or_default();
    let merged = MERGED.contains(&first) && first != relative;
    Ok(if merged { format!("usr/{relative}") } else { relative.to_owned() })
}

fn utf8(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| Error::GuestPath { path: path.to_string_lossy().into_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parents_come_first_and_usr_is_merged() {
        let mut tree = Tree::default();
        tree.file("/lib/x/y.so", 0o644, b"y".to_vec(), "libraries").unwrap();
        tree.file("/init", 0o755, b"i".to_vec(), "init").unwrap();
        let (bytes, sizes) = tree.archive().unwrap();
        let entries = crate::cpio::tests::read(&bytes);
        let paths: Vec<_> = entries.iter().map(|e| e.0.as_str()).collect();
        assert_eq!(paths, ["init", "lib", "usr", "usr/lib", "usr/lib/x", "usr/lib/x/y.so"]);
        assert_eq!(entries[1].3, b"usr/lib");
        let inodes: Vec<_> = entries.iter().map(|e| e.2).collect();
        assert_eq!(inodes, [1, 2, 3, 4, 5, 6]);
        assert_eq!(sizes.parts.iter().map(|p| p.1).sum::<u64>(), bytes.len() as u64);
    }

    #[test]
    fn a_file_cannot_be_a_folder() {
        let mut tree = Tree::default();
        tree.file("/a", 0o644, vec![], "x").unwrap();
        let error = tree.file("/a/b", 0o644, vec![], "x").unwrap_err();
        assert!(matches!(error, Error::Conflict { .. }), "{error}");
    }

    #[test]
    fn paths_that_leave_the_guest_are_refused() {
        for path in ["a", "/", "/a/../b", "/a//b", "/./a", "/a\0b", ""] {
            assert!(guest_path(path).is_err(), "{path:?}");
        }
    }

    proptest! {
        #[test]
        fn the_order_of_adding_changes_nothing(
            mut paths in prop::collection::btree_set("(/[a-c]{1,2}x){1,4}", 1..8).prop_map(|s| s.into_iter().map(|p| p + "/f").collect::<Vec<_>>())
        ) {
            let build = |paths: &[String]| {
                let mut tree = Tree::default();
                for path in paths {
                    tree.file(path, 0o644, path.clone().into_bytes(), "files").unwrap();
                }
                tree.archive().unwrap().0
            };
            let first = build(&paths);
            paths.reverse();
            prop_assert_eq!(first, build(&paths));
        }
    }
}
