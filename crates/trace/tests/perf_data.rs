//! perf.data: a made one, and one that perf writes here and now.

use crate::common;

use std::process::Command;
use vmeter_trace::stat::read_with;
use vmeter_trace::{open, Body, Input};

#[test]
fn records_are_sorted_named_and_told_apart() {
    let input = Input::from_bytes("made", common::perf_data::file()).expect("bytes");
    let mut reader = open(input).expect("perf.data");
    assert_eq!(reader.info().format, "perf.data");
    assert!(reader.threads().contains(&(9, "reader".into())));
    let mut seen = Vec::new();
    while let Some(event) = reader.next_event() {
        let lost = matches!(event.body, Body::Lost(Some(5)));
        let name = if lost { "lost".into() } else { event.kind.name.clone() };
        seen.push((event.ts, event.cpu as i32, event.tid, name));
    }
    let expected = [
        (1000, 0, 9, "sys_enter_read"),
        (1060, 1, 8, "kvm_exit"),
        (1090, 1, 8, "kvm_entry"),
        (1200, 0, 9, "sys_exit_read"),
        (1200, -1, -1, "lost"),
        (2000, 0, 9, "sys_enter_read"),
        (2060, 1, 8, "kvm_exit"),
        (2090, 1, 8, "kvm_entry"),
        (2200, 0, 9, "sys_exit_read"),
    ];
    assert_eq!(seen, expected.map(|(ts, cpu, tid, name)| (ts, cpu, tid, name.to_string())));
    assert_eq!(reader.losses().lost_events, 5);
}

#[test]
fn what_cannot_be_read_is_said_with_what_helps() {
    let whole = common::perf_data::file();
    let problem = |bytes: &[u8]| {
        let input = Input::from_bytes("made", bytes.to_vec()).expect("bytes");
        open(input).err().expect("refused").to_string()
    };
    for length in [300, whole.len() / 3, whole.len() - 1] {
        assert!(problem(&whole[..length]).contains("cut off"), "{length}");
    }
    let mut pipe = b"PERFILE2".to_vec();
    pipe.extend(16u64.to_le_bytes());
    assert!(problem(&pipe).contains("perf inject"));
    let mut no_formats = whole;
    // The lowest features.
    no_formats[72] = 0;
    assert!(problem(&no_formats).contains("perf record -e"));
}

#[test]
fn what_perf_records_is_counted_as_perf_script_has_it() {
    let folder = tempfile::tempdir().expect("scratch space");
    let file = folder.path().join("perf.data");
    let events =
        ["-e", "sched:sched_switch", "-e", "raw_syscalls:sys_enter", "-e", "raw_syscalls:sys_exit"];
    let mut record = Command::new("perf");
    record.args(["record", "-q", "-a", "-o"]).arg(&file).args(events);
    let ran = record.args(["--", "sh", "-c", "kill -0 $$; kill -0 $$"]).output();
    if !ran.as_ref().is_ok_and(|output| output.status.success()) {
        println!("skipped: perf cannot record here: {ran:?}");
        return;
    }
    let script = Command::new("perf").args(["script", "-i"]).arg(&file).output().expect("perf");
    let lines = String::from_utf8_lossy(&script.stdout).lines().count() as u64;
    let reader = open(Input::open(&file).expect("the file")).expect("perf.data");
    let report = read_with(reader, None, 1).expect("one thread");
    assert!(report.losses.unreadable == 0 && report.losses.missing.is_empty());
    assert_eq!(report.events, lines);
    let kill = report.syscalls.iter().find(|row| row.name == "kill").expect("the shell's calls");
    assert!(kill.count >= 2 && kill.timed >= 2);
}

#[test]
fn an_attribute_that_lies_about_its_size_does_no_harm() {
    let mut bytes = common::perf_data::file();
    // Type and size of the first attribute.
    let attribute = [2, 0, 0, 0, 112, 0, 0, 0];
    let at = bytes.windows(8).position(|w| w == attribute).expect("an attribute");
    for size in [0, 65, 119, 255] {
        bytes[at + 4] = size;
        let input = Input::from_bytes("made", bytes.clone()).expect("bytes");
        let report = read_with(open(input).expect("perf.data"), None, 1).expect("one thread");
        assert_eq!(report.events, 8, "{size}");
    }
}
