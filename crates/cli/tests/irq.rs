//! `vmeter irq` from the command line, on this host's own KVM. Counts, structure and what
//! arrives; of times only that a commit for every vector takes longer than one for all.

use crate::common;

use common::{text, Lab};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Child, Stdio};

/// A result, or a line that says why this host has none.
fn irq(arguments: &[&str]) -> Option<Value> {
    let lab = Lab::new();
    let all = [&["irq", "--export-json", "-"], arguments].concat();
    let ran = lab.run(&all);
    if ran.status == 3 {
        println!("skipped: {}", ran.stderr.trim());
        return None;
    }
    assert_eq!(ran.status, 0, "{arguments:?}\n{}\n{}", ran.stderr, ran.stdout);
    Some(serde_json::from_str(&ran.stdout).expect("one JSON object"))
}

fn list<'v>(value: &'v Value, name: &str) -> &'v Vec<Value> {
    value[name].as_array().unwrap_or_else(|| panic!("{name} is a list: {value}"))
}

fn of<'v>(result: &'v Value, list_name: &str, strategy: &str) -> &'v Value {
    let found = list(result, list_name).iter().find(|item| item["strategy"] == strategy);
    found.unwrap_or_else(|| panic!("{list_name} has no {strategy}"))
}

#[test]
fn the_publications_table_with_ratios_and_deliveries() {
    let arguments = ["--vfs", "8", "--vectors", "65", "--runs", "3", "--fit", "none", "--no-trace"];
    let Some(result) = irq(&arguments) else { return };
    let strategies = ["per_vector", "per_device", "per_vm", "reserved"];
    let rows = list(&result, "rows");
    assert_eq!(rows.len(), 8 * strategies.len());
    for (n, row) in rows.iter().enumerate() {
        let vf = n / strategies.len() + 1;
        assert_eq!(row["vf"], vf);
        assert_eq!(row["irqfds_assigned"], 65 * vf);
        assert_eq!(row["strategy"], strategies[n % strategies.len()]);
        assert!(row["milliseconds"].as_f64().expect("a number") > 0.0);
    }
    for (strategy, commits) in strategies.into_iter().zip([520, 8, 1, 8]) {
        let total = of(&result, "totals", strategy);
        assert_eq!(total["commits"], commits, "{strategy}");
        let delivery = &total["delivery"];
        assert_eq!((&delivery["raised"], &delivery["arrived"]), (&520.into(), &520.into()));
        assert_eq!(delivery["stray"], 0);
    }
    let ratio = |strategy: &str| of(&result, "totals", strategy)["ratio"].clone();
    assert!(ratio("per_vector").is_null());
    for strategy in ["per_device", "per_vm", "reserved"] {
        let ratio = ratio(strategy);
        let (mean, low) = (ratio["mean"].as_f64(), ratio["ci95"][0].as_f64());
        assert!(mean > Some(1.0) && low <= mean, "{strategy}: {ratio}");
    }
    // Every sample is kept, warm-ups too: a round has each strategy once.
    let runs = list(&result, "runs");
    assert_eq!(runs.len(), 4 * strategies.len());
    for round in runs.chunks(strategies.len()) {
        let names: BTreeSet<_> = round.iter().filter_map(|run| run["strategy"].as_str()).collect();
        assert_eq!(names, BTreeSet::from(strategies));
    }
    let orders: BTreeSet<String> = runs
        .chunks(strategies.len())
        .map(|round| round.iter().map(|run| run["strategy"].to_string()).collect())
        .collect();
    assert!(orders.len() > 1, "the order is random");
}

#[test]
fn growth_is_fitted_with_its_evidence() {
    let arguments = ["--vfs", "2", "--vectors", "20", "--strategy", "per_vector,per_vm"];
    let more = ["--runs", "3", "--fit", "vfs", "--no-trace", "--vcpus", "2"];
    let Some(result) = irq(&[&arguments[..], &more[..]].concat()) else { return };
    assert_eq!(list(&result, "fit").len(), 2);
    for fit in list(&result, "fit") {
        let points = list(fit, "points");
        let vectors: Vec<u64> = points.iter().filter_map(|p| p["vectors"].as_u64()).collect();
        assert_eq!(vectors.last(), Some(&40));
        assert!(points.iter().all(|p| list(p, "samples_s").len() == 3));
        let order = fit["order"].as_str().expect("an order");
        let terms = list(fit, "coefficients").len();
        assert!(matches!((order, terms), ("linear", 2) | ("quadratic", 3)), "{fit}");
        assert!(fit["p_value"].is_number() && fit["aicc_linear"].is_number());
        let at = &fit["at_limit"];
        assert_eq!(at["vectors"].as_u64().map(|n| n % 20), Some(0));
        assert!(at["measured"].is_null(), "not asked for");
    }
}

#[test]
fn the_trace_takes_every_commit_apart() {
    let arguments = ["--vfs", "3", "--vectors", "17", "--runs", "1", "--warmup", "0"];
    let more = ["--fit", "none", "--busy-cpus", "3", "--running-vcpus", "1"];
    let Some(result) = irq(&[&arguments[..], &more[..]].concat()) else { return };
    let anatomy = list(&result, "anatomy");
    if anatomy.is_empty() {
        let warnings = list(&result, "warnings");
        println!("skipped: {warnings:?}");
        assert!(warnings.iter().any(|w| w.as_str().is_some_and(|w| w.contains("commit goes"))));
        return;
    }
    for (anatomy, commits) in anatomy.iter().zip([51, 3, 1, 3]) {
        assert_eq!(anatomy["commits"], commits, "{anatomy}");
        assert_eq!(anatomy["lost_events"], 0);
        let shares: f64 = list(anatomy, "parts").iter().filter_map(|p| p["share"].as_f64()).sum();
        assert!((shares - 1.0).abs() < 1e-6, "the parts are the whole: {anatomy}");
        let chain = list(anatomy, "chain");
        let what: Vec<&str> = chain.iter().filter_map(|step| step["what"].as_str()).collect();
        assert!(what[0].contains("KVM_SET_GSI_ROUTING") && what.len() > 2, "{what:?}");
        assert!(!anatomy["cause"].as_str().expect("a sentence").is_empty());
    }
}

#[test]
fn the_table_fits_80_columns_and_says_how_to_read_it() {
    let lab = Lab::new();
    let csv = lab.path("irq.csv");
    let ran = lab.run(&[
        "irq",
        "--vfs",
        "20",
        "--vectors",
        "3",
        "--runs",
        "2",
        "--strategy",
        "all",
        "--fit",
        "vfs",
        "--export-csv",
        text(&csv),
    ]);
    if ran.status == 3 {
        println!("skipped: {}", ran.stderr.trim());
        return;
    }
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let widest = ran.stdout.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(80), "{widest:?}\n{}", ran.stdout);
    for word in ["irqfds", "per_vector", "reserved_per_vm", "all 300 interrupts", "speedup"] {
        assert!(ran.stdout.contains(word), "{word} in\n{}", ran.stdout);
    }
    let csv = std::fs::read_to_string(csv).expect("written");
    assert!(csv.starts_with("vf,irqfds_assigned,strategy,milliseconds,"));
    assert_eq!(csv.lines().count(), 1 + 20 * 5);
}

#[test]
fn what_cannot_be_asked_or_done_is_said() {
    let lab = Lab::new();
    let refused = |arguments: &[&str]| {
        let ran = lab.run(&[&["irq"], arguments].concat());
        (ran.status, ran.stderr)
    };
    let (status, error) = refused(&["--strategy", "per_packet"]);
    assert!(status == 2 && error.contains("per_vector"), "{error}");
    let (status, error) = refused(&["--vfio", "01:00"]);
    assert!(status == 2 && error.contains("0000:01:00.1"), "{error}");
    let (status, error) = refused(&["--vfio", "ffff:ff:1f.7"]);
    assert!(status == 3 && error.contains("lspci -D"), "{error}");
    let (status, error) = refused(&["--vfs", "4000", "--vectors", "2000"]);
    assert!(matches!(status, 2 | 3), "{error}");
    assert!(status == 3 || error.contains("KVM_CAP_IRQ_ROUTING"), "{error}");
    let (status, error) = refused(&["--running-vcpus", "9", "--vcpus", "8"]);
    assert!(status == 2 && error.contains("--vcpus"), "{error}");
}

/// A session of 10 runs, each long enough to be caught in.
fn begun(lab: &Lab, dir: &Path) -> Option<Child> {
    let arguments = ["irq", "--vfs", "2", "--vectors", "5", "--strategy", "per_vector,per_vm"];
    let more = ["--runs", "3", "--fit", "none", "--no-trace", "--prepare", "sleep 0.1"];
    let all = [&arguments[..], &more[..], &["--save", text(dir)]].concat();
    let command = &mut lab.command(&all);
    let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("vmeter");
    while !dir.join("runs/0003/run.json").exists() {
        if let Some(status) = child.try_wait().expect("a child") {
            assert_eq!(status.code(), Some(3), "it ended before the fourth run");
            println!("skipped: no KVM for it");
            return None;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    Some(child)
}

/// The finished runs: name and bytes of run.json.
fn finished(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let runs = std::fs::read_dir(dir.join("runs")).expect("runs");
    let names = runs.map(|entry| entry.expect("an entry").file_name().into_string().expect("text"));
    let whole = names.filter(|name| !name.contains('.'));
    let read = |name: String| {
        let bytes = std::fs::read(dir.join("runs").join(&name).join("run.json")).expect("run.json");
        (name, bytes)
    };
    whole.map(read).collect()
}

#[test]
fn killed_in_the_middle_it_goes_on_without_repeating_a_run() {
    let lab = Lab::new();
    let dir = lab.path("session");
    let Some(mut child) = begun(&lab, &dir) else { return };
    child.kill().expect("killed");
    child.wait().expect("reaped");
    let before = finished(&dir);
    assert!((4..10).contains(&before.len()), "{:?}", before.keys());
    let partly: Value = lab.json(&["show", text(&dir)]);
    let warnings = partly["warnings"].to_string();
    assert!(warnings.contains("of 10 planned runs"), "{warnings}");

    let differs = lab.run(&["irq", "--resume", text(&dir), "--vfs", "3", "--strategy", "per_vm"]);
    assert_eq!(differs.status, 2, "{}", differs.stderr);
    for option in ["--vfs", "--strategy"] {
        assert!(differs.stderr.contains(option), "{}", differs.stderr);
    }
    let live = lab.json(&["irq", "--resume", text(&dir), "--vfs", "2"]);
    let after = finished(&dir);
    assert_eq!(after.len(), 10);
    for (name, bytes) in &before {
        assert!(after[name] == *bytes, "run {name} was repeated");
    }
    assert_eq!(list(&live, "runs").len(), 2 * 4);
    let saved = lab.json(&["show", text(&dir)]);
    assert_eq!(live, saved, "live and analysed again");
    let written = [
        ("report", "-o", "irq.html"),
        ("show", "--export-csv", "irq.csv"),
        ("show", "--export-markdown", "irq.md"),
    ];
    for (command, option, name) in written {
        let file = lab.path(name);
        let ran = lab.run(&[command, text(&dir), option, text(&file)]);
        assert_eq!(ran.status, 0, "{command} {option}: {}", ran.stderr);
        assert!(std::fs::metadata(&file).expect("written").len() > 0);
    }
    let listed = lab.run(&["runs", "list"]);
    assert!(listed.stdout.contains("session"), "{}", listed.stdout);
    let merged = lab.run(&["merge", text(&dir), "--save", text(&lab.path("merged"))]);
    assert!(merged.status == 2 && merged.stderr.contains("shards"), "{}", merged.stderr);
}

#[test]
fn interrupted_it_says_how_to_go_on() {
    let lab = Lab::new();
    let dir = lab.path("session");
    let Some(child) = begun(&lab, &dir) else { return };
    common::signal(&child, "INT");
    let ran: common::Ran = child.wait_with_output().expect("reaped").into();
    assert_eq!(ran.status, 130, "{}", ran.stderr);
    assert!(
        ran.stderr.contains(&format!("continue with --resume {}", text(&dir))),
        "{}",
        ran.stderr
    );
    assert!(finished(&dir).len() >= 4);
}

#[test]
fn a_commit_that_takes_long_is_not_waited_for() {
    let lab = Lab::new();
    let dir = lab.path("session");
    // 4000 commits in one run, each of which waits behind busy CPUs.
    let arguments = ["irq", "--vfs", "2", "--vectors", "2000", "--strategy", "per_vector"];
    let more = ["--fit", "none", "--no-trace", "--busy-cpus", "8", "--save", text(&dir)];
    let command = &mut lab.command(&[&arguments[..], &more[..]].concat());
    let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("vmeter");
    while !dir.join("runs/0000.partial").exists() {
        if child.try_wait().expect("a child").is_some() {
            let ran: common::Ran = child.wait_with_output().expect("reaped").into();
            assert!(matches!(ran.status, 2 | 3), "{}", ran.stderr);
            println!("skipped: {}", ran.stderr);
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    common::signal(&child, "INT");
    let ran: common::Ran = child.wait_with_output().expect("reaped").into();
    assert_eq!(ran.status, 130, "{}", ran.stderr);
    assert!(finished(&dir).is_empty(), "the run was waited for");
}
