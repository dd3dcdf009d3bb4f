//! Threads' whole lives: those of one name apart, a vCPU without a CPU, one long wait, time-outs.

use crate::common;

use common::{word, Trace};
use vmeter_explain::result::Severity;

const FUTEX: &str = "NR 202 (7f00, 0, 0, 0, 0, 0)";
const EPOLL: &str = "NR 232 (4, 0, 1, ffffffff, 0, 0)";

/// A main loop waits for a worker of its own name that computes; six others idle.
fn pool() -> Trace {
    let (main, worker) = ("node-10", "node-11");
    let mut trace = Trace::new();
    trace.event(1, "trace-cmd-10", "sys_enter: NR 59 (0, 0, 0, 0, 0, 0)");
    trace.event(1, main, "sys_exit: NR 59 = 0");
    for idle in 12..18 {
        let idle = format!("node-{idle}");
        trace.event(1, &idle, &format!("sys_enter: {FUTEX}"));
        trace.switch(1, &idle, "S", worker);
    }
    trace.event(1, worker, &format!("sys_enter: {FUTEX}"));
    trace.switch(1, worker, "S", main);
    for _ in 0..100 {
        trace.event(1, main, &format!("sys_enter: {FUTEX}"));
        trace.wake(1, main, worker);
        trace.event(1, main, "sys_exit: NR 202 = 1");
        trace.event(1, main, &format!("sys_enter: {EPOLL}"));
        trace.switch(1, main, "S", worker);
        trace.event(1, worker, "sys_exit: NR 202 = 0");
        trace.now += 20_000;
        trace.event(1, worker, "sys_enter: NR 1 (4, 0, 8, 0, 0, 0)");
        trace.wake(1, worker, main);
        trace.event(1, worker, "sys_exit: NR 1 = 8");
        trace.event(1, worker, &format!("sys_enter: {FUTEX}"));
        trace.switch(1, worker, "S", main);
        trace.event(1, main, "sys_exit: NR 232 = 1");
    }
    for idle in 12..18 {
        trace.wake(1, main, &format!("node-{idle}"));
    }
    trace
}

#[test]
fn the_one_that_waits_is_told_of_those_of_one_name() {
    for result in
        [pool().explain(), pool().explain_comm("node"), pool().explain_comm("nobody|no*e")]
    {
        let first = &result.findings[0];
        assert!(first.summary.contains("node (10) waits"), "{:#?}", result.findings);
        assert!(first.summary.contains("computes"), "{first:#?}");
        assert!(result.findings.iter().all(|told| word(told) != "lock"), "{first:#?}");
    }
}

/// A vCPU shares its CPU with three processes of one name, which take turns.
fn shared() -> Trace {
    const VCPU: &str = "CPU 0/TCG-100";
    let others = ["gzip-50", "gzip-51", "gzip-52"];
    let mut trace = Trace::new();
    for _ in 0..100 {
        trace.switch(3_000, VCPU, "R", others[0]);
        trace.switch(3_000, others[0], "R", others[1]);
        trace.switch(3_000, others[1], "R", others[2]);
        trace.switch(3_000, others[2], "R", VCPU);
    }
    trace
}

#[test]
fn who_has_the_cpu_of_a_vcpu_is_told() {
    for result in [shared().explain(), shared().explain_comm("CPU 0/TCG")] {
        let first = &result.findings[0];
        assert_eq!(word(first), "cpu-contention", "{:#?}", result.findings);
        assert!(
            first.summary.contains("CPU 0/TCG") && first.summary.contains("gzip"),
            "{first:#?}"
        );
        // Threads of one priority share a CPU: that is the host's load.
        assert_eq!(first.severity, Severity::Low, "{first:#?}");
    }
}

/// A program that is held up once, by one that comes late.
fn frozen() -> Trace {
    let (own, thaws) = ("sqlite3-10", "fsfreeze-60");
    let mut trace = Trace::new();
    trace.event(1, "trace-cmd-10", "sys_enter: NR 59 (0, 0, 0, 0, 0, 0)");
    trace.event(1, own, "sys_exit: NR 59 = 0");
    for _ in 0..100 {
        trace.call(own, 1, 10_000, 100);
    }
    trace.event(1, own, "sys_enter: NR 87 (0, 0, 0, 0, 0, 0)");
    trace.switch(1, own, "D", "sh-59");
    trace.now += 4_000_000;
    trace.switch(1, "sh-59", "S", thaws);
    trace.event(10, thaws, "sys_enter: NR 16 (3, c0045878, 0, 0, 0, 0)");
    trace.wake(500, thaws, own);
    trace.event(1, thaws, "sys_exit: NR 16 = 0");
    trace.switch(1, thaws, "X", own);
    trace.event(1, own, "sys_exit: NR 87 = 0");
    trace.call(own, 1, 1_000_000, 100);
    trace
}

#[test]
fn one_long_wait_is_told_with_the_call_that_ends_it() {
    for result in [frozen().explain(), frozen().explain_comm("sqlite3")] {
        let first = &result.findings[0].summary;
        assert!(first.contains("sqlite3 (10)") && first.contains("unlink"), "{first}");
        assert!(first.contains("fsfreeze") && first.contains("FITHAW"), "{first}");
    }
}

#[test]
fn time_outs_of_a_vcpu_are_told() {
    const VCPU: &str = "CPU 0/TCG-100";
    let mut trace = Trace::new();
    for _ in 0..50 {
        trace.now += 5_000;
        trace.event(1, VCPU, &format!("sys_enter: {FUTEX}"));
        trace.switch(1, VCPU, "S", "swapper/0-0");
        trace.now += 50_000;
        trace.flags = "d.h1.";
        trace.wake(1, "swapper/0-0", VCPU);
        trace.flags = ".....";
        trace.switch(1, "swapper/0-0", "R", VCPU);
        trace.event(1, VCPU, "sys_exit: NR 202 = -110");
    }
    let result = trace.explain_comm("CPU 0/TCG");
    let first = &result.findings[0];
    assert_eq!(word(first), "timer-wait", "{:#?}", result.findings);
    assert_eq!(first.severity, Severity::High, "its guest stands still meanwhile: {first:#?}");
    assert!(first.summary.contains("50 times"), "{first:#?}");
}

#[test]
fn one_finding_has_the_parts_of_its_subject() {
    const CLIENT: &str = "client-10";
    let mut trace = Trace::new();
    for _ in 0..40 {
        for (server, us) in [("first-20", 6_000), ("second-30", 3_000)] {
            trace.event(1, CLIENT, "sys_enter: NR 1 (4, 0, 0, 0, 0, 0)");
            trace.wake(1, CLIENT, server);
            trace.event(1, CLIENT, "sys_exit: NR 1 = 1");
            trace.event(1, CLIENT, "sys_enter: NR 0 (3, 0, 0, 0, 0, 0)");
            trace.switch(1, CLIENT, "S", server);
            trace.event(1, server, "sys_exit: NR 0 = 1");
            trace.event(us, server, "sys_enter: NR 1 (4, 0, 0, 0, 0, 0)");
            trace.wake(1, server, CLIENT);
            trace.event(1, server, "sys_exit: NR 1 = 1");
            trace.event(1, server, "sys_enter: NR 0 (3, 0, 0, 0, 0, 0)");
            trace.switch(1, server, "S", CLIENT);
            trace.event(1, CLIENT, "sys_exit: NR 0 = 1");
        }
    }
    let result = trace.explain();
    let first = &result.findings[0];
    assert!(first.summary.contains("first (20), which computes"), "{:#?}", result.findings);
    let part =
        first.chain.iter().find(|link| link.claim.starts_with("a further cause (user-cpu, 3"));
    assert!(part.is_some_and(|part| part.claim.contains("second (30)")), "{first:#?}");
    let about = result.findings.iter().filter(|finding| finding.subject == first.subject);
    assert_eq!((about.count(), first.besides.len()), (1, 1), "{:#?}", result.findings);
}

/// Text of perf: no flags; a thread that sleeps is woken while now this and now that has the CPU.
fn without_flags() -> String {
    let mut text = String::new();
    let mut line = |us: u32, comm: &str, tid: u32, event: &str| {
        let (s, us) = (1 + us / 1_000_000, us % 1_000_000);
        text += &format!("{comm:>16} {tid:>5} [000]  {s:>4}.{us:06}: {event}\n");
    };
    let switch = |prev: (&str, u32), state: &str, next: (&str, u32)| {
        format!(
            "sched:sched_switch: prev_comm={} prev_pid={} prev_prio=120 prev_state={state} ==> \
             next_comm={} next_pid={} next_prio=120",
            prev.0, prev.1, next.0, next.1
        )
    };
    let strangers = [("cc", 50), ("ld", 51), ("as", 52), ("tr", 53)];
    let own = ("naps", 10);
    for n in 0..40_u32 {
        let stranger = strangers[n as usize % 4];
        let at = n * 10_000;
        line(at, own.0, own.1, &switch(own, "S", stranger));
        let wakes = "sched:sched_waking: comm=naps pid=10 prio=120 target_cpu=000";
        line(at + 9_000, stranger.0, stranger.1, wakes);
        line(at + 9_010, stranger.0, stranger.1, &switch(stranger, "R", own));
    }
    text
}

#[test]
fn who_has_the_cpu_when_another_wakes_has_not_woken_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("perf.txt");
    std::fs::write(&path, without_flags()).expect("a file");
    let told = vmeter_explain::outline(&[path], &vmeter_explain::Options::default());
    let told = told.expect("a trace");
    let naps = told.split_inclusive('\n').skip_while(|line| !line.starts_with("naps"));
    let naps: String = naps.skip(1).take_while(|line| line.starts_with(' ')).collect();
    assert!(naps.contains("asleep") && !naps.contains("waits for"), "{told}");
}

/// A program that its recorder starts by vfork: its threads are there before that call returns. One
/// of them asks another, from which a third takes the CPU.
fn made_before_its_maker_knows() -> Trace {
    const RECORDER: &str = "py-5";
    const CLIENT: &str = "io-10";
    const HOLDER: &str = "cache-11";
    const HOG: &str = "sum-12";
    let mut trace = Trace::new();
    trace.event(1, RECORDER, "sys_exit: NR 1 = 1");
    trace.event(1, RECORDER, "sys_enter: NR 58 (0, 0, 0, 0, 0, 0)");
    trace.switch(1, RECORDER, "D", CLIENT);
    for child in [11, 12] {
        trace.call(CLIENT, 435, 10, child);
    }
    trace.cpu = 1;
    trace.event(1, RECORDER, "sys_exit: NR 58 = 10");
    trace.event(1, RECORDER, "sys_enter: NR 61 (0, 0, 0, 0, 0, 0)");
    trace.switch(1, RECORDER, "S", "swapper/1-0");
    trace.cpu = 0;
    for _ in 0..100 {
        trace.event(20, CLIENT, "sys_enter: NR 202 (7f00, 0, 0, 0, 0, 0)");
        trace.switch(1, CLIENT, "S", HOLDER);
        trace.now += 20;
        trace.switch(1, HOLDER, "R", HOG);
        trace.now += 1_000;
        trace.switch(1, HOG, "R", HOLDER);
        trace.event(20, HOLDER, "sys_enter: NR 202 (7f00, 1, 1, 0, 0, 0)");
        trace.wake(1, HOLDER, CLIENT);
        trace.event(1, HOLDER, "sys_exit: NR 202 = 1");
        trace.switch(1, HOLDER, "R", CLIENT);
        trace.event(1, CLIENT, "sys_exit: NR 202 = 0");
    }
    trace
}

#[test]
fn threads_made_before_their_makers_vfork_returns_are_no_strangers() {
    let result = made_before_its_maker_knows().explain();
    let first = &result.findings[0];
    assert_eq!(word(first), "cpu-contention", "{:#?}", result.findings);
    assert!(first.summary.contains("cache") && first.summary.contains("sum"), "{first:#?}");
}

/// A game's frame is computed in 1 ms; packets for somebody else take its CPU for 3 ms of each.
#[test]
fn a_softirq_that_has_a_threads_cpu_is_told_apart_from_it() {
    const GAME: &str = "game-10";
    let mut trace = Trace::new();
    for _ in 0..200 {
        trace.switch(1, "swapper/0-0", "R", GAME);
        trace.event(900, GAME, "softirq_entry: vec=3 [action=NET_RX]");
        trace.event(3_000, GAME, "softirq_exit: vec=3 [action=NET_RX]");
        trace.event(100, GAME, "softirq_entry: vec=9 [action=RCU]");
        trace.event(2, GAME, "softirq_exit: vec=9 [action=RCU]");
        trace.switch(1, GAME, "S", "swapper/0-0");
        trace.now += 500;
    }
    let result = trace.explain_comm("game");
    let first = &result.findings[0];
    assert!(first.summary.contains("loses its CPU to softirq NET_RX"), "{:#?}", result.findings);
    assert_eq!(word(first), "kernel-work");
    let claims: Vec<&str> = first.chain.iter().map(|link| link.claim.as_str()).collect();
    assert!(!claims.iter().any(|claim| claim.contains("RCU")), "{claims:?}");
}

/// A client and a server that naps; beside them a build that these keep off their CPU.
fn beside_a_build(own: u32, prio: u32) -> Trace {
    const CLIENT: &str = "client-10";
    const SERVER: &str = "server-11";
    const MAKE: &str = "make-50";
    const CC: &str = "cc1-51";
    let mut trace = Trace::new();
    let switch = |trace: &mut Trace, prev: (&str, u32), state: &str, next: (&str, u32)| {
        let tid =
            |thread: &str| thread.rsplit_once('-').map_or(String::new(), |(_, tid)| tid.into());
        let text = format!(
            "sched_switch: prev_comm=a prev_pid={} prev_prio={} prev_state={state} ==> \
             next_comm=b next_pid={} next_prio={}",
            tid(prev.0),
            prev.1,
            tid(next.0),
            next.1
        );
        trace.event(1, prev.0, &text);
    };
    let (client, server) = ((CLIENT, own), (SERVER, own));
    let (make, cc) = ((MAKE, prio), (CC, prio));
    for _ in 0..100 {
        trace.event(20, CLIENT, "sys_enter: NR 0 (3, 0, 0, 0, 0, 0)");
        switch(&mut trace, client, "S", server);
        trace.event(5, SERVER, "sys_enter: NR 230 (0, 0, 0, 0, 0, 0)");
        switch(&mut trace, server, "S", make);
        // The build's next step: one asks the other, which the server keeps off the CPU.
        trace.event(5, MAKE, &format!("sys_enter: {FUTEX}"));
        trace.wake(1, MAKE, CC);
        switch(&mut trace, make, "S", cc);
        trace.now += 1_000;
        trace.flags = "d.h1.";
        trace.wake(1, CC, SERVER);
        trace.flags = ".....";
        switch(&mut trace, cc, "R", server);
        trace.event(3_000, SERVER, "sys_exit: NR 230 = 0");
        trace.event(1, SERVER, "sys_enter: NR 1 (3, 0, 0, 0, 0, 0)");
        trace.wake(1, SERVER, CLIENT);
        trace.event(1, SERVER, "sys_exit: NR 1 = 1");
        trace.event(1, SERVER, "sys_enter: NR 0 (3, 0, 0, 0, 0, 0)");
        switch(&mut trace, server, "S", cc);
        trace.event(10, CC, "sys_enter: NR 202 (7f00, 1, 1, 0, 0, 0)");
        trace.wake(1, CC, MAKE);
        trace.event(1, CC, "sys_exit: NR 202 = 1");
        trace.event(1, CC, &format!("sys_enter: {FUTEX}"));
        switch(&mut trace, cc, "S", client);
        trace.event(1, CLIENT, "sys_exit: NR 0 = 1");
        trace.event(20, CLIENT, "sys_enter: NR 1 (3, 0, 0, 0, 0, 0)");
        trace.wake(1, CLIENT, SERVER);
        trace.event(1, CLIENT, "sys_exit: NR 1 = 1");
    }
    trace
}

#[test]
fn what_its_user_lets_wait_for_all_others_is_told_after_them() {
    let told = |own: u32, prio: u32| {
        let result = beside_a_build(own, prio).explain();
        let build = result.findings.iter().position(|told| told.summary.contains("cc1"));
        build.map(|at| (at, result.findings[at].severity))
    };
    assert_eq!(told(110, 120), Some((0, Severity::High)));
    assert_eq!(told(120, 139), Some((1, Severity::Low)), "a nice value of 19");
}
