//! `vmeter explain -- COMMAND` on VMMs whose fault is known (vmeter-device-models).
//!
//! The VMM is this test program itself, started again by vmeter. Each model is explained
//! twice with other jitter. What else the host does can change a verdict, so after a wrong one
//! the model is explained with three further seeds, and most answers must be right.
//! `VMETER_TEST_EXPLAIN_RUNS=20` has each explained 20 times and asks for 19 right answers, and
//! of the healthy one for 20, without a second chance.

use crate::common;

use common::traced_guest::{possible, INSTANCES};
use common::{text, Lab, Ran};
use serde_json::Value;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use vmeter_device_models::{run, Model, Options};

/// Set to `MODEL SEED` or `MODEL SEED worker` to have this program be the VMM.
const MODEL: &str = "VMETER_TEST_DEVICE_MODEL";
const RUNS: &str = "VMETER_TEST_EXPLAIN_RUNS";
/// Findings about a host that is busy with other things, which a test can't help.
const OF_THE_HOST: &[&str] = &["cpu-contention"];

/// The VMM's half: not a test by itself.
#[test]
fn device_model() {
    let Ok(what) = std::env::var(MODEL) else { return };
    let words: Vec<&str> = what.split(' ').collect();
    let model = words.first().and_then(|name| Model::from_name(name)).expect("a model");
    let seed = words.get(1).and_then(|seed| seed.parse().ok()).expect("a seed");
    let worker = words.contains(&"worker");
    let served = run(Options { seed, worker, ..Options::new(model) }).expect("it runs");
    assert_eq!(served.commands, model.rounds());
}

fn explain(lab: &Lab, model: &str, seed: u64, save: &Path) -> Ran {
    let own = std::env::current_exe().expect("this program");
    let mut command = lab.command(&["explain", "--export-json", "-", "--save", text(save), "--"]);
    command.arg(own).args(["--exact", "explain_live::device_model"]);
    command.env(MODEL, model.replacen(' ', &format!(" {seed} "), 1));
    if !model.contains(' ') {
        command.env(MODEL, format!("{model} {seed}"));
    }
    command.output().expect("vmeter").into()
}

/// Findings about the command, and whether the host was busy with other things.
fn findings(ran: &Ran) -> (Vec<Value>, bool) {
    assert_eq!(ran.status, 0, "{}\n{}", ran.stderr, ran.stdout);
    let result: Value = serde_json::from_str(&ran.stdout).expect("one object, and nothing else");
    let findings = result["findings"].as_array().expect("findings").clone();
    let of_the_host = |f: &Value| OF_THE_HOST.iter().any(|kind| f["kind"] == *kind);
    let (host, findings): (Vec<Value>, Vec<Value>) = findings.into_iter().partition(of_the_host);
    host.iter().for_each(|f| println!("about the host: {} {}", f["severity"], f["summary"]));
    (findings, !host.is_empty())
}

/// What is wrong with an answer; nothing if it is right: the planted cause of the planted
/// port first, and nothing else of high severity.
fn wrong(findings: &[Value], kinds: &[&str]) -> Option<String> {
    let brief = |f: &Value| format!("{} {} {}", f["severity"], f["kind"], f["summary"]);
    let all: Vec<String> = findings.iter().map(brief).collect();
    let Some(first) = findings.first() else {
        return (!kinds.is_empty()).then(|| "nothing was found".into());
    };
    let right = kinds.iter().any(|kind| first["kind"] == *kind || first["modifier"] == *kind)
        && first["subject"].as_str().is_some_and(|s| s.contains("0x1f7"));
    let rest = findings.get(1..).unwrap_or_default();
    let loud = rest.iter().any(|f| f["severity"] == "high");
    (!right || loud).then(|| all.join("; "))
}

/// What is wrong with an answer about a sound device model with a thread for its disk. That
/// each command is handed over and back is the truth, and on an idle host most of its time; it
/// is nothing to be alarmed by.
fn beside_hand_overs(findings: &[Value]) -> Option<String> {
    let alarms = findings.iter().filter(|f| f["severity"] == "high");
    let odd: Vec<String> = alarms.map(|f| f["summary"].to_string()).collect();
    (!odd.is_empty()).then(|| odd.join("; "))
}

/// Explains a model again and again.
fn is_explained(model: &str, kinds: &[&str]) {
    let lenient = if kinds.is_empty() { 0 } else { 20 };
    again_and_again(model, lenient, |findings| wrong(findings, kinds));
}

/// Runs where nothing else is asked for, and further ones after a wrong answer.
const FEW: (u64, u64) = (2, 3);

/// One wrong answer in `lenient` is allowed, none if that is 0; of few runs, less than half.
fn again_and_again(model: &str, lenient: u64, judge: impl Fn(&[Value]) -> Option<String>) {
    if !possible() {
        return;
    }
    let lab = Lab::new();
    let asked: Option<u64> = std::env::var(RUNS).ok().and_then(|runs| runs.parse().ok());
    let (mut bad, mut busy) = (Vec::new(), 0);
    let mut explained = |seeds: std::ops::RangeInclusive<u64>| {
        for seed in seeds {
            let save = lab.path(&format!("{}-{seed}", model.replace(' ', "-")));
            let ran = explain(&lab, model, seed, &save);
            let (found, host_is_busy) = findings(&ran);
            match judge(&found) {
                Some(why) if host_is_busy => {
                    println!("on a busy host, seed {seed}: {why}");
                    busy += 1;
                }
                Some(why) => bad.push(format!("seed {seed}: {why}")),
                None => {}
            }
            if std::env::var_os("VMETER_TEST_KEEP").is_none() {
                std::fs::remove_dir_all(&save).expect("the trace was saved there");
            }
        }
        bad.len() as u64 + busy
    };
    let (runs, allowed) = match asked {
        Some(runs) => {
            explained(1..=runs);
            (runs, runs.checked_div(lenient).unwrap_or(0))
        }
        None if explained(1..=FEW.0) == 0 => (FEW.0, 0),
        None => {
            let runs = FEW.0 + FEW.1;
            explained(FEW.0 + 1..=runs);
            (runs, (runs - 1) / 2)
        }
    };
    let right = runs - bad.len() as u64 - busy;
    println!("{model}: {right} of {runs} right, {busy} on a busy host");
    if right == 0 && bad.is_empty() {
        println!("skipped: the host was busy with other things in every run");
    }
    let allowed = allowed.saturating_sub(busy / 2);
    assert!(bad.len() as u64 <= allowed, "{model}:\n{}", bad.join("\n"));
}

#[test]
fn nothing_stands_out_of_a_healthy_one() {
    is_explained("healthy", &[]);
}

#[test]
fn nothing_alarming_in_a_healthy_one_with_a_thread_for_its_disk() {
    again_and_again("healthy worker", 0, beside_hand_overs);
}

#[test]
fn work_on_every_cpu() {
    is_explained("every-cpu", &["kernel-work"]);
}

#[test]
fn a_sleep() {
    is_explained("sleeping", &["timer-wait"]);
}

#[test]
fn a_sleep_of_another_thread() {
    is_explained("sleeping worker", &["timer-wait"]);
}

#[test]
fn cpu_time_that_is_burnt() {
    is_explained("burning", &["user-cpu"]);
}

#[test]
fn a_write_a_byte() {
    is_explained("bytewise", &["unbatched"]);
}

#[test]
fn a_list_that_is_read_again_and_again() {
    is_explained("growing", &["superlinear"]);
}

#[test]
fn a_signal_ends_it_and_leaves_nothing() {
    if !possible() {
        return;
    }
    let lab = Lab::new();
    // On a busy host the signal may come before the command is waited for: then it is an
    // interruption, which leaves nothing either.
    let kept = (0..5).any(|attempt| signalled(&lab, &lab.path(&format!("saved-{attempt}"))) == 0);
    assert!(kept, "each time it was interrupted before the command ran");
}

/// Ends a recording by a signal once its command runs; gives vmeter's exit status.
fn signalled(lab: &Lab, save: &Path) -> i32 {
    let runs = save.with_extension("runs");
    let script = format!("touch {}; exec sleep 60", runs.display());
    let mut command = lab.command(&["explain", "--save", text(save), "--", "sh", "-c", &script]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("vmeter");
    let own = format!("vmeter-{}-", child.id());
    let recording = || {
        let entries = std::fs::read_dir(INSTANCES).expect("readable").flatten();
        entries.filter_map(|e| e.file_name().into_string().ok()).any(|n| n.starts_with(&own))
    };
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while !(recording() && runs.exists()) {
        assert!(std::time::Instant::now() < deadline, "it never recorded");
        std::thread::park_timeout(Duration::from_millis(20));
    }
    let pid = child.id().to_string();
    let _ = std::process::Command::new("kill").args(["-TERM", &pid]).status().expect("kill");
    let ended: Ran = child.wait_with_output().expect("it ends").into();
    assert!(matches!(ended.status, 0 | 130), "{}: {}", ended.status, ended.stderr);
    // One that was interrupted before its command ran leaves its instance to its guard.
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while ended.status == 130 && recording() && std::time::Instant::now() < deadline {
        std::thread::park_timeout(Duration::from_millis(20));
    }
    assert!(!recording(), "its instance is gone");
    assert_eq!(ended.status == 0, save.join("trace.dat").exists(), "what was recorded is kept");
    ended.status
}
