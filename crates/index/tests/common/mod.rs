//! State folders with made-up sessions.
#![allow(dead_code, reason = "each user takes its own part of this")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use vmeter_model::run::WatchLevel;
use vmeter_model::run::{PlannedRun, RunRecord, SessionMachine, SessionRecord};
use vmeter_model::time::ClockReading;
use vmeter_model::SCHEMA;

/// What marks a folder that vmeter made.
const MARKER: &str = r#"{
  "what": "a folder that vmeter made; `vmeter runs rm` removes what vmeter put into it",
  "id": ""
}"#;

/// A state folder of its own.
pub struct State(tempfile::TempDir);

impl State {
    /// An empty one.
    pub fn new() -> Self {
        State(tempfile::tempdir().expect("a temporary folder"))
    }

    /// `$XDG_STATE_HOME/vmeter`.
    pub fn dir(&self) -> PathBuf {
        self.0.path().join("vmeter")
    }

    /// A path below its sessions.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir().join("runs").join(name)
    }

    /// A session with runs of its machines (type, vCPUs) in turn.
    pub fn session(
        &self,
        name: &str,
        command: &str,
        started_at: &str,
        machines: &[(&str, &str)],
        runs: u32,
    ) {
        self.session_at(&self.path(name), command, started_at, machines, runs);
    }

    /// The same, anywhere.
    pub fn session_at(
        &self,
        dir: &Path,
        command: &str,
        started_at: &str,
        machines: &[(&str, &str)],
        runs: u32,
    ) {
        let machine = |(kind, smp): &(&str, &str)| SessionMachine {
            label: (*kind).into(),
            chosen: [("machine", *kind), ("accel", "tcg"), ("smp", *smp)]
                .map(|(name, value)| vmeter_model::ResolvedOption::new(name, value, "why"))
                .to_vec(),
            argv: vec!["qemu".into(), "-M".into(), (*kind).into()],
            ..SessionMachine::default()
        };
        let plan = |n: u32| PlannedRun {
            machine: n as usize % machines.len(),
            warmup: false,
            watch: WatchLevel::Light,
        };
        let record = SessionRecord {
            schema: SCHEMA.into(),
            command: command.into(),
            argv: vec!["vmeter".into(), command.into()],
            started_at: started_at.into(),
            machines: machines.iter().map(machine).collect(),
            plan: (0..runs).map(plan).collect(),
            ..SessionRecord::default()
        };
        fs::create_dir_all(dir.join("runs")).expect("a session");
        fs::write(dir.join("vmeter-session"), MARKER).expect("a session");
        for n in 0..runs {
            run_at(dir, n, machines[n as usize % machines.len()].0);
        }
        let json = serde_json::to_vec(&record).expect("JSON");
        fs::write(dir.join("session.json"), json).expect("a session");
    }

    /// A further run.
    pub fn run(&self, session: &str, index: u32, label: &str) {
        run_at(&self.path(session), index, label);
    }

    /// Makes every folder look an hour old.
    pub fn age(&self) {
        let then = SystemTime::now() - Duration::from_secs(3600);
        for session in fs::read_dir(self.path("")).expect("sessions").flatten() {
            for dir in [session.path().join("runs"), session.path()] {
                let dir = fs::File::open(dir).expect("a folder");
                dir.set_modified(then).expect("a time");
            }
        }
    }
}

fn run_at(session: &Path, index: u32, label: &str) {
    let clock = ClockReading {
        monotonic_ns: 1_000,
        realtime_ns: 1_800_000_000_000_000_000,
        tsc: 0,
        width_ns: 60,
    };
    let record = RunRecord {
        schema: SCHEMA.into(),
        index,
        label: label.into(),
        argv: vec!["qemu".into()],
        exec_ns: 5_000,
        total_ns: 1_000_000_000 + i64::from(index) * 1_000_000,
        clocks: vec![clock],
        ..RunRecord::default()
    };
    let dir = session.join("runs").join(format!("{index:04}"));
    fs::create_dir_all(&dir).expect("a run");
    fs::write(dir.join("run.json"), serde_json::to_vec(&record).expect("JSON")).expect("a run");
}
