//! Whom threads wait for: a program that is run, a process that signals, an idle pool's master.

use crate::common;

use common::{kinds, word, Trace};
use vmeter_explain::result::{ExplainResult, Severity};

const SHELL: &str = "sh-5";
const OTHER: &str = "cc-50";

/// A shell runs a program `runs` times, which sleeps in `read` until data comes by the network.
fn script(runs: u32, each_us: u64) -> Trace {
    let mut trace = Trace::new();
    for n in 0..runs {
        let (fork, curl) = (format!("sh-{}", 100 + n), format!("curl-{}", 100 + n));
        trace.event(1, SHELL, "sys_enter: NR 56 (0, 0, 0, 0, 0, 0)");
        let child = format!("comm=sh pid=5 child_comm=sh child_pid={}", 100 + n);
        trace.event(1, SHELL, &format!("sched_process_fork: {child}"));
        trace.event(1, SHELL, &format!("sys_exit: NR 56 = {}", 100 + n));
        trace.event(1, SHELL, "sys_enter: NR 61 (0, 0, 0, 0, 0, 0)");
        trace.switch(1, SHELL, "S", &fork);
        trace.call(&curl, 59, 300, 0);
        trace.event(10, &curl, "sys_enter: NR 0 (3, 0, 1, 0, 0, 0)");
        trace.switch(1, &curl, "S", OTHER);
        trace.now += each_us;
        trace.flags = "..s1.";
        trace.event(1, OTHER, "softirq_entry: vec=3 [action=NET_RX]");
        trace.wake(1, OTHER, &curl);
        trace.event(1, OTHER, "softirq_exit: vec=3 [action=NET_RX]");
        trace.flags = ".....";
        trace.switch(1, OTHER, "R", &curl);
        trace.event(1, &curl, "sys_exit: NR 0 = 1");
        trace.event(20, &curl, "sys_enter: NR 231 (0, 0, 0, 0, 0, 0)");
        trace.wake(1, &curl, SHELL);
        trace.switch(1, &curl, "Z", SHELL);
        trace.event(1, SHELL, &format!("sys_exit: NR 61 = {}", 100 + n));
    }
    trace
}

#[test]
fn a_script_waits_for_what_its_program_waits_for() {
    let slow = script(12, 300_000).explain();
    let first = &slow.findings[0];
    assert_eq!(word(first), "network", "{first:#?}");
    assert!(first.summary.contains("curl") && first.summary.contains("network"), "{first:?}");
}

/// A shell waits for a program, which wakes it when it ends: perf has no number for that any more.
fn ended() -> String {
    let switch = |prev: &str, state: &str, next: &str| {
        let ((a, an), (b, bn)) =
            (prev.rsplit_once('-').expect("a name"), next.rsplit_once('-').expect("a name"));
        format!("sched:sched_switch: prev_comm={a} prev_pid={an} prev_prio=120 prev_state={state} ==> next_comm={b} next_pid={bn} next_prio=120")
    };
    let enters = |number: u32| format!("raw_syscalls:sys_enter: NR {number} (0, 0, 0, 0, 0, 0)");
    let mut text = String::new();
    for n in 0..20_u32 {
        let node = format!("node-{}", 20 + n);
        let wakes = "sched:sched_waking: comm=sh pid=5 prio=120 target_cpu=000".to_string();
        let events = [
            ("sh", 5, 1, enters(61)),
            ("sh", 5, 2, switch("sh-5", "S", &node)),
            ("node", 20 + n as i32, 5_000, enters(231)),
            (":-1", -1, 5_010, wakes),
            (":-1", -1, 5_020, switch(&node, "X", "sh-5")),
            ("sh", 5, 5_030, format!("raw_syscalls:sys_exit: NR 61 = {}", 20 + n)),
        ];
        for (comm, tid, us, event) in events {
            let us = 6_000 * n + us;
            text += &format!("{comm:>16} {tid:>5} [000]     1.{us:06}: {event}\n");
        }
    }
    text
}

#[test]
fn who_ends_wakes_though_perf_has_no_number_for_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("perf.txt");
    std::fs::write(&path, ended()).expect("a file");
    let told = vmeter_explain::outline(&[path], &vmeter_explain::Options::default());
    let told = told.expect("a trace");
    let shell = told.split("\n").skip_while(|line| !line.starts_with("sh"));
    let waits = shell.skip(1).take_while(|line| line.starts_with(' ')).collect::<Vec<_>>();
    assert!(
        waits
            .iter()
            .any(|line| line.contains("waits for node-* ") || line.contains("waits for node ")),
        "{told}"
    );
}

/// A master asks two workers by turns, and does something itself; the one that is not asked
/// idles in futex. The first has done so before anything of the master is recorded.
fn pool() -> Trace {
    const FUTEX: &str = "NR 202 (7f00, 0, 0, 0, 0, 0)";
    const MASTER: &str = "img-10";
    let workers = ["img-11", "img-12"];
    let mut trace = Trace::new();
    for worker in workers {
        trace.event(1, worker, &format!("sys_enter: {FUTEX}"));
        trace.switch(1, worker, "S", OTHER);
    }
    trace.now += 15_000;
    trace.switch(1, OTHER, "R", MASTER);
    for n in 0..50 {
        let worker = workers[n % 2];
        trace.now += 130;
        trace.event(1, MASTER, &format!("sys_enter: {FUTEX}"));
        trace.wake(1, MASTER, worker);
        trace.event(1, MASTER, "sys_exit: NR 202 = 1");
        trace.event(1, MASTER, "sys_enter: NR 271 (7f00, 1, 0, 0, 0, 0)");
        trace.switch(1, MASTER, "S", worker);
        trace.event(1, worker, "sys_exit: NR 202 = 0");
        trace.call(worker, 17, 300, 4096);
        trace.event(1, worker, "sys_enter: NR 1 (4, 0, 8, 0, 0, 0)");
        trace.wake(1, worker, MASTER);
        trace.event(1, worker, "sys_exit: NR 1 = 8");
        trace.event(1, worker, &format!("sys_enter: {FUTEX}"));
        trace.switch(1, worker, "S", MASTER);
        trace.event(1, MASTER, "sys_exit: NR 271 = 1");
    }
    trace
}

#[test]
fn a_pool_that_idles_waits_for_no_lock() {
    let result = pool().explain();
    assert!(!kinds(&result).contains(&"lock"), "{:#?}", result.findings);
}

#[test]
fn what_was_recorded_is_told_of_though_others_had_the_cpu_most_of_the_time() {
    let mut trace = Trace::new();
    trace.event(1, "trace-cmd-30", "sys_enter: NR 59 (0, 0, 0, 0, 0, 0)");
    trace.event(1, "node-30", "sys_exit: NR 59 = 0");
    for n in 0..300 {
        trace.now += 300;
        trace.call("node-30", 2, 60, 3);
        let next = ["cc-51", "ld-52", "as-53"][n % 3];
        trace.switch(1, "node-30", "R", next);
        trace.now += 5_000;
        trace.switch(1, next, "R", "node-30");
    }
    let result = trace.explain();
    let node = result.findings.iter().find(|finding| finding.subject.contains("node"));
    let node = node.unwrap_or_else(|| panic!("{:#?}", result.findings));
    assert!(node.chain[0].claim.contains("in open"), "{node:#?}");
}

/// One thread inflates and hands each read to a worker that idles in futex with a time-out
/// meanwhile; the worker tells the main loop, in ppoll, that it has read.
fn idle_worker(mutex: bool) -> Trace {
    const TIMED: &str = "NR 202 (7f00, 189, 0, 7f31, 0, ffffffff)";
    const PPOLL: &str = "NR 271 (7f00, 1, 0, 0, 0, 0)";
    let (main, worker, inflates) = ("img-10", "img-11", "img-12");
    let sleeps = if mutex { TIMED } else { PPOLL };
    let mut trace = Trace::new();
    for (thread, call) in [(main, sleeps), (worker, TIMED)] {
        trace.event(1, thread, &format!("sys_enter: {call}"));
        trace.switch(1, thread, "S", inflates);
    }
    for _ in 0..200 {
        trace.now += 1_000;
        trace.event(1, inflates, "sys_enter: NR 202 (7f00, 81, 1, 0, 0, 0)");
        trace.wake(1, inflates, worker);
        trace.event(1, inflates, "sys_exit: NR 202 = 1");
        trace.switch(1, inflates, "R", worker);
        trace.event(1, worker, "sys_exit: NR 202 = 0");
        trace.call(worker, 17, 20, 4096);
        let by_futex = "NR 202 (7f04, 81, 1, 0, 0, 0)";
        let tells = if mutex { by_futex } else { "NR 1 (4, 0, 8, 0, 0, 0)" };
        trace.event(1, worker, &format!("sys_enter: {tells}"));
        trace.wake(1, worker, main);
        let number = if mutex { 202 } else { 1 };
        trace.event(1, worker, &format!("sys_exit: NR {number} = 1"));
        trace.event(1, worker, &format!("sys_enter: {TIMED}"));
        trace.switch(1, worker, "S", main);
        let number = if mutex { 202 } else { 271 };
        trace.event(1, main, &format!("sys_exit: NR {number} = 1"));
        trace.event(5, main, &format!("sys_enter: {sleeps}"));
        trace.switch(1, main, "S", inflates);
    }
    trace
}

#[test]
fn a_worker_that_is_handed_its_work_and_tells_by_another_way_waits_for_no_lock() {
    let result = idle_worker(false).explain();
    assert!(!kinds(&result).contains(&"lock"), "{:#?}", result.findings);
}

/// Text of perf: one waits in membarrier for rcu_preempt, which a timer's interrupt wakes while
/// another computes, that makes system calls now and then or never does.
fn interrupted(calls: bool) -> String {
    let switch = |prev: (&str, u32), state: &str, next: (&str, u32)| {
        format!(
            "sched:sched_switch: prev_comm={} prev_pid={} prev_prio=120 prev_state={state} ==> next_comm={} next_pid={} next_prio=120",
            prev.0, prev.1, next.0, next.1
        )
    };
    let wakes = |(name, tid): (&str, u32)| {
        format!("sched:sched_waking: comm={name} pid={tid} prio=120 target_cpu=000")
    };
    let (own, grace, other) = (("hazptr", 10), ("rcu_preempt", 15), ("cruncher", 20));
    let mut text = String::new();
    for n in 0..100_u32 {
        let yields = |event: &str| if calls { event.to_string() } else { String::new() };
        let events = [
            (own, 10, "raw_syscalls:sys_enter: NR 324 (1, 0, 0, 0, 0, 0)".to_string()),
            (own, 20, wakes(grace)),
            (own, 30, switch(own, "S", grace)),
            (grace, 40, switch(grace, "I", other)),
            (other, 50, yields("raw_syscalls:sys_enter: NR 39 (0, 0, 0, 0, 0, 0)")),
            (other, 60, yields("raw_syscalls:sys_exit: NR 39 = 20")),
            (other, 9_000, wakes(grace)),
            (other, 9_010, switch(other, "R", grace)),
            (grace, 9_020, wakes(own)),
            (grace, 9_030, switch(grace, "I", own)),
            (own, 9_040, "raw_syscalls:sys_exit: NR 324 = 0".to_string()),
        ];
        for ((comm, tid), us, event) in events.into_iter().filter(|(.., event)| !event.is_empty()) {
            let us = 10_000 * n + us;
            let (s, us) = (1 + us / 1_000_000, us % 1_000_000);
            text += &format!("{comm:>16} {tid:>5} [000]     {s}.{us:06}: {event}\n");
        }
    }
    text
}

#[test]
fn whom_a_timer_interrupts_lets_no_grace_period_go_on() {
    for calls in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("perf.txt");
        std::fs::write(&path, interrupted(calls)).expect("a file");
        let told = vmeter_explain::outline(&[path], &vmeter_explain::Options::default());
        let told = told.expect("a trace");
        assert!(told.contains("waits for rcu_preempt"), "{told}");
        assert!(!told.contains("waits for cruncher"), "{calls}: {told}");
    }
}

#[test]
fn signals_save_no_less_than_their_handlers_take() {
    let handlers = |deliver: bool| {
        let mut trace = Trace::new();
        trace.switch(1, "swapper/0-0", "R", "solver-7");
        for _ in 0..400 {
            trace.now += 100;
            if deliver {
                let signal = "signal_deliver: sig=14 errno=0 code=128 sa_handler=1 sa_flags=0";
                trace.event(1, "solver-7", signal);
            }
            trace.now += 300;
            trace.event(1, "solver-7", "sys_enter: NR 15 (0, 0, 0, 0, 0, 0)");
            trace.event(1, "solver-7", "sys_exit: NR 15 = 0");
        }
        let result = trace.explain();
        let told = result.findings.iter().find(|told| word(told) == "interference");
        told.unwrap_or_else(|| panic!("{:#?}", result.findings)).clone()
    };
    let told = handlers(true);
    assert!((0.7..0.85).contains(&told.saving_share), "{told:#?}");
    let blind = handlers(false);
    assert!(blind.saving_share >= 0.7, "{blind:#?}");
    assert!(blind.chain[0].claim.contains("signal_deliver"), "{blind:#?}");
}

/// One sleeps until a timer fires and hands what it has to another, which is handed the CPU and asks
/// nobody; beside these a client asks a server over and over, if `asks` says so.
fn subscriber(asks: bool) -> Trace {
    const READ: &str = "NR 0 (5, 0, 1, 0, 0, 0)";
    const NAP: &str = "NR 230 (0, 0, 0, 0, 0, 0)";
    let (client, server, paced, idle) = ("cl-10", "sv-11", "pace-12", "sub-13");
    let mut trace = Trace::new();
    for _ in 0..60 {
        for _ in 0..3 * u32::from(asks) {
            trace.event(1, client, "sys_enter: NR 1 (4, 0, 1, 0, 0, 0)");
            trace.wake(1, client, server);
            trace.event(1, client, "sys_exit: NR 1 = 1");
            trace.event(1, client, &format!("sys_enter: {READ}"));
            trace.switch(1, client, "S", server);
            trace.event(1, server, "sys_exit: NR 0 = 1");
            trace.event(60, server, "sys_enter: NR 1 (4, 0, 1, 0, 0, 0)");
            trace.wake(1, server, client);
            trace.event(1, server, "sys_exit: NR 1 = 1");
            trace.event(1, server, &format!("sys_enter: {READ}"));
            trace.switch(1, server, "S", client);
            trace.event(1, client, "sys_exit: NR 0 = 1");
        }
        trace.switch(1, client, "R", OTHER);
        trace.now += 700;
        trace.flags = "d.h1.";
        trace.event(1, OTHER, "hrtimer_expire_entry: hrtimer=0x1 function=hrtimer_wakeup now=1");
        trace.wake(1, OTHER, paced);
        trace.event(1, OTHER, "hrtimer_expire_exit: hrtimer=0x1");
        trace.flags = ".....";
        trace.switch(1, OTHER, "R", paced);
        trace.event(1, paced, "sys_exit: NR 230 = 0");
        trace.event(1, paced, "sys_enter: NR 1 (6, 0, 1, 0, 0, 0)");
        trace.wake(1, paced, idle);
        trace.event(1, paced, "sys_exit: NR 1 = 1");
        trace.event(1, paced, &format!("sys_enter: {NAP}"));
        trace.switch(1, paced, "S", idle);
        trace.event(1, idle, "sys_exit: NR 0 = 1");
        trace.event(20, idle, &format!("sys_enter: {READ}"));
        trace.switch(1, idle, "S", client);
    }
    trace
}

#[test]
fn who_is_handed_work_by_a_timer_and_asks_nobody_idles_beside_others() {
    let paced = |result: &ExplainResult| {
        let paced = result.findings.iter().filter(|told| word(told) == "timer-wait");
        paced.map(|told| told.severity).max()
    };
    let (beside, alone) = (subscriber(true).explain(), subscriber(false).explain());
    assert!(paced(&beside) < Some(Severity::Medium), "{:#?}", beside.findings);
    // Which of the two asks, the trace does not tell: it may be a pause between requests.
    assert!(paced(&alone).is_some(), "{:#?}", alone.findings);
}

/// A server answers a client, and then waits in poll to the end of the trace, on a CPU on which a tool then
/// writes.
#[test]
fn a_wait_that_does_not_end_is_blamed_on_nobody() {
    let (server, client, tool) = ("server-10", "client-30", "tool-20");
    let mut trace = Trace::new();
    let sleep = |trace: &mut Trace, own: &str, call: &str, next: &str| {
        trace.event(1, own, &format!("sys_enter: NR {call} (3, 1, ffff, 0, 0, 0)"));
        trace.switch(1, own, "S", next);
    };
    for _ in 0..50 {
        sleep(&mut trace, server, "7", client);
        trace.event(1, client, "sys_enter: NR 1 (4, 0, 1, 0, 0, 0)");
        trace.wake(2_000, client, server);
        trace.event(1, client, "sys_exit: NR 1 = 1");
        sleep(&mut trace, client, "0", server);
        trace.event(1, server, "sys_exit: NR 7 = 1");
        trace.event(1, server, "sys_enter: NR 1 (4, 0, 1, 0, 0, 0)");
        trace.wake(2_000, server, client);
        trace.event(1, server, "sys_exit: NR 1 = 1");
    }
    sleep(&mut trace, server, "7", client);
    trace.event(1, client, "sys_exit: NR 0 = 1");
    trace.event(300_000, client, "sys_enter: NR 0 (3, 0, 1, 0, 0, 0)");
    trace.switch(1, client, "S", "swapper/0-0");
    trace.switch(1, "swapper/0-0", "R", tool);
    trace.event(900_000, tool, "sys_enter: NR 1 (1, 0, 2, 0, 0, 0)");
    let result = trace.explain_comm("server");
    let told = format!("{:#?}", result.findings);
    assert!(told.contains("server") && !told.contains("tool"), "{told}");
}
