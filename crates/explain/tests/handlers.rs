//! What a stranger found false of handlers of a port: who sleeps, who is made, what computes.

use crate::common;

use common::{word, Trace, VCPU};
use vmeter_explain::result::Finding;

const OTHER: &str = "cc-50";
const KEEPER: &str = "keeper-70";

/// The first finding about the slow port.
fn first(trace: Trace) -> Finding {
    let findings = trace.explain().findings;
    findings.into_iter().next().expect("a finding")
}

/// A thread sleeps in clock_nanosleep; nobody else has the CPU meanwhile.
fn nap(trace: &mut Trace, thread: &str, us: u64) {
    trace.event(1, thread, "sys_enter: NR 230 (0, 0, 0, 0, 0, 0)");
    let fires = "hrtimer_expire_entry: hrtimer=0x1 function=hrtimer_wakeup now=1";
    interrupted(trace, thread, us, [fires, "hrtimer_expire_exit: hrtimer=0x1"]);
    trace.event(1, thread, "sys_exit: NR 230 = 0");
}

/// A thread sleeps until an interrupt of the idle CPU, of which these are the first and last event, wakes it.
fn interrupted(trace: &mut Trace, thread: &str, us: u64, [begins, ends]: [&str; 2]) {
    trace.switch(1, thread, "S", "swapper/0-0");
    trace.now += us;
    trace.flags = "d.h1.";
    trace.event(1, "<idle>-0", begins);
    trace.wake(1, "<idle>-0", thread);
    trace.event(1, "<idle>-0", ends);
    trace.flags = ".....";
    trace.switch(1, "swapper/0-0", "R", thread);
}

#[test]
fn another_s_sleep_is_not_the_port_s_own() {
    let trace = Trace::rounds(60, |trace, _| {
        trace.event(1, VCPU, "sys_enter: NR 73 (3, 2, 0, 0, 0, 0)");
        trace.switch(1, VCPU, "S", KEEPER);
        nap(trace, KEEPER, 3_000);
        trace.event(1, KEEPER, "sys_enter: NR 73 (3, 8, 0, 0, 0, 0)");
        trace.wake(1, KEEPER, VCPU);
        trace.event(1, KEEPER, "sys_exit: NR 73 = 0");
        trace.switch(1, KEEPER, "S", VCPU);
        trace.event(1, VCPU, "sys_exit: NR 73 = 0");
    });
    let first = first(trace);
    assert!(first.summary.contains("keeper"), "{first:#?}");
    assert!(!first.summary.contains("(IDE 1) sleeps"), "{first:#?}");
}

#[test]
fn one_that_is_stopped_does_not_sleep() {
    let trace = Trace::rounds(60, |trace, _| {
        trace.event(1, VCPU, "sys_enter: NR 0 (3, 0, 0, 0, 0, 0)");
        trace.wake(1, VCPU, "io-1-60");
        trace.switch(1, VCPU, "S", "io-1-60");
        trace.switch(1, "io-1-60", "T", KEEPER);
        nap(trace, KEEPER, 4_000);
        trace.event(1, KEEPER, "sys_enter: NR 62 (3c, 12, 0, 0, 0, 0)");
        trace.wake(1, KEEPER, "io-1-60");
        trace.event(1, KEEPER, "sys_exit: NR 62 = 0");
        trace.switch(1, KEEPER, "S", "io-1-60");
        trace.wake(5, "io-1-60", VCPU);
        trace.switch(1, "io-1-60", "S", VCPU);
        trace.event(1, VCPU, "sys_exit: NR 0 = 1");
    });
    let first = first(trace);
    assert_eq!(word(&first), "paused", "{first:#?}");
    assert_eq!(first.summary.matches('(').count(), first.summary.matches(')').count());
}

/// A process each time; `forks` says whether it is recorded who is made.
fn spawns(forks: bool) -> Trace {
    Trace::rounds(40, |trace, n| {
        let child = format!("true-{}", 200 + n);
        trace.event(1, VCPU, "sys_enter: NR 435 (0, 0, 0, 0, 0, 0)");
        if forks {
            let made = format!("comm=kvm pid=100 child_comm=kvm child_pid={}", 200 + n);
            trace.event(1, VCPU, &format!("sched_process_fork: {made}"));
        }
        trace.switch(1, VCPU, "D", &child);
        for _ in 0..20 {
            trace.call(&child, 13, 5, 0);
        }
        trace.event(1, &child, "sys_enter: NR 231 (0, 0, 0, 0, 0, 0)");
        trace.wake(1, &child, VCPU);
        // It has its parent's CPU until it is gone.
        trace.switch(400, &child, "Z", VCPU);
        trace.event(1, VCPU, "sys_exit: NR 435 = 200");
    })
}

#[test]
fn a_process_each_time_is_no_burst_of_its_calls() {
    for forks in [true, false] {
        let first = first(spawns(forks));
        assert_eq!(word(&first), "child-process", "{first:#?}");
        assert!(
            first.summary.contains("waits in") && first.summary.contains("true, which was started"),
            "{first:#?}"
        );
    }
}

#[test]
fn calls_that_wait_each_time_are_no_burst() {
    let trace = Trace::rounds(60, |trace, _| {
        for _ in 0..16 {
            trace.event(1, VCPU, "sys_enter: NR 17 (3, 0, 1000, 0, 0, 0)");
            trace.now += 9;
            let block =
                ["softirq_entry", "softirq_exit"].map(|e| format!("{e}: vec=4 [action=BLOCK]"));
            interrupted(trace, VCPU, 30, [&block[0], &block[1]]);
            trace.event(5, VCPU, "sys_exit: NR 17 = 4096");
        }
    });
    let first = first(trace);
    assert_eq!(word(&first), "block-io", "{first:#?}");
    assert!(first.summary.contains("pread64"), "{first:#?}");
}

/// A call that has both CPUs' workers run something, and computes for so long besides.
fn compacts(us: u64) -> Trace {
    const WORKER: &str = "kworker/0:1-30";
    Trace::rounds(60, |trace, _| {
        trace.event(1, VCPU, "sys_enter: NR 1 (3, 0, 1, 0, 0, 0)");
        trace.now += us;
        for cpu in 0..2 {
            let queued = format!(
                "workqueue_queue_work: work struct={cpu:x} function=lru_add_drain_per_cpu \
                 workqueue=mm_percpu_wq req_cpu={cpu} cpu={cpu}"
            );
            trace.event(1, VCPU, &queued);
        }
        for cpu in 0..2 {
            let worker = WORKER.replace("0:1-30", &format!("{cpu}:1-3{cpu}"));
            trace.wake(1, VCPU, &worker);
            trace.switch(1, VCPU, "S", &worker);
            let begins = "workqueue_execute_start: work struct 0: function lru_add_drain_per_cpu";
            trace.cpu = cpu;
            trace.event(1, &worker, &begins.replace("struct 0", &format!("struct {cpu:x}")));
            trace.event(
                30,
                &worker,
                &begins.replace("start", "end").replace("struct 0", &format!("struct {cpu:x}")),
            );
            trace.cpu = 0;
            trace.wake(1, &worker, VCPU);
            trace.switch(1, &worker, "S", VCPU);
        }
        trace.event(1, VCPU, "sys_exit: NR 1 = 1");
    })
}

#[test]
fn a_call_that_computes_does_not_wait_for_its_workers() {
    let first = first(compacts(2_000));
    assert_eq!(word(&first), "syscall-cpu", "{first:#?}");
    assert!(first.summary.contains("busy in write"), "{first:#?}");
    let claims: Vec<&str> = first.chain.iter().map(|link| link.claim.as_str()).collect();
    assert!(!claims.iter().any(|claim| claim.contains("are this wait")), "{claims:#?}");
}

#[test]
fn a_grace_period_is_waited_for_in_a_call_that_is_named() {
    let trace = Trace::rounds(60, |trace, _| {
        trace.event(1, VCPU, "sys_enter: NR 324 (1, 0, 0, 0, 0, 0)");
        trace.switch(1, VCPU, "D", "rcu_preempt-15");
        trace.switch(1, "rcu_preempt-15", "S", OTHER);
        trace.now += 3_000;
        trace.flags = "d.h1.";
        trace.wake(1, OTHER, "rcu_preempt-15");
        trace.flags = ".....";
        trace.switch(1, OTHER, "R", "rcu_preempt-15");
        trace.wake(1, "rcu_preempt-15", VCPU);
        trace.switch(1, "rcu_preempt-15", "S", VCPU);
        trace.event(1, VCPU, "sys_exit: NR 324 = 0");
    });
    let first = first(trace);
    assert!(first.summary.contains("in membarrier"), "{first:#?}");
}

#[test]
fn a_work_item_that_ran_once_is_not_what_is_waited_for() {
    const WORKER: &str = "kworker/0:1-30";
    let item = |trace: &mut Trace, function: &str, us: u64| {
        let begins = format!("workqueue_execute_start: work struct 0: function {function}");
        trace.event(1, WORKER, &begins);
        trace.event(us, WORKER, &begins.replace("start", "end"));
    };
    let trace = Trace::rounds(60, |trace, n| {
        trace.event(1, VCPU, "sys_enter: NR 16 (5, 4040ae79, 0, 0, 0, 0)");
        trace.switch(1, VCPU, "D", WORKER);
        if n == 5 {
            item(trace, "page_reporting_process", 13_000);
        }
        trace.switch(1, WORKER, "I", OTHER);
        trace.now += 3_000;
        trace.flags = "d.h1.";
        trace.wake(1, OTHER, WORKER);
        trace.flags = ".....";
        trace.switch(1, OTHER, "R", WORKER);
        item(trace, "srcu_invoke_callbacks", 5);
        trace.wake(1, WORKER, VCPU);
        trace.switch(1, WORKER, "I", VCPU);
        trace.event(1, VCPU, "sys_exit: NR 16 = 0");
    });
    let first = first(trace);
    assert!(first.summary.contains("KVM_IOEVENTFD"), "{first:#?}");
    assert!(!first.summary.contains("page_reporting"), "{first:#?}");
}
