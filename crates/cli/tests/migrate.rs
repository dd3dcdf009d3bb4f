//! `vmeter migrate` on real QEMUs: small guests, so that seconds do. Nothing here asserts a
//! time; a busy host makes the guest slower, never faster than it was asked to be.

use crate::common;

use common::{has_qemu, signal, text, Lab};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Options of a migration of 46 MiB at most.
const SMALL: [&str; 9] =
    ["migrate", "--accel", "tcg", "--memory", "48", "--runs", "1", "--warmup", "0"];

/// The exit status and the result.
fn migrate(lab: &Lab, more: &[&str]) -> (i32, Value) {
    let at = more.iter().position(|word| *word == "--").unwrap_or(more.len());
    let mut all = SMALL.to_vec();
    if at < more.len() {
        // A command line of its own says its accelerator itself.
        all.drain(1..3);
    }
    all.extend(&more[..at]);
    all.extend(["--export-json", "-"]);
    all.extend(&more[at..]);
    let ran = lab.run(&all);
    let result = serde_json::from_str(&ran.stdout);
    (ran.status, result.unwrap_or_else(|e| panic!("{e}: {}\n{}", ran.stderr, ran.stdout)))
}

fn number(value: &Value, field: &str) -> f64 {
    value[field].as_f64().unwrap_or_else(|| panic!("{field} in {value}"))
}

/// Processes whose command line has this word.
fn processes(word: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let lines = entries.filter_map(|e| std::fs::read(e.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(word) && line.contains("-incoming defer")).collect()
}

#[test]
fn it_converges_where_bandwidth_exceeds_the_dirty_rate_and_says_why_not_where_it_does_not() {
    if !has_qemu() {
        return;
    }
    let lab = Lab::alone();
    let limits = ["--bandwidth", "60", "--downtime-limit", "100"];
    let (status, result) = migrate(&lab, &[&["--dirty-rate", "0,15,400"], &limits[..]].concat());
    assert_eq!(status, 1, "one does not converge");
    let points = result["points"].as_array().expect("points");
    assert_eq!(points.len(), 3);
    for (point, converges) in points.iter().zip([true, true, false]) {
        assert_eq!(point["converged"], converges, "{point}");
        assert_eq!(point["prediction"]["converges"], converges, "{point}");
        assert_eq!(point["prediction"]["right"], true, "{point}");
        let sent = number(point, "transferred_bytes");
        assert!(sent > 40e6, "all of the memory is noise, which no page's zeros shorten: {sent}");
        assert!(number(point, "rounds") >= 3.0, "{point}");
    }
    let runs = result["runs"].as_array().expect("runs");
    for (run, point) in runs.iter().map(|run| (run, &points[number(run, "point") as usize])) {
        if point["converged"] == true {
            assert_eq!(point["verified"], true, "{run}");
            let verification = &run["verification"];
            assert_eq!(verification["source_sha256"], verification["destination_sha256"]);
            assert_eq!(number(verification, "bytes"), 48.0 * 1048576.0);
            // The guest stood still for as long as it was stopped, but for a heartbeat.
            let (gap, stopped) = (number(run, "guest_gap_s"), number(run, "stopped_s"));
            assert!(gap >= stopped * 0.9 - 2e-3, "{gap} {stopped}");
            assert_eq!(run["destination_ran"], true);
        } else {
            assert!(point["verified"].is_null() && point["downtime_s"].is_null());
            assert_eq!(run["source_runs_on"], true, "{run}");
            assert_eq!(run["destination_ran"], false, "{run}");
            let reason = point["reason"].as_str().expect("a reason");
            assert!(reason.contains("is not below the bandwidth, "), "{reason}");
            assert!(reason.contains("--auto-converge"), "{reason}");
        }
    }
    // What the guest was asked to write, as far as the host let it; after a stall it catches up,
    // so that a round has seen more.
    let dirtied = number(&points[1]["prediction"], "dirty_bytes_per_s");
    assert!(dirtied > 0.0 && dirtied < 60e6, "{dirtied}");
    assert_eq!(number(&points[0], "dirty_pages_per_s"), 0.0);
}

#[test]
fn a_side_that_dies_in_the_middle() {
    if !has_qemu() {
        return;
    }
    let lab = Lab::alone();
    let name = format!("vmeter-dies-{}", std::process::id());
    let slow = ["--dirty-rate", "10", "--bandwidth", "40"];
    let own = ["--", "-machine", "q35", "-m", "48", "-display", "none", "-name", &name];
    for (side, outcome, runs_on) in
        [("destination", "destination-died", true), ("source", "source-died", false)]
    {
        let (status, result) = migrate(&lab, &[&slow[..], &["--kill", side], &own[..]].concat());
        assert_eq!(status, 0, "the {side}: what is left is what should be\n{result}");
        let run = &result["runs"][0];
        assert_eq!(run["outcome"], outcome);
        assert_eq!(run["source_runs_on"], runs_on);
        assert_eq!(run["destination_ran"], false);
        assert!(run["reason"].as_str().is_some_and(|r| r.contains("SIGKILL")), "{run}");
        assert_eq!(processes(&name), [""; 0], "none is left");
    }
}

#[test]
fn the_timeout_and_an_interrupt_leave_nothing_behind() {
    if !has_qemu() {
        return;
    }
    let lab = Lab::alone();
    let name = format!("vmeter-stops-{}", std::process::id());
    let slow = ["--dirty-rate", "5", "--bandwidth", "4"];
    let own = ["--", "-machine", "q35", "-m", "48", "-display", "none", "-name", &name];
    let (status, result) = migrate(&lab, &[&slow[..], &["--timeout", "1"], &own[..]].concat());
    assert_eq!((status, &result["runs"][0]["outcome"]), (1, &"timed-out".into()));
    assert_eq!(result["runs"][0]["source_runs_on"], true);
    assert_eq!(processes(&name), [""; 0]);

    let mut command = lab.command(&[&SMALL[..1], &SMALL[3..], &slow[..], &own[..]].concat());
    let mut child =
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("vmeter runs");
    while processes(&name).is_empty() {
        assert!(child.try_wait().expect("a state").is_none(), "it ended before it began");
        std::thread::yield_now();
    }
    signal(&child, "INT");
    let left = child.wait_with_output().expect("its end");
    assert_eq!(left.status.code(), Some(130), "{}", String::from_utf8_lossy(&left.stderr));
    assert_eq!(processes(&name), [""; 0], "a QEMU outlives vmeter");
}

#[test]
fn postcopy_ends_where_precopy_does_not() {
    if !has_qemu() {
        return;
    }
    let lab = Lab::alone();
    let (status, result) = {
        let mut all = SMALL.to_vec();
        all.extend([
            "--dirty-rate",
            "400",
            "--bandwidth",
            "60",
            "--postcopy",
            "--export-json",
            "-",
        ]);
        let ran = lab.run(&all);
        if ran.status == 3 {
            println!("skipped: no post-copy here: {}", ran.stderr);
            return;
        }
        let result: Value = serde_json::from_str(&ran.stdout).expect("one JSON object");
        (ran.status, result)
    };
    assert_eq!(status, 0, "{result}");
    assert_eq!(result["points"][0]["parameters"]["postcopy"], "on");
    assert_eq!(result["points"][0]["verified"], true);
    assert_eq!(result["points"][0]["prediction"]["right"], true);
}

/// Two settings, quick both.
const QUICK: [&str; 8] =
    ["--dirty-rate", "0", "--bandwidth", "0", "-L", "xbzrle=off,on", "--seed", "5"];

/// Finished runs, as they are on disk.
fn finished(session: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let runs = std::fs::read_dir(session.join("runs")).into_iter().flatten().flatten();
    let whole = runs.map(|entry| entry.path()).filter(|path| path.extension().is_none());
    whole
        .filter_map(|path| Some((path.clone(), std::fs::read(path.join("run.json")).ok()?)))
        .collect()
}

/// The result without what differs from export to export.
fn same(mut result: Value) -> Value {
    let object = result.as_object_mut().expect("an object");
    object.remove("argv");
    object.remove("started_at");
    result
}

#[test]
fn a_session_is_shown_again_as_it_was_and_gone_on_with() {
    if !has_qemu() {
        return;
    }
    let lab = Lab::alone();
    let folder = lab.path("kept");
    let dir = text(&folder);
    let (status, first) = migrate(&lab, &[&QUICK[..], &["--save", dir]].concat());
    assert_eq!((status, first["points"].as_array().map(Vec::len)), (0, Some(2)));
    let shown = lab.json(&["show", dir]);
    assert_eq!(same(shown), same(first.clone()));
    let page = lab.path("page.html");
    let ran = lab.run(&["report", dir, "-o", text(&page)]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert!(std::fs::read_to_string(page).expect("a page").contains("xbzrle=on"));
    let listed = lab.json(&["runs", "list", "--command", "migrate"]);
    assert_eq!(
        (&listed["sessions"][0]["runs"], &listed["sessions"][0]["machines"]),
        (&2.into(), &2.into())
    );

    let before = finished(&folder);
    let again = lab.json(&["migrate", "--resume", dir]);
    assert_eq!(same(again), same(first), "nothing was run again");
    assert_eq!(finished(&folder), before);
    let longer = lab.json(&["migrate", "--resume", dir, "--runs", "2", "--memory", "48"]);
    assert_eq!(longer["runs"].as_array().map(Vec::len), Some(4));
    assert!(finished(&folder).into_iter().take(2).eq(before), "the first two as they were");

    let others = [
        (&["--dirty-rate", "1"][..], "dirty-rate"),
        (&["--memory", "64", "--smp", "2"], "--memory, --smp"),
        (&["--runs", "1", "--seed", "6"], "--seed, --runs"),
        (&["--kill", "source", "--warmup", "1"], "--warmup, --kill"),
        (&["-L", "postcopy=off,on", "--multifd", "2"], "multifd, postcopy"),
    ];
    for (given, named) in others {
        let ran = lab.run(&[&["migrate", "--resume", dir], given].concat());
        let said = ran.stderr.contains(&format!("started with another {named}: "));
        assert!(ran.status == 2 && said, "{given:?}: {}", ran.stderr);
    }
    let ran = lab.run(&["merge", dir, dir]);
    assert!(ran.status == 2 && ran.stderr.contains("the whole host"), "{}", ran.stderr);
    let ran = lab.run(&["diff", dir, dir]);
    assert!(ran.status == 2 && ran.stderr.contains("not boots"), "{}", ran.stderr);
}

#[test]
fn what_is_killed_or_interrupted_goes_on_with_what_was_finished() {
    if !has_qemu() {
        return;
    }
    let signals = [("KILL", None), ("INT", Some(130))];
    for (signalled, status) in signals.into_iter().take(common::amount(1, 2)) {
        let lab = Lab::alone();
        let folder = lab.path("cut");
        let dir = text(&folder);
        let three = ["--runs", "3", "--warmup", "0", "--save", dir];
        let all = [&SMALL[..5], &QUICK, &three].concat();
        let mut command = lab.command(&all);
        let mut child =
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("vmeter runs");
        while finished(&folder).len() < 2 {
            assert!(child.try_wait().expect("a state").is_none(), "it ended before it was cut");
            std::thread::yield_now();
        }
        signal(&child, signalled);
        let left = child.wait_with_output().expect("its end");
        let said = String::from_utf8_lossy(&left.stderr).into_owned();
        assert_eq!(left.status.code(), status, "{said}");
        assert!(
            status.is_none() || said.contains(&format!("continue with --resume {dir}")),
            "{said}"
        );
        let before = finished(&folder);
        assert!((2..6).contains(&before.len()), "{}", before.len());
        let part = lab.json(&["show", dir]);
        assert_eq!(part["runs"].as_array().map(Vec::len), Some(before.len()));
        let warned = format!("{} of 6 migrations are done", before.len());
        assert!(part["warnings"].to_string().contains(&warned), "{}", part["warnings"]);
        let whole = lab.json(&["migrate", "--resume", dir]);
        assert_eq!(whole["runs"].as_array().map(Vec::len), Some(6));
        let after = finished(&folder);
        assert!(before.iter().all(|(path, run)| after.get(path) == Some(run)), "runs repeated");
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let lab = Lab::alone();
    let refused = [
        (&["--dirty-rate", "fast"][..], "MB/s"),
        (&["-L", "speed=1"], "expected one of"),
        (&["--working-set", "500"], "expected 1 to"),
        (&["--kernel", "/boot/vmlinuz"], "its own guest"),
        (&["--vmm", "mock"], "runs no real guest that vmeter could migrate"),
        (&["--accel", "icount"], "virtual time"),
        (&["--", "-m", "48", "-kernel", "x"], "-kernel after --"),
        (&["--", "-machine", "q35"], "-m 48"),
        (&["--dirty-rate", "0,5,0"], "is there twice"),
        (&["--dirty-rate", "0", "-L", "dirty-rate=1,2"], "varied twice"),
    ];
    for (arguments, expected) in refused {
        let ran = lab.run(&[&["migrate", "--memory", "48"], arguments].concat());
        let said = ran.stderr.contains(expected);
        assert!(ran.status == 2 && said, "{arguments:?}: {}", ran.stderr);
    }
    assert!(!lab.path("vmeter/runs").exists(), "none of them left a session");
}
