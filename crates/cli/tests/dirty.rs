//! `vmeter dirty` on real guests: counts and structure only, no times.

use crate::common;

use common::{signal, text, Lab};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// False, with a line that says so, where /dev/kvm runs no guest code natively.
fn kvm() -> bool {
    match vmeter_kvm_probe::probe(Duration::from_secs(2)) {
        Ok(found) if found.ring3.is_native() => true,
        Ok(found) => {
            println!("skipped: ring 3 is {}", found.ring3);
            false
        }
        Err(error) => {
            println!("skipped: {error}");
            false
        }
    }
}

fn rows(result: &Value) -> &Vec<Value> {
    result["rows"].as_array().expect("rows")
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no whole number"))
}

#[test]
fn a_screen_has_the_fields_that_scripts_rely_on() {
    if !kvm() {
        return;
    }
    let lab = Lab::new();
    let result = lab.json(&["dirty", "--workload", "gui", "--hz", "200", "--passes", "4"]);
    assert_eq!(
        (result["schema"].as_str(), result["command"].as_str()),
        (Some("vmeter/1"), Some("dirty"))
    );
    assert_eq!(result["verified"], true, "{}", result["mismatches"]);
    assert!(result["checked_bits"].as_u64() > Some(0));
    let mut dirty: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for row in rows(&result) {
        let place = (number(&row["pass"]), number(&row["slot"]));
        let pages = number(&row["dirty_pages"]);
        assert_eq!(*dirty.entry(place).or_insert(pages), pages, "{row}");
        assert_eq!(number(&row["slot_bytes"]), 32_768);
        for field in ["nanoseconds", "tsc_cycles"] {
            assert!(row[field].as_f64() > Some(0.0), "{field}: {row}");
        }
        for field in ["strategy", "tracker"] {
            assert!(row[field].is_string(), "{field}: {row}");
        }
    }
    // Every second frame is a whole screen; the others move the cursor.
    let slot = |slot| (0..4).map(|pass| dirty[&(pass, slot)]).collect::<Vec<_>>();
    assert_eq!((slot(7), slot(8)), (vec![8, 1, 8, 1], vec![0, 0, 0, 0]));
    // Four passes may tell trackers apart, or not: then none is named.
    let advised = result["advice"]["trackers"].as_array().expect("trackers");
    assert_eq!(result["advice"]["tracker"].is_string(), advised.len() == 1, "{advised:?}");
    assert!(!advised.is_empty() && result["crossovers"].is_array());
    assert!(result["trackers"][0]["tracker"] == "none");
}

#[test]
fn a_migration_is_scaled_and_says_so() {
    if !kvm() {
        return;
    }
    let lab = Lab::new();
    let common = ["dirty", "--workload", "migration", "--memory", "96", "--buffer", "64"];
    let chosen = ["--tracker", "kvm-legacy,pagemap-scan", "--strategy", "switch_opt,get_org"];
    let result = lab.json(&[&common[..], &chosen[..], &["--passes", "2", "--no-fit"]].concat());
    assert_eq!(result["verified"], true, "{}", result["mismatches"]);
    let layout = &result["layout"];
    assert!(layout["scale"].as_f64() < Some(0.1) && number(&layout["memory_bytes"]) <= 96 << 20);
    assert!(
        layout["scaling"].as_str().expect("words").contains("may use at most 96 MiB"),
        "{layout}"
    );
    let slots = layout["slots"].as_array().expect("slots");
    assert_eq!(slots.len(), 9);
    let clean = [3, 4, 5, 6, 7, 8];
    let mut kinds = BTreeMap::new();
    for row in rows(&result) {
        let dirty = number(&row["dirty_pages"]) > 0;
        assert_eq!(dirty, !clean.contains(&number(&row["slot"])), "{row}");
        let kind = (row["tracker"].to_string(), row["strategy"].to_string());
        *kinds.entry(kind).or_insert(0) += 1;
    }
    let skipped = result["skipped"].as_array().expect("skipped").len();
    assert_eq!(kinds.len(), (2 - skipped) * 2, "{kinds:?}");
    assert!(kinds.values().all(|rows| *rows == 2 * 9), "{kinds:?}");
    let written = number(&result["workload"]["buffer_bytes"]) / 4096 + 8;
    for tracker in result["trackers"].as_array().expect("trackers") {
        assert!(tracker["pages"].as_array().expect("pages").iter().all(|n| *n == written));
    }
}

#[test]
fn own_slots_are_shown_in_80_columns() {
    if !kvm() {
        return;
    }
    let lab = Lab::new();
    let file = lab.path("slots.json");
    let slots = r#"[{"slot": 2, "bytes": "8M"}, {"slot": 5, "bytes": "64K", "buffer": true}]"#;
    std::fs::write(&file, slots).expect("scratch space");
    let csv = lab.path("rows.csv");
    let ran = lab.run(&[
        "dirty",
        "--workload",
        "random",
        "--dirty",
        "25",
        "--slots",
        text(&file),
        "--tracker",
        "kvm-legacy",
        "--passes",
        "1",
        "--export-csv",
        text(&csv),
    ]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert!(ran.stdout.lines().all(|line| line.chars().count() <= 80), "{}", ran.stdout);
    let row = |start: &str| {
        let words = |line: &str| line.split_whitespace().take(4).collect::<Vec<_>>().join(" ");
        ran.stdout.lines().map(words).any(|line| line == start)
    };
    assert!(row("0 2 8388608 0") && row("0 5 65536 4"), "{}", ran.stdout);
    for name in ["get_org", "get_opt", "switch_opt", "kvm-legacy", "none", "TSC cycles"] {
        assert!(ran.stdout.contains(name), "{name}\n{}", ran.stdout);
    }
    let csv = std::fs::read_to_string(csv).expect("exported");
    assert!(csv.starts_with("pass,slot,slot_bytes,dirty_pages,strategy,tracker,nanoseconds,"));
    assert_eq!(csv.lines().count(), 1 + 2 * 3);
}

/// Begun in the background, until so many of its runs are there.
fn begun(lab: &Lab, save: &Path, runs: usize) -> Child {
    let small = ["dirty", "--workload", "random", "--memory", "96", "--buffer", "32"];
    let mut command = lab.command(&[&small[..], &["--save", text(save)]].concat());
    let silent = command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = silent.spawn().expect("vmeter starts");
    while finished(save).len() < runs {
        assert!(child.try_wait().expect("a state").is_none(), "it ended before its time");
        std::thread::sleep(Duration::from_millis(2));
    }
    child
}

/// The finished runs of a session, byte for byte.
fn finished(save: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let folders = std::fs::read_dir(save.join("runs")).into_iter().flatten().flatten();
    let whole = folders.map(|entry| entry.path()).filter(|path| path.extension().is_none());
    whole
        .filter_map(|path| Some((path.clone(), std::fs::read(path.join("run.json")).ok()?)))
        .collect()
}

#[test]
fn killed_half_way_and_resumed_it_repeats_nothing_and_is_read_like_any_session() {
    if !kvm() {
        return;
    }
    let lab = Lab::new();
    let save = lab.path("saved");
    let dir = text(&save);
    let mut child = begun(&lab, &save, 4);
    signal(&child, "KILL");
    let _ = child.wait();
    let before = finished(&save);
    let half = lab.json(&["show", dir]);
    assert!(half["warnings"][0].as_str().expect("a warning").contains("runs are finished"));

    let live = lab.json(&["dirty", "--resume", dir]);
    assert_eq!(live["verified"], true, "{}", live["mismatches"]);
    let after = finished(&save);
    assert!(
        before.iter().all(|(path, bytes)| after.get(path) == Some(bytes)),
        "a run was repeated"
    );
    let plan = |save: &Path| -> Value {
        let bytes = std::fs::read(save.join("session.json")).expect("saved");
        serde_json::from_slice::<Value>(&bytes).expect("JSON")["plan"].clone()
    };
    let planned = plan(&save);
    assert_eq!(planned.as_array().map(Vec::len), Some(after.len()));
    // A guest writes the number of the run, in whichever process it lives.
    for (index, bytes) in after.values().enumerate() {
        let run: Value = serde_json::from_slice(bytes).expect("JSON");
        assert_eq!(number(&run["data"]["generation"]), (1 << 32) + 1 + index as u64);
        assert_eq!(
            run["label"],
            live["trackers"][number(&planned[index]["machine"]) as usize]["tracker"]
        );
    }
    assert_eq!(lab.json(&["show", dir]), live);

    let longer = lab.json(&["dirty", "--resume", dir, "--passes", "6", "--workload", "random"]);
    assert_eq!((&longer["workload"]["passes"], &longer["verified"]), (&6.into(), &true.into()));
    let guests = live["trackers"].as_array().expect("trackers").len();
    assert_eq!(finished(&save).len(), after.len() + guests);
    assert_eq!(
        plan(&save).as_array().expect("a plan")[..after.len()],
        planned.as_array().expect("a plan")[..]
    );

    for (arguments, named) in [
        (&["dirty", "--resume", dir, "--hz", "3"][..], "--hz"),
        (&["dirty", "--resume", dir, "--runs", "2", "--seed", "5"], "--seed, --runs"),
        (&["merge", dir, dir], "vmeter dirty: the session measures its trackers in turn"),
        (&["diff", dir, dir], "vmeter dirty: its runs are not boots"),
        (&["boot", "--resume", dir], "vmeter dirty --resume"),
    ] {
        let ran = lab.run(arguments);
        assert_eq!(ran.status, 2, "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(named), "{arguments:?}: {}", ran.stderr);
    }
    let page = lab.path("dirty.html");
    assert_eq!(lab.run(&["report", dir, "-o", text(&page)]).status, 0);
    assert!(std::fs::read_to_string(page)
        .expect("a page")
        .contains("Time to read the bitmap, by slot"));
    let list = lab.json(&["runs", "list"]);
    assert_eq!(
        (&list["sessions"][0]["command"], &list["sessions"][0]["problem"]),
        (&"dirty".into(), &Value::Null)
    );
}

#[test]
fn ctrl_c_is_heard_and_what_is_finished_is_kept() {
    if !kvm() {
        return;
    }
    let lab = Lab::new();
    let save = lab.path("saved");
    let child = begun(&lab, &save, 2);
    signal(&child, "INT");
    let asked = Instant::now();
    let ran: common::Ran = child.wait_with_output().expect("it ends").into();
    println!("ended {:?} after SIGINT", asked.elapsed());
    assert_eq!(ran.status, 130, "{}", ran.stderr);
    assert!(ran.stderr.contains("continue with --resume"), "{}", ran.stderr);
    let kept = finished(&save);
    assert!(kept.len() >= 2);
    let shown = lab.json(&["show", text(&save)]);
    assert_eq!(shown["command"], "dirty");
}

#[test]
fn what_makes_no_sense_is_refused_and_what_the_host_lacks_is_named() {
    let lab = Lab::new();
    let refused = |arguments: &[&str], named: &str| {
        let ran = lab.run(&[&["dirty"], arguments].concat());
        assert_eq!(ran.status, 2, "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(named), "{arguments:?}: {}", ran.stderr);
    };
    refused(&["--workload", "gaming"], "gui, migration, idle, random, sequential");
    refused(&["--tracker", "kvm-legacy,magic"], "pagemap-scan");
    refused(&["--strategy", "get"], "switch_opt");
    refused(&["--dirty", "101"], "percentage");
    refused(&["--slots", "/nonexistent.json"], "/nonexistent.json");
    let file = lab.path("slots.json");
    std::fs::write(&file, r#"[{"slot": 0, "bytes": 5000}]"#).expect("scratch space");
    refused(&["--slots", text(&file)], "slot 0");
    let found = vmeter_kvm_probe::probe(Duration::from_secs(2));
    if !found.is_ok_and(|found| found.ring0.is_native()) {
        let ran = lab.run(&["dirty", "--ring", "0"]);
        assert_eq!(ran.status, 3, "{}", ran.stderr);
        assert!(ran.stderr.contains("/dev/kvm"), "{}", ran.stderr);
    }
}

/// The folder is there before the guests are: what is interrupted that early goes on, too.
#[test]
fn interrupted_while_its_guests_are_made_it_can_be_gone_on_with() {
    if !kvm() {
        return;
    }
    let lab = Lab::new();
    let save = lab.path("s");
    let all = ["dirty", "--workload", "gui", "--hz", "200", "--passes", "2", "--no-fit"];
    let mut command = lab.command(&[&all[..], &["--save", text(&save)]].concat());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("begun");
    while !save.join("session.json").exists() {
        assert!(child.try_wait().expect("a state").is_none(), "it ended without a session");
        std::thread::sleep(Duration::from_millis(1));
    }
    signal(&child, "INT");
    let ended = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(130), "{said}");
    let result = lab.json(&["dirty", "--resume", text(&save)]);
    assert_eq!(result["verified"], true, "{}", result["mismatches"]);
    assert_eq!(result["workload"]["passes"], 2);
}

/// Several VMs, each with memory of its own: a sample a VM, tracker and strategy, all bits right.
#[test]
fn several_vms_are_asked_at_once() {
    if !kvm() {
        return;
    }
    let lab = Lab::new();
    let all = ["dirty", "--workload", "gui", "--hz", "200", "--passes", "2", "--no-fit"];
    let chosen = ["--tracker", "kvm-legacy", "--strategy", "switch_opt", "--vms", "1,3"];
    let result = lab.json(&[&all[..], &chosen[..]].concat());
    assert_eq!(result["verified"], true, "{}", result["mismatches"]);
    let found: Vec<(u64, &str, usize)> = result["together"]
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| {
            let times = row["samples_s"].as_array().expect("samples");
            assert!(times.iter().all(|time| time.as_f64() > Some(0.0)), "{row}");
            assert!(row["p50_s"].as_f64() <= row["p99_s"].as_f64(), "{row}");
            (number(&row["vms"]), row["what"].as_str().expect("a word"), times.len())
        })
        .collect();
    let expected =
        [(1, "kvm-legacy", 2), (1, "switch_opt", 2), (3, "kvm-legacy", 6), (3, "switch_opt", 6)];
    assert_eq!(found, expected);
    let refused = lab.run(&["dirty", "--vms", "65"]);
    assert_eq!(refused.status, 2, "{}", refused.stderr);
    let refused = lab.run(&["dirty", "--vms", "64", "--memory", "256"]);
    assert_eq!(refused.status, 3, "{}", refused.stderr);
    assert!(refused.stderr.contains("64 VMs do not fit"), "{}", refused.stderr);
}
