//! A machine that is played from a script instead of booted.
//!
//! It drives the whole tool in tests: no process, no clock, the same output for
//! the same seed. A run is saved as any other, with one source, `mock`, whose file
//! holds the events themselves, one JSON object a line.

mod noise;
mod number;
pub mod play;
mod random;
pub mod scene;
pub mod script;

use crate::backend::{Backend, Machine, MachineError, Request};
use play::Played;
pub use play::SOURCE;
use scene::Scene;
use script::Script;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use vmeter_model::run::{Outcome, RunRecord, SourceRecord, Usage, WatchLevel};
use vmeter_model::time::{seconds, ClockReading};
use vmeter_model::{Accel, AskedAccel, Cause, End, Event, MachineSpec, SCHEMA};

/// Environment variable that names a script.
pub const SCRIPT_VARIABLE: &str = "VMETER_MOCK_SCRIPT";

const FILE: &str = "mock.jsonl";
const MAX_FILE: u64 = 64 << 20;
/// Time 0 of every played run: any number does, if it is always the same.
const EXEC_NS: i64 = 1_000_000_000;

/// The back end.
pub struct Mock;

impl Backend for Mock {
    fn name(&self) -> &'static str {
        "mock"
    }

    fn accepts(&self, spec: &MachineSpec) -> bool {
        spec.is_played()
    }

    fn describe(&self, request: &Request<'_>) -> Result<Machine, MachineError> {
        let mut machine = Machine { backend: self.name(), ..Machine::default() };
        machine.argv = vec!["mock".into()];
        let (script, name) = match script_path(request.spec) {
            Some(path) => (Script::read(&path)?, path.display().to_string()),
            None => (Script::parse(script::DEFAULT)?, "built in".to_owned()),
        };
        machine.choose("vmm", "mock", "nothing is booted: a script is played");
        let why = format!("--machine FILE or {SCRIPT_VARIABLE} to play another");
        machine.choose("script", &*name, why);
        machine.provenance.insert("vmm".into(), format!("mock, script {name}"));
        machine.accel = Some(played_accel(request.spec));
        machine.script = Some(script);
        Ok(machine)
    }
}

/// A script has no accelerator: it is played as if it had the one that was asked for.
fn played_accel(spec: &MachineSpec) -> Accel {
    match spec.accel {
        None | Some(AskedAccel::Auto) => Accel::Tcg,
        Some(AskedAccel::Only(accel)) => accel,
    }
}

/// `--machine FILE`, where it is a file and not the name of a machine type.
fn script_path(spec: &MachineSpec) -> Option<PathBuf> {
    let named = spec.machine.as_deref().filter(|m| m.contains('/') || m.ends_with(".mock"));
    named
        .map(PathBuf::from)
        .or_else(|| std::env::var_os(SCRIPT_VARIABLE).filter(|v| !v.is_empty()).map(PathBuf::from))
}

/// Plays one run and writes its recording into `dir`; `run.json` is the caller's to
/// write, last.
///
/// # Errors
/// When the file cannot be written, or `--until` is wrong.
pub fn record(script: &Script, scene: &Scene<'_>, dir: &Path) -> io::Result<RunRecord> {
    let wrong = |e: String| io::Error::new(io::ErrorKind::InvalidInput, e);
    let Played { events, moments, total_ns, outcome, steal_s } =
        play::play(script, scene).map_err(wrong)?;
    let mut sources = Vec::new();
    if scene.watch != WatchLevel::None {
        let mut file = io::BufWriter::new(std::fs::File::create(dir.join(FILE))?);
        for event in &events {
            serde_json::to_writer(&mut file, event)?;
            file.write_all(b"\n")?;
        }
        file.flush()?;
        sources.push(SourceRecord {
            name: SOURCE.into(),
            files: vec![FILE.into()],
            clock: "played from a script".into(),
            error_ns: 1_000,
            parameters: Default::default(),
        });
    }
    let total_s = seconds(total_ns);
    Ok(RunRecord {
        schema: SCHEMA.into(),
        index: scene.index,
        label: scene.label.into(),
        warmup: scene.warmup,
        watch: scene.watch,
        origin: Default::default(),
        argv: vec!["mock".into()],
        injected: vec![],
        outlived: false,
        runs_on: false,
        exec_ns: EXEC_NS,
        total_ns,
        looked_ns: 0,
        clocks: [0, total_ns].map(reading).into(),
        end: Some(ended(&outcome, scene)),
        outcome,
        usage: Usage {
            user_s: (total_s - steal_s) * 0.9,
            system_s: (total_s - steal_s) * 0.08,
            max_rss_bytes: 100 << 20,
            ..Usage::default()
        },
        steal_s,
        cpu_pressure_s: None,
        probe_s: None,
        probes: 0,
        moments,
        sources,
        warnings: vec![],
        marks: scene.spec.mark.clone(),
        icount: played_accel(scene.spec) == Accel::Icount,
    })
}

/// What a script's end is an end by.
fn ended(outcome: &Outcome, scene: &Scene<'_>) -> End {
    let until = scene.spec.until.as_deref().filter(|until| *until != "poweroff");
    let cause = match outcome {
        Outcome::Done if until.is_some() => Cause::Ready,
        Outcome::Done | Outcome::NotReady => Cause::PowerOff,
        Outcome::Panicked { .. } => Cause::Panic,
        Outcome::VmmFailed { .. } | Outcome::UnexpectedEnd { .. } => Cause::Failure,
        Outcome::TimedOut { .. } => Cause::TimedOut,
        Outcome::Interrupted => Cause::Interrupted,
    };
    End::new(cause, until.filter(|_| cause == Cause::Ready).unwrap_or("played from a script"))
}

fn reading(after: i64) -> ClockReading {
    ClockReading {
        monotonic_ns: EXEC_NS + after,
        realtime_ns: EXEC_NS + after,
        tsc: u64::try_from(after).unwrap_or(0),
        width_ns: 0,
    }
}

/// The events of a recording that [`record`] wrote into `dir`.
///
/// # Errors
/// When the record names a file outside its folder, or it cannot be read; lines
/// that are no events are an error as well.
pub fn events(dir: &Path, source: &SourceRecord) -> io::Result<Vec<Event>> {
    let bad = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let name = source
        .files
        .first()
        .ok_or_else(|| bad("mock: the run's record lists no file for the mock's events".into()))?;
    if name.contains('/') || name == ".." {
        return Err(bad(format!("mock: file name {name:?} points outside the run's folder")));
    }
    let file = vmeter_base::files::open_regular(&dir.join(name))?;
    let lines = BufReader::new(file.take(MAX_FILE)).lines();
    let mut events = Vec::new();
    for (n, line) in lines.enumerate() {
        let event = serde_json::from_str(&line?);
        events.push(event.map_err(|e| bad(format!("{name}, line {}: {e}", n + 1)))?);
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use vmeter_model::EventKind;

    proptest! {
        #[test]
        fn any_script_plays_to_an_end(
            lines in proptest::collection::vec(
                "(if smp>2: |unless run%2=1: )?(beside )?[0-9]{1,12}(ns|us|ms|s)(\\*memory_mib){0,3} \
                 (initcall f|step s|reach x|ready|poweroff|hang|panic p|exit 1|console c)",
                0..20,
            ),
            until in "(poweroff|userspace|line:c)",
            index in any::<u32>(),
        ) {
            let text = format!("vmeter-mock 1\nspread 90%\n{}\n", lines.join("\n"));
            let script = Script::parse(&text).expect("a script");
            let spec = MachineSpec {
                until: Some(until),
                memory_mib: Some(u32::MAX),
                ..MachineSpec::default()
            };
            let run = play::play(&script, &scene(&spec, index)).expect("played");
            prop_assert!(run.events.iter().all(|e| 0 <= e.at && e.at <= run.total_ns));
            prop_assert_eq!(run.moments.last().map(|(at, _)| *at), Some(run.total_ns));
        }
    }

    fn scene(spec: &MachineSpec, index: u32) -> Scene<'_> {
        Scene { spec, label: "a", index, warmup: false, watch: WatchLevel::Light, seed: 7 }
    }

    fn played(text: &str, spec: &MachineSpec, index: u32) -> Played {
        let script = Script::parse(&format!("vmeter-mock 1\n{text}")).expect("a script");
        play::play(&script, &scene(spec, index)).expect("played")
    }

    #[test]
    fn the_same_seed_the_same_file_and_another_run_another() {
        let script = Script::parse(script::DEFAULT).expect("the built-in script");
        let folder = tempfile::tempdir().expect("a folder");
        let spec = MachineSpec::default();
        let mut files = Vec::new();
        for index in [0, 0, 1] {
            let run = record(&script, &scene(&spec, index), folder.path()).expect("recorded");
            assert_eq!(run.outcome, Outcome::Done);
            let source = &run.sources[0];
            let events = events(folder.path(), source).expect("read");
            assert!(events.len() > 40 && events.windows(2).all(|w| w[0].at <= w[1].at));
            assert!(events.iter().all(|e| 0 <= e.at && e.at <= run.total_ns));
            files.push((run.total_ns, std::fs::read(folder.path().join(FILE)).expect("read")));
        }
        assert_eq!(files[0], files[1]);
        assert_ne!(files[0], files[2]);
    }

    #[test]
    fn settings_and_conditions_count() {
        let text = "10ms+2ms*pcie_root_ports reach a\nif append~slow: 5ms note x\n\
                    unless machine=pvh: 1ms note y\nif smp>2 and run%2=1: 100ms note z";
        let total = |spec: &MachineSpec, index| played(text, spec, index).total_ns;
        let spec = MachineSpec::default();
        assert_eq!(total(&spec, 0), 11_000_000);
        let ports = MachineSpec { pcie_root_ports: Some(3), ..spec.clone() };
        assert_eq!(total(&ports, 0), 17_000_000);
        let slow = MachineSpec {
            append: vec!["a slow".into()],
            machine: Some("pvh".into()),
            smp: Some(4),
            ..spec.clone()
        };
        assert_eq!((total(&slow, 0), total(&slow, 1)), (15_000_000, 115_000_000));
    }

    #[test]
    fn every_end() {
        let outcome = |text: &str, until: &str| {
            let spec = MachineSpec { until: Some(until.into()), ..MachineSpec::default() };
            played(text, &spec, 0)
        };
        let run = outcome("1ms console login:\n5ms exit 0", "line:^login");
        assert_eq!((run.outcome, run.total_ns), (Outcome::Done, 1_000_000));
        let run = outcome("1ms ready\n5ms exit 0", "userspace");
        assert_eq!((run.outcome, run.total_ns), (Outcome::Done, 1_000_000));
        assert_eq!(outcome("1ms exit 0", "userspace").outcome, Outcome::NotReady);
        assert!(matches!(outcome("1ms panic oops", "poweroff").outcome, Outcome::Panicked { .. }));
        let run = outcome("1ms console last words\n1ms hang", "poweroff");
        assert_eq!(run.outcome, Outcome::TimedOut { last: "last words".into() });
        assert_eq!(run.total_ns, 120_000_000_000);
        let failed = outcome("1ms fail 1 no such file", "poweroff").outcome;
        assert!(matches!(failed, Outcome::VmmFailed { stderr, .. } if stderr == "no such file"));
    }

    #[test]
    fn spans_and_what_is_beside_them() {
        let text = "1ms reach r\nbeside 10ms initcall a pid=9\n4ms initcall b\n9ms exit 0";
        let run = played(text, &MachineSpec::default(), 0);
        assert_eq!(run.total_ns, 14_000_000);
        let at = |wanted: &str| {
            let found = run.events.iter().find(
                |e| matches!(&e.what, EventKind::InitcallEnd { function, .. } if function == wanted),
            );
            found.map(|e| e.at)
        };
        assert_eq!((at("a"), at("b")), (Some(11_000_000), Some(5_000_000)));
    }
}
