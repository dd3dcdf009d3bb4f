//! Sweeps and ranges that are killed, or whose disk fills up: what was finished stands, and
//! nothing of it is repeated.

use crate::common;

use common::{signal, text, Lab};
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Finished runs by folder, with what would change if one were made again.
fn finished(session: &Path) -> BTreeMap<PathBuf, (u64, i64, i64)> {
    let runs = std::fs::read_dir(session.join("runs")).into_iter().flatten().flatten();
    let file = |path: PathBuf| {
        let m = std::fs::metadata(path.join("run.json")).ok()?;
        path.extension().is_none().then_some((path, (m.ino(), m.mtime(), m.mtime_nsec())))
    };
    runs.filter_map(|entry| file(entry.path())).collect()
}

/// Starts vmeter and kills it with -9 once so many runs are finished.
fn killed_after(lab: &Lab, arguments: &[&str], session: &Path, runs: usize) {
    let mut child = lab
        .command(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("vmeter starts");
    while finished(session).len() < runs {
        assert!(child.try_wait().expect("a state").is_none(), "it ended before it was killed");
        std::thread::yield_now();
    }
    signal(&child, "KILL");
    child.wait().expect("vmeter is gone");
}

fn samples(result: &Value) -> Vec<Value> {
    let points = result["points"].as_array().expect("points").iter();
    let total = |run: &Value| run["total_s"].clone();
    let runs = |point: &Value| point["runs"].as_array().expect("runs").iter().map(total).collect();
    points.map(runs).collect()
}

#[test]
fn a_sweep_killed_half_way_repeats_no_finished_run() {
    let lab = Lab::new();
    let save = lab.path("sweep");
    let base = ["sweep", "-P", "pcie-root-ports=0..5", "--vmm", "mock", "--runs", "20"];
    killed_after(&lab, &[&base[..], &["--save", text(&save)]].concat(), &save, 30);
    let before = finished(&save);
    let planned = 6 * (20 + 1);
    assert!((30..planned).contains(&before.len()), "{} runs", before.len());
    let result = lab.json(&["sweep", "--resume", text(&save)]);
    let after = finished(&save);
    assert_eq!(after.len(), planned);
    assert!(before.iter().all(|(path, file)| after.get(path) == Some(file)), "runs repeated");
    // The order, and so each run, is what it would have been.
    assert_eq!(samples(&result), samples(&lab.json(&base)));
    // Once more: there is nothing left to do.
    lab.json(&["sweep", "--resume", text(&save)]);
    assert_eq!(finished(&save), after);
}

fn samples_of_commits(result: &Value) -> Vec<usize> {
    let commits = result["commits"].as_array().expect("commits").iter();
    commits.map(|commit| commit["samples_s"].as_array().map_or(0, Vec::len)).collect()
}

/// Ten commits of a command.
fn repository(lab: &Lab) -> PathBuf {
    let repo = lab.path("repo");
    let script = "set -e; git init -q \"$1\"; cd \"$1\"
        export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@example.org
        export GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@example.org
        for n in 0 1 2 3 4 5 6 7 8 9; do
            echo \": $n; sleep 0.01\" > work; git add .; git commit -q -m \"change $n\"
        done";
    let made = Command::new("sh").args(["-c", script, "sh", text(&repo)]).status();
    assert!(made.expect("sh").success());
    repo
}

/// What a range takes besides the repository.
const RANGE: [&str; 7] =
    ["HEAD~9..HEAD", "--runs", "4", "--build", "test -f work", "--run", "sh {worktree}/work"];

#[test]
fn a_range_of_all_commits_killed_half_way_repeats_no_build_and_no_run() {
    let lab = Lab::new();
    let repo = repository(&lab);
    let save = lab.path("range");
    // A busy host's steps would be placed by more runs.
    let repository = ["range", "--repo", text(&repo), "--save", text(&save), "--no-place"];
    killed_after(&lab, &[&repository[..], &RANGE].concat(), &save, 12);
    let builds = |session: &Path| -> BTreeMap<PathBuf, u64> {
        let files = std::fs::read_dir(session.join("builds")).expect("builds").flatten();
        files.map(|f| (f.path(), f.metadata().expect("a file").ino())).collect()
    };
    let before = (finished(&save), builds(&save));
    let result = lab.json(&["range", "--resume", text(&save)]);
    let after = (finished(&save), builds(&save));
    assert!(before.0.iter().all(|(path, file)| after.0.get(path) == Some(file)));
    assert!(before.1.iter().all(|(path, file)| after.1.get(path) == Some(file)));
    assert_eq!(after.0.len(), 10 * (4 + 1));
    assert_eq!(samples_of_commits(&result), [4; 10]);
}

#[test]
fn a_range_on_a_disk_that_fills_up_goes_on_when_there_is_room() {
    let lab = Lab::new();
    let repo = repository(&lab);
    let disk = lab.path("disk");
    std::fs::create_dir(&disk).expect("scratch space");
    // The twentieth run leaves no byte free.
    let work = format!(
        "sh {{worktree}}/work; echo >> {0}.count; test $(wc -l < {0}.count) != 20 || \
         dd if=/dev/zero of={0}/fill 2>/dev/null; true",
        text(&disk)
    );
    let script = "mount -t tmpfs -o size=16m tmpfs \"$1\" || exit 77; disk=\"$1\"; shift
        vmeter=\"$1\"; shift
        \"$vmeter\" range --save \"$disk/range\" \"$@\" >&2; full=$?
        runs() { ls -d --full-time \"$disk\"/range/runs/????; }
        runs > \"$disk.before\"; rm \"$disk/fill\"
        \"$vmeter\" range --resume \"$disk/range\" --export-json - > \"$disk.json\"; resumed=$?
        runs > \"$disk.after\"; exit $((full * 16 + resumed))";
    let ran: common::Ran = Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh", text(&disk), env!("CARGO_BIN_EXE_vmeter")])
        .args(["--repo", text(&repo), "HEAD~9..HEAD", "--runs", "4", "--no-place", "--run", &work])
        .env("XDG_STATE_HOME", lab.folder.path())
        .output()
        .expect("unshare(1) is part of util-linux")
        .into();
    if ran.status == 77 || ran.stderr.starts_with("unshare") {
        println!("skipped: a disk that fills up needs the right to mount a tmpfs");
        return;
    }
    assert_eq!(ran.status, 3 * 16, "{}", ran.stderr);
    assert!(ran.stderr.contains("No space left on device"), "{}", ran.stderr);
    let read = |suffix: &str| {
        std::fs::read_to_string(format!("{}.{suffix}", text(&disk))).expect("written")
    };
    let (before, after) = (read("before"), read("after"));
    assert_eq!(before.lines().count(), 19, "{}", ran.stderr);
    assert!(before.lines().all(|line| after.contains(line)), "repeated:\n{before}\n{after}");
    assert_eq!(after.lines().count(), 10 * (4 + 1));
    let result: Value = serde_json::from_str(&read("json")).expect("JSON");
    assert_eq!(samples_of_commits(&result), [4; 10]);
}

#[test]
fn folders_that_cannot_be_written() {
    let lab = Lab::new();
    let repo = repository(&lab);
    let file = lab.path("file");
    std::fs::write(&file, "no folder").expect("scratch space");
    let below = file.join("session");
    let sweep = ["sweep", "-P", "pcie-root-ports=0..1", "--vmm", "mock", "--save", text(&below)];
    let range = ["range", "--repo", text(&repo), "--save", text(&below)];
    for arguments in [&sweep[..], &[&range[..], &RANGE].concat()] {
        let ran = lab.run(arguments);
        assert_eq!(ran.status, 3, "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(text(&below)), "{}", ran.stderr);
        assert!(ran.stderr.contains("--save"), "{}", ran.stderr);
    }
}

/// Somebody clears the session's folder away while it runs, or its runs: no run is saved without its
/// session. One that was moved goes on where it is.
#[test]
fn a_folder_that_goes_while_its_session_runs() {
    let lab = Lab::new();
    let [save, moved, count] = ["session", "moved", "count"].map(|name| lab.path(name));
    let [gone, runs] = [format!("rm -rf {}", text(&save)), format!("rm -rf {}/runs", text(&save))];
    let away = format!("mv {} {}", text(&save), text(&moved));
    for (kind, prepare, goes) in [
        ("boot", false, &gone),
        ("bench", true, &gone),
        ("boot", true, &runs),
        ("boot", true, &away),
    ] {
        let goes = format!("echo >>{0}; test $(wc -l <{0}) -ne 3 || {goes}", text(&count));
        let vmm = if prepare { "echo up".to_owned() } else { format!("{goes}; echo up") };
        let mut arguments = vec![kind, "--until", "line:up", "--runs", "5", "--warmup", "0"];
        arguments.extend(["--save", text(&save)]);
        if prepare {
            arguments.extend(["--prepare", &goes]);
        }
        arguments.extend(["--", "sh", "-c", &vmm]);
        let ran = lab.run(&arguments);
        assert_eq!(ran.status, 3, "{}{}", ran.stdout, ran.stderr);
        assert!(ran.stderr.contains("was removed or moved"), "{}", ran.stderr);
        assert!(!ran.stderr.contains("are safe there"), "{}", ran.stderr);
        assert!(!save.exists() || goes.ends_with("runs"), "a folder without a session is left");
        let _ = std::fs::remove_dir_all(&save);
        if moved.exists() {
            let resumed = lab.run(&[kind, "--resume", text(&moved)]);
            assert_eq!(resumed.status, 0, "{}", resumed.stderr);
        }
        std::fs::remove_file(&count).expect("the count");
    }
}

/// What a session is of is known while it runs: its file is written again.
#[test]
fn a_sessions_file_that_goes_is_written_again() {
    let lab = Lab::new();
    let [save, count] = ["session", "count"].map(|name| lab.path(name));
    let goes = format!(
        "echo >>{0}; test $(wc -l <{0}) -ne 3 || rm {1}/session.json",
        text(&count),
        text(&save)
    );
    let words = ["boot", "--until", "line:up", "--runs", "5", "--warmup", "0", "--prepare", &goes];
    let ran =
        lab.run(&[&words[..], &["--save", text(&save), "--", "sh", "-c", "echo up"]].concat());
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let shown = lab.json(&["show", text(&save)]);
    assert_eq!(shown["runs"].as_array().map(Vec::len), Some(5), "{shown}");
}
