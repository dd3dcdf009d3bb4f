//! Running the built `vmeter` on real guests.
#![allow(dead_code, reason = "each test binary uses its own part of this")]

pub mod l1;
pub mod module;
pub mod people;
pub mod stages;
pub mod traced_guest;

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{PoisonError, RwLock};

/// True for a process that runs, and is no zombie.
pub fn is_alive(pid: impl std::fmt::Display) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// A vmeter with a state folder of its own, sharing the cache of kernels.
pub struct Lab {
    /// State folder and scratch space.
    pub folder: tempfile::TempDir,
    /// Whether other tests wait while this one measures.
    is_alone: bool,
}

/// What a run of vmeter left.
pub struct Ran {
    /// Exit status.
    pub status: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Lab {
    /// A fresh one.
    pub fn new() -> Self {
        Lab {
            folder: tempfile::tempdir().expect("a temporary folder"),
            is_alone: crate::BOOTS_ALONE,
        }
    }

    /// A fresh one, for a test that compares times of runs, or of two readings of one run: guests of
    /// other tests would disturb the two unequally.
    pub fn alone() -> Self {
        Lab { is_alone: true, ..Lab::new() }
    }

    /// A path inside the scratch space.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file that can be executed.
    pub fn script(&self, name: &str, text: &str) -> PathBuf {
        use std::io::Write;
        let path = self.path(name);
        // Not by this process: a child that another test forks meanwhile would hold the file open
        // for writing, and its exec be ETXTBSY.
        let mut writer = Command::new("sh")
            .args(["-c", "cat >\"$1\" && chmod 755 \"$1\"", "sh", self::text(&path)])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("sh");
        let mut stdin = writer.stdin.take().expect("a pipe");
        stdin.write_all(text.as_bytes()).expect("written");
        drop(stdin);
        assert!(writer.wait().expect("sh").success(), "scratch space");
        path
    }

    /// The command, not yet run.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vmeter"));
        command
            .args(arguments)
            .env("XDG_STATE_HOME", self.folder.path())
            .env("COLUMNS", "80")
            .env("VMETER_SEED", "1")
            .env_remove("NO_COLOR");
        command
    }

    /// Runs it to its end. What reads files runs beside anything, what boots a guest beside other
    /// boots; what measures the host, and the boots of a lab that is alone, have the host for
    /// themselves.
    pub fn run(&self, arguments: &[&str]) -> Ran {
        static HOST: RwLock<()> = RwLock::new(());
        let run = || self.command(arguments).output().expect("vmeter runs").into();
        match share(arguments, self.is_alone) {
            Share::Reads => run(),
            Share::Plays => {
                let _shared = HOST.read().unwrap_or_else(PoisonError::into_inner);
                run()
            }
            Share::Measures => {
                let _alone = HOST.write().unwrap_or_else(PoisonError::into_inner);
                run()
            }
        }
    }

    /// Runs it with `--export-json -` and expects success.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let mut all = arguments.to_vec();
        let at = all.iter().position(|a| *a == "--").unwrap_or(all.len());
        all.splice(at..at, ["--export-json", "-"]);
        let ran = self.run(&all);
        assert_eq!(ran.status, 0, "{arguments:?}\n{}\n{}", ran.stderr, ran.stdout);
        serde_json::from_str(&ran.stdout).expect("one JSON object")
    }

    /// A recording of `fixtures/guests`, unpacked: where it is.
    pub fn recording(&self, name: &str) -> PathBuf {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/guests");
        let folder = self.path(name);
        std::fs::create_dir_all(&folder).expect("scratch space");
        let archive = fixtures.join(format!("{name}.tar.gz"));
        let tar = Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(&folder).status();
        assert!(tar.expect("tar").success());
        folder
    }
}

/// What a command needs of the host.
enum Share {
    /// One CPU, for a moment.
    Reads,
    /// What others leave it.
    Plays,
    /// All of it: what it measures is checked.
    Measures,
}

/// What a command needs of the host. Where boots are not timed, only what measures the host's KVM
/// has it for itself.
fn share(arguments: &[&str], is_alone: bool) -> Share {
    const READ: [&str; 9] =
        ["show", "report", "diff", "merge", "runs", "trace", "explain", "help", "completions"];
    let has = |what: &[&str]| arguments.iter().any(|word| what.iter().any(|w| word.contains(w)));
    let runs_a_program = arguments.iter().any(|word| ["--", "record"].contains(word));
    match arguments.first() {
        Some(word) if READ.contains(word) && !runs_a_program => Share::Reads,
        _ if has(&["mock", "icount"]) => Share::Plays,
        Some(word) if !is_alone && !["irq", "dirty"].contains(word) => Share::Plays,
        Some(word) if !word.starts_with('-') => Share::Measures,
        _ => Share::Plays,
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Ran {
            status: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// True in the long suite (`make test-long`, which sets `VMETER_LONG=1`).
pub fn is_long() -> bool {
    std::env::var_os("VMETER_LONG").is_some_and(|value| value == "1")
}

/// True in `make test` for a test that takes long, and whose rarer half of a behaviour others show.
pub fn is_left_to_test_long() -> bool {
    if !is_long() {
        eprintln!("skipped: takes long (make test-long)");
    }
    !is_long()
}

/// How much of something a test does: `few` in `make test`, `many` in `make test-long`.
pub fn amount(few: usize, many: usize) -> usize {
    if is_long() {
        return many;
    }
    eprintln!("cut: {few} of {many} cases run (make test-long runs all)");
    few
}

/// The finished runs of the session in `dir`: each file's bytes by its place among the runs.
pub fn finished(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for run in std::fs::read_dir(dir.join("runs")).into_iter().flatten().flatten() {
        if run.path().extension().is_some() {
            continue;
        }
        for file in std::fs::read_dir(run.path()).into_iter().flatten().flatten() {
            let place = Path::new(&run.file_name()).join(file.file_name());
            found.insert(place, std::fs::read(file.path()).unwrap_or_default());
        }
    }
    found
}

/// Sends a signal, e.g. `TERM`, by the shell's own kill: kill(1) may be missing.
pub fn signal(child: &std::process::Child, name: &str) {
    let line = format!("kill -{name} {}", child.id());
    let status = Command::new("sh").args(["-c", &line]).status();
    assert!(status.expect("sh").success(), "{line}");
}

/// The newest cached kernel: (release, image). None, with a line that says so, where
/// there is none or QEMU is missing.
pub fn kernel() -> Option<(String, PathBuf)> {
    let lab = Lab::new();
    let ran = lab.run(&["kernel", "list"]);
    let last = ran.stdout.lines().last()?.to_owned();
    let found = last.split_once(' ').map(|(v, p)| (v.to_owned(), PathBuf::from(p)));
    if found.is_none() || !has_qemu() {
        eprintln!("skipped: needs QEMU and a kernel (make test fetches both)");
        return None;
    }
    found
}

/// QEMU, or a line that says why not.
pub fn has_qemu() -> bool {
    let found = Command::new("qemu-system-x86_64").arg("-version").output().is_ok();
    if !found {
        eprintln!("skipped: qemu-system-x86_64 is not installed");
    }
    found
}

/// The mean length of a phase over the runs, s.
pub fn phase(result: &Value, name: &str) -> f64 {
    let phases = result["phases"].as_array().expect("phases");
    let found = phases.iter().find(|p| p["name"] == name);
    found.and_then(|p| p["estimate"]["mean"].as_f64()).unwrap_or(0.0)
}

/// All spans of a run called `name`, as (start, end), s.
pub fn spans(run: &Value, name: &str) -> Vec<(f64, f64)> {
    let spans = run["spans"].as_array().expect("spans");
    let named = spans.iter().filter(|s| s["name"] == name);
    named
        .map(|s| (s["start_s"].as_f64().expect("start"), s["end_s"].as_f64().expect("end")))
        .collect()
}

/// The length of the one span called `name` in a run, s.
pub fn span(run: &Value, name: &str) -> f64 {
    let found = spans(run, name);
    assert_eq!(found.len(), 1, "spans called {name:?}: {found:?}\n{}", names(run));
    found[0].1 - found[0].0
}

/// Every span's name and length, for messages.
pub fn names(run: &Value) -> String {
    let spans = run["spans"].as_array().cloned().unwrap_or_default();
    let line = |s: &Value| {
        let length = s["end_s"].as_f64().unwrap_or(0.0) - s["start_s"].as_f64().unwrap_or(0.0);
        format!("{:>9.3} ms {}", length * 1e3, s["name"].as_str().unwrap_or("?"))
    };
    let long: Vec<String> = spans.iter().map(line).filter(|l| !l.starts_with("    0.0")).collect();
    long.join("\n")
}

/// Within 5 % or 5 ms of what the planter's own clock says.
pub fn assert_found(found_s: f64, planted_s: f64, what: &str) {
    let error = (found_s - planted_s).abs();
    assert!(
        error <= 0.005 || error <= 0.05 * planted_s,
        "{what}: found {:.2} ms, planted {:.2} ms",
        found_s * 1e3,
        planted_s * 1e3
    );
}

/// The leaf spans of a run.
pub fn leaves(run: &Value) -> Vec<&Value> {
    let spans = run["spans"].as_array().expect("spans");
    let parents: Vec<&Value> = spans.iter().map(|s| &s["parent"]).collect();
    spans.iter().filter(|s| !parents.contains(&&s["id"])).collect()
}

/// Text without its line breaks and runs of spaces: what a screen wraps anywhere.
pub fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A path as text.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}
