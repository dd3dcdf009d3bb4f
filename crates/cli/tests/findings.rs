//! `vmeter findings` through the mock back end: what is planted is found where it is, and what
//! is not is never confirmed.

use crate::common;

use common::{amount, text, Lab};
use serde_json::Value;

/// A machine without noise of its own but for that of each run and line.
fn script(lab: &Lab, lines: &str) -> std::path::PathBuf {
    let path = lab.path("guest.mock");
    let machine = "vmeter-mock 1\nspread 3%\nrun-spread 5%\n\
        1ms vmm-exec\n4ms vmm-entry\n2ms vmm-main\n28ms state running\n0.1ms reach reset-vector\n\
        60ms firmware SeaBIOS (version mock)\n16ms reach startup_32\n95ms reach start_kernel\n\
        30ms reach kernel_init_freeable\n0 level early\n80ms initcall acpi_init\n0 level late\n\
        120ms initcall inet_init\n";
    let end = "19ms reach run_init_process\n0.5ms exec 1 /init\n20ms step mount\n0 ready\n\
        1ms shutdown\n12ms poweroff\n4ms vmm-exiting\n3ms exit 0\n";
    std::fs::write(&path, format!("{machine}{lines}{end}")).expect("scratch space");
    path
}

fn asked(lab: &Lab, script: &std::path::Path, arguments: &[&str]) -> Value {
    let mut all = vec!["findings"];
    all.extend(arguments);
    all.extend(["--vmm", "mock", "--export-json", "-"]);
    let mut command = lab.command(&all);
    let output = command.env("VMETER_MOCK_SCRIPT", script).output().expect("vmeter runs");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn finding<'v>(result: &'v Value, id: &str) -> &'v Value {
    let all = result["findings"].as_array().expect("findings");
    all.iter().find(|f| f["id"] == id).unwrap_or_else(|| panic!("no {id}"))
}

#[test]
fn a_change_that_is_none_is_never_confirmed() {
    let lab = Lab::new();
    let script = script(&lab, "");
    for seed in 0..amount(10, 50) {
        let seed = seed.to_string();
        let result = asked(&lab, &script, &["crypto-tests", "vcpus", "--seed", &seed]);
        for row in result["findings"].as_array().expect("findings") {
            assert_eq!(row["verdict"], "not reproduced", "seed {seed}: {row:#}");
            assert!(row["detectable_s"].as_f64().expect("s") > 0.0, "{row:#}");
        }
    }
}

#[test]
fn an_effect_is_reported_where_it_is() {
    let lab = Lab::new();
    // Expected in the initcalls; planted in the firmware, in user space and in the initcalls.
    for (line, place) in [
        ("40ms initcall crypto_selftests", "kernel:initcalls-before-userspace"),
        ("60ms step elsewhere", "/init:elsewhere"),
    ] {
        let planted = format!("unless append~cryptomgr.notests: {line}\n");
        let script = if place.starts_with("/init") {
            let path = script(&lab, "");
            let text = std::fs::read_to_string(&path).expect("the script");
            let text = text.replace("0 ready\n", &format!("{planted}0 ready\n"));
            std::fs::write(&path, text).expect("the script");
            path
        } else {
            script(&lab, &planted)
        };
        let result = asked(&lab, &script, &["crypto-tests"]);
        let row = finding(&result, "crypto-tests");
        assert_eq!(row["verdict"], "confirmed", "{row:#}");
        assert_eq!(row["phase"], place, "{row:#}");
        assert!(row["p_value"].as_f64().expect("p") < 0.01, "{row:#}");
        let saved = row["comparisons"][0]["moved"][0]["saving_s"]["mean"].as_f64().expect("s");
        let expected = if place.starts_with("/init") { 0.06 } else { 0.04 };
        assert!((saved / expected - 1.0).abs() < 0.2, "{saved} for {expected}");
    }
}

#[test]
fn what_costs_is_not_called_a_saving() {
    let lab = Lab::new();
    let script = script(&lab, "if append~cryptomgr.notests: 60ms initcall slow\n");
    let result = asked(&lab, &script, &["crypto-tests"]);
    let row = finding(&result, "crypto-tests");
    assert_eq!(row["verdict"], "not reproduced", "{row:#}");
    assert!(row["saving_s"]["mean"].as_f64().expect("s") < 0.0);
    assert!(row["reason"].as_str().expect("words").contains("more"), "{row:#}");
}

/// A guest of whose end nothing is known may have crashed: what it took is no saving.
#[test]
fn ends_that_nothing_tells_confirm_nothing() {
    let lab = Lab::new();
    let path = script(&lab, "unless append~cryptomgr.notests: 40ms initcall crypto_selftests\n");
    let dir = lab.path("session");
    asked(&lab, &path, &["crypto-tests", "--runs", "6", "--save", text(&dir)]);
    let verdict = || {
        let shown = lab.json(&["show", text(&dir)]);
        let row = finding(&shown, "crypto-tests");
        let words = row["reason"].as_str().expect("words").to_owned();
        (row["verdict"].as_str().expect("a verdict").to_owned(), words)
    };
    assert_eq!(verdict().0, "confirmed");
    for run in std::fs::read_dir(dir.join("runs")).expect("runs").flatten() {
        let file = run.path().join("run.json");
        let mut record: Value =
            serde_json::from_slice(&std::fs::read(&file).expect("run.json")).expect("JSON");
        record["end"]["cause"] = "exit".into();
        std::fs::write(&file, record.to_string()).expect("run.json");
    }
    let (verdict, words) = verdict();
    assert_eq!(verdict, "inapplicable", "{words}");
    assert!(words.contains("does not know how the guests"), "{words}");
}

#[test]
fn all_findings_have_a_row_and_a_reason() {
    let lab = Lab::new();
    let script = script(&lab, "");
    let result = asked(&lab, &script, &["--runs", "3"]);
    let rows = result["findings"].as_array().expect("findings");
    assert_eq!(rows.len(), 32);
    for row in rows {
        for field in ["id", "title", "what", "published", "reason", "remedy", "verdict"] {
            assert!(row[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {row:#}");
        }
        assert_eq!(row["applies"], row["verdict"] != "inapplicable");
    }
}

#[test]
fn an_unknown_finding_is_told_the_names_of_all() {
    let lab = Lab::new();
    let ran = lab.run(&["findings", "levitation", "--vmm", "mock"]);
    assert_eq!(ran.status, 2, "{}", ran.stdout);
    assert!(
        ran.stderr.contains("fw-cfg-dma") && ran.stderr.contains("console-log"),
        "{}",
        ran.stderr
    );
    let listed = lab.run(&["findings", "--list"]);
    assert_eq!(listed.stdout.lines().count(), 32, "{}", listed.stdout);
}

#[test]
fn a_session_goes_on_only_as_it_was_begun() {
    let lab = Lab::new();
    let dir = lab.path("session");
    let begun = ["findings", "console-log", "--vmm", "mock", "--runs", "2", "--save", text(&dir)];
    assert_eq!(lab.run(&begun).status, 0);
    let other = lab.run(&["findings", "udev-settle", "--resume", text(&dir)]);
    assert_eq!(other.status, 2, "{}", other.stdout);
    let more = lab.run(&["findings", "--runs", "9", "--resume", text(&dir)]);
    assert_eq!(more.status, 2, "{}", more.stdout);
    assert!(more.stderr.contains("--runs"), "{}", more.stderr);
    assert_eq!(lab.run(&["findings", "--resume", text(&dir)]).status, 0);
}
