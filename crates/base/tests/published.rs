//! What crates that are published owe to those who use them: a licence in each source file, and a
//! changelog of the version that they have.

use std::fs;
use std::path::{Path, PathBuf};

const LICENCE: &str = "// SPDX-License-Identifier: Apache-2.0 OR MIT\n";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

/// The crates without `publish = false`.
fn published() -> Vec<PathBuf> {
    let is_published =
        |folder: &PathBuf| !read(&folder.join("Cargo.toml")).contains("\npublish = false\n");
    let crates: Vec<_> = entries(&root().join("crates")).into_iter().filter(is_published).collect();
    assert!(!crates.is_empty());
    crates
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let (folders, files): (Vec<_>, Vec<_>) = entries(folder).into_iter().partition(|p| p.is_dir());
    let rust = files.into_iter().filter(|path| path.extension().is_some_and(|e| e == "rs"));
    rust.chain(folders.iter().flat_map(|folder| sources(folder))).collect()
}

#[test]
fn each_source_file_begins_with_its_licence() {
    let all: Vec<_> = published().iter().flat_map(|folder| sources(folder)).collect();
    let without: Vec<_> = all.iter().filter(|path| !read(path).starts_with(LICENCE)).collect();
    assert!(without.is_empty(), "no line {LICENCE:?} at the top of {without:#?}");
    assert!(all.len() > 50, "{} files", all.len());
}

#[test]
fn each_changelog_begins_with_the_version_that_the_crate_has() {
    for folder in published() {
        let manifest = read(&folder.join("Cargo.toml"));
        let version = manifest.split_once("\nversion = \"").expect("a version of its own").1;
        let version = version.split('"').next();
        let changes = read(&folder.join("CHANGELOG.md"));
        let heading = changes.lines().find_map(|line| line.strip_prefix("## "));
        assert_eq!(heading, version, "{}", folder.display());
    }
}
