//! One long stretch in an otherwise healthy trace, and long stretches that are no fault.

use crate::common;

use common::{kinds, word, Trace, VCPU};
use vmeter_explain::result::{ExplainResult, Severity};

const FUTEX: u32 = 202;

/// 300 rounds, in one of which the slow port does something else.
fn once(mut stall: impl FnMut(&mut Trace)) -> ExplainResult {
    Trace::rounds(300, |trace, n| match n {
        150 => stall(trace),
        _ => trace.now += 12 + n % 5,
    })
    .explain()
}

/// The vCPU waits for a worker, and that for a disk.
fn stalls(trace: &mut Trace, us: u64) {
    trace.cpu = 1;
    trace.event(1, "worker-200", "sys_enter: NR 0 (4, 0, 0, 0, 0, 0)");
    trace.switch(1, "worker-200", "S", "swapper/1-0");
    trace.cpu = 0;
    trace.event(1, VCPU, &format!("sys_enter: NR {FUTEX} (0, 0, 0, 0, 0, 0)"));
    trace.switch(1, VCPU, "S", "swapper/0-0");
    trace.cpu = 1;
    trace.event(us, "<idle>-0", "irq_handler_entry: irq=11 name=virtio0");
    trace.wake(1, "<idle>-0", "worker-200");
    trace.event(1, "<idle>-0", "irq_handler_exit: irq=11 ret=handled");
    trace.switch(2, "swapper/1-0", "R", "worker-200");
    trace.event(1, "worker-200", "sys_exit: NR 0 = 8");
    trace.wake(1, "worker-200", VCPU);
    trace.switch(1, "worker-200", "S", "swapper/1-0");
    trace.cpu = 0;
    trace.switch(1, "swapper/0-0", "R", VCPU);
    trace.event(1, VCPU, &format!("sys_exit: NR {FUTEX} = 0"));
}

fn says(result: &ExplainResult, what: &str) {
    let claims: Vec<&str> =
        result.findings[0].chain.iter().map(|link| link.claim.as_str()).collect();
    assert!(claims.iter().any(|claim| claim.contains(what)), "{what}: {claims:#?}");
}

#[test]
fn a_single_stall_is_told_with_what_ended_it() {
    let result = once(|trace| stalls(trace, 200_000));
    assert_eq!(kinds(&result), ["stall"], "{:#?}", result.findings);
    let finding = &result.findings[0];
    assert_eq!(finding.severity, Severity::Medium, "{finding:?}");
    assert!(finding.subject.contains("0x1f7"), "{finding:?}");
    assert!(finding.saving_s.is_some_and(|s| (0.19..0.21).contains(&s)), "{finding:?}");
    says(&result, "is in futex(wait); this sleep takes 200 ms, and ends when worker (200)");
    says(&result, "asleep until interrupt 11 virtio0");
    let events: Vec<&str> = finding
        .chain
        .iter()
        .flat_map(|link| &link.evidence.events)
        .map(|event| event.event.as_str())
        .collect();
    assert_eq!(events, ["kvm_exit", "kvm_entry", "sched_waking"], "{finding:#?}");
}

#[test]
fn where_nothing_is_recorded_that_is_said() {
    let result = once(|trace| trace.now += 300_000);
    assert_eq!(kinds(&result), ["stall"], "{:#?}", result.findings);
    says(&result, "The gap begins with kvm_exit on CPU 0, ends with kvm_entry");
}

#[test]
fn a_short_stall_is_none() {
    let result = once(|trace| stalls(trace, 1_500));
    assert_eq!(kinds(&result), [""; 0], "{:#?}", result.findings);
}

#[test]
fn what_another_finding_explains_is_no_gap() {
    let stall = |n: u64| if n == 50 { 100_000 } else { 900 };
    let result = Trace::rounds(400, |trace, n| stalls(trace, stall(n))).explain();
    assert!(!kinds(&result).contains(&"stall"), "{:#?}", result.findings);
    assert!(!result.findings.is_empty());
}

#[test]
fn beside_a_larger_gap_the_rule_keeps_its_own_share() {
    let stall = |n: u64| if n == 50 { 900_000 } else { 900 };
    let result = Trace::rounds(100, |trace, n| stalls(trace, stall(n))).explain();
    assert_eq!(kinds(&result).len(), 2, "{:#?}", result.findings);
    let rule = result.findings.iter().find(|f| word(f) != "stall").expect("the rule");
    assert!(rule.saving_s.is_some_and(|s| s < 0.1), "{rule:#?}");
}

#[test]
fn an_idle_guest_is_healthy() {
    let mut trace = Trace::rounds(100, |trace, n| trace.now += 12 + n % 5);
    for reason in ["hlt", "HLT"] {
        let exit = format!("kvm_exit: vcpu 0 reason {reason} rip 0x10 info1 0 info2 0");
        trace.event(20, VCPU, &exit);
        trace.switch(1, VCPU, "S", "swapper/0-0");
        trace.wake(500_000, "<idle>-0", VCPU);
        trace.switch(1, "swapper/0-0", "R", VCPU);
        trace.event(1, VCPU, "kvm_entry: vcpu 0, rip 0x12");
    }
    assert_eq!(kinds(&trace.explain()), [""; 0]);
}

#[test]
fn a_busy_host_is_no_gap() {
    let result = once(|trace| {
        trace.switch(1, VCPU, "R", "rustc-900");
        trace.switch(300_000, "rustc-900", "R", VCPU);
    });
    assert!(!kinds(&result).contains(&"stall"), "{:#?}", result.findings);
}
