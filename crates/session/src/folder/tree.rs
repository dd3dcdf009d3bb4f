//! What vmeter and the user's builds have put into a folder that is vmeter's whole: a checkout,
//! what is kept of a commit.
//!
//! `NAME.files` beside the folder `NAME` lists it as the last build left it: a record for each
//! file, ended by a NUL, of its size in bytes, when it was changed (ns since 1970) and its path.
//! What is not in it, or is another one now, is not vmeter's: a file of the user's, an edit, a
//! branch or a stash in the checkout's `.git`.

use super::marker;
use super::names::CHECKOUT;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use vmeter_base::files;

/// A list is not larger, bytes: some four million files.
const MAX: u64 = 512 << 20;
/// What `git status` writes, though it changes nothing.
const INDEX: &[u8] = b".git/index";
/// Strangers that a message names.
const NAMED: usize = 3;

/// A file's size, bytes, and when it was changed, ns.
type Stamp = (u64, i128);

/// What in a folder is not vmeter's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Strangers {
    /// The first, as seen from the folder.
    named: Vec<String>,
    count: usize,
}

impl Strangers {
    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Their names, and how many more there are.
    pub fn words(&self) -> String {
        let named = self.named.join(", ");
        match self.count.saturating_sub(self.named.len()) {
            0 => named,
            more => format!("{named} and {more} more"),
        }
    }

    fn add(&mut self, path: &[u8]) {
        self.count += 1;
        if self.named.len() < NAMED {
            self.named.push(String::from_utf8_lossy(path).into_owned());
        }
    }
}

/// Where the list of a folder is.
fn list_of(tree: &Path) -> PathBuf {
    let mut name = tree.as_os_str().to_owned();
    name.push(".files");
    name.into()
}

/// Lists a folder as it is: all of it is vmeter's or a build's.
///
/// # Errors
/// Any error of the file system.
pub fn note_tree(tree: &Path) -> io::Result<()> {
    let mut bytes = Vec::new();
    for (path, (size, changed)) in walk(tree)? {
        bytes.extend_from_slice(format!("{size} {changed} ").as_bytes());
        bytes.extend_from_slice(&path);
        bytes.push(0);
    }
    files::write_atomic(&list_of(tree), &bytes)
}

/// What in a folder is not as it was listed. Without a list, all that is in it.
///
/// # Errors
/// When it cannot be read.
pub fn strangers(tree: &Path) -> io::Result<Strangers> {
    let bytes = files::read_limited(&list_of(tree), MAX).unwrap_or_default();
    let known: BTreeMap<&[u8], Stamp> = bytes.split(|byte| *byte == 0).filter_map(record).collect();
    let mut found = Strangers::default();
    for (path, stamp) in walk(tree)? {
        let exempt = path == INDEX && known.contains_key(INDEX);
        if !exempt && known.get(path.as_slice()) != Some(&stamp) {
            found.add(&path);
        }
    }
    Ok(found)
}

fn record(text: &[u8]) -> Option<(&[u8], Stamp)> {
    let mut parts = text.splitn(3, |byte| *byte == b' ');
    let size = std::str::from_utf8(parts.next()?).ok()?.parse().ok()?;
    let changed = std::str::from_utf8(parts.next()?).ok()?.parse().ok()?;
    Some((parts.next()?, (size, changed)))
}

/// All files below a folder, by their paths in it. Links are not followed; a mount is not
/// entered, and is one.
fn walk(tree: &Path) -> io::Result<BTreeMap<Vec<u8>, Stamp>> {
    let device = fs::symlink_metadata(tree)?.dev();
    let mut all = BTreeMap::new();
    let mut folders = vec![Vec::new()];
    while let Some(inside) = folders.pop() {
        let dir = tree.join(std::ffi::OsString::from_vec(inside.clone()));
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let found = entry.metadata()?;
            let mut path = inside.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(entry.file_name().as_bytes());
            if found.is_dir() && found.dev() == device {
                folders.push(path);
            } else {
                let changed = i128::from(found.mtime()) * 1_000_000_000;
                all.insert(path, (found.len(), changed + i128::from(found.mtime_nsec())));
            }
        }
    }
    Ok(all)
}

/// Gives the checkout `name` of the session in `dir` another name, under which it stays until
/// `runs rm --force`; none of it is taken for vmeter's any more. Where it is now.
///
/// # Errors
/// Any error of the file system.
pub fn set_checkout_aside(dir: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let tree = dir.join(name);
    let free = |n: &u32| dir.join(format!("{CHECKOUT}.kept-{n}")).symlink_metadata().is_err();
    let number = (1..u32::MAX).find(free).unwrap_or(u32::MAX);
    let aside = marker::own_tree(dir, &format!("{CHECKOUT}.kept-{number}"))?;
    for file in [tree.with_extension("cloned"), list_of(&tree)] {
        match fs::remove_file(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    fs::rename(&tree, &aside)?;
    Ok(aside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_after_the_list_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("tree");
        fs::create_dir_all(tree.join(".git/refs")).unwrap();
        fs::create_dir_all(tree.join("src")).unwrap();
        for file in ["src/a.c", "out.o", ".git/index", ".git/HEAD"] {
            fs::write(tree.join(file), file).unwrap();
        }
        assert_eq!(strangers(&tree).unwrap().count, 4, "there is no list");
        note_tree(&tree).unwrap();
        assert!(strangers(&tree).unwrap().is_empty());
        fs::write(tree.join(".git/index"), "git status").unwrap();
        fs::remove_file(tree.join("out.o")).unwrap();
        assert!(strangers(&tree).unwrap().is_empty());

        let outside = folder.path().join("dear");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("thesis"), "x").unwrap();
        fs::rename(&outside, tree.join("src/dear")).unwrap();
        fs::write(tree.join("src/a.c"), "an edit").unwrap();
        fs::write(tree.join(".git/refs/mine"), "0").unwrap();
        std::os::unix::fs::symlink("/", tree.join("root")).unwrap();
        let found = strangers(&tree).unwrap();
        assert_eq!(found.words(), ".git/refs/mine, root, src/a.c and 1 more");
    }

    #[test]
    fn a_list_can_be_anything() {
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("t");
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join("a"), "").unwrap();
        for list in
            ["", "\0\0", "a", "0 0", "0 0 ", "0 0 a\0", "99999999999999999999 0 a", "-1 x a"]
        {
            fs::write(list_of(&tree), list).unwrap();
            assert_eq!(strangers(&tree).unwrap().count, 1, "{list:?}");
        }
    }
}
