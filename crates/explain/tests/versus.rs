//! A trace beside its twin: what it takes beyond that, whatever else takes more; and a program
//! that others hardly let run.

use crate::common;

use common::{kinds, word, Trace};

const FRONT: &str = "front-10";
const BACK: &str = "back-11";
const FSYNC: u32 = 74;

/// A client and its server on one CPU, `requests` times; `serve` is what the server does, after
/// others have had the CPU.
fn served(
    requests: u64,
    mut others: impl FnMut(&mut Trace, u64),
    serve: impl Fn(&mut Trace),
) -> Trace {
    let mut trace = Trace::new();
    trace.event(1, BACK, "sys_enter: NR 0 (3, 0, 1, 0, 0, 0)");
    trace.switch(1, BACK, "S", FRONT);
    for n in 0..requests {
        trace.event(50, FRONT, "sys_enter: NR 1 (4, 0, 1, 0, 0, 0)");
        trace.wake(1, FRONT, BACK);
        trace.event(1, FRONT, "sys_exit: NR 1 = 1");
        trace.event(1, FRONT, "sys_enter: NR 0 (4, 0, 1, 0, 0, 0)");
        let next = ["rustc-50", "cc-51", "ld-52"][n as usize % 3];
        trace.switch(1, FRONT, "S", next);
        others(&mut trace, n);
        trace.switch(1, next, "R", BACK);
        trace.event(1, BACK, "sys_exit: NR 0 = 1");
        serve(&mut trace);
        trace.event(1, BACK, "sys_enter: NR 1 (3, 0, 1, 0, 0, 0)");
        trace.wake(1, BACK, FRONT);
        trace.event(1, BACK, "sys_exit: NR 1 = 1");
        trace.event(1, BACK, "sys_enter: NR 0 (3, 0, 1, 0, 0, 0)");
        trace.switch(1, BACK, "S", FRONT);
        trace.event(1, FRONT, "sys_exit: NR 0 = 1");
    }
    trace
}

/// Computes, and is in fsync.
fn work(computes_us: u64, fsync_us: u64) -> impl Fn(&mut Trace) {
    move |trace| {
        trace.now += computes_us;
        trace.call(BACK, FSYNC, fsync_us, 0);
    }
}

fn idle(trace: &mut Trace, _: u64) {
    trace.now += 1;
}

#[test]
fn what_is_beyond_the_twin_comes_first_though_other_things_take_more() {
    let alone = served(100, idle, work(3_000, 1_100)).explain();
    assert!(!alone.findings[0].summary.contains("fsync"), "{:?}", alone.findings[0]);
    let slow = served(100, idle, work(3_000, 1_100));
    let result = slow.explain_beside(served(100, idle, work(3_000, 100)));
    let first = &result.findings[0];
    assert!(first.summary.contains("fsync") && first.summary.contains("back"), "{first:?}");
    // 100 ms of the 416 that it takes.
    let share = 100.0 * 1_000.0 / (result.duration_s.expect("seconds") * 1e6);
    assert!((first.saving_share / share - 1.0).abs() < 0.1, "{share}: {first:?}");
}

#[test]
fn a_recording_as_long_with_less_work_in_it_is_compared_by_its_work() {
    let slow = served(50, idle, work(3_000, 4_200));
    let result = slow.explain_beside(served(118, idle, work(3_000, 200)));
    let first = &result.findings[0];
    assert!(first.summary.contains("fsync"), "{first:?}");
    let share = 50.0 * 4_000.0 / (result.duration_s.expect("seconds") * 1e6);
    assert!((first.saving_share / share - 1.0).abs() < 0.1, "{share}: {first:?}");
}

#[test]
fn beside_itself_nothing_is_beyond() {
    let [one, same] = [0, 1].map(|_| served(100, idle, work(300, 2_000)));
    let result = one.explain_beside(same);
    let loud =
        result.findings.iter().filter(|f| f.severity > vmeter_explain::result::Severity::Low);
    assert_eq!(loud.count(), 0, "{:#?}", result.findings);
}

#[test]
fn others_that_have_the_cpu_now_and_then_are_not_the_cause() {
    let busy = |trace: &mut Trace, _| trace.now += 5_000;
    let result = served(100, busy, work(20, 1_000)).explain();
    let first = &result.findings[0];
    assert!(first.summary.contains("fsync"), "{:?} {first:?}", kinds(&result));
}

/// Three in futex: two wait each time for the third, which lets `both` or one of them go on.
fn met(both: bool) -> Trace {
    const FUTEX: &str = "NR 202 (7f00, 80, 1, 0, 0, 0)";
    const NAMES: [&str; 3] = ["cut-20", "mix-21", "weld-22"];
    let [cut, mix, weld] = NAMES;
    let mut trace = Trace::new();
    trace.event(1, cut, &format!("sys_enter: {FUTEX}"));
    trace.switch(1, cut, "S", mix);
    trace.event(1, mix, &format!("sys_enter: {FUTEX}"));
    trace.switch(1, mix, "S", weld);
    for n in 0..200 {
        trace.now += 3_000;
        let woken = if both { &[cut, mix][..] } else { &[[cut, mix][n % 2]][..] };
        trace.event(1, weld, &format!("sys_enter: {FUTEX}"));
        woken.iter().for_each(|who| trace.wake(1, weld, who));
        trace.event(1, weld, "sys_exit: NR 202 = 1");
        let mut before = weld;
        for who in woken {
            trace.switch(1, before, if before == weld { "R" } else { "S" }, who);
            trace.event(1, who, "sys_exit: NR 202 = 0");
            trace.event(20, who, &format!("sys_enter: {FUTEX}"));
            before = who;
        }
        trace.switch(1, before, "S", weld);
    }
    trace
}

#[test]
fn who_lets_all_go_on_at_once_holds_no_lock() {
    let barrier = met(true).explain();
    let first = &barrier.findings[0];
    assert_eq!(word(first), "user-cpu", "{:#?}", barrier.findings);
    assert!(first.summary.contains("weld (22), which computes"), "{first:#?}");
    let lock = met(false).explain();
    assert_eq!(word(&lock.findings[0]), "lock", "{:#?}", lock.findings);
}

/// Two calls: how often, and how long the first takes.
fn calls_of(counts: [u64; 2], first_us: u64) -> String {
    let (mut text, mut us) = (String::new(), 0);
    for (name, count, long) in [("pread64", counts[0], first_us), ("fstat", counts[1], 300)] {
        for _ in 0..count {
            us += long + 20;
            let (s, at) = (1 + us / 1_000_000, us % 1_000_000);
            text += &format!("7 {s}.{at:06} {name}(3, 0, 0, 0) = 1 <0.{long:06}>\n");
        }
    }
    text
}

#[test]
fn the_same_is_said_each_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let paths = ["slow.strace", "twin.strace"].map(|name| folder.path().join(name));
    // Half of the twin's work by the one, a little more by the other: both speak for both.
    std::fs::write(&paths[0], calls_of([100, 104], 3_000)).expect("a file");
    std::fs::write(&paths[1], calls_of([200, 200], 300)).expect("a file");
    let [slow, twin] = paths;
    let options = vmeter_explain::Options { vs: Some(twin), ..Default::default() };
    let told = || vmeter_explain::explain(std::slice::from_ref(&slow), &options).expect("traces");
    let first = format!("{:?}", told());
    assert!(first.contains("pread64"), "{first}");
    assert!((0..20).all(|_| format!("{:?}", told()) == first));
}
