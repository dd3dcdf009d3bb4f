//! Git repositories made for a test.
#![allow(dead_code, reason = "each test binary uses its own part of this")]

use crate::common::Lab;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A repository whose commits have the files that `files` says; the first commit's name.
pub fn repository(
    lab: &Lab,
    commits: usize,
    files: impl Fn(usize) -> Vec<(&'static str, String)>,
) -> (PathBuf, String) {
    let repo = lab.path("repo");
    std::fs::create_dir(&repo).expect("scratch space");
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .arg("-C")
            .arg(&repo)
            .args(["-c", "user.name=t", "-c", "user.email=t@example.org"])
            .args(arguments)
            .output()
            .expect("git");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    git(&["init", "--quiet"]);
    for i in 0..commits {
        for (name, content) in files(i) {
            std::fs::write(repo.join(name), content).expect("scratch space");
        }
        std::fs::write(repo.join("n"), i.to_string()).expect("scratch space");
        git(&["add", "."]);
        git(&["commit", "--quiet", "-m", &format!("change {i}")]);
    }
    let first = git(&["rev-list", "--max-parents=0", "HEAD"]);
    (repo, format!("{first}..HEAD"))
}

/// A build that fails for some commits, and copies what was committed.
pub fn build(i: usize, broken: &[usize]) -> (&'static str, String) {
    let line = if broken.contains(&i) { "echo no rule >&2; exit 2" } else { "cp source product" };
    ("build.sh", format!("{line}\n"))
}

/// The mock's guest with one initcall of this length.
pub fn mock_guest(initcall_ms: f64) -> String {
    format!(
        "vmeter-mock 1\nspread 0.5%\nrun-spread 1.5%\n1ms vmm-exec\n4ms vmm-entry\n2ms vmm-main\n\
         28ms state running\n0.1ms reach reset-vector\n60ms firmware SeaBIOS\n\
         90ms reach start_kernel\n120ms reach rest_init\n2ms reach kernel_init_freeable\n\
         0 level early\n{initcall_ms}ms initcall slow_init\n200ms initcall other_init\n\
         9ms reach run_init_process\n1ms exec 1 /init\n20ms step mount\n0 ready\n1ms shutdown\n\
         2ms poweroff\n1ms vmm-exiting\n1ms exit 0\n"
    )
}

/// Gives a session's host another name, and its runs another speed.
pub fn slower_host(dir: &Path, factor: f64) {
    let change = |path: &Path, edit: &dyn Fn(&mut Value)| {
        let mut value =
            serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("JSON");
        edit(&mut value);
        std::fs::write(path, value.to_string()).expect("scratch space");
    };
    change(&dir.join("session.json"), &|v| v["host"]["hostname"] = "other".into());
    for run in std::fs::read_dir(dir.join("runs")).expect("runs").flatten() {
        change(&run.path().join("run.json"), &|v| {
            let total = v["total_ns"].as_f64().expect("a time") * factor;
            v["total_ns"] = (total as i64).into();
        });
    }
}
