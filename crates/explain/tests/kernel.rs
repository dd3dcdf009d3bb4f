//! What threads wait for inside the kernel: a loop device's file, memory that is too little,
//! another writer of the same file.

use crate::common;

use common::{word, Trace};

const OTHER: &str = "cc-50";

/// A disk's interrupt, which comes while another program runs, wakes a thread.
fn disk_wakes(trace: &mut Trace, woken: &str) {
    trace.flags = "..s1.";
    trace.event(1, OTHER, "softirq_entry: vec=4 [action=BLOCK]");
    trace.wake(1, OTHER, woken);
    trace.event(1, OTHER, "softirq_exit: vec=4 [action=BLOCK]");
    trace.flags = ".....";
}

/// A program reads from a loop device, whose worker reads its file from a server that naps.
fn loop_device() -> Trace {
    let (reader, worker, server) = ("dd-10", "kworker/u4:1-20", "fuse-30");
    let mut trace = Trace::new();
    for n in 0..60 {
        trace.event(1, reader, "sys_enter: NR 17 (3, 0, 1000, 0, 0, 0)");
        trace.wake(1, reader, worker);
        trace.switch(1, reader, "D", worker);
        let item = format!("work struct 0x{}: function loop_workfn", 10 + n);
        trace.event(1, worker, &format!("workqueue_execute_start: {item}"));
        trace.wake(1, worker, server);
        trace.switch(1, worker, "S", server);
        trace.event(1, server, "sys_exit: NR 0 = 80");
        trace.event(1, server, "sys_enter: NR 230 (0, 0, 0, 0, 0, 0)");
        trace.switch(1, server, "S", OTHER);
        trace.now += 4_000;
        trace.flags = "d.h1.";
        trace.event(1, OTHER, "hrtimer_expire_entry: hrtimer=0x1 function=hrtimer_wakeup now=1");
        trace.wake(1, OTHER, server);
        trace.event(1, OTHER, "hrtimer_expire_exit: hrtimer=0x1");
        trace.flags = ".....";
        trace.switch(1, OTHER, "R", server);
        trace.event(1, server, "sys_exit: NR 230 = 0");
        trace.event(1, server, "sys_enter: NR 1 (3, 0, 1000, 0, 0, 0)");
        trace.wake(1, server, worker);
        trace.event(1, server, "sys_exit: NR 1 = 4096");
        trace.event(1, server, "sys_enter: NR 0 (3, 0, 1000, 0, 0, 0)");
        trace.switch(1, server, "S", worker);
        trace.wake(1, worker, reader);
        trace.event(1, worker, "workqueue_execute_end: work struct 0x1: function loop_workfn");
        trace.switch(1, worker, "I", reader);
        trace.event(1, reader, "sys_exit: NR 17 = 4096");
        trace.now += 50;
    }
    trace
}

#[test]
fn a_loop_device_waits_for_who_has_its_file() {
    let result = loop_device().explain();
    let first = &result.findings[0];
    assert!(first.summary.contains("fuse") && word(first) == "timer-wait", "{first:#?}");
}

/// A program touches pages that are not there, again and again; `short` has the kernel run what
/// it runs where memory is too little.
fn pages(short: bool) -> Trace {
    let (own, worker) = ("batch-10", "kworker/0:1-20");
    let mut trace = Trace::new();
    for n in 0..200 {
        trace.event(40, own, "page_fault_user: address=0x7f00 ip=0x40 error_code=0x4");
        if short && n % 2 == 0 {
            let queued =
                "work struct=0x1 function=vmpressure_work_fn workqueue=events req_cpu=64 cpu=0";
            trace.event(1, own, &format!("workqueue_queue_work: {queued}"));
            trace.wake(1, own, worker);
        }
        trace.switch(1, own, "D", OTHER);
        trace.now += 2_000;
        disk_wakes(&mut trace, own);
        trace.switch(1, OTHER, "R", own);
        // A call now and then: calls are recorded, and the waits are in none.
        trace.call(own, 39, 1, 10);
    }
    trace
}

#[test]
fn memory_that_is_too_little_is_told_from_a_mapped_file() {
    for (short, says) in [(true, "too little memory"), (false, "a mapped file")] {
        let result = pages(short).explain();
        let first = &result.findings[0];
        assert!(first.summary.contains(says), "{first:#?}");
    }
}

/// Writers append to one file: who has its lock waits for the disk, the next for it.
fn writers() -> Trace {
    let mut trace = Trace::new();
    let names = ["log-10", "log-11", "log-12"];
    for name in &names[1..] {
        trace.event(1, name, "sys_enter: NR 1 (3, 0, 1000, 0, 0, 0)");
        trace.switch(1, name, "D", OTHER);
    }
    trace.event(1, names[0], "sys_enter: NR 1 (3, 0, 1000, 0, 0, 0)");
    for n in 0..300 {
        let (own, next) = (names[n % 3], names[(n + 1) % 3]);
        trace.now += 300;
        trace.wake(1, own, next);
        trace.event(1, own, "sys_exit: NR 1 = 4096");
        trace.event(1, own, "sys_enter: NR 1 (3, 0, 1000, 0, 0, 0)");
        trace.switch(1, own, "D", next);
    }
    trace
}

#[test]
fn writers_of_one_file_wait_for_its_lock() {
    let result = writers().explain();
    let first = &result.findings[0];
    assert_eq!(word(first), "lock", "{first:#?}");
    assert!(
        first.summary.contains("log wait in write for a lock that another of these threads has"),
        "{first:?}"
    );
}

/// A program on another CPU waits for a kernel worker, `rounds` times, beside a guest or alone.
fn writeback(trace: &mut Trace) {
    const WORKER: &str = "kworker/u4:1-20";
    trace.cpu = 1;
    trace.event(1, OTHER, "sys_enter: NR 162 (0, 0, 0, 0, 0, 0)");
    trace.wake(1, OTHER, WORKER);
    trace.switch(1, OTHER, "D", WORKER);
    trace.event(1, WORKER, "workqueue_execute_start: work struct 0x10: function wb_workfn");
    trace.now += 3_000;
    trace.wake(1, WORKER, OTHER);
    trace.event(1, WORKER, "workqueue_execute_end: work struct 0x10: function wb_workfn");
    trace.switch(1, WORKER, "I", OTHER);
    trace.event(1, OTHER, "sys_exit: NR 162 = 0");
    trace.cpu = 0;
}

#[test]
fn what_runs_beside_a_guest_is_not_why_it_is_slow() {
    let beside = Trace::rounds(100, |trace, _| {
        trace.now += 10;
        writeback(trace);
        trace.now -= 3_000;
    });
    let told = |result: &vmeter_explain::result::ExplainResult| {
        let mut all = result.findings.iter().map(|finding| finding.summary.clone());
        all.find(|summary| summary.contains("cc ") || summary.starts_with("cc"))
    };
    assert_eq!(told(&beside.explain()), None);
    let mut alone = Trace::new();
    (0..100).for_each(|_| writeback(&mut alone));
    assert!(told(&alone.explain()).is_some(), "by itself it is told of");
}
