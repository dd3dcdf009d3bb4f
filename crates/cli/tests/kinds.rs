//! Every kind of experiment through everything that a session goes through: killed in the
//! middle, gone on with, shown, reported, listed, compared, merged, exported. The table below
//! must have a row for each kind of the registry.

use crate::common;
use crate::repository;

use common::{finished, has_qemu, signal, text, Lab, Ran};
use repository::{build, mock_guest, repository};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use vmeter_lab::kinds::KINDS;

/// A small experiment of each kind, without `--save`; none where this host can't do it.
fn arguments(kind: &str, lab: &Lab) -> Option<Vec<String>> {
    let words = |line: &str| Some(line.split(' ').map(str::to_owned).collect::<Vec<String>>());
    match kind {
        "boot" => words("boot --vmm mock --warmup 1 --runs 4"),
        "bench" => words("bench --vmm mock --warmup 1 --runs 3 --vs --append=x"),
        "sweep" => words("sweep --vmm mock --warmup 0 --runs 2 -P pcie-root-ports=0..2"),
        "range" => {
            let guest = |i: usize| mock_guest(if i >= 2 { 90.0 } else { 50.0 });
            let (repo, range) = repository(lab, 3, |i| vec![("source", guest(i)), build(i, &[])]);
            let mut all =
                words("range --vmm mock --machine {worktree}/product --warmup 0 --runs 2")?;
            all.extend(
                ["--repo", text(&repo), &range, "--build", "sh build.sh"].map(str::to_owned),
            );
            Some(all)
        }
        "findings" => words("findings crypto-tests udev-settle --vmm mock --warmup 1 --runs 3"),
        "tune" => words("tune --vmm mock --budget 5s --worth 5% --runs 6"),
        "look" | "next" => {
            eprintln!("skipped: its VM is somebody else's: look.rs and next.rs take it through this");
            None
        }
        "restore" => {
            let vmm = "cat {image}/a; echo answer; sleep 9";
            let mut all = words("restore --warmup 0 --runs 4 --create")?;
            all.extend(["echo >{image}/a", "--restore", vmm, "--ready", "line:^answer"].map(str::to_owned));
            Some(all)
        }
        "memory" => words("memory --warmup 0 --runs 4 -- sh -c echo${IFS}Linux${IFS}version${IFS}6;sleep${IFS}0.1"),
        "dirty" => {
            has_kvm()?;
            words("dirty --workload gui --passes 2 --tracker kvm-legacy --memory 64 --no-fit")
        }
        "irq" => {
            has_kvm()?;
            words("irq --vfs 2 --vectors 3 --vcpus 2 --runs 2 --warmup 1 --fit none --no-trace")
        }
        "migrate" => {
            has_qemu().then_some(())?;
            words("migrate --dirty-rate 0 --memory 32 --warmup 0 --runs 3")
        }
        other => panic!("{other:?} is in the registry of kinds and not in this table"),
    }
}

fn has_kvm() -> Option<()> {
    let there = std::fs::File::options().read(true).write(true).open("/dev/kvm").is_ok();
    if !there {
        eprintln!("skipped: needs /dev/kvm");
    }
    there.then_some(())
}

/// `arguments` and more, before any `--`.
fn with<'a>(arguments: &'a [String], more: &[&'a str]) -> Vec<&'a str> {
    let at = arguments.iter().position(|word| word == "--").unwrap_or(arguments.len());
    let (before, after) = arguments.split_at(at);
    let words = |part: &'a [String]| part.iter().map(String::as_str);
    words(before).chain(more.iter().copied()).chain(words(after)).collect()
}

/// Begins the experiment and kills it with -9 once a run is finished; the runs that were.
fn killed(lab: &Lab, arguments: &[String], dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let slow = with(arguments, &["--prepare", "sleep 0.2", "--save", text(dir)]);
    let mut child = lab
        .command(&slow)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("vmeter runs");
    let begun = Instant::now();
    while finished(dir).is_empty() && begun.elapsed() < Duration::from_secs(120) {
        assert!(child.try_wait().expect("a child").is_none(), "{slow:?} ended by itself");
        std::thread::sleep(Duration::from_millis(20));
    }
    signal(&child, "KILL");
    child.wait().expect("a child");
    finished(dir)
}

/// What may differ between the export of a command and that of `vmeter show`.
fn timeless(mut result: Value) -> Value {
    if let Some(fields) = result.as_object_mut() {
        for name in ["argv", "started_at"] {
            fields.remove(name);
        }
    }
    result
}

fn parsed(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {}", ran.stderr))
}

/// Saved, killed, gone on with; what the command exported then.
fn lives_through_a_kill(lab: &Lab, kind: &str, arguments: &[String], dir: &Path) -> Value {
    let before = killed(lab, arguments, dir);
    assert!(!before.is_empty(), "{kind}: no run was finished in time");
    let resumed = lab.run(&[kind, "--resume", text(dir), "--export-json", "-"]);
    assert_eq!(resumed.status, 0, "{kind} --resume: {}", resumed.stderr);
    let after = finished(dir);
    for (path, bytes) in &before {
        assert_eq!(after.get(path), Some(bytes), "{kind}: {} changed", path.display());
    }
    let runs = |files: &BTreeMap<PathBuf, Vec<u8>>| {
        files.keys().filter(|path| path.ends_with("run.json")).count()
    };
    assert!(runs(&after) > runs(&before), "{kind}: nothing was added");
    parsed(&resumed)
}

/// Shown, exported in every form, listed.
fn is_shown(lab: &Lab, kind: &str, dir: &Path, live: Value) {
    let shown = lab.json(&["show", text(dir)]);
    assert_eq!(shown["command"], kind);
    assert_eq!(shown["schema"], "vmeter/1");
    assert_eq!(timeless(shown), timeless(live), "{kind}: live and shown differ");
    for export in ["csv", "markdown"] {
        let ran = lab.run(&["show", text(dir), &format!("--export-{export}"), "-"]);
        assert_eq!(ran.status, 0, "{kind} {export}: {}", ran.stderr);
        assert!(!ran.stdout.trim().is_empty(), "{kind} {export}");
    }
    let printed = lab.run(&["show", text(dir)]);
    assert_eq!(printed.status, 0, "{kind}: {}", printed.stderr);
    // A command to paste stays on its line.
    let lines = printed.stdout.lines().filter(|line| !line.starts_with("try: "));
    let widest = lines.map(|line| line.chars().count()).max();
    assert!(widest <= Some(80), "{kind}: {widest:?} columns\n{}", printed.stdout);
    for ending in ["html", "json", "csv", "md"] {
        let file = lab.path(&format!("{kind}.{ending}"));
        let ran = lab.run(&["report", text(dir), "-o", text(&file)]);
        assert_eq!(ran.status, 0, "{kind} {ending}: {}", ran.stderr);
        assert!(std::fs::metadata(&file).is_ok_and(|m| m.len() > 0), "{kind} {ending}");
    }
    let listed = lab.json(&["runs", "list"]);
    let sessions = listed["sessions"].as_array().expect("sessions");
    assert!(sessions.iter().any(|s| s["command"] == kind), "{kind}: {listed}");
}

/// Compared and merged with itself, or refused with the reason that the kind gives.
fn is_compared_and_merged(lab: &Lab, kind: &'static str, dir: &Path) {
    let found = KINDS.iter().find(|k| k.kind() == kind).expect("a kind");
    let session = std::fs::read(dir.join("session.json")).expect("session.json");
    let session: Value = serde_json::from_slice(&session).expect("JSON");
    let label = session["machines"][0]["label"].as_str().expect("a label");
    let side = format!("{}#{label}", text(dir));
    let compared = lab.run(&["diff", &side, &side]);
    match found.boots() {
        Ok(()) => assert_eq!(compared.status, 0, "{kind} diff: {}", compared.stderr),
        Err(why) => {
            assert_eq!(compared.status, 2, "{kind} diff: {}", compared.stdout);
            assert!(compared.stderr.contains(why), "{kind} diff: {}", compared.stderr);
        }
    }
    let merged = lab.run(&["merge", text(dir), text(dir)]);
    match found.cut() {
        Ok(_) => assert_eq!(merged.status, 0, "{kind} merge: {}", merged.stderr),
        Err(why) => {
            assert_eq!(merged.status, 2, "{kind} merge: {}", merged.stdout);
            assert!(merged.stderr.contains(why), "{kind} merge: {}", merged.stderr);
        }
    }
}

fn goes_through_everything_that_sessions_do(kind: &'static str) {
    let lab = Lab::new();
    let Some(arguments) = arguments(kind, &lab) else { return };
    let dir = lab.path("session");
    let live = lives_through_a_kill(&lab, kind, &arguments, &dir);
    is_shown(&lab, kind, &dir, live);
    is_compared_and_merged(&lab, kind, &dir);
}

macro_rules! kinds {
    ($($kind:ident)*) => {
        $(#[test]
        fn $kind() {
            goes_through_everything_that_sessions_do(stringify!($kind));
        })*

        #[test]
        fn every_kind_is_tested() {
            let all: BTreeSet<&str> = KINDS.iter().map(|kind| kind.kind()).collect();
            assert_eq!(all, BTreeSet::from([$(stringify!($kind)),*]));
        }
    };
}

kinds! { boot bench sweep range findings tune look next restore memory dirty irq migrate }

#[test]
fn two_shards_are_one_whole() {
    for kind in KINDS.iter().filter(|kind| kind.cut().is_ok()).map(|kind| kind.kind()) {
        let lab = Lab::new();
        let Some(arguments) = arguments(kind, &lab) else { continue };
        let shards = [1, 2].map(|i| {
            let dir = lab.path(&format!("shard-{i}"));
            let part = format!("{i}/2");
            lab.run(&with(&arguments, &["--shard", &part, "--save", text(&dir)]));
            dir
        });
        let whole = lab.path("whole");
        let merged =
            lab.json(&["merge", text(&shards[0]), text(&shards[1]), "--save", text(&whole)]);
        let runs = |dir: &Path| finished(dir).keys().filter(|p| p.ends_with("run.json")).count();
        assert_eq!(runs(&whole), runs(&shards[0]) + runs(&shards[1]), "{kind}");
        assert_eq!(timeless(lab.json(&["show", text(&whole)])), timeless(merged), "{kind}");
    }
}

#[test]
fn a_kind_that_is_not_known_is_an_error_everywhere() {
    let lab = Lab::new();
    let dir = lab.path("session");
    let ran = lab.run(&["boot", "--vmm", "mock", "--runs", "1", "--save", text(&dir)]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let file = dir.join("session.json");
    let session = std::fs::read_to_string(&file).expect("session.json");
    let unknown = session.replace("\"command\": \"boot\"", "\"command\": \"levitate\"");
    assert_ne!(session, unknown);
    std::fs::write(&file, unknown).expect("session.json");
    let page = lab.path("x.html");
    let side = format!("{}#default", text(&dir));
    for command in [
        vec!["show", text(&dir)],
        vec!["report", text(&dir), "-o", text(&page)],
        vec!["diff", &side, &side],
        vec!["merge", text(&dir)],
        vec!["boot", "--resume", text(&dir)],
    ] {
        let ran = lab.run(&command);
        assert_eq!(ran.status, 2, "{command:?}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.stderr.contains("levitate"), "{command:?}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{command:?}");
    }
    assert!(!page.exists(), "an empty report was left");
}

#[test]
fn a_session_without_a_finished_run_is_unreadable_input_for_every_kind() {
    for kind in KINDS.iter().map(|kind| kind.kind()) {
        let lab = Lab::new();
        let Some(arguments) = arguments(kind, &lab) else { continue };
        let dir = lab.path("session");
        lab.run(&with(&arguments, &["--save", text(&dir)]));
        for run in std::fs::read_dir(dir.join("runs")).expect("runs").flatten() {
            std::fs::remove_dir_all(run.path()).expect("a run");
        }
        let ran = lab.run(&["show", text(&dir)]);
        assert_eq!(ran.status, 2, "{kind}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.stderr.contains("no run was finished"), "{kind}: {}", ran.stderr);
    }
}

#[test]
fn a_usage_error_leaves_no_session_behind() {
    for kind in KINDS.iter().map(|kind| kind.kind()) {
        let lab = Lab::new();
        let Some(arguments) = arguments(kind, &lab) else { continue };
        let wrong = match kind {
            "dirty" => ["--tracker", "magic"],
            "irq" => ["--strategy", "magic"],
            _ => ["--until", "line:("],
        };
        let dir = lab.path("session");
        let ran = lab.run(&with(&arguments, &[wrong[0], wrong[1], "--save", text(&dir)]));
        assert_eq!(ran.status, 2, "{kind}: {}{}", ran.stdout, ran.stderr);
        assert!(!dir.exists(), "{kind}: {} was made", dir.display());
        let shown = lab.run(&["show"]);
        assert!(shown.stderr.contains("no saved session"), "{kind}: {}", shown.stderr);
    }
}
