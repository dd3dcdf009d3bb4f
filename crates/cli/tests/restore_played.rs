//! `vmeter restore` with snapshots that a script makes and another reads, in place of a VMM.

use crate::common;

use common::{finished, spans, text, Lab, Ran};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A guest that answers, with the number of its boot.
const READY: &str = "line:answer (?<nonce>[a-z0-9]+)";
/// How long each part of a played restore takes, s.
const PLANTED: f64 = 0.3;

/// A command that makes a snapshot of two files, whose guest has this number.
fn create(nonce: &str) -> String {
    format!(
        "echo answer {nonce}; echo state >{{image}}/state; head -c 3000000 /dev/zero >{{image}}/ram"
    )
}

/// A VMM that reads both files one after the other, and whose guest then answers.
fn vmm(lab: &Lab, nonce: &str) -> PathBuf {
    let script = format!(
        "#!/bin/sh\nsleep 0.1\nexec 3<\"$1/state\"\nsleep {PLANTED}\nexec 3<&-\nsleep 0.1\n\
         exec 4<\"$1/ram\"\nsleep {PLANTED}\nexec 4<&-\necho answer {nonce}\nexec sleep 100\n"
    );
    lab.script(&format!("vmm-{nonce}"), &script)
}

fn restore(lab: &Lab, (made, found): (&str, &str), more: &[&str]) -> (Ran, PathBuf) {
    let dir = lab.path(&format!("session-{}", more.len()));
    let (create, vmm) = (create(made), vmm(lab, found));
    let restore = format!("{} {{image}}", text(&vmm));
    let mut all = vec!["restore", "--create", &create, "--restore", &restore, "--ready", READY];
    all.extend(["--warmup", "0", "--save", text(&dir), "--export-json", "-"]);
    all.extend(more);
    (lab.run(&all), dir)
}

fn parsed(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {}", ran.stderr))
}

fn has_no_image(dir: &Path) {
    assert!(!dir.join("image").exists() && !dir.join("image.files").exists(), "the image stays");
}

#[test]
fn each_file_is_loaded_for_as_long_as_it_was_planted() {
    let lab = Lab::new();
    let (ran, dir) = restore(&lab, ("n1", "n1"), &["--runs", "2"]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let result = parsed(&ran);
    assert_eq!(
        (&result["cold"], &result["machines"][0]["label"]),
        (&false.into(), &"restore".into())
    );
    assert!(result["create_s"].as_f64().is_some_and(|s| s > 0.0), "{}", result["create_s"]);
    assert!(result["image_bytes"].as_u64().is_some_and(|n| n >= 4096), "{}", result["image_bytes"]);
    assert_eq!(result["machines"][0]["proofs"], serde_json::json!(["nonce", "nonce"]));
    let runs = result["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 2);
    for run in runs {
        assert_eq!((&run["origin"], &run["outcome"]), (&"restore".into(), &"done".into()));
        for name in ["vmm:load-state", "vmm:load-ram"] {
            // vmeter stops what a shell starts, which cuts spans.
            let length: f64 = spans(run, name).iter().map(|(from, to)| to - from).sum();
            // A busy host makes a sleep longer, never shorter; an event is taken within 2 ms.
            assert!((PLANTED - 0.005..PLANTED * 2.0).contains(&length), "{name}: {length}");
        }
        let (state, ram) = (spans(run, "vmm:load-state"), spans(run, "vmm:load-ram"));
        let between = ram[0].0 - state[state.len() - 1].1;
        assert!(between >= 0.09, "what is between two files is neither's: {between}");
        assert!(!spans(run, "load state").is_empty(), "{}", common::names(run));
        let leaves: f64 = common::leaves(run)
            .iter()
            .map(|leaf| leaf["end_s"].as_f64().unwrap() - leaf["start_s"].as_f64().unwrap())
            .sum();
        assert!((leaves - run["total_s"].as_f64().expect("a total")).abs() < 1e-6);
    }
    has_no_image(&dir);
    let shown = lab.json(&["show", text(&dir)]);
    assert_eq!(shown["machines"], result["machines"]);
}

#[test]
fn a_guest_that_was_booted_again_is_refused() {
    let lab = Lab::new();
    let (ran, dir) = restore(&lab, ("n1", "n2"), &["--runs", "3"]);
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    let result = parsed(&ran);
    let runs = result["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 1, "it is not repeated");
    assert_eq!(runs[0]["outcome"], "unexpected-end");
    let how = runs[0]["failure"]["how"].as_str().expect("how");
    assert!(
        how.contains("booted, not restored") && how.contains("n2") && how.contains("n1"),
        "{how}"
    );
    has_no_image(&dir);

    let banner = lab
        .script("boots", "#!/bin/sh\n: <\"$1/a\"\necho 'Linux version 6'\necho answer\nsleep 9\n");
    let again = format!("{} {{image}}", text(&banner));
    let ran = lab.run(&[
        "restore",
        "--create",
        "echo >{image}/a",
        "--restore",
        &again,
        "--ready",
        "line:^answer",
        "--runs",
        "1",
        "--warmup",
        "0",
    ]);
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    assert!(ran.stdout.contains("which a guest prints only when it boots"), "{}", ran.stdout);
}

#[test]
fn what_nothing_proves_is_said() {
    let lab = Lab::new();
    let vmm = lab.script("mute", "#!/bin/sh\n: <\"$1/a\"\necho answer\nsleep 9\n");
    let again = format!("{} {{image}}", text(&vmm));
    let ran = lab.run(&[
        "restore",
        "--create",
        "echo >{image}/a",
        "--restore",
        &again,
        "--ready",
        "line:^answer",
        "--runs",
        "1",
        "--warmup",
        "0",
    ]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains("may have booted"), "{}", ran.stdout);
}

#[test]
fn cold_is_told_from_warm_or_refused() {
    let lab = Lab::new();
    let (ran, _) = restore(&lab, ("n1", "n1"), &["--runs", "2", "--cold", "--warm"]);
    if ran.status == 3 {
        assert!(ran.stderr.contains("still in the page cache"), "{}", ran.stderr);
        eprintln!("skipped: this file system is its own page cache");
        return;
    }
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let result = parsed(&ran);
    let machines = result["machines"].as_array().expect("machines");
    let resident = |at: usize| -> Vec<f64> {
        let all = machines[at]["resident"].as_array().expect("shares");
        all.iter().map(|share| share.as_f64().expect("a share")).collect()
    };
    assert_eq!((&machines[0]["cold"], &machines[1]["cold"]), (&false.into(), &true.into()));
    assert!(resident(0).iter().all(|share| *share > 0.99), "{:?}", resident(0));
    assert!(resident(1).iter().all(|share| *share <= 0.01), "{:?}", resident(1));
    assert_eq!(result["cold"], false, "one of both is warm");
}

#[test]
fn a_snapshot_that_cannot_be_made_is_said() {
    let lab = Lab::new();
    let fails = |create: &str, words: &str| {
        let all =
            ["restore", "--create", create, "--restore", "cat {image}/x", "--ready", "line:x"];
        let ran = lab.run(&all);
        assert!(ran.stderr.contains(words), "{create}: {}", ran.stderr);
        ran.status
    };
    assert_eq!(fails("echo no room >&2; false", "no room"), 1);
    assert_eq!(fails("true", "--image FILE"), 1);
    let usage = |all: &[&str]| lab.run(all).status;
    assert_eq!(usage(&["restore", "--create", "true"]), 2);
    assert_eq!(usage(&["restore", "--restore", "true", "--ready", "line:x"]), 2);
    assert_eq!(usage(&["restore", "--create", "true", "--restore", "true"]), 2);
    assert_eq!(usage(&["restore", "--method", "suspend"]), 2);
}

#[test]
fn an_interrupted_session_keeps_its_snapshot_and_goes_on_with_it() {
    let lab = Lab::new();
    let dir = lab.path("session");
    let (create, vmm) = (create("n1"), vmm(&lab, "n1"));
    let restore = format!("{} {{image}}", text(&vmm));
    let mut child = lab
        .command(&["restore", "--create", &create, "--restore", &restore, "--ready", READY])
        .args(["--warmup", "0", "--runs", "3", "--save", text(&dir), "-q"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("vmeter runs");
    while finished(&dir).is_empty() {
        assert!(child.try_wait().expect("a child").is_none(), "it ended by itself");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    common::signal(&child, "KILL");
    child.wait().expect("a child");
    let made = dir.join("image/given/vmeter-image.json");
    let before = std::fs::metadata(&made).and_then(|file| file.modified()).expect("a snapshot");
    let ran = lab.run(&["restore", "--resume", text(&dir), "--export-json", "-"]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert_eq!(parsed(&ran)["runs"].as_array().map(Vec::len), Some(3));
    has_no_image(&dir);
    assert!(before.elapsed().is_ok());
}

/// What a traced wave of four waits for, where each VM does `work` before it answers; none if this host traces
/// nothing.
fn waits_of_four(work: &str) -> Option<Value> {
    let lab = Lab::new();
    let script = format!("#!/bin/sh\n: <\"$1/ram\"\n{work}\necho answer n1\nexec sleep 100\n");
    let vmm = lab.script("vmm", &script);
    let restore = format!("{} {{image}}", text(&vmm));
    let (create, dir) = (create("n1"), lab.path("session"));
    let ran = lab.run(
        &[
            &["restore", "--create", &create, "--restore", &restore, "--ready", READY][..],
            &["--concurrency", "1,4", "--runs", "3", "--warmup", "1", "--save", text(&dir)],
            &["--export-json", "-"],
        ]
        .concat(),
    );
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let levels = parsed(&ran)["concurrency"][0]["levels"].clone();
    let (one, four) = (&levels[0], &levels[1]);
    assert_eq!((&one["at_once"], &four["at_once"]), (&1.into(), &4.into()));
    assert_eq!(four["samples_s"].as_array().map(Vec::len), Some(12), "a traced wave is no sample");
    assert!(one["waits_for"].is_null(), "one VM waits for no other: {one}");
    if let Some(why) = four["unknown"].as_str() {
        eprintln!("skipped: {why}");
        return None;
    }
    Some(four["waits_for"].clone())
}

/// All instances take turns with one lock.
#[test]
fn a_lock_of_all_is_what_several_at_once_wait_for() {
    let lab = Lab::new();
    let lock = lab.path("lock");
    let work = format!("exec 9>{}; flock 9; sleep 0.15; exec 9>&-", text(&lock));
    let Some(waits) = waits_of_four(&work) else { return };
    assert_eq!(waits["kind"], "lock", "{waits}");
    assert!(waits["lock"].as_str().is_some_and(|lock| lock.contains("flock")), "{waits}");
    assert!(waits["share"].as_f64().is_some_and(|share| share > 0.3), "{waits}");
    // The same without the lock.
    let Some(waits) = waits_of_four("sleep 0.15") else { return };
    assert_ne!(waits["kind"], "lock", "{waits}");
}

/// A VMM that speaks Firecracker's API; none without a Python.
fn played_firecracker(lab: &Lab) -> Option<(PathBuf, PathBuf)> {
    if std::process::Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: no python3");
        return None;
    }
    let config = lab.path("vm.json");
    let machine = serde_json::json!({
        "boot-source": { "kernel_image_path": "/boot/vmlinux", "boot_args": "" },
        "drives": [],
        "machine-config": { "vcpu_count": 1, "mem_size_mib": 1 },
    });
    std::fs::write(&config, machine.to_string()).expect("written");
    Some((lab.script("firecracker", include_str!("common/firecracker.py")), config))
}

const TICKS: [&str; 2] = ["--ready", "line:tick (?<nonce>[0-9a-f]+) "];

#[test]
fn a_vmm_with_firecrackers_api_is_saved_and_restored_by_requests() {
    let lab = Lab::new();
    let Some((vmm, config)) = played_firecracker(&lab) else { return };
    let dir = lab.path("session");
    let restore = ["restore", "--warmup", "0", "--runs", "2", "--no-boot", "--save", text(&dir)];
    let vmm = ["--", text(&vmm), "--no-api", "--config-file", text(&config)];
    let result = lab.json(&[&restore[..], &TICKS, &vmm].concat());
    let machines = result["machines"].as_array().expect("machines");
    let labels: Vec<&str> = machines.iter().filter_map(|m| m["label"].as_str()).collect();
    assert_eq!(labels, ["file", "uffd"]);
    for machine in machines {
        assert_eq!(machine["proofs"], serde_json::json!(["nonce", "nonce"]), "{machine}");
        // It sleeps so long between its state and its RAM.
        let runs = result["runs"].as_array().expect("runs").iter();
        for run in runs.filter(|run| run["label"] == machine["label"]) {
            assert!(run["argv"].to_string().contains("--api-sock"), "{}", run["argv"]);
            assert!(!run["argv"].to_string().contains("--config-file"), "{}", run["argv"]);
            let beside = run["overlapping"].as_array().expect("spans beside");
            let request = beside.iter().find(|s| s["name"] == "launcher:PUT /snapshot/load");
            let request = request.expect("a request");
            let took = request["end_s"].as_f64().unwrap() - request["start_s"].as_f64().unwrap();
            assert!(took >= 0.05, "{took}");
        }
    }
    // The guest touches eight pages, and a handler serves no other.
    let shown = lab.run(&["show", text(&dir), "--long", "--color", "never"]).stdout;
    let row = shown.lines().find(|line| line.contains("unknown") && line.ends_with("uffd"));
    let words: Vec<&str> = row.expect("a row").split_whitespace().collect();
    assert_eq!(words[..4], ["unknown", "8", "-", "8"], "{words:?}");
    has_no_image(&dir);
    // Unwatched ones are restored as well.
    let overhead = ["restore", "--overhead", "--warmup", "0", "--runs", "3", "--method", "uffd"];
    let result = lab.json(&[&overhead[..], &TICKS, &vmm].concat());
    assert_eq!(result["overhead"]["pairs"], 3, "{}", result["overhead"]);
    let scratch = lab.path("scratch");
    std::fs::create_dir(&scratch).expect("a folder");
    let mut again = lab.command(&[&restore[..5], &["--no-boot"], &TICKS, &vmm].concat());
    let ran = again.env("TMPDIR", &scratch).output().expect("it runs");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let left: Vec<_> = std::fs::read_dir(&scratch).expect("a folder").flatten().collect();
    assert!(left.is_empty(), "sockets are left: {left:?}");
}

#[test]
fn what_a_vmms_api_refuses_is_said_in_its_words() {
    let lab = Lab::new();
    let Some((vmm, config)) = played_firecracker(&lab) else { return };
    let script = std::fs::read_to_string(&vmm).expect("the VMM");
    let broken = script.replace("time.sleep(0.05)", "raise ValueError('no such state')");
    assert_ne!(script, broken);
    std::fs::write(&vmm, broken).expect("written");
    let restore = ["restore", "--warmup", "0", "--runs", "1", "--no-boot", "--method", "file"];
    let machine = ["--", text(&vmm), "--no-api", "--config-file", text(&config)];
    let ran = lab.run(&[&restore[..], &TICKS, &machine].concat());
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    assert!(ran.stdout.contains("PUT /snapshot/load: status 400"), "{}", ran.stdout);
    assert!(ran.stdout.contains("no such state"), "{}", ran.stdout);
    // Nothing boots a VMM that is told of its machine by its API alone.
    let ran = lab.run(&[&restore[..], &TICKS, &["--", text(&vmm), "--api-sock", "s"]].concat());
    assert_eq!(ran.status, 2, "{}", ran.stderr);
    assert!(ran.stderr.contains("boots no guest"), "{}", ran.stderr);
    let machine = ["--", text(&vmm), "--config-file", text(&config), "--no-api"];
    let with_vsock = std::fs::read_to_string(&config).expect("the machine");
    let with_vsock = with_vsock.replacen('{', "{\"vsock\": {\"uds_path\": \"v\"},", 1);
    let other = lab.path("vsock.json");
    std::fs::write(&other, with_vsock).expect("written");
    let machine_with = ["--", text(&vmm), "--config-file", text(&other), "--no-api"];
    let ran = lab.run(&[&restore[..], &TICKS, &machine_with].concat());
    assert!(ran.status == 2 && ran.stderr.contains("vsock"), "{}", ran.stderr);
    let other = ["restore", "--no-boot", "--method", "loadvm"];
    let ran = lab.run(&[&other[..], &TICKS, &machine].concat());
    assert_eq!(ran.status, 2, "{}", ran.stderr);
    assert!(ran.stderr.contains("expected file, uffd"), "{}", ran.stderr);
}
