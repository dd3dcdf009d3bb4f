//! Sessions of every kind that the mock can be measured with, and looks into folders.

use crate::common::{text, Lab, Ran};
use crate::repository::{build, mock_guest, repository};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// Everything in a folder, by path: files with their bytes, links with their targets.
pub fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let kind = entry.file_type().expect("a type");
        if kind.is_dir() {
            found.insert(path.clone(), Vec::new());
            found.extend(contents(&path));
        } else if kind.is_symlink() {
            let target = std::fs::read_link(&path).expect("a link");
            found.insert(path, text(&target).into());
        } else {
            let bytes = std::fs::read(&path).unwrap_or_default();
            found.insert(path, bytes);
        }
    }
    found
}

pub fn write(dir: &Path, files: &[&str]) {
    for file in files {
        let path = dir.join(file);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("scratch space");
        std::fs::write(path, file).expect("scratch space");
    }
}

/// Kinds that the mock can be measured with, without `--save`.
pub fn mocks(lab: &Lab) -> Vec<Vec<String>> {
    let (repo, range) = repository(lab, 2, |_| vec![("source", mock_guest(50.0)), build(1, &[])]);
    let mut all: Vec<Vec<String>> = [
        "boot --vmm mock --warmup 1 --runs 2",
        "bench --vmm mock --warmup 0 --runs 2 --vs --append=x",
        "sweep --vmm mock --warmup 0 --runs 2 -P pcie-root-ports=0..1",
        "range --vmm mock --machine {worktree}/product --warmup 0 --runs 2",
        "findings crypto-tests --vmm mock --warmup 0 --runs 2",
    ]
    .map(|line| line.split(' ').map(str::to_owned).collect())
    .into();
    let build = ["--repo", text(&repo), &range, "--build", "sh build.sh"];
    all[3].extend(build.map(str::to_owned));
    all
}

pub fn with<'a>(arguments: &'a [String], more: &[&'a str]) -> Vec<&'a str> {
    arguments.iter().map(String::as_str).chain(more.iter().copied()).collect()
}

pub fn refused(ran: &Ran, expected: &str) {
    assert_eq!(ran.status, 2, "{expected}: {}{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.contains(expected), "{expected}: {}", ran.stderr);
}

/// Rewrites a part of a session's `session.json`.
pub fn edit(dir: &Path, change: impl Fn(&mut serde_json::Value)) {
    let file = dir.join("session.json");
    let bytes = std::fs::read(&file).expect("session.json");
    let mut session = serde_json::from_slice(&bytes).expect("JSON");
    change(&mut session);
    std::fs::write(&file, session.to_string()).expect("session.json");
}

pub fn saved(lab: &Lab, arguments: &[String], name: &str) -> PathBuf {
    let dir = lab.path(name);
    let ran = lab.run(&with(arguments, &["--save", text(&dir)]));
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    dir
}

pub fn boots(lab: &Lab, name: &str) -> PathBuf {
    let words = "boot --vmm mock --warmup 1 --runs 2".split(' ').map(str::to_owned);
    saved(lab, &words.collect::<Vec<_>>(), name)
}

/// A boot that takes its time, once its first run is finished.
pub fn slow_boot(lab: &Lab, dir: &Path) -> Child {
    let arguments = ["boot", "--vmm", "mock", "--runs", "12", "--prepare", "sleep 0.1"];
    let child = lab
        .command(&[&arguments[..], &["--save", text(dir)]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("vmeter starts");
    while !dir.join("runs/0000/run.json").exists() {
        std::thread::yield_now();
    }
    child
}
