//! What strace and a device model's log say, and what a loss on one CPU leaves.

use crate::common;

use common::{kinds, Trace, VCPU};
use std::fmt::Write as _;
use vmeter_explain::result::{ExplainResult, Severity};
use vmeter_explain::{explain, Options};

fn explained(text: &str) -> ExplainResult {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace");
    std::fs::write(&path, text).expect("a file");
    explain(&[path], &Options::default()).expect("a trace")
}

/// Calls of one thread one after the other: name and arguments, µs inside.
fn strace(calls: impl Iterator<Item = (&'static str, u64)>) -> ExplainResult {
    let (mut text, mut now) = (String::new(), 1_000_000_u64);
    for (call, us) in calls {
        let (s, sub) = (now / 1_000_000, now % 1_000_000);
        writeln!(text, "77 1700{s:06}.{sub:06} {call} <0.{us:06}>").expect("a string");
        now += us + 250;
    }
    explained(&text)
}

const PREAD: &str = "pread64(9, \"\", 4096, 0) = 4096";
const SHORT: [&str; 4] =
    ["close(3) = 0", "lseek(4, 0, SEEK_SET) = 0", "getpid() = 77", "brk(NULL) = 0x1"];

#[test]
fn a_slow_call_of_strace_is_named() {
    let result = strace((0..400).map(|_| (PREAD, 4_000)));
    assert_eq!(kinds(&result), ["unknown"], "{:#?}", result.findings);
    let finding = &result.findings[0];
    assert!(finding.summary.contains("is in pread64 for 4.00 ms"), "{finding:#?}");
    assert_eq!(finding.chain[0].evidence.count, Some(400), "{finding:#?}");
}

#[test]
fn among_others_it_is_told_by_how_much_it_is_slower() {
    let mixed = (0..2_000).map(|n| match n % 5 {
        4 => (PREAD, 4_000),
        other => (SHORT[other], 40),
    });
    let result = strace(mixed);
    assert_eq!(kinds(&result), ["unknown"], "{:#?}", result.findings);
    let finding = &result.findings[0];
    assert!(
        finding.summary.contains("pread64") && finding.summary.contains("other calls"),
        "{finding:#?}"
    );
}

#[test]
fn calls_alike_are_healthy_and_who_waits_is_told_so() {
    let alike = (0..2_000).map(|n| (SHORT[n % 4], 40));
    assert_eq!(kinds(&strace(alike)), [""; 0]);
    let waiting = (0..400).map(|n| match n % 2 {
        0 => ("ppoll([{fd=4}], 1, NULL, NULL, 8) = 1", 9_000),
        _ => ("futex(0x7f, FUTEX_WAIT, 2, NULL) = 0", 9_000),
    });
    // Who ends the waits is not in the trace.
    assert!(strace(waiting).findings.iter().all(|f| f.severity == Severity::Low));
}

/// Lines of one thread, each with its port, direction and the µs until the next.
fn qemu_log(lines: impl Iterator<Item = (u32, bool, u64)>) -> ExplainResult {
    let (mut text, mut now) = (String::new(), 0_u64);
    for (port, write, us) in lines {
        let way = if write { "write" } else { "read" };
        let (s, sub) = (1_795_225_741 + now / 1_000_000, now % 1_000_000);
        writeln!(
            text,
            "11252@{s}.{sub:06}:memory_region_ops_{way} cpu 0 mr 0x55a3 addr {port:#x} value 0x1 \
             size 1 name 'ide'"
        )
        .expect("a string");
        now += us;
    }
    explained(&text)
}

#[test]
fn a_slow_port_of_a_qemu_log_is_named() {
    let ports = [0x1f2, 0x1f3, 0x1f6, 0x70, 0x1f7];
    let writes = (0..1_000).map(|n| (ports[n % 5], true, if n % 5 == 4 { 2_000 } else { 40 }));
    let result = qemu_log(writes);
    assert_eq!(kinds(&result), ["unknown"], "{:#?}", result.findings);
    assert!(result.findings[0].subject.contains("port 0x1f7 write"), "{:#?}", result.findings);
}

#[test]
fn a_read_is_logged_when_it_has_been_served() {
    let ports = [0x1f2, 0x1f3, 0x1f6, 0x70, 0x1f7];
    // The time goes by before the line of 0x1f7.
    let reads = (0..1_000).map(|n| (ports[n % 5], false, if n % 5 == 3 { 2_000 } else { 40 }));
    let result = qemu_log(reads);
    assert_eq!(kinds(&result), ["unknown"], "{:#?}", result.findings);
    assert!(result.findings[0].subject.contains("port 0x1f7 read"), "{:#?}", result.findings);
}

#[test]
fn a_slow_port_alone_is_named_and_a_guest_that_computes_now_and_then_is_not() {
    let result = qemu_log((0..400).map(|_| (0x1f7, true, 4_000)));
    assert_eq!(kinds(&result), ["unknown"], "{:#?}", result.findings);
    let ports = [0x1f2, 0x1f3, 0x1f6, 0x70, 0x1f7];
    let sometimes = (0..1_000).map(|n| (ports[n % 5], true, if n % 50 == 4 { 20_000 } else { 40 }));
    assert_eq!(kinds(&qemu_log(sometimes)), [""; 0]);
}

#[test]
fn a_loss_on_one_cpu_leaves_the_requests_of_the_others_whole() {
    let lossy = |cpu: u32| {
        Trace::rounds(100, |trace, _| {
            trace.now += 300;
            trace.cpu = cpu;
            trace.lost(1);
            trace.event(1, "other-900", "sys_enter: NR 1 (0, 0, 0, 0, 0, 0)");
            trace.cpu = 0;
        })
        .explain()
    };
    let other = lossy(1);
    assert_eq!(kinds(&other), ["user-cpu"], "{:#?}", other.findings);
    assert_eq!(other.findings[0].chain[0].evidence.count, Some(100), "{:#?}", other.findings);
    // On the vCPU's own CPU each of them may be two.
    let own = lossy(0);
    assert_eq!(kinds(&own), [""; 0], "{:#?}", own.findings);
}

#[test]
fn a_new_thread_is_known_to_run_from_its_return_from_clone() {
    let result = Trace::rounds(100, |trace, n| {
        let worker = format!("worker-{}", 1_000 + n);
        trace.event(1, VCPU, "sys_enter: NR 56 (0, 0, 0, 0, 0, 0)");
        trace.switch(1, VCPU, "S", "swapper/0-0");
        trace.cpu = 1;
        trace.event(1, &worker, "sys_exit: NR 56 = 0");
        trace.wake(600, &worker, VCPU);
        trace.cpu = 0;
        trace.switch(1, "swapper/0-0", "R", VCPU);
        trace.event(1, VCPU, "sys_exit: NR 56 = 1000");
    })
    .explain();
    let finding = result.findings.first().expect("a finding");
    let claims: Vec<&str> = finding.chain.iter().map(|link| link.claim.as_str()).collect();
    assert!(claims.iter().any(|claim| claim.contains("on a CPU 100 %")), "{claims:#?}");
    assert!(!claims.iter().any(|claim| claim.contains("not recorded")), "{claims:#?}");
}
