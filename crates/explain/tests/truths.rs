//! What a trace does not tell is not said: who had a CPU whom nobody saw leave it, who is joined,
//! who waits for the end of its own kind, and what comes by the network.

use crate::common;

use common::{kinds, Trace};

const OTHER: &str = "cc-50";
const FUTEX: &str = "NR 202 (7f00, 0, 0, 0, 0, 0)";

#[test]
fn who_is_not_seen_to_leave_a_cpu_that_others_have_has_not_computed() {
    let mut trace = Trace::new();
    trace.switch(1, OTHER, "R", "monitor-78");
    for _ in 0..100 {
        trace.switch(1_000, OTHER, "S", "as-51");
        trace.switch(1_000, "as-51", "S", OTHER);
    }
    let told = trace.outline();
    let monitor = told.split_inclusive('\n').skip_while(|line| !line.starts_with("monitor"));
    let monitor: String = monitor.skip(1).take_while(|line| line.starts_with(' ')).collect();
    assert!(!monitor.contains("on a CPU"), "{told}");
}

#[test]
fn who_joins_a_thread_waits_for_no_lock() {
    let (main, worker) = ("java-10", "java-11");
    let mut trace = Trace::new();
    trace.event(1, main, &format!("sys_enter: {FUTEX}"));
    trace.switch(1, main, "S", worker);
    for n in 0..200 {
        trace.call(worker, 202, 2_000, 0);
        trace.event(1_000, worker, &format!("sys_enter: NR 9 ({n}, 0, 0, 0, 0, 0)"));
        trace.event(1_000, worker, "sys_exit: NR 9 = 1");
    }
    trace.event(1, worker, "sys_enter: NR 60 (0, 0, 0, 0, 0, 0)");
    trace.wake(1, worker, main);
    trace.switch(1, worker, "X", main);
    trace.event(1, main, "sys_exit: NR 202 = 0");
    let result = trace.explain();
    assert!(!kinds(&result).contains(&"lock"), "{:#?}", result.findings);
}

/// A parent and children of the same name, whose calls are not recorded; it waits for each.
#[test]
fn who_waits_for_its_children_waits_for_no_lock() {
    let mut trace = Trace::new();
    let parent = "python3-10";
    for n in 0..40 {
        let child = format!("python3-{}", 100 + n);
        trace.switch(1, parent, "S", &child);
        trace.now += 20_000;
        trace.wake(1, &child, parent);
        trace.switch(1, &child, "S", parent);
        trace.now += 100;
    }
    let result = trace.explain();
    let said = |text: &str| result.findings.iter().any(|told| told.summary.contains(text));
    assert!(!said("lock") && !said("one for the other"), "{:#?}", result.findings);
}

#[test]
fn what_comes_by_the_network_is_no_device() {
    let mut trace = Trace::new();
    trace.event(1, "trace-cmd-30", "sys_exit: NR 1 = 1");
    for _ in 0..100 {
        trace.switch(1, "client-30", "S", OTHER);
        trace.now += 5_000;
        trace.flags = "..s1.";
        trace.event(1, OTHER, "softirq_entry: vec=3 [action=NET_RX]");
        trace.wake(1, OTHER, "client-30");
        trace.event(1, OTHER, "softirq_exit: vec=3 [action=NET_RX]");
        trace.flags = ".....";
        trace.switch(1, OTHER, "R", "client-30");
        trace.now += 50;
    }
    let result = trace.explain_comm("client");
    let said = |text: &str| result.findings.iter().any(|told| told.summary.contains(text));
    assert!(!said("device") && said("network"), "{:#?}", result.findings);
}
