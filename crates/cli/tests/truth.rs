//! What vmeter can't vouch for, it says: runs in which it was stopped itself, records that are
//! impossible, output that is cut, traces whose clock goes back.

use crate::common;

use common::{signal, text, Lab};
use serde_json::Value;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// Changes the first run's record.
fn edit(session: &Path, change: impl FnOnce(&mut Value)) {
    let file = session.join("runs/0000/run.json");
    let bytes = std::fs::read(&file).expect("saved");
    let mut run: Value = serde_json::from_slice(&bytes).expect("JSON");
    change(&mut run);
    std::fs::write(&file, serde_json::to_vec(&run).expect("JSON")).expect("written");
}

#[test]
fn time_in_which_vmeter_was_stopped_is_no_phase() {
    let lab = Lab::new();
    let save = lab.path("session");
    let begun = lab.path("begun");
    // A VMM of which vmeter's wait would become a phase: it ends while vmeter is stopped.
    let vmm = lab.script(
        "vmm",
        &format!(
            "#!/bin/sh\n[ \"$1\" = go ] && : >{}\necho Linux version 6\nexec sleep 0.4\n",
            text(&begun)
        ),
    );
    let arguments = ["boot", "--warmup", "0", "--runs", "1", "--save", text(&save), "--"];
    let child = lab
        .command(&[&arguments[..], &[text(&vmm), "go"]].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("vmeter starts");
    while !begun.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    signal(&child, "STOP");
    std::thread::sleep(Duration::from_secs(2));
    signal(&child, "CONT");
    let ran: common::Ran = child.wait_with_output().expect("vmeter ends").into();
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("vmeter itself was stopped for"), "{}", ran.stderr);
    let file = std::fs::read(save.join("runs/0000/run.json")).expect("saved");
    let run: Value = serde_json::from_slice(&file).expect("JSON");
    let total = run["total_ns"].as_i64().expect("total");
    assert!(total < 1_900_000_000, "the wait is not in the run that is kept: {total}");
    assert!(run["warnings"].to_string().contains("made again"), "{}", run["warnings"]);
}

#[test]
fn impossible_totals_are_left_out_and_said() {
    let lab = Lab::new();
    for impossible in [0, -5, i64::MAX] {
        let save = lab.path(&format!("session{impossible}"));
        let arguments = ["boot", "--vmm", "mock", "--runs", "3", "--warmup", "0", "--save"];
        assert_eq!(lab.run(&[&arguments[..], &[text(&save)]].concat()).status, 0);
        edit(&save, |run| run["total_ns"] = impossible.into());
        let shown = lab.run(&["show", text(&save), "--export-json", "-"]);
        let result: Value = serde_json::from_str(&shown.stdout).expect("JSON");
        assert_eq!(result["runs"].as_array().map(Vec::len), Some(2), "{impossible}");
        let warnings = result["warnings"].to_string();
        assert!(warnings.contains("is impossible"), "{warnings}");
    }
}

#[test]
fn a_session_without_its_machine_is_called_damaged() {
    let lab = Lab::new();
    let save = lab.path("session");
    let arguments = ["boot", "--vmm", "mock", "--runs", "1", "--warmup", "0", "--save"];
    assert_eq!(lab.run(&[&arguments[..], &[text(&save)]].concat()).status, 0);
    let file = save.join("session.json");
    let bytes = std::fs::read(&file).expect("saved");
    let mut session: Value = serde_json::from_slice(&bytes).expect("JSON");
    session["machines"] = Value::Array(Vec::new());
    std::fs::write(&file, serde_json::to_vec(&session).expect("JSON")).expect("written");
    let shown = lab.run(&["show", text(&save)]);
    assert_eq!(shown.status, 2, "{}", shown.stdout);
    assert!(shown.stderr.contains("names no machines"), "{}", shown.stderr);
}

#[test]
fn a_console_that_is_cut_is_said_and_counted_whole() {
    const PRINTED: u64 = 70 << 20;
    let lab = Lab::new();
    const FIRST: &str = "Linux version 6";
    let line = format!("echo {FIRST}; head -c {PRINTED} /dev/zero | tr '\\0' x");
    let arguments = ["boot", "--warmup", "0", "--runs", "1", "--", "sh", "-c", &line];
    let result = lab.json(&arguments);
    let run = &result["runs"][0];
    assert_eq!(run["counts"]["console_bytes"], PRINTED + FIRST.len() as u64 + 1);
    assert!(
        run["warnings"].to_string().contains("the console is cut at 64 MiB"),
        "{}",
        run["warnings"]
    );
}

#[test]
fn much_on_standard_error_is_a_few_lines_and_a_file() {
    let lab = Lab::new();
    let save = lab.path("session");
    let noisy = "i=0; while [ $i -lt 4000 ]; do echo line $i of many >&2; i=$((i+1)); done; exit 3";
    let arguments = ["boot", "--save", text(&save), "--", "sh", "-c", noisy];
    let ran = lab.run(&arguments);
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    assert!(ran.stderr.lines().count() < 20, "{}", ran.stderr);
    assert!(ran.stderr.contains("line 3999 of many"), "{}", ran.stderr);
    assert!(ran.stderr.contains("runs/0000/vmm-stderr.txt"), "{}", ran.stderr);
    let kept = std::fs::read_to_string(save.join("runs/0000/vmm-stderr.txt")).expect("kept");
    assert!(kept.contains("line 3000 of many"), "{}", kept.len());
}

#[test]
fn stamps_that_go_back_and_bytes_that_are_no_text_are_said() {
    let lab = Lab::new();
    let trace = lab.path("trace");
    let mut lines = Vec::new();
    for n in 0..50u64 {
        let exit = format!(
            " qemu-7 [000] ..... {}.000000: kvm_exit: reason IO_INSTRUCTION rip 0x1 info 0 0\n",
            100 - n
        );
        lines.extend(exit.into_bytes());
    }
    lines.extend(b" qemu-7 [000] ..... 200.000000: kvm_exit: reason \xff\xfe rip 0x1 info 0 0\n");
    std::fs::write(&trace, lines).expect("scratch space");
    for arguments in [["trace", "stat", text(&trace)], ["explain", text(&trace), "-v"]] {
        let ran = lab.run(&arguments);
        let both = format!("{}{}", ran.stdout, ran.stderr);
        let both = crate::common::one_line(&both);
        assert!(both.contains("time stamps go backwards at 49 events"), "{arguments:?}: {both}");
        assert!(both.contains("not UTF-8"), "{arguments:?}: {both}");
    }
}
