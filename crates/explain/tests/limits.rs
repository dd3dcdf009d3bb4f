//! Limits of the host: a cgroup's quota beside others that want the CPUs, its I/O limit, one CPU
//! for all; and who can't have woken whom.

use crate::common;

use common::{kinds, Trace};
use vmeter_explain::result::{ExplainResult, Severity};

const OTHER: &str = "cc-50";
const SHOP: &str = "shop-7";

fn first(result: &ExplainResult) -> &str {
    result.findings.first().map_or("", |finding| &finding.summary)
}

/// A thread computes, has used up its quota, and goes on at multiples of 100 ms; others' slices of
/// 12 ms keep it waiting in between.
fn throttled(period_us: u64) -> Trace {
    let mut trace = Trace::new();
    trace.now = 10_000_000;
    for n in 1..30 {
        trace.switch(1, OTHER, "R", SHOP);
        for _ in 0..2 {
            trace.switch(3_000, SHOP, "R", OTHER);
            trace.switch(12_000 + 700 * (n % 3), OTHER, "R", SHOP);
        }
        trace.call(SHOP, 39, 1, 0);
        trace.switch(4_000, SHOP, "R", OTHER);
        trace.now = 10_000_000 + n * period_us + (n % 4) * 600;
    }
    trace
}

#[test]
fn a_quota_shows_though_others_have_the_cpus() {
    let result = throttled(100_000).explain();
    assert!(first(&result).contains("throttled"), "{:#?}", result.findings);
    let [_, most] = result.findings[0].saving_ci95_s.expect("an interval");
    assert!(most <= 3.0, "no more than the trace: {most}");
    let result = throttled(87_000).explain();
    assert!(!first(&result).contains("throttled"), "{:#?}", result.findings);
}

/// A thread computes for 5 ms of some periods, and waits for the rest of them while another has the
/// CPU; each begins late by as much as `late_us` says.
fn few_periods(period_us: u64, late_us: [u64; 5]) -> Trace {
    let mut trace = Trace::new();
    trace.now = 10_000_000;
    trace.switch(1, OTHER, "R", SHOP);
    for (n, late) in (1..).zip(late_us) {
        trace.call(SHOP, 39, 1, 0);
        trace.switch(5_000, SHOP, "R", OTHER);
        trace.now = 10_000_000 + n * period_us + late;
        trace.switch(1, OTHER, "R", SHOP);
    }
    trace.switch(5_000, SHOP, "R", OTHER);
    trace
}

#[test]
fn a_few_periods_show_a_quota_if_they_begin_at_the_same_millisecond() {
    let exact = [0, 100, 500, 50, 200];
    let told = |trace: Trace| first(&trace.explain()).contains("throttled");
    assert!(told(few_periods(100_000, exact)));
    assert!(!told(few_periods(87_000, exact)));
    assert!(!told(few_periods(100_000, [0, 9_000, 3_000, 12_000, 6_000])));
}

/// Reads that a device ends, in which the kernel lets requests go that a limit has held back, or not.
fn held_back(limit: bool) -> Trace {
    let mut trace = Trace::new();
    for _ in 0..40 {
        trace.event(50, "dd-9", "sys_enter: NR 0 (0, 0, 0, 0, 0, 0)");
        trace.switch(5, "dd-9", "D", OTHER);
        trace.now += 20_000;
        trace.switch(1, OTHER, "R", "kworker/1:1-33");
        let function = if limit { "blk_throtl_dispatch_work_fn" } else { "blk_mq_run_work_fn" };
        let begin = format!("workqueue_execute_start: work struct 0000000051: function {function}");
        trace.event(1, "kworker/1:1-33", &begin);
        trace.event(5, "kworker/1:1-33", "workqueue_execute_end: work struct 0000000051");
        trace.switch(1, "kworker/1:1-33", "I", OTHER);
        trace.flags = "..s1.";
        trace.event(200, OTHER, "softirq_entry: vec=4 [action=BLOCK]");
        trace.wake(1, OTHER, "dd-9");
        trace.event(1, OTHER, "softirq_exit: vec=4 [action=BLOCK]");
        trace.flags = ".....";
        trace.switch(1, OTHER, "R", "dd-9");
        trace.event(1, "dd-9", "sys_exit: NR 0 = 65536");
    }
    trace
}

#[test]
fn an_io_limit_is_named() {
    let result = held_back(true).explain();
    assert!(first(&result).contains("I/O limit"), "{:#?}", result.findings);
    assert!(!first(&held_back(false).explain()).contains("limit"));
}

/// One waits in an ioctl that the kernel has no name for until another, in a call, asks it.
#[test]
fn an_unknown_ioctl_that_ends_when_another_calls_is_no_lock() {
    let mut trace = Trace::new();
    for _ in 0..200 {
        trace.event(1, "warden-4", "sys_enter: NR 16 (3, c0502100, 0, 0, 0, 0)");
        trace.switch(1, "warden-4", "S", "jail-5");
        trace.event(300, "jail-5", "sys_enter: NR 258 (0, 0, 0, 0, 0, 0)");
        trace.now += 2_000;
        trace.wake(1, "jail-5", "warden-4");
        trace.switch(1, "jail-5", "S", "warden-4");
        trace.event(1, "warden-4", "sys_exit: NR 16 = 0");
        trace.event(40, "warden-4", "sys_enter: NR 16 (3, c0182101, 0, 0, 0, 0)");
        trace.wake(1, "warden-4", "jail-5");
        trace.event(1, "warden-4", "sys_exit: NR 16 = 0");
        trace.switch(1, "warden-4", "R", "jail-5");
        trace.event(1, "jail-5", "sys_exit: NR 258 = 0");
        trace.switch(1, "jail-5", "R", "warden-4");
    }
    let result = trace.explain();
    assert!(!kinds(&result).contains(&"lock"), "{:#?}", result.findings);
    assert!(result.findings.iter().all(|f| f.severity < Severity::High), "{:#?}", result.findings);
}

/// Switches from the idle thread are not recorded: that is no recording of some threads only.
#[test]
fn switches_from_idle_that_are_missing_are_no_gaps() {
    let mut trace = Trace::new();
    for n in 0..200 {
        let worker = if n % 2 == 0 { "dd-11" } else { "dd-12" };
        trace.event(1, "<idle>-0", "irq_handler_entry: irq=36 name=virtio1");
        trace.event(1, worker, "sys_exit: NR 1 = 16384");
        trace.event(1, worker, "sys_enter: NR 1 (0, 0, 0, 0, 0, 0)");
        trace.switch(20, worker, "D", "swapper/0-0");
    }
    let result = trace.explain();
    let warned = result.warnings.iter().any(|warning| warning.contains("only some threads"));
    assert!(!warned, "{:#?}", result.warnings);
}
