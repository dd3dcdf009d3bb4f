//! A disk that fills up, at sizes that chance picks, in every command: what was finished
//! stands, nothing is saved that is not so, and when there is room `--resume` finishes.
//!
//! The disk is a tmpfs in a mount namespace of the test's own.

use crate::common;
use crate::repository;

use common::{amount, finished, is_long, kernel, text, Lab, Ran};
use repository::{build, mock_guest, repository};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Mounts a disk of `$1` KiB at `$2`, runs the command on it, copies what it left to `$3`,
/// makes room, and runs the command that `$4` gives. The words of the first follow.
const SCRIPT: &str = r#"
size=$1 disk=$2 seen=$3 again=$4 seed=$5; shift 5
mount -t tmpfs -o size=${size}k tmpfs "$disk" || exit 77
[ -z "$seed" ] || cp -a "$seed" "$disk/seed" 2>/dev/null || exit 78
export XDG_STATE_HOME="$disk/state" TMPDIR="$disk"
"$@" >"$seen.out" 2>"$seen.err"; echo $? >"$seen.status"
cp -a "$disk" "$seen"
mount -o remount,size=256m "$disk" || exit 77
sh -c "$again" >"$seen.out2" 2>"$seen.err2"; echo $? >"$seen.status2"
cp -a "$disk" "$seen.after"
"#;

/// What is done on a disk that fills up.
struct Case<'a> {
    /// The command, which writes below `{disk}`.
    words: Vec<String>,
    /// The shell's words that finish it when there is room.
    again: String,
    /// What is on the disk before.
    seed: Option<&'a Path>,
    /// Runs of the whole, in `{disk}/p`.
    runs: usize,
}

/// What came of it.
struct Seen {
    first: Ran,
    again: Ran,
    /// The disk when it was full, and after there was room.
    full: PathBuf,
    after: PathBuf,
}

/// None where mounting is not permitted.
fn on_a_disk(lab: &Lab, case: &Case<'_>, size: usize) -> Option<Seen> {
    let disk = lab.path("disk");
    let seen = lab.path("seen");
    let _ = std::fs::remove_dir_all(&seen);
    let _ = std::fs::remove_dir_all(seen.with_extension("after"));
    std::fs::create_dir_all(&disk).expect("scratch space");
    let in_place = |word: &String| word.replace("{disk}", text(&disk));
    let status = Command::new("unshare")
        .args(["-m", "sh", "-c", SCRIPT, "sh", &size.to_string(), text(&disk), text(&seen)])
        .args([in_place(&case.again), case.seed.map_or("", text).to_owned()])
        .args(case.words.iter().map(in_place))
        .env("VMETER", env!("CARGO_BIN_EXE_vmeter"))
        .env("COLUMNS", "80")
        .output();
    let ran = Ran::from(status.expect("unshare(1) is part of util-linux"));
    if ran.status == 77 || ran.stderr.starts_with("unshare") {
        println!("skipped: a disk that fills up needs the right to mount a tmpfs");
        return None;
    }
    let read =
        |name: &str| std::fs::read_to_string(format!("{}.{name}", text(&seen))).unwrap_or_default();
    let status = |name: &str| read(name).trim().parse().unwrap_or(-1);
    Some(Seen {
        first: Ran { status: status("status"), stdout: read("out"), stderr: read("err") },
        again: Ran { status: status("status2"), stdout: read("out2"), stderr: read("err2") },
        full: seen.clone(),
        after: seen.with_extension("after"),
    })
}

/// Numbers that look like chance and are the same each time.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// Checks one size; false where mounting is not permitted.
fn check(lab: &Lab, name: &str, case: &Case<'_>, size: usize) -> bool {
    let Some(seen) = on_a_disk(lab, case, size) else { return false };
    let what = format!(
        "{name} on {size} KiB: {} then {}\n{}{}",
        seen.first.status, seen.again.status, seen.first.stderr, seen.again.stderr
    );
    // Done, or this host can't: never a bad answer of the machine's.
    assert!([0, 3].contains(&seen.first.status), "{what}");
    if seen.first.status == 3 {
        let full = ["No space left", "disk is full", "Out of diskspace", " write"];
        assert!(full.iter().any(|words| seen.first.stderr.contains(words)), "{what}");
    }
    let (before, after) = (finished(&seen.full.join("p")), finished(&seen.after.join("p")));
    for (path, bytes) in &before {
        assert_eq!(after.get(path), Some(bytes), "{what}\n{} changed", path.display());
    }
    let runs: Vec<Value> = after
        .iter()
        .filter(|(path, _)| path.ends_with("run.json"))
        .map(|(_, bytes)| serde_json::from_slice(bytes).expect("run.json"))
        .collect();
    assert!(runs.iter().all(|run| run["outcome"]["kind"] == "done"), "{what}");
    assert_eq!(seen.again.status, 0, "{what}");
    assert_eq!(runs.len(), case.runs, "{what}");
    true
}

const VMETER: &str = env!("CARGO_BIN_EXE_vmeter");

/// A command that saves a session in `{disk}/p`: the session is gone on with, or begun again
/// if not even `session.json` had room.
fn session<'a>(line: &[String], runs: usize) -> Case<'a> {
    let save = ["--save".to_owned(), "{disk}/p".to_owned()];
    let mut words: Vec<String> =
        [VMETER.to_owned()].into_iter().chain(line.iter().cloned()).collect();
    let place = words.iter().position(|word| word == "--").unwrap_or(words.len());
    words.splice(place..place, save);
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let resume = format!("\"$VMETER\" {} --resume '{{disk}}/p'", line[0]);
    let again = format!(
        "if [ -e '{{disk}}/p/session.json' ]; then {resume}; else {}; fi",
        quoted.join(" ")
    );
    Case { words, again, seed: None, runs }
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

fn at_sizes(lab: &Lab, name: &str, case: &Case<'_>, sizes: std::ops::Range<usize>) {
    let mut chance = Chance(name.bytes().map(u64::from).sum());
    for _ in 0..amount(4, 50) {
        // A page is what a tmpfs has at least.
        let size = sizes.start + 4 * chance.below((sizes.end - sizes.start) / 4);
        if !check(lab, name, case, size) {
            return;
        }
    }
}

#[test]
fn sessions_on_a_disk_that_fills_up() {
    let lab = Lab::new();
    let files = |_| vec![("source", mock_guest(50.0)), build(1, &[])];
    let (repo, commits) = repository(&lab, 2, files);
    let mut range = words("range --vmm mock --machine {worktree}/product --warmup 0 --runs 3");
    range.extend(["--repo", text(&repo), &commits, "--build", "sh build.sh"].map(str::to_owned));
    for (line, runs, most) in [
        (words("boot --vmm mock --warmup 1 --runs 5"), 6, 500),
        (words("bench --vmm mock --warmup 0 --runs 3 --vs --append=x"), 6, 140),
        (words("sweep --vmm mock --warmup 0 --runs 3 -P pcie-root-ports=0..1"), 6, 500),
        (range, 6, 600),
        (words("findings crypto-tests --vmm mock --warmup 0 --runs 2"), 4, 500),
    ] {
        at_sizes(&lab, &line[0].clone(), &session(&line, runs), 16..most);
    }
}

/// Samples of this process and of other QEMUs, which are small: a disk that has room for the
/// plan often has some for the runs.
#[test]
fn experiments_of_their_own_on_a_disk_that_fills_up() {
    let lab = Lab::new();
    let kvm = std::fs::File::options().read(true).write(true).open("/dev/kvm").is_ok();
    let dirty = "dirty --workload gui --passes 2 --tracker kvm-legacy --memory 64 --no-fit";
    let irq = "irq --vfs 2 --vectors 3 --vcpus 2 --runs 2 --warmup 1 --fit none";
    let migrate = "migrate --dirty-rate 0 --memory 32 --warmup 0 --runs 2";
    let memory =
        "memory --warmup 0 --runs 3 -- sh -c echo${IFS}Linux${IFS}version${IFS}6;sleep${IFS}0.02";
    for (line, runs, most, can) in [
        (memory, 3, 400, true),
        (dirty, 4, 60, kvm),
        (irq, 20, 200, kvm),
        (migrate, 2, 60, kernel().is_some()),
    ] {
        let line = words(line);
        if can {
            at_sizes(&lab, &line[0].clone(), &session(&line, runs), 16..most);
        }
    }
}

/// A folder with a finished sweep in it.
fn finished_sweep(lab: &Lab) -> PathBuf {
    let dir = lab.path("sweep");
    let line = words("sweep --vmm mock --warmup 0 --runs 3 -P pcie-root-ports=0..1 --quiet --save");
    let all: Vec<&str> = line.iter().map(String::as_str).chain([text(&dir)]).collect();
    assert_eq!(lab.run(&all).status, 0);
    dir
}

#[test]
fn merges_and_lists_on_a_disk_that_fills_up() {
    let lab = Lab::new();
    let sweep = finished_sweep(&lab);
    let merge = format!("{VMETER} merge {} --save {{disk}}/p", text(&sweep));
    // What was not merged whole is refused, not taken for a session; it is removed first.
    let again = format!(
        "[ -e '{{disk}}/p/session.json' ] || {{ [ ! -e '{{disk}}/p' ] || \"$VMETER\" runs rm '{{disk}}/p'; {merge}; }}"
    );
    let case = Case { words: words(&merge), again, seed: None, runs: 6 };
    at_sizes(&lab, "merge", &case, 16..500);
    // The index is held in memory where it has no room; removing makes some.
    let list = format!("{VMETER} runs list");
    let case = Case { again: list.clone(), words: words(&list), seed: None, runs: 0 };
    at_sizes(&lab, "runs list", &case, 16..200);
    let line = format!("{VMETER} runs rm {{disk}}/seed");
    let again = "[ ! -e '{disk}/seed' ]".to_owned();
    let case = Case { words: words(&line), again, seed: Some(&sweep), runs: 0 };
    at_sizes(&lab, "runs rm", &case, 600..700);
}

#[test]
fn exports_on_a_disk_that_fills_up() {
    let lab = Lab::new();
    let sweep = finished_sweep(&lab);
    for ending in ["html", "json", "csv"] {
        // The old file or the whole new one.
        let report = format!("{VMETER} report {} -o {{disk}}/page.{ending}", text(&sweep));
        let whole = lab.path(&format!("whole.{ending}"));
        lab.run(&["report", text(&sweep), "-o", text(&whole)]);
        let case = Case { again: report.clone(), words: words(&report), seed: None, runs: 0 };
        let mut chance = Chance(7);
        for _ in 0..amount(2, 50) {
            let size = 16 + 4 * chance.below(40);
            let Some(seen) = on_a_disk(&lab, &case, size) else { return };
            let page = |disk: &Path| {
                std::fs::metadata(disk.join(format!("page.{ending}"))).map(|m| m.len())
            };
            let length = std::fs::metadata(&whole).expect("whole").len();
            let what =
                format!("{ending} on {size} KiB: {}{}", seen.first.status, seen.first.stderr);
            match seen.first.status {
                0 => assert_eq!(page(&seen.full).ok(), Some(length), "{what}"),
                3 => assert!(page(&seen.full).is_err(), "{what}"),
                _ => panic!("{what}"),
            }
            let left = std::fs::read_dir(&seen.full).expect("the disk").flatten();
            let left: Vec<_> =
                left.filter(|e| e.file_name() != *format!("page.{ending}")).collect();
            assert!(left.iter().all(|e| e.file_name() == "state"), "{what}: {left:?}");
            assert_eq!(page(&seen.after).ok(), Some(length), "{what}");
        }
    }
}

/// Row 128: the plugin, the log and the dumps of a real guest, in sizes around those at which
/// a recording is cut.
#[test]
fn a_real_boot_on_a_disk_that_fills_up() {
    if !is_long() || kernel().is_none() {
        return;
    }
    let lab = Lab::new();
    let line = words("boot --warmup 0 --runs 2 --watch light");
    let case = session(&line, 2);
    let mut chance = Chance(3);
    for _ in 0..50 {
        let size = 200 + 4 * chance.below(700);
        if !check(&lab, "a real boot", &case, size) {
            return;
        }
    }
}
