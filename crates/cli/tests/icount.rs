//! With `--accel icount` a boot is the same in every run: every span, to the ns, and
//! every instruction.

use crate::common;

use common::{amount, kernel, leaves, names, text, Lab};
use serde_json::Value;
use vmeter_model::moment::{Moment, Producer};

/// What must not depend on the host: a run without its process, files and clocks.
fn guest(run: &Value) -> String {
    let parts = ["total_s", "coverage", "phases", "counts", "marks", "spans", "overlapping"];
    let kept: Vec<&Value> = parts.iter().map(|part| &run[part]).collect();
    serde_json::to_string(&kept).expect("JSON")
}

fn seconds(span: &Value) -> f64 {
    span["end_s"].as_f64().expect("end") - span["start_s"].as_f64().expect("start")
}

#[test]
fn two_boots_are_equal_and_counted_from_reset_to_power_off() {
    if kernel().is_none() {
        return;
    }
    let lab = Lab::new();
    let boot = |watch| {
        let words = ["boot", "--accel", "icount", "--warmup", "0", "--runs", "1", "--watch", watch];
        let save = lab.path(watch);
        let run =
            lab.json(&[words.as_slice(), &["--save", text(&save)]].concat())["runs"][0].clone();
        let by_host = save.join("runs/0000/guest-pages.txt");
        assert!(!by_host.exists(), "the host's clock would stamp what the guest does");
        run
    };
    let (run, other) = (boot("light"), boot("full"));
    assert_eq!(run["outcome"], other["outcome"]);
    assert!(guest(&run) == guest(&other), "\n{}\n\n{}", names(&run), names(&other));

    let total = run["total_s"].as_f64().expect("total");
    let leaves = leaves(&run);
    let sum: f64 = leaves.iter().map(|leaf| seconds(leaf)).sum();
    assert!((sum - total).abs() < 1e-9, "leaves {sum} s, total {total} s");
    assert!(run["coverage"].as_f64() > Some(0.99), "{}", names(&run));

    let insns: Vec<u64> = leaves.iter().filter_map(|leaf| leaf["insns"].as_u64()).collect();
    assert_eq!(insns.len(), leaves.len(), "every leaf is counted");
    let all = run["counts"]["guest_insns"].as_u64().expect("the boot's count");
    assert_eq!(insns.iter().sum::<u64>(), all);
    // One instruction is 1 ns of virtual time, but for idling and blocks cut short.
    let ratio = all as f64 / (total * 1e9);
    assert!((0.9..1.1).contains(&ratio), "{all} instructions in {total} s");

    let spans = run["spans"].as_array().expect("spans");
    for name in ["bios:overhead", "kernel:decompress", "kernel:entry", "initcall acpi_init"] {
        let span = spans.iter().find(|span| span["name"] == name);
        let insns = span.and_then(|span| span["insns"].as_u64());
        assert!(insns > Some(100_000), "{name}: {insns:?} instructions");
    }
    assert!(run["counts"]["fw_cfg_bytes"].is_null(), "QEMU's trace does not tell it");
}

/// The guest goes on for some milliseconds, until the host has read the line and ended
/// it: no part of the run, and another part in every run.
#[test]
fn a_boot_up_to_its_ready_point_is_cut_where_the_guest_was_ready() {
    if kernel().is_none() {
        return;
    }
    let lab = Lab::new();
    let boot = |until: &str, save: &str| {
        let save = lab.path(save);
        let icount = ["boot", "--accel", "icount", "--warmup", "0", "--runs", "1"];
        let words = ["--append", "loglevel=7", "--until", until, "--save", text(&save)];
        lab.json(&[icount.as_slice(), &words].concat())["runs"][0].clone()
    };
    let points = [
        ("line:devtmpfs: init", "devtmpfs: initialized"),
        ("userspace", "Run /init as init process"),
    ];
    for (until, line) in points.into_iter().take(amount(1, points.len())) {
        let (run, other) = (boot(until, "one"), boot(until, "two"));
        assert_eq!(run["outcome"], "done");
        assert!(guest(&run) == guest(&other), "\n{}\n\n{}", names(&run), names(&other));
        let last = run["marks"].as_array().and_then(|marks| marks.last()).expect("marks");
        assert_eq!(last["text"], line);
        assert_eq!(last["at_s"], run["total_s"], "it ends with that line: {}", names(&run));
        assert!(
            !run["warnings"].to_string().contains("time stamp of the host"),
            "{}",
            run["warnings"]
        );

        let saved = std::fs::read(lab.path("one").join("runs/0000/run.json")).expect("run.json");
        let saved: vmeter_model::RunRecord = serde_json::from_slice(&saved).expect("a run");
        for moment in Moment::ALL.iter().filter(|m| m.producer() == Some(Producer::Recorder)) {
            assert!(saved.moment(moment).is_some(), "no run has {moment}: {:?}", saved.moments);
        }
        assert!(saved.moment(&Moment::VmmKilled) > saved.moment(&Moment::Ready));
        std::fs::remove_dir_all(lab.path("one")).expect("scratch space");
        std::fs::remove_dir_all(lab.path("two")).expect("scratch space");
    }
}
