//! Where outputs go: whole or not at all, and checked before the first boot.

use crate::reports::{by_name, results};
use std::fs;
use std::os::unix::fs::{symlink, PermissionsExt};
use vmeter_lab::bench::report::BenchReport;
use vmeter_lab::boot::report::BootReport;
use vmeter_render::{check_writable, export, ReportError, Target};

fn names(folder: &std::path::Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_file_is_replaced_whole_and_nothing_is_left_beside_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("boot.json");
    fs::write(&path, "old").expect("a file");
    let result = results::boot::boot(1, false);
    export(by_name("json"), &Target::File(path.clone()), &BootReport::new(&result))
        .expect("written");
    let json: serde_json::Value =
        serde_json::from_slice(&fs::read(&path).expect("a file")).expect("JSON");
    assert_eq!(json["command"], "boot");
    assert_eq!(names(folder.path()), ["boot.json"]);
    let mode = fs::metadata(&path).expect("a file").permissions().mode();
    assert_ne!(mode & 0o044, 0, "readable like any new file under the usual umask: {mode:o}");
}

#[test]
fn a_failed_export_leaves_the_old_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("bench.pftrace");
    fs::write(&path, "old").expect("a file");
    let result = results::boot::bench();
    let failed =
        export(by_name("perfetto"), &Target::File(path.clone()), &BenchReport::new(&result));
    assert!(matches!(failed, Err(ReportError::NoTimeline { .. })), "{failed:?}");
    assert_eq!(fs::read_to_string(&path).expect("a file"), "old");
    assert_eq!(names(folder.path()), ["bench.pftrace"]);
}

#[test]
fn links_and_devices_stay_what_they_are() {
    let folder = tempfile::tempdir().expect("a folder");
    let real = folder.path().join("real.csv");
    let link = folder.path().join("link.csv");
    fs::write(&real, "old").expect("a file");
    symlink(&real, &link).expect("a link");
    let result = results::boot::boot(1, false);
    let report = BootReport::new(&result);
    export(by_name("csv"), &Target::File(link.clone()), &report).expect("written");
    assert!(fs::symlink_metadata(&link).expect("a link").is_symlink());
    assert!(fs::read_to_string(&real).expect("a file").starts_with("run,label"));

    let null = Target::File("/dev/null".into());
    check_writable(&null).expect("writable");
    export(by_name("csv"), &null, &report).expect("written");
    assert!(!fs::metadata("/dev/null").expect("a device").is_file());
}

#[test]
fn unwritable_targets_are_found_before_a_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("no/such/folder/x.json");
    for bad in [missing, folder.path().to_owned()] {
        let error = check_writable(&Target::File(bad.clone())).expect_err("not writable");
        let message = error.to_string();
        assert!(message.contains(&*bad.to_string_lossy()), "{message}");
        assert!(!message.contains(".vmeter-"), "{message}");
    }
    let good = folder.path().join("x.json");
    check_writable(&Target::File(good)).expect("writable");
    check_writable(&Target::parse("-")).expect("writable");
    assert!(names(folder.path()).is_empty());
}
