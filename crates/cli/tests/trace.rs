//! `vmeter trace`: real traces through every command.

use crate::common;
#[path = "trace/versus.rs"]
mod versus;

use common::{text, Lab};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Instant;

fn fixture(name: &str) -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    text(&root.join("../../fixtures/trace").join(name)).to_owned()
}

const XEN: &str = "xen-hvm-ide-boot.xtr.gz";
const NESTED: &str = "kvm-nested-boot.ftrace.txt.gz";

fn row<'a>(result: &'a Value, table: &str, found: impl Fn(&Value) -> bool) -> &'a Value {
    let rows = result[table].as_array().unwrap_or_else(|| panic!("no {table}"));
    rows.iter().find(|row| found(row)).unwrap_or_else(|| panic!("no such row in {table}"))
}

#[test]
fn stat_has_the_fields_that_scripts_rely_on() {
    let lab = Lab::new();
    let result = lab.json(&["trace", "stat", &fixture(XEN), "--cpu-hz", "2.0G"]);
    assert_eq!(
        (result["schema"].as_str(), result["command"].as_str()),
        (Some("vmeter/1"), Some("trace stat"))
    );
    assert_eq!(result["lost_events"], 0);
    assert!(result["events"].as_u64() > Some(300_000));
    let data = row(&result, "ports", |r| r["port"] == 0x1f0 && r["direction"] == "read");
    assert_eq!(data["count"], 202);
    for field in ["total_s", "mean_s", "mean_cycles", "median_s", "p99_s", "ratio_to_peers"] {
        assert!(data[field].as_f64() > Some(0.0), "{field}: {data}");
    }
    let mean =
        data["mean_s"].as_f64().expect("s") * 2e9 / data["mean_cycles"].as_f64().expect("cycles");
    assert!((mean - 1.0).abs() < 1e-9, "--cpu-hz is the scale: {mean}");
    for table in ["mmio", "syscalls", "exits"] {
        assert!(result[table].is_array(), "{table}");
    }
    let without = lab.run(&["trace", "stat", &fixture(XEN)]);
    assert_eq!(without.status, 0);
    assert!(without.stdout.contains("--cpu-hz HZ to get seconds"), "{}", without.stdout);
    assert!(without.stdout.lines().all(|line| line.chars().count() <= 80), "{}", without.stdout);
}

#[test]
fn lost_events_are_said_wherever_a_figure_depends_on_them() {
    let lab = Lab::new();
    let map = lab.path("mtree");
    let ranges = "FlatView #0\n AS \"I/O\", root: io\n  00000000000003f8-00000000000003ff (prio 0, i/o): serial\n";
    std::fs::write(&map, ranges).expect("scratch space");
    let ran = lab.run(&["trace", "stat", &fixture(NESTED), "--mtree", text(&map)]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains("842,596"), "{}", ran.stdout);
    let tables = ran
        .stdout
        .lines()
        .filter(|l| l.trim_start().starts_with("name") || l.contains(" name "))
        .count();
    let words = crate::common::one_line(&ran.stdout);
    let said = words.matches("lower bounds, because 842,596 events were lost").count();
    assert!(said + 1 >= tables, "{said} of {tables}\n{}", ran.stdout);
    assert!(
        ran.stdout.lines().any(|l| l.contains("0x3f8") && l.contains("serial  ")),
        "{}",
        ran.stdout
    );
    assert!(ran.stdout.lines().all(|line| line.chars().count() <= 80), "{}", ran.stdout);
}

#[test]
fn several_traces_name_their_rows() {
    let lab = Lab::new();
    let result =
        lab.json(&["trace", "stat", &fixture("small.ftrace.txt"), &fixture("small.strace.txt")]);
    let traces = result["traces"].as_array().expect("traces");
    assert_eq!(traces.len(), 2);
    let sum: u64 = traces.iter().filter_map(|t| t["events"].as_u64()).sum();
    assert_eq!(result["events"].as_u64(), Some(sum));
    row(&result, "syscalls", |r| {
        r["file"].as_str().is_some_and(|f| f.ends_with("small.strace.txt"))
    });
}

#[test]
fn report_chooses_events_and_minds_no_closed_pipe() {
    let lab = Lab::new();
    let all = lab.run(&["trace", "report", &fixture("small.ftrace.txt")]).stdout;
    assert!(all.lines().count() > 10);
    let exits =
        lab.run(&["trace", "report", &fixture("small.ftrace.txt"), "--event", "kvm_ex?t"]).stdout;
    let (lost, exits): (Vec<&str>, Vec<&str>) =
        exits.lines().partition(|line| line.contains("LOST 3 EVENTS"));
    assert_eq!(lost.len(), 1, "what is missing is always shown");
    assert!(!exits.is_empty() && exits.iter().all(|l| l.contains(": kvm_exit: ")), "{exits:?}");
    assert_eq!(exits.len(), all.matches(": kvm_exit: ").count());
    let none = lab.run(&["trace", "report", &fixture("small.ftrace.txt"), "--from", "+1000000"]);
    assert_eq!((none.status, none.stdout.as_str()), (0, ""));
    let wrong = lab.run(&["trace", "report", &fixture("small.ftrace.txt"), "--from", "soon"]);
    assert_eq!(wrong.status, 2);
    assert!(wrong.stderr.contains("+SECONDS"), "{}", wrong.stderr);
    let mut child = lab
        .command(&["trace", "report", &fixture(NESTED)])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("vmeter runs");
    drop(child.stdout.take());
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!(ended.status.code(), Some(0), "{}", String::from_utf8_lossy(&ended.stderr));
}

#[test]
fn converted_text_has_the_same_statistics() {
    let lab = Lab::new();
    let out = lab.path("again.txt");
    let ran = lab.run(&["trace", "convert", &fixture(NESTED), "-o", text(&out)]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("842596"), "{}", ran.stderr);
    let (before, after) =
        (lab.json(&["trace", "stat", &fixture(NESTED)]), lab.json(&["trace", "stat", text(&out)]));
    let fields = ["events", "counts", "ports", "mmio", "msrs", "exits", "threads"];
    for field in fields.into_iter().chain(["duration_s", "lost_events"]) {
        assert_eq!(before[field], after[field], "{field}");
    }
}

#[test]
fn converted_lines_are_json_and_csv() {
    let lab = Lab::new();
    let file = fixture("small.perf.txt");
    let events = lab.json(&["trace", "stat", &file])["events"].as_u64().expect("events") as usize;
    let lines = lab.run(&["trace", "convert", &file, "-o", "-", "--format", "jsonl"]).stdout;
    let parsed: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    assert_eq!(parsed.len(), events);
    assert!(parsed.iter().all(|e| e["event"].is_string() && e["time_s"].is_f64()));
    let out = lab.path("events.csv");
    assert_eq!(lab.run(&["trace", "convert", &file, "-o", text(&out)]).status, 0);
    let table = std::fs::read_to_string(&out).expect("written");
    assert_eq!(table.lines().count(), events + 1);
    let refused = lab.run(&["trace", "convert", &file, "-o", "events.docx"]);
    assert_eq!(refused.status, 2);
    assert!(refused.stderr.contains(".pftrace"), "{}", refused.stderr);
}

/// The value of a field of a protobuf message.
#[derive(Clone, Copy)]
enum Proto<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn messages(mut bytes: &[u8]) -> Option<Vec<(u64, Proto<'_>)>> {
    fn varint(bytes: &mut &[u8]) -> Option<u64> {
        let mut value = 0;
        for shift in (0..70).step_by(7) {
            let (&byte, rest) = bytes.split_first()?;
            *bytes = rest;
            value |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let body = match tag & 7 {
            0 => Proto::Number(varint(&mut bytes)?),
            2 => {
                let len = varint(&mut bytes)? as usize;
                let body = bytes.get(..len)?;
                bytes = &bytes[len..];
                Proto::Bytes(body)
            }
            _ => return None,
        };
        fields.push((tag >> 3, body));
    }
    Some(fields)
}

fn number(fields: &[(u64, Proto<'_>)], wanted: u64) -> Option<u64> {
    fields.iter().find_map(|(field, value)| match value {
        Proto::Number(value) if *field == wanted => Some(*value),
        _ => None,
    })
}

fn parts<'a>(fields: &[(u64, Proto<'a>)], wanted: u64) -> Vec<Vec<(u64, Proto<'a>)>> {
    let of = |(field, value): &(u64, Proto<'a>)| match value {
        Proto::Bytes(bytes) if *field == wanted => Some(messages(bytes).expect("a message")),
        _ => None,
    };
    fields.iter().filter_map(of).collect()
}

/// Checks a trace against the parts of Perfetto's schema that it uses (trace_packet.proto,
/// track_descriptor.proto, track_event.proto): tracks are described before they are used,
/// and slices nest. Gives the number of tracks and of their events.
fn check_perfetto(bytes: &[u8]) -> (usize, usize) {
    const PACKET: u64 = 1;
    const SEQUENCE: u64 = 10;
    const TRACK_EVENT: u64 = 11;
    const TRACK_DESCRIPTOR: u64 = 60;
    let trace = messages(bytes).expect("a message");
    assert!(trace.iter().all(|(field, _)| *field == PACKET));
    let mut open = std::collections::HashMap::new();
    let mut events = 0;
    for packet in parts(&trace, PACKET) {
        assert!(number(&packet, SEQUENCE).is_some(), "a sequence");
        for track in parts(&packet, TRACK_DESCRIPTOR) {
            open.entry(number(&track, 1).expect("its uuid")).or_insert(0u64);
        }
        for event in parts(&packet, TRACK_EVENT) {
            events += 1;
            let track = number(&event, 11).expect("its track");
            let open = open.get_mut(&track).expect("described before");
            match number(&event, 9).expect("its type") {
                1 => *open += 1,
                2 => *open = open.checked_sub(1).expect("a slice that ends has begun"),
                3 | 4 => {}
                other => panic!("no such type: {other}"),
            }
        }
    }
    (open.len(), events)
}

#[test]
fn converted_for_perfetto_every_slice_that_ends_has_begun() {
    let lab = Lab::new();
    for name in [NESTED, XEN, "small.strace.txt"] {
        let out = lab.path("trace.pftrace");
        let ran = lab.run(&["trace", "convert", &fixture(name), "-o", text(&out)]);
        assert_eq!(ran.status, 0, "{}", ran.stderr);
        let (tracks, events) = check_perfetto(&std::fs::read(&out).expect("written"));
        assert!(tracks > 0 && events > 4, "{name}: {tracks} tracks, {events} events");
    }
}

#[test]
fn what_is_no_trace_is_refused_with_what_is() {
    let lab = Lab::new();
    let junk = lab.path("junk");
    std::fs::write(&junk, "\x1b[31mnot a trace").expect("scratch space");
    for command in ["stat", "report"] {
        let ran = lab.run(&["trace", command, text(&junk)]);
        assert_eq!(ran.status, 2, "{}", ran.stderr);
        assert!(ran.stderr.contains("expected one of trace.dat"), "{}", ran.stderr);
        assert!(!ran.stderr.contains('\x1b'), "{:?}", ran.stderr);
    }
    let map = lab.run(&["trace", "stat", &fixture(XEN), "--mtree", text(&junk)]);
    assert_eq!(map.status, 2);
    assert!(map.stderr.contains("info mtree -f"), "{}", map.stderr);
    assert_eq!(lab.run(&["trace", "stat", &fixture(XEN), "--cpu-hz", "fast"]).status, 2);
}

/// It begins as a trace, and nothing in it is one.
#[test]
fn a_file_of_which_nothing_is_understood_is_no_trace() {
    let lab = Lab::new();
    let (file, out) = (lab.path("junk"), lab.path("out.csv"));
    for (first, line) in [
        ("# tracer: nop\n", "\0\0\0\0"),
        ("# tracer: function_graph\n", "nothing of the kind\n"),
        ("12:00:00.000001 execve(\"/bin/true\", [\"true\"], 0x7f /* 9 vars */) = 0\n", ""),
    ] {
        std::fs::write(&file, first.to_owned() + &line.repeat(5000)).expect("scratch space");
        let (file, out) = (text(&file), text(&out));
        let commands: [&[&str]; 3] = [
            &["trace", "stat", file],
            &["trace", "convert", file, "-o", out],
            &["trace", "report", file],
        ];
        for command in commands {
            let ran = lab.run(command);
            let expected = if line.is_empty() { 0 } else { 2 };
            assert_eq!(ran.status, expected, "{command:?}: {}{}", ran.stdout, ran.stderr);
            let said = ran.stderr.contains("could be understood");
            assert_eq!(said, !line.is_empty(), "{}", ran.stderr);
        }
        assert_eq!(std::path::Path::new(out).exists(), line.is_empty());
    }
}

#[test]
fn a_recorded_command_is_read_by_trace_cmd_with_equal_counts() {
    let lab = Lab::new();
    let out = lab.path("recorded.dat");
    let script = "i=0; while [ $i -lt 50 ]; do kill -0 $$; i=$((i+1)); done; exit 3";
    let ran = lab.run(&[
        "trace",
        "record",
        "--event",
        "raw_syscalls:*",
        "--preset",
        "sched",
        "-o",
        text(&out),
        "--",
        "sh",
        "-c",
        script,
    ]);
    if ran.status == 3 {
        println!("skipped: {}", ran.stderr);
        return;
    }
    assert_eq!(ran.status, 1, "the command failed: {}", ran.stderr);
    assert!(ran.stdout.contains(" 0 lost, clock mono"), "{}", ran.stdout);
    let result = lab.json(&["trace", "stat", text(&out)]);
    assert!(row(&result, "syscalls", |r| r["name"] == "kill")["count"].as_u64() >= Some(50));
    let events = result["events"].as_u64().expect("events") as usize;
    assert!(ran.stdout.starts_with(&format!("{events} events")), "{}", ran.stdout);
    match std::process::Command::new("trace-cmd").args(["report", "-i", text(&out)]).output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            let lines = text.lines().filter(|line| !line.starts_with("cpus=")).count();
            assert_eq!(lines, events);
        }
        Err(_) => println!("skipped: no trace-cmd to compare with"),
    }
    let converted = lab.path("recorded.pftrace");
    let ran = lab.run(&["trace", "convert", text(&out), "-o", text(&converted)]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let (tracks, in_tracks) = check_perfetto(&std::fs::read(&converted).expect("written"));
    assert!(tracks > 0 && in_tracks > 100, "{tracks} tracks, {in_tracks} events");
}

/// Set to have this program make that many system calls on each of two threads.
const LOAD: &str = "VMETER_TEST_LOAD";
/// Each is two events: a million a second with two threads.
const CALLS_PER_S: f64 = 250_000.0;

/// What is recorded: not a test by itself.
#[test]
fn load() {
    let Some(calls) = std::env::var(LOAD).ok().and_then(|calls| calls.parse::<u32>().ok()) else {
        return;
    };
    let begin = Instant::now();
    let work = move || {
        for call in 0..calls {
            let _ = rustix::process::getppid();
            while begin.elapsed().as_secs_f64() < f64::from(call) / CALLS_PER_S {}
        }
    };
    let other = std::thread::spawn(work);
    work();
    other.join().expect("its end");
}

#[test]
fn a_million_events_a_second_are_recorded_or_said_to_be_lost() {
    const CALLS: u64 = 150_000;
    let lab = Lab::new();
    let out = lab.path("recorded.dat");
    let own = std::env::current_exe().expect("this program");
    let mut command = lab.command(&["trace", "record", "--event", "raw_syscalls:*", "-o"]);
    command.arg(&out).arg("--").arg(own).args(["--exact", "trace::load"]);
    let ran = common::Ran::from(command.env(LOAD, CALLS.to_string()).output().expect("vmeter"));
    if ran.status == 3 {
        println!("skipped: {}", ran.stderr);
        return;
    }
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let result = lab.json(&["trace", "stat", text(&out)]);
    let lost = result["lost_events"].as_u64().expect("lost");
    let seen = row(&result, "syscalls", |r| r["name"] == "getppid")["count"].as_u64();
    let all = 4 * CALLS;
    println!("{lost} of {all} events lost: {:.2} %", 100.0 * lost as f64 / all as f64);
    assert!(2 * seen.expect("count") + lost + 2 >= all, "{seen:?} seen, {lost} lost");
    assert!(ran.stdout.contains(&format!(" {lost} lost")), "{}", ran.stdout);
    assert_eq!(lost > 0, ran.stderr.contains("events were lost"), "{}", ran.stderr);
}

#[test]
fn recording_ends_by_a_signal_and_is_saved() {
    let lab = Lab::new();
    let out = lab.path("recorded.dat");
    let mut child = lab
        .command(&["trace", "record", "--preset", "boot", "-o", text(&out)])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("vmeter runs");
    // It says so once a signal ends it; a host that can't record says that instead.
    let mut line = String::new();
    let mut said = std::io::BufReader::new(child.stderr.take().expect("piped"));
    std::io::BufRead::read_line(&mut said, &mut line).expect("a line");
    common::signal(&child, "TERM");
    let ended = child.wait_with_output().expect("it ends");
    if ended.status.code() == Some(3) || !line.contains("Ctrl-C") {
        println!("skipped: no tracefs to record with");
        return;
    }
    assert_eq!(ended.status.code(), Some(0));
    assert!(out.exists());
}

#[test]
fn a_recorded_command_that_is_killed_is_said_and_bad() {
    let lab = Lab::new();
    let out = lab.path("recorded.dat");
    let out = text(&out);
    let ran = lab.run(&[
        "trace",
        "record",
        "--preset",
        "boot",
        "-o",
        out,
        "--",
        "sh",
        "-c",
        "kill -9 $$",
    ]);
    if ran.status == 3 {
        println!("skipped: {}", ran.stderr);
        return;
    }
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("the command was killed by signal 9"), "{}", ran.stderr);
}

/// Standard input gives what a file gives, and is not written over.
#[test]
fn standard_input_is_a_trace_like_any() {
    let lab = Lab::new();
    let trace = lab.path("t.txt");
    std::fs::copy(fixture("small.strace.txt"), &trace).expect("a copy");
    let explained = |name: &str| {
        let file = std::fs::File::open(&trace).expect("the trace");
        let json = lab.path("e.json");
        let arguments = ["explain", name, "--export-json", text(&json)];
        let ran = lab.command(&arguments).stdin(file).output().expect("vmeter starts");
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let result = std::fs::read_to_string(&json).expect("a result");
        let result: Value = serde_json::from_str(&result).expect("JSON");
        (result["files"][0]["events"].clone(), result["findings"].clone())
    };
    assert_eq!(explained("-"), explained(text(&trace)));
    let file = std::fs::File::open(&trace).expect("the trace");
    let over = ["trace", "stat", "-", "--export-html", text(&trace)];
    let ran = lab.command(&over).stdin(file).output().expect("vmeter starts");
    assert_eq!(ran.status.code(), Some(2));
    assert!(std::fs::read_to_string(&trace).is_ok_and(|text| !text.contains("<html")));
}
