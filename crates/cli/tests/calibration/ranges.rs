//! Histories: `vmeter range`, all commits and searched.

use crate::common::text;
use crate::rates::Rate;
use crate::worlds::{each, trials, Many};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A repository of `n` commits after the first, each with a machine of its own.
fn history(many: &Many, name: &str, n: usize, machine: impl Fn(usize) -> String) -> PathBuf {
    let dir = many.path(name);
    std::fs::create_dir_all(&dir).expect("a folder");
    let git = |words: &[&str]| {
        let run = Command::new("git")
            .current_dir(&dir)
            .args(["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"])
            .args(words)
            .output();
        assert!(run.expect("git").status.success(), "{words:?}");
    };
    git(&["init", "-q"]);
    for i in 0..=n {
        std::fs::write(dir.join("guest.mock"), machine(i)).expect("a machine");
        std::fs::write(dir.join("n"), i.to_string()).expect("a file");
        git(&["add", "."]);
        git(&["commit", "-q", "-m", &format!("commit {i}")]);
    }
    dir
}

fn guest(noise: &[&str], ms: f64) -> String {
    let mut text = String::from("vmeter-mock 1\n");
    noise.iter().for_each(|n| text += &format!("noise {n}\n"));
    text + &format!("1ms vmm-exec\n{ms:.4}ms reach start_kernel\n9ms poweroff\n0 exit 0\n")
}

fn range(many: &Many, repo: &Path, n: usize, more: &[&str], seed: u64) -> Value {
    let commits = format!("HEAD~{n}..HEAD");
    let mut words = vec!["range", "--repo", text(repo), &commits, "--build", "true"];
    words.extend(["--vmm", "mock", "--machine", "{worktree}/guest.mock", "--watch", "none"]);
    words.extend(["--warmup", "0"]);
    words.extend(more);
    many.session(&words, seed).1
}

/// The commits that are said to have changed it.
fn named(result: &Value) -> Vec<u64> {
    let changes = result["changes"].as_array().expect("changes");
    changes.iter().filter_map(|c| c["commits"][0].as_u64()).collect()
}

#[test]
fn a_range_in_which_nothing_changed() {
    let many = Many::new();
    let n = trials(12, 31) as usize;
    for (name, noise) in [
        ("normal 3 %", &["normal 3%"][..]),
        ("skewed, slow spells", &["skewed 3%"]),
        ("builds 1 %", &["normal 3%", "build 1%"]),
        ("drift 0.2 % a boot", &["normal 3%", "drift 0.2%"]),
        ("AR(1) 0.5", &["ar1 3% 0.5"]),
    ] {
        let repo = history(&many, &format!("calm-{name}"), n, |_| guest(noise, 90.0));
        let found = each(trials(2, 60), |seed| {
            !named(&range(&many, &repo, n, &["--runs", "5"], seed)).is_empty()
        });
        Rate::of(&found)
            .at_most(0.05, &format!("range of {n} commits x 5, {name}, nothing changed: a change"));
    }
}

#[test]
fn a_search_in_which_nothing_changed() {
    let many = Many::new();
    let n = trials(12, 63) as usize;
    for (name, noise) in [
        ("builds 1 %", &["normal 3%", "build 1%"][..]),
        ("builds 1 %, drift 0.2 % a boot", &["normal 3%", "build 1%", "drift 0.2%"]),
    ] {
        let repo = history(&many, &format!("bisect-{name}"), n, |_| guest(noise, 90.0));
        let found = each(trials(2, 60), |seed| {
            !named(&range(&many, &repo, n, &["--bisect"], seed)).is_empty()
        });
        Rate::of(&found).at_most(
            0.03,
            &format!("range --bisect of {n} commits, {name}, nothing changed: a culprit"),
        );
    }
}

#[test]
fn a_search_names_who_is_guilty() {
    let many = Many::new();
    let n = trials(12, 63) as usize;
    let at = n / 3;
    for (name, noise) in [
        ("builds 0", &["normal 3%"][..]),
        ("builds 1 %", &["normal 3%", "build 1%"]),
        ("drift 0.2 % a boot", &["normal 3%", "drift 0.2%"]),
    ] {
        let slower = |i: usize| guest(noise, if i >= at { 98.0 } else { 90.0 });
        let repo = history(&many, &format!("guilty-{name}"), n, slower);
        let found = each(trials(2, 60), |seed| {
            named(&range(&many, &repo, n, &["--bisect"], seed)).first().map(|c| *c == at as u64)
        });
        let told: Vec<bool> = found.into_iter().flatten().collect();
        Rate::of(&told).at_least(
            0.95,
            &format!(
                "range --bisect of {n} commits, {name}, one slower by 8 %: right of those named"
            ),
        );
    }
}
