//! `vmeter sweep` and `vmeter diff` from the command line: on the mock machine, and on one
//! real guest.

use crate::common;

use common::{kernel, text, Lab};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// A jump of 200 ms from the third port on, in one initcall, and a line that tells.
const JUMPS: &str = "vmeter-mock 1
spread 1%
run-spread 1%
30ms vmm-main
40ms reach reset-vector
300ms reach start_kernel
60ms reach rest_init
1ms level early
90ms+9ms*pcie_root_ports initcall acpi_init
if pcie_root_ports>2: 200ms initcall slow_init
if pcie_root_ports>2: 1us kernel slow: waited 200 ms for a link
5ms reach run_init_process
20ms step mount
count pci_config_reads 397+291*pcie_root_ports
1ms ready
";

fn mock(lab: &Lab) -> String {
    let path = lab.path("jumps.mock");
    std::fs::write(&path, JUMPS).expect("scratch space");
    text(&path).to_owned()
}

/// Breaks in time as (what, between).
fn breaks(result: &Value) -> Vec<(String, Value)> {
    let rows = |list: &str, name: &str| -> Vec<(String, Value)> {
        let rows = result[list].as_array().expect(list);
        let of = |row: &Value| {
            let name = row[name].as_str().expect("a name").to_owned();
            let breaks = row["breaks"].as_array().cloned().unwrap_or_default();
            breaks.into_iter().map(move |b| (name.clone(), b["between"].clone()))
        };
        rows.iter().flat_map(of).collect()
    };
    [rows("scaling", "phase"), rows("activity_scaling", "activity")].concat()
}

#[test]
fn a_jump_is_reported_where_it_is_and_explained() {
    let lab = Lab::new();
    let script = mock(&lab);
    let save = lab.path("sweep");
    let result = lab.json(&[
        "sweep",
        "-P",
        "pcie-root-ports=0..5",
        "--vmm",
        "mock",
        "--machine",
        &script,
        "--until",
        "userspace",
        "--save",
        text(&save),
    ]);
    let found = breaks(&result);
    let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert!(names.contains(&"TOTAL") && names.contains(&"initcall slow_init"), "{found:?}");
    assert!(found.iter().all(|(_, b)| *b == serde_json::json!([2.0, 3.0])), "{found:?}");
    let points = result["points"].as_array().expect("points");
    assert_eq!(points.len(), 6);
    assert_eq!(points[3]["parameters"], serde_json::json!({"pcie-root-ports": 3}));
    assert_eq!(points[3]["runs"].as_array().map(Vec::len), Some(5));
    let counts = result["count_scaling"].as_array().expect("count_scaling");
    let reads = counts.iter().find(|c| c["count"] == "pci_config_reads").expect("reads");
    assert_eq!(reads["exact_step"], 291.0);
    let diff = &result["breaks_explained"][0]["diff"];
    assert_eq!(
        (&diff["a"]["label"], &diff["verdict"]),
        (&"pcie-root-ports=2".into(), &"slower".into())
    );

    // The same by hand, and again from disk.
    let side = |ports: u32| format!("{}#pcie-root-ports={ports}", save.display());
    let diff = lab.json(&["diff", &side(2), &side(3)]);
    let rows = diff["rows"].as_array().expect("rows");
    let new = rows.iter().find(|r| r["name"] == "initcall slow_init").expect("the new initcall");
    assert_eq!((&new["presence"], &new["significant"]), (&"new".into(), &true.into()));
    let lines = diff["lines"].as_array().expect("lines");
    assert_eq!(lines[0]["name"], "slow: waited # ms for a link");
    let same = lab.json(&["diff", &side(4), &side(4)]);
    assert_eq!(same["verdict"], "no difference found");
    let again = lab.json(&["show", text(&save)]);
    assert_eq!(again["points"], result["points"]);
    // Five pairs cannot decide, and the gate says so; the sixth can.
    let gate = |sweep: &Path| {
        let side = |ports: u32| format!("{}#pcie-root-ports={ports}", sweep.display());
        lab.run(&["diff", &side(2), &side(3), "--fail-if-slower", "5"])
    };
    let few = gate(&save);
    assert_eq!(few.status, 4, "{}", few.stderr);
    assert!(few.stderr.contains("6 are enough"), "{}", few.stderr);
    lab.json(&["sweep", "--resume", text(&save), "--runs", "6"]);
    let bad = gate(&save);
    assert_eq!(bad.status, 1, "{}", bad.stderr);
    assert!(bad.stdout.contains("slower") && bad.stdout.contains("slow_init"), "{}", bad.stdout);
}

#[test]
fn points_are_crossed_and_words_have_no_slope() {
    let lab = Lab::new();
    let result = lab.json(&[
        "sweep",
        "-L",
        "smp=1,2,4",
        "-L",
        "init=minimal,udev",
        "-P",
        "delay=10..20:10",
        "--vmm",
        "mock",
        "--append",
        "delay={delay}",
        "--runs",
        "2",
        "--warmup",
        "0",
    ]);
    let points = result["points"].as_array().expect("points");
    assert_eq!(points.len(), 12);
    let spec = &points[1]["machine"]["spec"];
    assert_eq!((&spec["append"][0], &spec["smp"]), (&"delay=20".into(), &1.into()));
    let scaling = result["scaling"].as_array().expect("scaling");
    assert!(scaling.iter().all(|s| s["parameter"] != "init"));
    let at = serde_json::json!({"init": "udev", "delay": "20"});
    assert!(scaling.iter().any(|s| s["parameter"] == "smp" && s["at"] == at));
    let comparisons = result["comparisons"].as_array().expect("comparisons");
    assert_eq!(comparisons.len(), 11);
}

#[test]
fn resumed_sweeps_repeat_nothing_and_can_get_longer() {
    let lab = Lab::new();
    let save = lab.path("sweep");
    let dir = text(&save);
    let sweep = |more: &[&str]| {
        let common = ["sweep", "-P", "pcie-root-ports=0..3", "--vmm", "mock", "--warmup", "1"];
        lab.run(&[&common[..], more].concat())
    };
    let marker = lab.path("prepared");
    let mended = lab.path("mended");
    let prepare = format!(
        "echo {{pcie-root-ports}} >> {0}; test -e {1} || test $(wc -l < {0}) -lt 6",
        marker.display(),
        mended.display()
    );
    let broken = sweep(&["--runs", "3", "--save", dir, "--prepare", &prepare]);
    assert_eq!(broken.status, 3, "{}", broken.stderr);
    assert!(broken.stderr.contains("--prepare"), "{}", broken.stderr);
    let stamps = || -> Vec<(String, std::time::SystemTime)> {
        let runs = std::fs::read_dir(save.join("runs")).expect("runs").flatten();
        let mut stamps: Vec<_> = runs
            .map(|e| (e.file_name().to_string_lossy().into_owned(), e.path().join("run.json")))
            .filter_map(|(name, file)| Some((name, file.metadata().ok()?.modified().ok()?)))
            .collect();
        stamps.sort();
        stamps
    };
    let before = stamps();
    assert_eq!(before.len(), 5);
    // What was prepared is the point's own: each value is there once in a block.
    let prepared = std::fs::read_to_string(&marker).expect("prepared");
    let mut first: Vec<&str> = prepared.lines().take(4).collect();
    first.sort_unstable();
    assert_eq!(first, ["0", "1", "2", "3"]);

    std::fs::write(&mended, "").expect("scratch space");
    let resumed = lab.run(&["sweep", "--resume", dir]);
    assert_eq!(resumed.status, 0, "{}", resumed.stderr);
    let after = stamps();
    assert_eq!((after.len(), &after[..5]), (16, &before[..]));
    let longer = lab.json(&["sweep", "--resume", dir, "--runs", "5"]);
    assert_eq!(longer["points"][2]["runs"].as_array().map(Vec::len), Some(5));
    assert_eq!(&stamps()[..16], &after[..]);
    let other = lab.run(&["sweep", "--resume", dir, "-P", "pcie-root-ports=0..9", "--vmm", "mock"]);
    assert_eq!(other.status, 2);
    assert!(other.stderr.contains("another -L and -P:"), "{}", other.stderr);
    for (option, value) in [("--watch", "none"), ("--seed", "7"), ("--smp", "2")] {
        let other = lab.run(&["sweep", "--resume", dir, option, value]);
        assert_eq!(other.status, 2, "{option}: {}", other.stderr);
        assert!(other.stderr.contains(&format!("another {option}:")), "{}", other.stderr);
    }
    let same = lab.run(&["sweep", "--resume", dir, "--watch", "light", "--vmm", "mock"]);
    assert_eq!(same.status, 0, "{}", same.stderr);
}

#[test]
fn one_point_that_fails_does_not_take_the_others_with_it() {
    let lab = Lab::new();
    let script = lab.path("fails.mock");
    let content =
        "vmeter-mock 1\n5ms reach start_kernel\nif smp>2: 1ms panic not syncing: smp\n9ms exit 0\n";
    std::fs::write(&script, content).expect("scratch space");
    let ran = lab.run(&[
        "sweep",
        "-L",
        "smp=1,2,4",
        "--vmm",
        "mock",
        "--machine",
        text(&script),
        "--runs",
        "3",
        "--export-json",
        "-",
    ]);
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    let result: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let runs = |point: usize| result["points"][point]["runs"].as_array().map_or(0, Vec::len);
    assert_eq!((runs(0), runs(1)), (3, 3));
    assert!(result["points"][2]["total"].is_null());
    assert!(ran.stderr.contains("not syncing"), "{}", ran.stderr);
}

#[test]
fn wrong_usage_leaves_no_session() {
    let lab = Lab::new();
    let fails = |arguments: &[&str], word: &str| {
        let ran = lab.run(arguments);
        assert_eq!(ran.status, 2, "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(word), "{arguments:?}: {}", ran.stderr);
    };
    fails(&["sweep", "--vmm", "mock"], "nothing to sweep");
    fails(&["sweep", "-P", "ports=0..3", "--vmm", "mock"], "pcie-root-ports");
    fails(&["sweep", "-P", "smp=3..1", "--vmm", "mock"], "FIRST..LAST");
    fails(&["sweep", "-L", "smp=1,2", "--", "/bin/echo", "hello"], "{smp}");
    fails(&["diff", "/nonexistent", "/nonexistent"], "not a saved session");
    assert!(!lab.path("vmeter/runs").exists());
    let save = lab.path("sweep");
    let arguments = ["-L", "smp=1,2", "--vmm", "mock", "--runs", "1", "--save", text(&save)];
    assert_eq!(lab.run(&[&["sweep"][..], &arguments].concat()).status, 0);
    fails(&["diff", text(&save), text(&save)], "smp=1");
    fails(&["diff", &format!("{}#smp=9", save.display()), text(&save)], "smp=2");
}

#[test]
fn folders_that_cannot_be_written_and_disks_that_are_full() {
    let lab = Lab::new();
    let file = lab.path("file");
    std::fs::write(&file, "").expect("scratch space");
    let below = file.join("sweep");
    let arguments = ["sweep", "-P", "pcie-root-ports=0..3", "--vmm", "mock", "--runs", "5"];
    let ran = lab.run(&[&arguments[..], &["--save", text(&below)]].concat());
    assert_eq!(ran.status, 3, "{}", ran.stderr);
    assert!(ran.stderr.contains("--save DIR"), "{}", ran.stderr);

    let Some(full) = on_small_disk(&lab, &arguments) else {
        println!("skipped: a disk that fills up needs unshare(1) and the right to mount a tmpfs");
        return;
    };
    let (status, stderr, whole) = full;
    assert_eq!(status, 3, "{stderr}");
    assert!(stderr.contains("No space left on device"), "{stderr}");
    assert!(whole > 0, "no earlier run is intact: {stderr}");
}

/// Runs vmeter with its folder on a tmpfs of 96 KiB: status, what it said, and how many runs
/// are whole afterwards. None where that cannot be mounted.
fn on_small_disk(lab: &Lab, arguments: &[&str]) -> Option<(i32, String, usize)> {
    let disk = lab.path("disk");
    std::fs::create_dir(&disk).expect("scratch space");
    let script = "mount -t tmpfs -o size=96k tmpfs \"$1\" || exit 77; disk=\"$1\"; shift
        \"$@\" --save \"$disk/sweep\" > /dev/null; status=$?
        for run in \"$disk\"/sweep/runs/????; do tail -c 2 \"$run/run.json\" | grep -q '}' && echo whole; done
        exit $status";
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh", text(&disk), env!("CARGO_BIN_EXE_vmeter")])
        .args(arguments)
        .env("XDG_STATE_HOME", lab.folder.path())
        .output()
        .ok()?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let status = output.status.code()?;
    let whole = String::from_utf8_lossy(&output.stdout).lines().count();
    (status != 77 && !stderr.starts_with("unshare")).then_some((status, stderr, whole))
}

#[test]
fn a_planted_jump_in_a_real_guest() {
    if common::is_left_to_test_long() {
        return;
    }
    if kernel().is_none() {
        return;
    }
    let lab = Lab::new();
    // Two runs a point have 4 degrees of freedom: among all phases a jump is found from ten times
    // their scatter on, which is half a second on a busy host.
    const PLANTED_S: f64 = 2.0;
    let result = lab.json(&[
        "sweep",
        "-P",
        "pcie-root-ports=0..3",
        "--append",
        "vmeter.sleep_if_ports=2:2000",
        "--runs",
        "3",
        "--warmup",
        "0",
    ]);
    let steps = result["count_scaling"].as_array().expect("count_scaling");
    let count = |name: &str| steps.iter().find(|c| c["count"] == name).expect("a count");
    assert!(count("pci_config_writes")["exact_step"].as_f64().is_some_and(|step| step > 50.0));
    assert!(count("pci_config_reads")["usual_step"].as_f64().is_some_and(|step| step > 200.0));
    let scaling = result["scaling"].as_array().expect("scaling");
    let step = scaling.iter().find(|s| s["phase"] == "/init:sleep-if-ports").expect("the step");
    let breaks = step["breaks"].as_array().expect("breaks");
    assert_eq!(breaks.len(), 1, "{step}");
    assert_eq!(breaks[0]["between"], serde_json::json!([1.0, 2.0]));
    let jump = breaks[0]["jump_s"].as_f64().expect("a jump");
    assert!((0.9..1.5).contains(&(jump / PLANTED_S)), "{jump} s");
    let saved = result["saved_in"].as_str().expect("saved_in");
    assert!(Path::new(saved).join("session.json").exists());
    let explained = result["breaks_explained"].as_array().expect("breaks_explained");
    let here = explained.iter().find(|e| e["between"] == serde_json::json!([1.0, 2.0]));
    let rows = here.expect("explained")["diff"]["rows"].as_array().expect("rows");
    let activity = rows.iter().find(|r| r["name"] == "/init:sleep-if-ports").expect("the step");
    assert!(activity["difference"].as_f64().is_some_and(|d| d > 0.9 * PLANTED_S), "{activity}");
}
