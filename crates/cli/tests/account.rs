//! Every millisecond accounted for: what `vmeter boot` promises of its figures.

use crate::common;

use common::{kernel, leaves, phase, text, Lab};
use serde_json::Value;

fn seconds(span: &Value, field: &str) -> f64 {
    span[field].as_f64().expect(field)
}

fn length(span: &Value) -> f64 {
    seconds(span, "end_s") - seconds(span, "start_s")
}

/// Leaves tile the run; what nothing explains is small and named so.
fn assert_accounted(run: &Value) {
    let total = run["total_s"].as_f64().expect("total_s");
    let leaves = leaves(run);
    let sum: f64 = leaves.iter().map(|leaf| length(leaf)).sum();
    assert!((sum - total).abs() < 1e-6, "leaves {sum} s, total {total} s");
    let mut ends: Vec<(f64, f64)> =
        leaves.iter().map(|leaf| (seconds(leaf, "start_s"), seconds(leaf, "end_s"))).collect();
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    assert!(ends.windows(2).all(|w| (w[0].1 - w[1].0).abs() < 1e-9), "leaves leave gaps");
    let coverage = run["coverage"].as_f64().expect("coverage");
    assert!(coverage >= 0.99, "coverage {coverage}\n{}", common::names(run));
    for leaf in leaves.iter().filter(|leaf| leaf["name"] == "unattributed") {
        assert!(length(leaf) <= 0.05 * total, "{leaf}");
    }
}

fn initcalls(run: &Value) -> Vec<&Value> {
    let spans = run["spans"].as_array().expect("spans");
    let is_call = |s: &&Value| s["name"].as_str().is_some_and(|n| n.starts_with("initcall "));
    spans.iter().filter(is_call).collect()
}

#[test]
fn a_debian_kernel_light() {
    if kernel().is_none() {
        return;
    }
    let lab = Lab::new();
    let result = lab.json(&["boot", "--warmup", "0", "--runs", "2"]);
    let runs = result["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 2);
    for run in runs {
        assert_accounted(run);
        let calls = initcalls(run);
        assert!(calls.len() >= 500, "{} initcalls", calls.len());
    }
    for name in ["vmm:link", "vmm:init", "bios:overhead", "kernel:load", "kernel:decompress"] {
        assert!(phase(&result, name) > 0.0, "no {name}");
    }
    let phases = result["phases"].as_array().expect("phases");
    assert_eq!(phases.last().expect("a phase")["name"], "unattributed");
    let shares: f64 = phases.iter().map(|p| p["share"].as_f64().expect("share")).sum();
    assert!((shares - 1.0).abs() < 1e-6, "shares add up to {shares}");
    let reads = &result["counts"]["pci_config_reads"];
    assert_eq!(reads["min"], reads["max"], "PCI config reads do not vary");
}

#[test]
fn a_debian_kernel_counted() {
    if kernel().is_none() {
        return;
    }
    let lab = Lab::new();
    let result = lab.json(&["boot", "--watch", "full", "--warmup", "1", "--runs", "1"]);
    let run = &result["runs"][0];
    assert_accounted(run);
    let counted = initcalls(run).iter().filter(|c| c["insns"].as_u64().is_some()).count();
    assert!(counted >= 500, "{counted} initcalls have instruction counts");
    let insns = result["counts"]["guest_insns"]["mean"].as_f64().expect("guest_insns");
    let of_calls: f64 = initcalls(run).iter().filter_map(|c| c["insns"].as_f64()).sum();
    assert!(of_calls > 0.2 * insns && of_calls < insns, "{of_calls} of {insns}");
    assert_eq!(result["counted_in"], 0, "counts come from a boot of their own");
}

/// A guest that knows nothing of vmeter, on a command line of the user's own.
#[test]
fn a_machine_of_the_users_own() {
    let Some((_, image)) = kernel() else { return };
    let lab = Lab::new();
    let initrd = lab.path("initrd");
    assert_eq!(lab.run(&["appliance", "build", "--out", text(&initrd)]).status, 0);
    let disk = lab.path("disk");
    std::fs::File::create(&disk).and_then(|f| f.set_len(1 << 20)).expect("a disk");
    let drive = format!("file={},format=raw,if=virtio", disk.display());
    let mut command = vec!["--", "qemu-system-x86_64", "-machine", "pc", "-accel", "tcg"];
    command.extend(["-m", "256", "-display", "none", "-no-reboot", "-serial", "stdio"]);
    command.extend(["-drive", &drive, "-kernel", text(&image), "-initrd", text(&initrd)]);
    command.extend(["-append", "console=ttyS0 quiet panic=-1"]);
    let boot = |more: &[&str]| {
        let mut all = vec!["boot", "--warmup", "0", "--runs", "1"];
        all.extend(more);
        all.extend(&command);
        lab.json(&all)
    };
    let untouched = boot(&["--no-inject"]);
    let given: Vec<&str> = command[1..].to_vec();
    let argv: Vec<&str> = untouched["runs"][0]["argv"]
        .as_array()
        .expect("argv")
        .iter()
        .map(|a| a.as_str().expect("text"))
        .collect();
    assert_eq!(argv, given, "run exactly as given");
    assert!(phase(&untouched, "vmm:link") > 0.0);
    assert!(initcalls(&untouched["runs"][0]).is_empty());

    let watched = boot(&[]);
    assert_accounted(&watched["runs"][0]);
    assert!(initcalls(&watched["runs"][0]).len() >= 500);
}

#[test]
fn machines_compared() {
    if common::is_left_to_test_long() {
        return;
    }
    if kernel().is_none() {
        return;
    }
    let lab = Lab::new();
    let variants = ["--vs", "--machine pc", "--vs", "--firmware qboot --machine pvh"];
    let mut all = vec!["bench", "--warmup", "0", "--runs", "3"];
    all.extend(variants);
    let result = lab.json(&all);
    let machines = result["machines"].as_array().expect("machines");
    assert_eq!(machines.len(), 3);
    for machine in machines {
        assert_eq!(machine["samples_s"].as_array().expect("samples").len(), 3);
    }
    let comparisons = result["comparisons"].as_array().expect("comparisons");
    assert_eq!(comparisons.len(), 2);
    for comparison in comparisons {
        let verdict = comparison["verdict"].as_str().expect("a verdict");
        let p = comparison["p_value"].as_f64().expect("p");
        assert!((0.0..=1.0).contains(&p));
        // Three pairs cannot tell anything apart at 5 %: saying so would be a lie.
        assert_eq!((verdict, &comparison["detectable_pct"]), ("undecidable", &Value::Null));
    }
}

/// The same input gives the same bytes.
#[test]
fn the_appliance_is_reproducible() {
    let lab = Lab::new();
    let build = |name: &str| {
        let path = lab.path(name);
        let ran = lab.run(&["appliance", "build", "--out", text(&path)]);
        assert_eq!(ran.status, 0, "{}", ran.stderr);
        assert!(ran.stdout.lines().count() > 2, "sizes part by part: {}", ran.stdout);
        std::fs::read(path).expect("the initramfs")
    };
    assert_eq!(build("a"), build("b"));
}

#[test]
fn every_export_of_one_boot() {
    let lab = Lab::new();
    let names = ["o.json", "o.csv", "o.md", "o.pftrace"];
    let paths = names.map(|name| lab.path(name));
    let ran = lab.run(&[
        "boot",
        "--vmm",
        "mock",
        "--runs",
        "2",
        "--export-json",
        text(&paths[0]),
        "--export-csv",
        text(&paths[1]),
        "--export-markdown",
        text(&paths[2]),
        "--export-perfetto",
        text(&paths[3]),
    ]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let read = |n: usize| std::fs::read(&paths[n]).expect("an export");
    let json: Value = serde_json::from_slice(&read(0)).expect("JSON");
    assert_eq!(json["schema"], "vmeter/1");
    let rows = String::from_utf8(read(1)).expect("text").lines().count() - 1;
    let spans: usize = json["runs"]
        .as_array()
        .expect("runs")
        .iter()
        .map(|r| {
            r["spans"].as_array().expect("spans").len()
                + r["overlapping"].as_array().map_or(0, Vec::len)
        })
        .sum();
    assert_eq!(rows, spans, "one row a span and run");
    assert!(String::from_utf8(read(2)).expect("text").contains("kernel:decompress"));
    assert_eq!(read(3).first(), Some(&0x0a), "a Perfetto trace begins with a packet");
    let html = lab.path("o.html");
    let saved = json["saved_in"].as_str().expect("saved_in");
    assert_eq!(lab.run(&["report", saved, "-o", text(&html)]).status, 0);
    assert!(std::fs::read_to_string(html).expect("HTML").contains("<svg"));
}
