//! `vmeter irq` from the command line, on this host's own KVM. Counts, structure and what
//! arrives; of times only that a commit for every vector takes longer than one for all.

mod common;

use common::{text, Lab};
use serde_json::Value;
use std::collections::BTreeSet;

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
    for word in ["irqfds", "per_vector", "reserved_per_vm", "all 300 interrupts", "times as fast"] {
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
