//! What `vmeter boot`, `show` and `diff` say of a boot: marks, and what to do about a guest
//! that waits for a login.

use crate::common;

use common::{text, Lab};
use std::path::PathBuf;

/// A guest that says what it does; `END` is how it ends.
const GUEST: &str = "vmeter-mock 1
30ms vmm-main
40ms reach reset-vector
300ms reach start_kernel
60ms reach run_init_process
50ms console Starting the database
DELAY console database: ready for connections
10ms console debian login:
END
";

fn guest(lab: &Lab, name: &str, delay: &str, end: &str) -> PathBuf {
    let path = lab.path(name);
    let script = GUEST.replace("DELAY", delay).replace("END", end);
    std::fs::write(&path, script).expect("scratch space");
    path
}

#[test]
fn a_mark_is_in_the_timeline_in_every_export_and_in_a_comparison() {
    let lab = Lab::new();
    let boot = |delay: &str| {
        let (script, save) =
            (guest(&lab, delay, delay, "1ms exit 0"), lab.path(&format!("s{delay}")));
        let machine = ["boot", "--vmm", "mock", "--machine", text(&script), "--runs", "3"];
        let marks = ["--mark", r"db=^database: ready", "--mark", "never=no such line"];
        let csv = lab.path("csv");
        let rest = ["--save", text(&save), "--export-csv", text(&csv)];
        let ran = lab.run(&[&machine[..], &marks[..], &rest[..]].concat());
        assert_eq!(ran.status, 0, "{}", ran.stderr);
        assert!(ran.stdout.contains("db at "), "{}", ran.stdout);
        let csv = std::fs::read_to_string(csv).expect("an export");
        assert_eq!(csv.lines().filter(|line| line.contains(",mark,")).count(), 3, "{csv}");
        save
    };
    let (quick, slow) = (boot("100ms"), boot("400ms"));
    let shown = lab.json(&["show", text(&slow)]);
    assert_eq!(shown["named_marks"][0]["name"], "db");
    let run = &shown["runs"][0];
    let at = run["named_marks"][0]["at_s"].as_f64().expect("a time");
    let total = run["total_s"].as_f64().expect("a time");
    assert!(0.0 < at && at < total, "{at} of {total}");
    let marks = run["marks"].as_array().expect("marks");
    assert!(marks.iter().any(|mark| mark["text"] == "db"), "{marks:?}");
    let warnings = run["warnings"].to_string();
    assert!(warnings.contains("--mark never: no line"), "{warnings}");
    let diff = lab.json(&["diff", text(&quick), text(&slow)]);
    let rows = diff["rows"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["kind"] == "mark").expect("a mark");
    let later = row["difference"].as_f64().expect("a difference");
    assert!(later > 0.2, "planted: 0.3 s later; {row}");

    let again = lab.json(&["show", text(&quick), "--mark", "login=login:$"]);
    let names = again["named_marks"].as_array().expect("marks").iter();
    let names: Vec<&str> = names.filter_map(|mark| mark["name"].as_str()).collect();
    assert_eq!(names, ["db", "login"]);
}

#[test]
fn a_mark_that_is_none_is_refused_before_anything_runs() {
    let lab = Lab::new();
    for (mark, says) in [("x", "expected NAME=REGEX"), ("x=(", "unclosed group")] {
        let ran = lab.run(&["boot", "--vmm", "mock", "--mark", mark]);
        assert_eq!(ran.status, 2, "{}", ran.stderr);
        assert!(ran.stderr.contains(says), "{}", ran.stderr);
    }
}

#[test]
fn a_guest_that_waits_for_a_login_gets_the_ready_point_that_it_lacks() {
    let lab = Lab::new();
    let script = guest(&lab, "waits", "10ms", "1ms hang");
    let machine = ["boot", "--vmm", "mock", "--machine", text(&script)];
    let ran =
        lab.run(&[&machine[..], &["--runs", "1", "--warmup", "0", "--timeout", "1"]].concat());
    assert_eq!(ran.status, 1, "{}\n{}", ran.stderr, ran.stdout);
    assert!(ran.stdout.contains("--until line:login:"), "{}", ran.stdout);
}

#[test]
fn what_a_host_was_found_to_be_is_no_warning() {
    let result = Lab::new().json(&["doctor", "--aa", "--vmm", "mock", "--runs", "12"]);
    let said = result["said"].as_array().expect("what was found");
    assert!(said.iter().any(|text| text.as_str().is_some_and(|t| t.contains("with 80 % power"))));
    let warnings = result["warnings"].as_array().expect("warnings");
    assert!(!warnings.iter().any(|text| said.contains(text)), "{result}");
}
