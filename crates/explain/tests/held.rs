//! Waits in calls that do not wait by design, however few; sleeps that go on; and who turned
//! tracing off.

use crate::common;

use common::{word, Trace};
use vmeter_explain::result::ExplainResult;
use vmeter_explain::{explain, Options};

const WRITER: &str = "append-20";
const OTHER: &str = "snap-30";
const HOST: &str = "cc-50";

/// Another program has the CPU until a timer's interrupt wakes somebody.
fn fires(trace: &mut Trace, after_us: u64, woken: &str) {
    trace.flags = "d.h2.";
    trace.wake(after_us, HOST, woken);
    trace.flags = ".....";
    trace.switch(2, HOST, "R", woken);
}

/// A writer is held in `pwrite64` some times, while another naps and then lets it go.
fn freezes(times: u32) -> Trace {
    let mut trace = Trace::new();
    trace.switch(1, HOST, "R", WRITER);
    for _ in 0..times {
        for _ in 0..20 {
            trace.call(WRITER, 18, 10, 4096);
            trace.now += 300;
        }
        trace.event(1, WRITER, "sys_enter: NR 18 (3, 0, 1000, 0, 0, 0)");
        trace.switch(1, WRITER, "D", OTHER);
        trace.event(1, OTHER, "sys_enter: NR 230 (0, 0, 0, 0, 0, 0)");
        trace.switch(1, OTHER, "S", HOST);
        fires(&mut trace, 60_000, OTHER);
        trace.event(1, OTHER, "sys_exit: NR 230 = 0");
        trace.event(1, OTHER, "sys_enter: NR 16 (3, c0045878, 0, 0, 0, 0)");
        trace.wake(5, OTHER, WRITER);
        trace.event(1, OTHER, "sys_exit: NR 16 = 0");
        trace.switch(5, OTHER, "S", WRITER);
        trace.event(1, WRITER, "sys_exit: NR 18 = 4096");
    }
    trace
}

#[test]
fn a_few_long_waits_in_a_call_that_does_not_wait_by_design_are_told() {
    let told = freezes(6).explain();
    let first = &told.findings[0];
    assert!(first.summary.contains("append"), "{first:#?}");
    assert!(first.summary.contains("waits in pwrite64 for snap (30), which sleeps"), "{first:#?}");
}

#[test]
fn two_such_waits_are_no_pattern() {
    let told = freezes(2).explain();
    let waits = told.findings.iter().any(|f| f.summary.contains("waits for snap"));
    assert!(!waits, "{:#?}", told.findings);
}

/// Opens that wait for another, and are woken by a timer all 8 ms meanwhile.
fn opens(looks_us: u64) -> String {
    let mut trace = Trace::new();
    trace.switch(1, HOST, "R", WRITER);
    for _ in 0..20 {
        trace.now += 500;
        trace.event(1, WRITER, "sys_enter: NR 257 (0, 0, 0, 0, 0, 0)");
        for _ in 0..4 {
            trace.switch(looks_us, WRITER, "S", HOST);
            fires(&mut trace, 8_000, WRITER);
        }
        trace.switch(looks_us, WRITER, "S", OTHER);
        trace.event(1, OTHER, "sys_enter: NR 72 (3, 400, 2, 0, 0, 0)");
        trace.wake(5, OTHER, WRITER);
        trace.event(1, OTHER, "sys_exit: NR 72 = 0");
        trace.event(1, OTHER, "sys_enter: NR 230 (0, 0, 0, 0, 0, 0)");
        trace.switch(5, OTHER, "S", WRITER);
        trace.event(1, WRITER, "sys_exit: NR 257 = 3");
        fires(&mut trace, 1, OTHER);
        trace.event(1, OTHER, "sys_exit: NR 230 = 0");
        trace.switch(1, OTHER, "R", WRITER);
    }
    trace.outline()
}

/// A writer waits in a futex from the beginning on, for readers that let each other in and nap.
fn starves() -> Trace {
    const READERS: [&str; 2] = ["reader-21", "reader-22"];
    let mut trace = Trace::new();
    trace.event(1, "bash-9", "sys_exit: NR 1 = 2");
    trace.event(1, "bash-9", "sys_enter: NR 56 (0, 0, 0, 0, 0, 0)");
    for (thread, tid) in [(WRITER, 20), (READERS[0], 21), (READERS[1], 22)] {
        let name = thread.split('-').next().expect("a name");
        let child = format!("comm=bash pid=9 child_comm={name} child_pid={tid}");
        trace.event(1, "bash-9", &format!("sched_process_fork: {child}"));
    }
    trace.switch(1, "bash-9", "S", WRITER);
    trace.event(1, WRITER, "sys_enter: NR 202 (0, 0, 0, 0, 0, 0)");
    trace.switch(1, WRITER, "S", HOST);
    for n in 0..200 {
        let reader = READERS[n % 2];
        fires(&mut trace, 5_000, reader);
        trace.event(1, reader, "sys_exit: NR 230 = 0");
        trace.event(100, reader, "sys_enter: NR 230 (0, 0, 0, 0, 0, 0)");
        trace.switch(1, reader, "S", HOST);
    }
    fires(&mut trace, 5_000, READERS[0]);
    trace.event(1, READERS[0], "sys_exit: NR 230 = 0");
    trace.event(1, READERS[0], "sys_enter: NR 202 (0, 1, 0, 0, 0, 0)");
    trace.wake(1, READERS[0], WRITER);
    trace.event(1, READERS[0], "sys_exit: NR 202 = 1");
    trace.switch(1, READERS[0], "S", WRITER);
    trace.event(1, WRITER, "sys_exit: NR 202 = 0");
    trace
}

#[test]
fn who_waits_goes_before_who_naps() {
    let told = starves().explain();
    let first = &told.findings[0].summary;
    assert!(
        first.starts_with("append (20) waits in futex") && first.contains("for reader"),
        "{:#?}",
        told.findings
    );
}

/// A thread waits in a futex for another of its name, which waits for a time and then computes.
fn polls() -> Trace {
    const OWN: [&str; 2] = ["qemu-20", "qemu-21"];
    let mut trace = Trace::new();
    trace.switch(1, HOST, "R", OWN[0]);
    for _ in 0..60 {
        trace.event(100, OWN[0], "sys_enter: NR 202 (0, 0, 0, 0, 0, 0)");
        trace.switch(1, OWN[0], "S", OWN[1]);
        trace.event(1, OWN[1], "sys_enter: NR 271 (0, 0, 0, 0, 0, 0)");
        trace.switch(1, OWN[1], "S", HOST);
        fires(&mut trace, 4_000, OWN[1]);
        trace.event(1, OWN[1], "sys_exit: NR 271 = 1");
        trace.event(4_500, OWN[1], "sys_enter: NR 202 (0, 1, 0, 0, 0, 0)");
        trace.wake(1, OWN[1], OWN[0]);
        trace.event(1, OWN[1], "sys_exit: NR 202 = 1");
        trace.switch(1, OWN[1], "R", OWN[0]);
        trace.event(1, OWN[0], "sys_exit: NR 202 = 0");
    }
    trace
}

#[test]
fn who_waits_in_ppoll_holds_no_lock() {
    let told = polls().explain();
    let held = told.findings.iter().any(|finding| word(finding) == "lock");
    assert!(!held, "{:#?}", told.findings);
}

/// The share of a line of the outline that begins so, below the writer.
fn share(told: &str, begin: &str) -> f64 {
    let lines = told.split('\n').skip_while(|line| !line.starts_with("append")).skip(1);
    let mut lines = lines.take_while(|line| line.starts_with(' ')).map(str::trim_start);
    let line = lines.find(|line| line.starts_with(begin)).unwrap_or_default();
    let words = line[begin.len().min(line.len())..].split_whitespace().next();
    words.and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

#[test]
fn a_sleep_that_a_timer_interrupts_is_for_who_ends_it() {
    let told = opens(3);
    assert!(share(&told, "waits for snap (30) ") > 80.0, "{told}");
}

#[test]
fn who_does_something_after_a_timer_has_waited_for_the_timer() {
    let told = opens(3_000);
    assert!(share(&told, "waits for snap (30) ") < 30.0, "{told}");
}

/// Strace's lines, by thread: when, how long, and what.
fn strace(lines: &[(u32, f64, f64, &str)]) -> ExplainResult {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.strace");
    let text: Vec<String> = lines
        .iter()
        .map(|(thread, at, long, call)| format!("{thread} {at:.6} {call} <{long:.6}>\n"))
        .collect();
    std::fs::write(&path, text.concat()).expect("a file");
    explain(&[path], &Options::default()).expect("a trace")
}

const NAP: &str = "clock_nanosleep(CLOCK_REALTIME, 0, {tv_sec=0, tv_nsec=500000}, NULL) = 0";

#[test]
fn a_nap_is_not_the_cause_where_another_call_takes_more() {
    let mut lines = Vec::new();
    for n in 0..200 {
        let at = 10.0 + 0.0018 * f64::from(n);
        lines.push((7, at, 0.000_800, "io_submit(0x7f, 1, [{aio_data=0}]) = 1"));
        lines.push((7, at + 0.000_850, 0.000_600, NAP));
    }
    let told = strace(&lines);
    assert!(told.findings[0].summary.contains("io_submit"), "{:#?}", told.findings);
}

#[test]
fn who_waits_for_room_while_another_naps_is_named() {
    let mut lines = Vec::new();
    for n in 0..100 {
        let at = 10.0 + 0.006 * f64::from(n);
        lines.push((8, at, 0.005_400, NAP));
        lines.push((7, at + 0.000_100, 0.005_500, "mq_timedsend(3, \"\", 200, 0, NULL) = 0"));
        lines.push((
            8,
            at + 0.005_500,
            0.000_050,
            "mq_timedreceive(3, \"\", 256, NULL, NULL) = 200",
        ));
    }
    let told = strace(&lines);
    let first = &told.findings[0];
    assert!(
        first.summary.contains("waits in mq_timedsend for thread 8, which sleeps"),
        "{:#?}",
        told.findings
    );
}

/// Files' pages are touched and read from a disk again; calls are recorded, but it makes none.
#[test]
fn a_disk_waited_for_outside_calls_is_for_page_faults() {
    let mut trace = Trace::new();
    trace.call(HOST, 0, 10, 1);
    trace.switch(1, HOST, "R", WRITER);
    for n in 0..200 {
        let fault = format!("page_fault_user: address={:#x} ip=0x55 error_code=0x4", n << 12);
        trace.event(100, WRITER, &fault);
        trace.switch(1, WRITER, "D", HOST);
        trace.call(HOST, 0, 10, 1);
        trace.flags = "d.h2.";
        trace.wake(900, HOST, WRITER);
        trace.flags = ".....";
        trace.switch(2, HOST, "R", WRITER);
    }
    let told = trace.explain();
    assert!(told.findings[0].summary.contains("page faults"), "{:#?}", told.findings);
}

/// One sleeps until a timer fires, then makes a call that lets another go on, which waits for that
/// in a call, over and over.
fn sleeps_with(call: u32) -> Trace {
    let (sleeper, waiter) = ("arch-20", "io-21");
    let mut trace = Trace::new();
    for _ in 0..40 {
        trace.event(20, waiter, &format!("sys_enter: NR {call} (3, 2, 0, 0, 0, 0)"));
        trace.switch(1, waiter, "S", sleeper);
        trace.event(1, sleeper, "sys_enter: NR 230 (0, 0, 0, 0, 0, 0)");
        trace.switch(1, sleeper, "S", HOST);
        fires(&mut trace, 3_000, sleeper);
        trace.event(1, sleeper, "sys_exit: NR 230 = 0");
        trace.event(1, sleeper, &format!("sys_enter: NR {call} (3, 8, 0, 0, 0, 0)"));
        trace.wake(1, sleeper, waiter);
        trace.event(1, sleeper, &format!("sys_exit: NR {call} = 0"));
        trace.switch(1, sleeper, "R", waiter);
        trace.event(1, waiter, &format!("sys_exit: NR {call} = 0"));
    }
    trace
}

#[test]
fn a_lock_that_is_held_asleep_is_told_with_the_call_that_waits_for_it() {
    const FLOCK: u32 = 73;
    const FUTEX: u32 = 202;
    let flock = sleeps_with(FLOCK).explain();
    let first = &flock.findings[0];
    assert_eq!(word(first), "lock", "{first:#?}");
    assert!(first.summary.contains("waits in flock for a lock held by arch (20)"), "{first:#?}");
    assert!(first.summary.contains("arch (20), which sleeps in clock_nanosleep"), "{first:#?}");
    assert!(!first.suggestion.contains("event"), "{first:#?}");
    // A futex may be a lock, or what tells of an event.
    let futex = sleeps_with(FUTEX).explain();
    let first = &futex.findings[0];
    assert_eq!(word(first), "timer-wait", "{first:#?}");
    assert!(first.summary.contains("waits in futex for a lock held by arch (20)"), "{first:#?}");
    assert!(first.suggestion.contains("lock"), "{first:#?}");
}
