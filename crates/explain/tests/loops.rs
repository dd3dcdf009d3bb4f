//! Whose time is explained: who works in a loop, and what only runs beside it.

use crate::common;

use common::{kinds, Trace};
use vmeter_explain::result::Finding;

const CLIENT: &str = "client-20";
const SERVER: &str = "server-21";
const STORE: &str = "store-22";
const SHELL: &str = "noise.sh-30";
const COMPILER: &str = "cc1-31";
const IDLE: &str = "swapper/0-0";

fn fires(trace: &mut Trace, after_us: u64, woken: &str) {
    trace.flags = "d.h2.";
    trace.wake(after_us, IDLE, woken);
    trace.flags = ".....";
    trace.switch(2, IDLE, "R", woken);
}

/// Writes to another, which had read for it, and reads.
fn hands_over(trace: &mut Trace, own: &str, next: &str) {
    trace.event(5, own, "sys_enter: NR 1 (3, 0, 40, 0, 0, 0)");
    trace.wake(1, own, next);
    trace.event(1, own, "sys_exit: NR 1 = 64");
    trace.event(1, own, "sys_enter: NR 0 (3, 0, 40, 0, 0, 0)");
    trace.switch(1, own, "S", next);
    trace.event(1, next, "sys_exit: NR 0 = 64");
}

/// A client asks a server, which asks a store; that sleeps before it answers. A shell waits for a compiler
/// all the time.
fn asks(rounds: u32) -> Trace {
    let mut trace = Trace::new();
    trace.event(1, SHELL, "sys_enter: NR 61 (0, 0, 0, 0, 0, 0)");
    trace.switch(1, SHELL, "S", COMPILER);
    trace.switch(1, COMPILER, "R", CLIENT);
    for _ in 0..rounds {
        for (own, next) in [(CLIENT, SERVER), (SERVER, STORE)] {
            hands_over(&mut trace, own, next);
        }
        trace.event(1, STORE, "sys_enter: NR 230 (0, 0, 0, 0, 0, 0)");
        trace.switch(1, STORE, "S", COMPILER);
        trace.switch(4_000, COMPILER, "R", IDLE);
        fires(&mut trace, 1_000, STORE);
        trace.event(1, STORE, "sys_exit: NR 230 = 0");
        for (own, next) in [(STORE, SERVER), (SERVER, CLIENT)] {
            hands_over(&mut trace, own, next);
        }
    }
    trace.switch(1, CLIENT, "S", COMPILER);
    trace.wake(1, COMPILER, SHELL);
    trace.switch(1, COMPILER, "Z", SHELL);
    trace.event(1, SHELL, "sys_exit: NR 61 = 31");
    trace
}

#[test]
fn a_loop_goes_before_a_script_that_waits_for_longer() {
    let told = asks(60).explain();
    let first = &told.findings[0];
    assert!(!first.subject.contains("noise"), "{:#?}", told.findings);
    let script = told.findings.iter().find(|finding| finding.subject.contains("noise"));
    assert!(script.is_none_or(|script| script.after > first.after), "{:#?}", told.findings);
}

#[test]
fn the_headline_names_who_is_between() {
    let told = asks(60).explain_comm("client");
    let first = &told.findings[0].summary;
    assert!(first.contains("waits in read for server, that in read for store"), "{first}");
    assert!(first.contains("which sleeps in clock_nanosleep"), "{first}");
}

#[test]
fn page_faults_are_of_who_drops_the_pages() {
    let (vcpu, balloon) = ("vcpu0-40", "balloon-41");
    let faults = |drops: bool| {
        let mut trace = Trace::new();
        for n in 0..60_u64 {
            if drops {
                trace.call(balloon, 28, 20, 0);
            } else {
                trace.call(balloon, 39, 20, 0);
            }
            trace.switch(1, balloon, "S", vcpu);
            for page in 0..20_u64 {
                let address = (n * 20 + page) << 12;
                let fault =
                    format!("page_fault_kernel: address={address:#x} ip=0x55 error_code=0x2");
                trace.event(100, vcpu, &fault);
            }
            trace.flags = "d.h2.";
            trace.wake(1, vcpu, balloon);
            trace.flags = ".....";
            trace.switch(1, vcpu, "R", balloon);
        }
        trace.explain()
    };
    let told = faults(true);
    let first = &told.findings[0].summary;
    assert!(first.contains("page faults: balloon (41) drops pages with madvise"), "{first}");
    let fresh = faults(false);
    assert!(!fresh.findings.iter().any(|f| f.summary.contains("drops")), "{:#?}", fresh.findings);
}

/// One reads from a socket; what comes lets it go on after so long.
fn reads(each_us: u64) -> Trace {
    let mut trace = Trace::new();
    for _ in 0..40 {
        trace.event(20, CLIENT, "sys_enter: NR 1 (3, 0, 40, 0, 0, 0)");
        trace.event(5, CLIENT, "sys_exit: NR 1 = 64");
        trace.event(5, CLIENT, "sys_enter: NR 45 (3, 0, 40, 0, 0, 0)");
        trace.switch(1, CLIENT, "S", IDLE);
        trace.flags = "..s1.";
        trace.event(each_us, IDLE, "softirq_entry: vec=3 [action=NET_RX]");
        trace.wake(1, IDLE, CLIENT);
        trace.event(1, IDLE, "softirq_exit: vec=3 [action=NET_RX]");
        trace.flags = ".....";
        trace.switch(1, IDLE, "R", CLIENT);
        trace.event(1, CLIENT, "sys_exit: NR 45 = 64");
    }
    trace
}

#[test]
fn the_network_that_takes_as_long_as_a_delayed_acknowledgement_is_one() {
    let acknowledged = |each_us: u64| {
        let told = reads(each_us).explain_comm("client");
        told.findings.iter().any(|f| f.summary.contains("delayed acknowledgement"))
    };
    assert!(acknowledged(41_000));
    assert!(!acknowledged(20_000));
    assert!(!acknowledged(60_000));
}

#[test]
fn who_waits_for_a_cpu_longer_than_it_runs_is_told_who_has_it() {
    let mut trace = Trace::new();
    let vcpus = ["CPU 0/KVM-50", "CPU 1/KVM-51", "CPU 2/KVM-52", "CPU 3/KVM-53"];
    for n in 0..200_usize {
        trace.event(1, vcpus[n % 4], "kvm_userspace_exit: reason KVM_EXIT_IO (2)");
        let long = n % 4 == 1 + n / 4 % 2;
        trace.switch(if long { 8_000 } else { 1_000 }, vcpus[n % 4], "R", vcpus[(n + 1) % 4]);
    }
    let told = trace.explain();
    assert_eq!(kinds(&told).first(), Some(&"cpu-contention"), "{:#?}", told.findings);
    let crowd = |f: &Finding| f.summary.contains("waits for a CPU that CPU ");
    assert!(told.findings.iter().any(crowd), "{:#?}", told.findings);
}
