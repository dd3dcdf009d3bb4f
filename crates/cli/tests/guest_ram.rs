//! Guests to which nothing was added: what their RAM held while they ran, and when they had ended, told
//! their loaders, images and kernels apart (`fixtures/guests/ram`, and `grub-moves-no-inject`).

use crate::common;

use common::{text, Lab};
use serde_json::Value;

/// A recording, analysed anew.
fn shown(lab: &Lab, name: &str) -> Value {
    let folder = lab.recording(name);
    let run = lab.json(&["show", text(&folder)])["runs"][0].clone();
    let coverage = run["coverage"].as_f64().expect("a share");
    assert!(coverage >= 0.95, "{name}: {coverage} named");
    run
}

/// Names of the phases in order, with begin, end and error, s.
fn phases(run: &Value) -> Vec<(String, f64, f64, f64)> {
    let spans = run["spans"].as_array().expect("spans").iter();
    let number = |span: &Value, field: &str| span[field].as_f64().expect("s");
    let phase = |span: &Value| {
        let name = span["name"].as_str().expect("a name").to_owned();
        (name, number(span, "start_s"), number(span, "end_s"), number(span, "error_s"))
    };
    spans.filter(|span| span["parent"].is_null()).map(phase).collect()
}

/// All of these are phases, in this order, and none is shared by two.
fn are_in_order(run: &Value, names: &[&str]) {
    let phases = phases(run);
    let found = phases.iter().map(|phase| phase.0.as_str()).filter(|name| names.contains(name));
    assert_eq!(found.collect::<Vec<_>>(), names, "{phases:?}");
    let long = phases.iter().find(|(name, start, end, _)| name.contains('+') && end - start > 0.05);
    assert!(long.is_none(), "{long:?}");
}

const LOADED: &[&str] = &[
    "bios:overhead",
    "boot-loader",
    "kernel:decompress",
    "kernel:entry",
    "kernel:initcalls-before-userspace",
    "userspace",
];

/// ISOLINUX says nothing while it loads, and the kernel is quiet.
#[test]
fn a_loader_and_a_kernel_that_say_nothing_are_told_apart() {
    let lab = Lab::new();
    let run = shown(&lab, "ram/isolinux-quiet-no-inject");
    are_in_order(&run, LOADED);
    for (name, start, end, error) in phases(&run) {
        let begins = name == "kernel:decompress" || name == "kernel:entry";
        assert!(!begins || error < 0.1 && error < end - start, "{name}: {error}");
    }
}

/// GRUB's relocator moves the kernel's whole space downwards through memory, for seconds, as the image
/// then moves itself.
#[test]
fn what_a_loader_moves_is_no_decompression() {
    let lab = Lab::new();
    let run = shown(&lab, "grub-moves-no-inject");
    are_in_order(&run, LOADED);
    let phases = phases(&run);
    let length = |name: &str| {
        let phase = phases.iter().find(|phase| phase.0 == name).expect("it is there");
        phase.2 - phase.1
    };
    assert!(length("kernel:decompress") < 0.3 * length("boot-loader"), "{phases:?}");
}

/// The first kernel is in RAM, too, when the run is over: the one that ran last has the log.
#[test]
fn a_second_kernel_that_is_quiet_is_told_by_ram() {
    let lab = Lab::new();
    let run = shown(&lab, "ram/kexec-quiet-no-inject");
    let names = ["kernel:entry", "userspace", "kexec", "kexec:kernel", "kexec:userspace"];
    are_in_order(&run, &names);
    let spans = run["spans"].as_array().expect("spans");
    let second = spans.iter().find(|s| s["name"] == "kexec:kernel").expect("it is there");
    let inside = spans.iter().filter(|s| s["parent"] == second["id"]);
    let named = inside.filter(|s| s["name"].as_str().is_some_and(|n| n.starts_with("kernel:")));
    assert!(named.count() > 5, "its log names what it did");
}

/// Xen unpacks itself, and starts a Linux that says when it begins.
#[test]
fn xen_is_no_linux() {
    let lab = Lab::new();
    let run = shown(&lab, "ram/xen-no-inject");
    let names = ["boot-loader", "hypervisor", "kernel:entry", "userspace"];
    are_in_order(&run, &names);
    assert!(!phases(&run).iter().any(|phase| phase.0.contains("decompress")), "{:?}", phases(&run));
}
