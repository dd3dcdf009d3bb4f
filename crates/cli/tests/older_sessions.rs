//! Sessions that older vmeters saved, through every command that reads sessions. How they were
//! made is in fixtures/sessions/README.md.

mod common;

use common::{text, Lab};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Unpacks the sessions of every older vmeter: (version, folder).
fn unpacked(lab: &Lab) -> Vec<(String, PathBuf)> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/sessions");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(fixtures).expect("fixtures").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(version) = name.strip_suffix(".tar.gz") else { continue };
        let folder = lab.path(version);
        std::fs::create_dir(&folder).expect("scratch space");
        let tar = Command::new("tar").arg("-xzf").arg(entry.path()).arg("-C").arg(&folder).status();
        assert!(tar.expect("tar").success(), "{name}");
        found.push((version.to_owned(), folder));
    }
    assert!(!found.is_empty(), "no sessions in the fixtures");
    found
}

/// The sessions in a folder, by name.
fn sessions(folder: &Path) -> Vec<(String, PathBuf)> {
    let mut found: Vec<(String, PathBuf)> = std::fs::read_dir(folder)
        .expect("sessions")
        .flatten()
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()))
        .filter(|(name, _)| name != "expected")
        .collect();
    found.sort();
    found
}

/// What must not change by a better analysis: what was measured, unexplained.
fn measured(result: &Value) -> Vec<(String, f64)> {
    let mut found = Vec::new();
    let mut add = |what: String, value: &Value| {
        found.push((what, value.as_f64().unwrap_or(f64::NAN)));
    };
    for (i, run) in result["runs"].as_array().into_iter().flatten().enumerate() {
        add(format!("runs[{i}].total_s"), &run["total_s"]);
    }
    for machine in result["machines"].as_array().into_iter().flatten() {
        add(format!("machine {}", machine["label"]), &machine["estimate"]["mean"]);
    }
    for point in result["points"].as_array().into_iter().flatten() {
        let total = match &point["total"] {
            Value::Null => &point["total_s"],
            total => &total["mean"],
        };
        add(format!("point {}", point["parameters"]), total);
    }
    for commit in result["commits"].as_array().into_iter().flatten() {
        for sample in commit["samples_s"].as_array().into_iter().flatten() {
            add(format!("commit {}", commit["subject"]), sample);
        }
    }
    found
}

#[test]
fn what_was_measured_then_is_what_is_shown_now() {
    let lab = Lab::new();
    for (version, folder) in unpacked(&lab) {
        for (name, dir) in sessions(&folder) {
            let expected = folder.join("expected").join(format!("{name}.json"));
            let expected = std::fs::read(&expected).expect("what that vmeter said");
            let expected: Value = serde_json::from_slice(&expected).expect("JSON");
            let shown = lab.json(&["show", text(&dir)]);
            assert_eq!(shown["command"], expected["command"], "{version} {name}");
            let (was, is) = (measured(&expected), measured(&shown));
            assert!(!was.is_empty(), "{version} {name}: nothing is compared");
            for ((what, was), (same, is)) in was.iter().zip(&is) {
                assert_eq!(what, same, "{version} {name}");
                assert!(
                    (was - is).abs() <= 1e-9 * was.abs(),
                    "{version} {name} {what}: {was} {is}"
                );
            }
            assert_eq!(was.len(), is.len(), "{version} {name}");
        }
    }
}

#[test]
fn every_command_that_reads_sessions_reads_them() {
    let lab = Lab::new();
    for (version, folder) in unpacked(&lab) {
        for (name, dir) in sessions(&folder) {
            for ending in ["html", "json", "csv", "md"] {
                let file = lab.path(&format!("{version}-{name}.{ending}"));
                let ran = lab.run(&["report", text(&dir), "-o", text(&file)]);
                assert_eq!(ran.status, 0, "{version} {name} {ending}: {}", ran.stderr);
            }
            let ran = lab.run(&["show", text(&dir)]);
            assert_eq!(ran.status, 0, "{version} {name}: {}", ran.stderr);
            assert!(!ran.stderr.contains("panicked"), "{version} {name}: {}", ran.stderr);
        }
        let ran = lab.run(&["diff", text(&folder.join("boot")), text(&folder.join("boot"))]);
        assert_eq!(ran.status, 0, "{version}: {}", ran.stderr);
        let shards = ["sweep-1of2", "sweep-2of2"].map(|name| folder.join(name));
        let ran = lab.run(&["merge", text(&shards[0]), text(&shards[1])]);
        assert_eq!(ran.status, 0, "{version}: {}", ran.stderr);
        let ran = lab.run(&["runs", "add", text(&folder)]);
        assert_eq!(ran.status, 0, "{version}: {}", ran.stderr);
        let listed = lab.json(&["runs", "list"]);
        let count = listed["sessions"].as_array().map_or(0, Vec::len);
        // Migrations had folders of their own then; the merged sweep is here, too.
        assert!(count >= sessions(&folder).len(), "{version}: {count} listed");
        let first = folder.join("boot");
        let ran = lab.run(&["boot", "--resume", text(&first), "--trust", "--runs", "4"]);
        assert_eq!(ran.status, 0, "{version}: {}", ran.stderr);
    }
}
