//! Who is to blame for a wait, and whose waits are told.

use crate::common;

use common::{Trace, VCPU};
use std::path::PathBuf;
use vmeter_explain::report::ExplainReport;
use vmeter_explain::result::{ExplainResult, Finding};
use vmeter_explain::{explain, ExplainError, Options};
use vmeter_render::document::{Block, Detail};
use vmeter_render::Report;

const WORKER: &str = "vhost-77-80";
const MIXER: &str = "mixer-60";
const FILLER: &str = "filler-70";

/// The guest's write lets a worker of the kernel go on, which has no CPU while `mixer` has it.
fn starved_worker() -> Trace {
    Trace::rounds(100, |trace, n| {
        trace.wake(2, VCPU, WORKER);
        trace.switch(1, VCPU, "S", MIXER);
        trace.now += 900 + n % 40;
        trace.switch(1, MIXER, "R", WORKER);
        trace.wake(20, WORKER, VCPU);
        trace.switch(1, WORKER, "S", VCPU);
    })
}

#[test]
fn a_worker_without_a_cpu_is_no_kernel_work() {
    let told = starved_worker().explain();
    let first = &told.findings[0];
    assert!(first.subject.contains("0x1f7"), "{first:#?}");
    assert!(first.summary.contains("mixer"), "{first:#?}");
    assert!(first.summary.contains("CPU"), "{first:#?}");
}

/// A vCPU faults on pages that another process brings: it sleeps within `KVM_RUN`.
fn postcopy() -> Trace {
    let mut trace = Trace::rounds(30, |trace, _| trace.now += 12);
    trace.event(5, VCPU, "kvm_exit: vcpu 0 reason EPT_VIOLATION rip 0x10 info1 0 info2 0");
    for n in 0..100_u64 {
        trace.wake(5, VCPU, FILLER);
        trace.switch(5, VCPU, "S", FILLER);
        trace.event(5, FILLER, "sys_enter: NR 230 (0, 0, 0, 0, 0, 0)");
        trace.switch(1, FILLER, "S", "swapper/0-0");
        trace.now += 2_400 + n % 50;
        trace.flags = "d.h1.";
        trace.event(
            1,
            "<idle>-0",
            "hrtimer_expire_entry: hrtimer=0x1 function=hrtimer_wakeup now=1",
        );
        trace.wake(1, "<idle>-0", FILLER);
        trace.event(1, "<idle>-0", "hrtimer_expire_exit: hrtimer=0x1");
        trace.flags = ".....";
        trace.switch(1, "<idle>-0", "R", FILLER);
        trace.event(1, FILLER, "sys_exit: NR 230 = 0");
        trace.event(5, FILLER, "sys_enter: NR 16 (4, c028aa03, 0, 0, 0, 0)");
        trace.wake(5, FILLER, VCPU);
        trace.event(5, FILLER, "sys_exit: NR 16 = 0");
        trace.event(1, FILLER, "sys_enter: NR 0 (4, 0, 0, 0, 0, 0)");
        trace.switch(1, FILLER, "S", VCPU);
        trace.event(1, VCPU, "kvm_entry: vcpu 0, rip 0x12");
        trace.event(30, VCPU, "kvm_exit: vcpu 0 reason EPT_VIOLATION rip 0x10 info1 0 info2 0");
    }
    trace
}

#[test]
fn a_vcpu_asleep_within_kvm_run_waits_for_whoever_wakes_it() {
    let told = postcopy().explain();
    let about = |f: &&Finding| f.subject.contains("CPU 0/KVM") && f.summary.contains("filler");
    let found = told.findings.iter().find(about).unwrap_or_else(|| panic!("{:#?}", told.findings));
    assert!(found.summary.contains("nanosleep"), "{found:#?}");
}

/// A command that sleeps, beside a stranger that writes to a disk over and over.
fn beside_a_stranger() -> Trace {
    let mut trace = Trace::new();
    trace.event(1, "sleep-500", "sys_enter: NR 230 (0, 0, 0, 0, 0, 0)");
    trace.switch(1, "sleep-500", "S", "dd-90");
    for _ in 0..300 {
        trace.event(1, "dd-90", "sys_enter: NR 74 (1, 0, 0, 0, 0, 0)");
        trace.switch(1, "dd-90", "D", "kworker/0:1-30");
        trace.wake(3_000, "kworker/0:1-30", "dd-90");
        trace.switch(1, "kworker/0:1-30", "S", "dd-90");
        trace.event(1, "dd-90", "sys_exit: NR 74 = 0");
    }
    trace
}

/// A server computes for its client; another pair does little besides.
fn served() -> Trace {
    let mut trace = Trace::new();
    for _ in 0..200 {
        trace.event(1, "front-20", "sys_enter: NR 0 (3, 0, 1, 0, 0, 0)");
        trace.wake(1, "front-20", "solver-30");
        trace.switch(1, "front-20", "S", "solver-30");
        trace.event(1, "solver-30", "sys_exit: NR 0 = 1");
        trace.wake(900, "solver-30", "front-20");
        trace.event(1, "solver-30", "sys_enter: NR 0 (4, 0, 1, 0, 0, 0)");
        trace.switch(1, "solver-30", "S", "front-20");
        trace.event(1, "front-20", "sys_exit: NR 0 = 1");
    }
    trace
}

#[test]
fn the_first_screen_has_one_way_and_looks_at_its_end() {
    let told = served().explain();
    let first = &told.findings[0];
    let way: Vec<&str> = first.way.iter().map(|step| step.who.as_str()).collect();
    assert_eq!(way, ["front (20)", "solver (30)"], "{first:#?}");
    assert!(first.confirm.contains("-p 30 "), "{}", first.confirm);
    let document = ExplainReport::new(&told).document(Detail::Glance);
    let ways = document.blocks.iter().filter(|block| matches!(block, Block::Outline(_)));
    assert_eq!(ways.count(), 1, "{document:#?}");
    let text = format!("{document:?}");
    assert!(!text.contains("Followed") && !text.contains("\"2. "), "{text}");
}

fn written(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.txt");
    std::fs::write(&path, text).expect("a file");
    (folder, path)
}

fn explained(trace: Trace, recorded: &[i32]) -> ExplainResult {
    let (_folder, path) = written(trace.text());
    let options = Options { recorded: recorded.to_vec(), ..Options::default() };
    explain(&[path], &options).expect("a trace")
}

#[test]
fn of_a_command_that_was_recorded_no_stranger_is_told() {
    let strangers = |told: &ExplainResult| {
        let findings = told.findings.iter().any(|f| f.subject.contains("dd"));
        findings || told.followed.iter().any(|f| f.subject.contains("dd"))
    };
    assert!(strangers(&explained(beside_a_stranger(), &[])));
    let told = explained(beside_a_stranger(), &[500]);
    assert!(!strangers(&told), "{told:#?}");
    // What the command waits for is told.
    let told = explained(beside_a_stranger(), &[90]);
    assert!(told.findings[0].summary.contains("fsync"), "{:#?}", told.findings);
}

#[test]
fn what_is_no_trace_is_an_error() {
    let mut junk = String::from("# tracer: nop\n");
    junk.push_str(&"\0".repeat(10_000));
    junk.push('\n');
    let (_folder, path) = written(&junk);
    let error = explain(&[path], &Options::default()).expect_err("no event");
    assert!(matches!(error, ExplainError::NoEvents { .. }), "{error}");
}

#[test]
fn a_trace_is_not_compared_with_itself() {
    let (folder, path) = written(beside_a_stranger().text());
    let link = folder.path().join("the same.txt");
    std::os::unix::fs::symlink(&path, &link).expect("a link");
    let error = explain(&[path], &Options { vs: Some(link), ..Options::default() });
    assert!(matches!(error, Err(ExplainError::Itself { .. })), "{error:?}");
}
