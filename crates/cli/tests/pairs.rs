//! Every pair of commands on one session at once: each waits, refuses, or is safe. After it
//! each finished run is byte for byte what it was, or wholly removed, and none is made of two.

use crate::common;
use crate::repository;

use common::{finished, is_long, kernel, text, Lab, Ran};
use repository::{build, mock_guest, repository};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use vmeter_lab::kinds::KINDS;

/// The kinds that the mock is measured with, whose every run is the same each time.
const MOCK: [&str; 6] = ["boot", "bench", "sweep", "range", "findings", "tune"];

/// A small experiment of a kind; none where this host can't do it.
fn arguments(kind: &str, lab: &Lab) -> Option<Vec<String>> {
    let line = match kind {
        "boot" => "boot --vmm mock --warmup 1 --runs 3",
        "bench" => "bench --vmm mock --warmup 0 --runs 2 --vs --append=x",
        "sweep" => "sweep --vmm mock --warmup 0 --runs 2 -P pcie-root-ports=0..1",
        "range" => "range --vmm mock --machine {worktree}/product --warmup 0 --runs 2",
        "findings" => "findings crypto-tests --vmm mock --warmup 0 --runs 2",
        "tune" => "tune --vmm mock --budget 10s --worth 8% --runs 3",
        "memory" => "memory --warmup 0 --runs 2 -- sh -c echo${IFS}Linux${IFS}version${IFS}6;sleep${IFS}0.05",
        "dirty" => "dirty --workload gui --passes 2 --tracker kvm-legacy --memory 64 --no-fit",
        "irq" => "irq --vfs 2 --vectors 3 --vcpus 2 --runs 2 --warmup 1 --fit none --no-trace",
        "migrate" => "migrate --dirty-rate 0 --memory 32 --warmup 0 --runs 2",
        other => panic!("{other:?} is in the registry of kinds and not in this table"),
    };
    let mut all: Vec<String> = line.split(' ').map(str::to_owned).collect();
    match kind {
        "dirty" | "irq" if std::fs::File::open("/dev/kvm").is_err() => return None,
        "migrate" => kernel().map(drop)?,
        "range" => {
            let files = |_| vec![("source", mock_guest(50.0)), build(1, &[])];
            let (repo, range) = repository(lab, 2, files);
            let more = ["--repo", text(&repo), &range, "--build", "sh build.sh"];
            all.extend(more.map(str::to_owned));
        }
        _ => {}
    }
    Some(all)
}

/// A session of which the last runs are yet to be made, and all runs as they would be.
struct Begun {
    kind: &'static str,
    dir: PathBuf,
    whole: BTreeMap<PathBuf, Vec<u8>>,
}

fn begun(lab: &Lab, kind: &'static str) -> Option<Begun> {
    let dir = lab.path("begun");
    let mut all = arguments(kind, lab)?;
    // Before any `--`.
    all.splice(1..1, ["--prepare", "sleep 0.05", "--save", text(&dir)].map(str::to_owned));
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let ran = lab.run(&all);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let whole = finished(&dir);
    let last = if MOCK.contains(&kind) { 2 } else { 1 };
    let runs: BTreeSet<PathBuf> = whole.keys().map(|p| p.parent().unwrap().to_owned()).collect();
    for run in runs.iter().rev().take(last) {
        std::fs::remove_dir_all(dir.join("runs").join(run)).expect("a run");
    }
    Some(Begun { kind, dir, whole })
}

/// Everything that can be done with a session in `dir`, by name.
fn commands(kind: &str) -> Vec<String> {
    let own = format!("{kind} --resume");
    let others =
        ["show", "report", "diff", "merge", "runs list", "runs trend", "runs rm", "runs add"];
    let resumes = KINDS.iter().map(|kind| format!("{} --resume", kind.kind()));
    let rare = resumes.chain(["runs export", "doctor --clean"].map(str::to_owned));
    let rare = rare.filter(|name| *name != own && is_long());
    std::iter::once(own.clone()).chain(others.map(str::to_owned)).chain(rare).collect()
}

fn spawned(lab: &Lab, name: &str, dir: &Path, number: usize) -> Child {
    let session = std::fs::read(dir.join("session.json")).unwrap_or_default();
    let session: serde_json::Value = serde_json::from_slice(&session).unwrap_or_default();
    let label = session["machines"][0]["label"].as_str().unwrap_or("none");
    let side = format!("{}#{label}", text(dir));
    let page = lab.path(&format!("page-{number}.html"));
    let whole = lab.path(&format!("whole-{number}"));
    let mut words: Vec<&str> = name.split(' ').collect();
    match name {
        "show" | "runs rm" | "runs add" => words.push(text(dir)),
        "report" => words.extend([text(dir), "-o", text(&page)]),
        "diff" => words.extend([side.as_str(), side.as_str()]),
        "merge" => words.extend([text(dir), "--save", text(&whole)]),
        "runs list" | "runs export" | "doctor --clean" => {}
        "runs trend" => words.push(text(dir)),
        // A copy is not what vmeter made.
        _ => words.extend([text(dir), "--trust"]),
    }
    let mut command = lab.command(&words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("vmeter starts")
}

/// Both at once, on a copy of the session.
fn pair(lab: &Lab, begun: &Begun, a: &str, b: &str, stagger: Duration) {
    let dir = lab.path("session");
    for old in [&dir, &lab.path("whole-0"), &lab.path("whole-1")] {
        let _ = std::fs::remove_dir_all(old);
    }
    let copied = Command::new("cp").arg("-a").args([&begun.dir, &dir]).status();
    assert!(copied.expect("cp").success());
    let before = finished(&dir);
    let first = spawned(lab, a, &dir, 0);
    std::thread::sleep(stagger);
    let second = spawned(lab, b, &dir, 1);
    let [first, second] =
        [first, second].map(|c| Ran::from(c.wait_with_output().expect("it ends")));
    let what = format!(
        "{} session, {a} ({}) beside {b} ({}):\n{}{}",
        begun.kind, first.status, second.status, first.stderr, second.stderr
    );
    for ran in [&first, &second] {
        // 1 is the answer of a merge of a session that lacks runs.
        assert!((0..=3).contains(&ran.status), "{what}");
    }
    let after = finished(&dir);
    let removed = [(a, &first), (b, &second)].iter().any(|(n, r)| *n == "runs rm" && r.status == 0);
    if removed && !dir.exists() {
        return;
    }
    assert!(!removed, "{what}\nleft: {:?}", after.keys());
    for (path, bytes) in &before {
        assert_eq!(after.get(path), Some(bytes), "{what}\n{} changed", path.display());
    }
    let own = format!("{} --resume", begun.kind);
    let resumed = [(a, &first), (b, &second)].iter().any(|(n, ran)| *n == own && ran.status == 0);
    if MOCK.contains(&begun.kind) {
        // Played from a script, each run is what it is in a session that nothing disturbed.
        for (path, bytes) in &after {
            assert_eq!(begun.whole.get(path), Some(bytes), "{what}\n{} differs", path.display());
        }
        assert!(!resumed || after == begun.whole, "{what}");
    }
    let runs = |files: &BTreeMap<PathBuf, Vec<u8>>| {
        files.keys().filter(|path| path.ends_with("run.json")).count()
    };
    assert!(!resumed || runs(&after) == runs(&begun.whole), "{what}");
    let whole = lab.path("whole-0");
    for (path, bytes) in finished(&whole) {
        assert!(begun.whole.get(&path).is_none_or(|own| *own == bytes), "{what}");
    }
}

fn pairs(kind: &'static str) {
    let lab = Lab::new();
    let Some(begun) = begun(&lab, kind) else { return };
    let commands = commands(kind);
    let mut count = 0;
    for (i, a) in commands.iter().enumerate() {
        for b in &commands[i..] {
            // Which of them comes first, and how far it gets, differs from pair to pair.
            count += 1;
            let stagger = Duration::from_millis([0, 3, 12, 30][count % 4]);
            let (a, b) = if count % 2 == 0 { (a, b) } else { (b, a) };
            pair(&lab, &begun, a, b, stagger);
        }
    }
    eprintln!("{kind}: {count} pairs");
}

#[test]
fn every_pair_of_commands_on_a_boot() {
    pairs("boot");
}

#[test]
fn every_pair_of_commands_on_a_session_of_any_kind() {
    for kind in KINDS.iter().map(|kind| kind.kind()).filter(|kind| *kind != "boot") {
        if is_long() {
            pairs(kind);
            continue;
        }
        // What writes beside what writes.
        if kind == "range" {
            let lab = Lab::new();
            let Some(begun) = begun(&lab, kind) else { continue };
            for (a, b) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let name = ["range --resume", "runs rm"];
                pair(&lab, &begun, name[a], name[b], Duration::from_millis(10));
            }
        }
    }
}
