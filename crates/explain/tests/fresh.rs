//! What a user of his own traces found false: children made once, steps, names that were asked
//! about, threads that have ended, recordings of some threads only.

use crate::common;

use common::{kinds, word, Trace};
use std::process::{Command, Stdio};
use vmeter_explain::result::{ExplainResult, Severity};

const SHELL: &str = "sh-5";
const OTHER: &str = "cc-50";

/// A thread sleeps until a timer wakes it, so many µs later.
fn nap(trace: &mut Trace, thread: &str, us: u64) {
    trace.switch(1, thread, "S", OTHER);
    trace.now += us;
    trace.flags = "d.h1.";
    trace.event(1, OTHER, "hrtimer_expire_entry: hrtimer=0x1 function=hrtimer_wakeup now=1");
    trace.wake(1, OTHER, thread);
    trace.event(1, OTHER, "hrtimer_expire_exit: hrtimer=0x1");
    trace.flags = ".....";
    trace.switch(1, OTHER, "R", thread);
}

/// A shell runs one program, which sleeps.
fn once(each_us: u64) -> Trace {
    let mut trace = Trace::new();
    trace.event(1, "sudo-4", "sys_exit: NR 1 = 1");
    let fork = "sched_process_fork: comm=sudo pid=4 child_comm=sudo child_pid=5";
    trace.event(1, "sudo-4", fork);
    trace.call(SHELL, 59, 300, 0);
    trace.event(1, SHELL, "sys_enter: NR 56 (0, 0, 0, 0, 0, 0)");
    trace.event(1, SHELL, "sched_process_fork: comm=sh pid=5 child_comm=sh child_pid=100");
    trace.event(1, SHELL, "sys_exit: NR 56 = 100");
    trace.event(1, SHELL, "sys_enter: NR 61 (0, 0, 0, 0, 0, 0)");
    trace.switch(1, SHELL, "S", "sh-100");
    trace.call("sleep-100", 59, 300, 0);
    trace.event(10, "sleep-100", "sys_enter: NR 230 (0, 0, 0, 0, 0, 0)");
    nap(&mut trace, "sleep-100", each_us);
    trace.event(1, "sleep-100", "sys_exit: NR 230 = 0");
    trace.event(20, "sleep-100", "sys_enter: NR 231 (0, 0, 0, 0, 0, 0)");
    trace.wake(1, "sleep-100", SHELL);
    trace.switch(1, "sleep-100", "Z", SHELL);
    trace.event(1, SHELL, "sys_exit: NR 61 = 100");
    trace
}

#[test]
fn a_child_made_once_is_not_started_again_and_again() {
    let result = once(2_000_000).explain();
    assert!(!kinds(&result).contains(&"child-process"), "{:#?}", result.findings);
    let first = &result.findings[0];
    assert!(first.summary.contains("sleep") && first.summary.contains("nanosleep"), "{first:#?}");
}

/// A pool of threads is made at once and then asked by turns, one wakes the master.
fn made_at_once(threads: u32, rounds: u32) -> Trace {
    const MASTER: &str = "node-10";
    let mut trace = Trace::new();
    for n in 0..threads {
        let child = format!("comm=node pid=10 child_comm=node child_pid={}", 20 + n);
        trace.event(1, MASTER, &format!("sched_process_fork: {child}"));
    }
    for n in 0..threads {
        let worker = format!("node-{}", 20 + n);
        trace.event(1, &worker, "sys_enter: NR 202 (7f00, 0, 0, 0, 0, 0)");
        trace.switch(1, &worker, "S", MASTER);
    }
    for n in 0..rounds {
        let worker = format!("node-{}", 20 + n % threads);
        trace.wake(1, MASTER, &worker);
        trace.event(1, MASTER, "sys_enter: NR 202 (7f10, 0, 0, 0, 0, 0)");
        trace.switch(1, MASTER, "S", &worker);
        trace.event(1, &worker, "sys_exit: NR 202 = 0");
        trace.now += 5_000;
        trace.wake(1, &worker, MASTER);
        trace.event(1, &worker, "sys_enter: NR 202 (7f00, 0, 0, 0, 0, 0)");
        trace.switch(1, &worker, "S", MASTER);
        trace.event(1, MASTER, "sys_exit: NR 202 = 0");
    }
    for n in 0..threads {
        let worker = format!("node-{}", 20 + n);
        trace.wake(1, MASTER, &worker);
        trace.switch(1, MASTER, "R", &worker);
        trace.event(1, &worker, "sys_enter: NR 60 (0, 0, 0, 0, 0, 0)");
        trace.switch(1, &worker, "Z", MASTER);
    }
    trace
}

#[test]
fn threads_made_at_once_are_not_started_again_and_again() {
    let result = made_at_once(12, 100).explain();
    assert!(!kinds(&result).contains(&"child-process"), "{:#?}", result.findings);
}

/// A program closes many files at no cost and then sockets that take the same each.
fn step() -> Trace {
    let mut trace = Trace::new();
    for n in 0..180 {
        trace.call("python-9", 3, if n < 120 { 3 } else { 15_000 + n % 7 }, 0);
    }
    trace
}

#[test]
fn a_step_of_two_costs_does_not_grow() {
    let result = step().explain();
    assert!(!kinds(&result).contains(&"superlinear"), "{:#?}", result.findings);
}

/// A server's `poll` looks at a set that only grows.
fn leaks() -> Trace {
    let mut trace = Trace::new();
    trace.switch(1, OTHER, "R", "srv-9");
    for n in 0..1_000 {
        trace.event(20, "srv-9", "sys_enter: NR 7 (7f00, 0, 0, 0, 0, 0)");
        trace.event(20 + n / 4, "srv-9", "sys_exit: NR 7 = 1");
        trace.call("srv-9", 0, 5, 10);
        if n % 100 == 0 {
            trace.switch(1, "srv-9", "R", OTHER);
            trace.switch(10, OTHER, "R", "srv-9");
        }
    }
    trace
}

#[test]
fn a_poll_of_a_set_that_grows_is_told() {
    let result = leaks().explain();
    let grows = result.findings.iter().find(|finding| word(finding) == "superlinear");
    let grows = grows.unwrap_or_else(|| panic!("{:#?}", result.findings));
    assert!(grows.summary.contains("poll"), "{grows:#?}");
}

/// Two programs beside each other, one with a child of its own name.
fn two() -> Trace {
    let mut trace = Trace::new();
    let fork = "sched_process_fork: comm=db pid=20 child_comm=db child_pid=21";
    trace.event(1, "db-20", fork);
    trace.event(1, "db-20", "sys_enter: NR 230 (0, 0, 0, 0, 0, 0)");
    trace.switch(1, "db-20", "S", "db-21");
    for n in 0..100 {
        trace.event(1, "db-21", "sys_enter: NR 74 (3, 0, 0, 0, 0, 0)");
        trace.switch(1, "db-21", "D", "log-30");
        trace.event(1, "log-30", "sys_enter: NR 17 (3, 0, 0, 0, 0, 0)");
        trace.event(5_000, "log-30", &format!("sys_exit: NR 17 = {}", 10_000 + n * 9_000));
        trace.wake(1, "log-30", "db-21");
        trace.switch(1, "log-30", "R", "db-21");
        trace.event(1, "db-21", "sys_exit: NR 74 = 0");
    }
    trace
}

#[test]
fn a_name_that_is_asked_about_is_all_that_is_told_of() {
    let result = two().explain_comm("db");
    assert!(result.findings.iter().all(|f| f.subject.contains("db")), "{:#?}", result.findings);
    assert!(result.findings.iter().any(|f| f.summary.contains("fsync")), "{:#?}", result.findings);
    let nobody = two().try_comm("nonesuch").expect_err("no such thread").to_string();
    assert!(["nonesuch", "db", "log"].iter().all(|name| nobody.contains(name)), "{nobody}");
}

#[test]
fn a_recording_of_some_threads_is_told() {
    let mut trace = Trace::new();
    for _ in 0..100 {
        trace.event(1, "own-9", "sys_enter: NR 0 (3, 0, 1, 0, 0, 0)");
        trace.switch(1, "own-9", "S", OTHER);
        // What OTHER does, and who follows it, is not recorded.
        trace.switch(5_000, "swapper/0-0", "R", "own-9");
        trace.event(1, "own-9", "sys_exit: NR 0 = 1");
    }
    let said = |result: &ExplainResult| result.warnings.iter().any(|w| w.contains("only some"));
    assert!(said(&trace.explain()));
    assert!(!said(&two().explain()));
}

#[test]
fn a_program_that_sleeps_is_told_though_only_it_is_recorded() {
    let mut trace = Trace::new();
    trace.call("python3-9", 59, 300, 0);
    for _ in 0..60 {
        trace.event(1, "client-9", "sys_enter: NR 45 (3, 0, 1, 0, 0, 0)");
        trace.switch(1, "client-9", "S", OTHER);
        trace.now += 40_000;
        trace.event(1, "client-9", "sys_exit: NR 45 = 1");
    }
    let first = |result: ExplainResult| {
        let first = result.findings.first().unwrap_or_else(|| panic!("nothing: {result:#?}"));
        assert!(
            first.summary.contains("client") && first.summary.contains("recvfrom"),
            "{first:?}"
        );
    };
    first(trace.explain());
}

/// Every command that would confirm a finding can be pasted.
fn pastes(result: &ExplainResult) {
    for finding in &result.findings {
        let mut bash = Command::new("bash");
        let bash = bash.args(["-n", "-c", &finding.confirm]).stdin(Stdio::null());
        let Ok(out) = bash.output() else { return };
        assert!(out.status.success(), "{}: {out:?}", finding.confirm);
        assert!(!finding.confirm.contains(" ("), "{}", finding.confirm);
    }
}

#[test]
fn what_confirms_can_be_pasted() {
    for trace in [once(2_000_000), made_at_once(12, 100), step(), leaks(), two()] {
        pastes(&trace.explain());
    }
}

#[test]
fn naps_of_one_that_nobody_waits_for_are_no_alarm() {
    let mut trace = Trace::new();
    for _ in 0..100 {
        trace.event(1, "qemu-9", "sys_enter: NR 271 (7f00, 1, 0, 0, 0, 0)");
        nap(&mut trace, "qemu-9", 20_000);
        trace.event(1, "qemu-9", "sys_exit: NR 271 = 0");
    }
    let result = trace.explain();
    assert!(result.findings.iter().all(|f| f.severity == Severity::Low), "{result:#?}");
}
