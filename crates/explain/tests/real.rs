//! What is said of the recordings of real machines.

use crate::common;

use common::{fixture, kinds, word};
use std::io::Read as _;
use vmeter_explain::result::{Finding, Severity};
use vmeter_explain::{explain, ExplainError, Options};

fn xen() -> vmeter_explain::result::ExplainResult {
    let files =
        [fixture("xen-hvm-ide-boot.xtr.gz"), fixture("xen-hvm-ide-boot.dom0-ftrace.txt.gz")];
    explain(&files, &Options { cpu_hz: Some(2e9), ..Options::default() }).expect("two traces")
}

#[test]
fn xen_and_dom0_together_tell_the_ports_and_the_device_model() {
    let result = xen();
    assert_eq!(result.files[1].alignment.method, "same TSC");
    assert_eq!(result.files[1].alignment.error_s, Some(0.0));
    let model = |finding: &&Finding| finding.summary.contains("the vCPU waits while");
    let first = result.findings.iter().find(model).expect("a finding");
    // Emulation by itself is no fault.
    assert_eq!(first.severity, Severity::Low);
    assert!(result.findings.iter().all(|finding| finding.severity < Severity::High));
    assert!(first.summary.contains("xen-qemu-system"), "{}", first.summary);
    let claims: Vec<&str> = first.chain.iter().map(|link| link.claim.as_str()).collect();
    let says = |what: &str| assert!(claims.iter().any(|c| c.contains(what)), "{what}: {claims:#?}");
    // Every one of the 991 writes of 0xcf8 and the 204 of 0x1f7, as xenalyze counts them.
    says("port 0xcf8 write (PCI config address) 991×");
    says("port 0x1f7 write (IDE 1) 204×");
    says("d1v0: paused, waiting for the device model 58 %, running 21 %");
    says("interrupts, apart from timers, are 4762 of 50 evtchn:xen-qemu-system");
    let split = result.vcpus.iter().find(|vcpu| vcpu.vcpu == "d1v0").expect("the guest's vCPU");
    let sum: f64 = split.parts.iter().map(|part| part.share).sum();
    assert!((sum - 1.0).abs() < 1e-9, "{split:?}");
}

#[test]
fn seconds_are_by_dom0s_tick_where_nobody_gives_a_rate() {
    let files =
        [fixture("xen-hvm-ide-boot.xtr.gz"), fixture("xen-hvm-ide-boot.dom0-ftrace.txt.gz")];
    let result = explain(&files, &Options::default()).expect("two traces");
    let given = xen().duration_s.expect("seconds");
    assert!(result.duration_s.is_some_and(|s| (s / given - 1.0).abs() < 0.01), "{result:?}");
    assert!(result.warnings.iter().any(|w| w.contains("2.00 GHz")), "{:?}", result.warnings);
}

/// The healthy dom0's trace, with events put in: in every third activation of the device model it
/// wakes a worker that runs `wait_rcu_exp_gp`, in every ninth one for `lru_add_drain_per_cpu`.
fn with_drains(folder: &std::path::Path) -> (std::path::PathBuf, [usize; 2]) {
    let packed = std::fs::File::open(fixture("xen-hvm-ide-boot.dom0-ftrace.txt.gz"));
    let mut text = String::new();
    flate2::read::GzDecoder::new(packed.expect("a file"))
        .read_to_string(&mut text)
        .expect("a trace");
    let (mut out, mut seen, mut counts) = (String::new(), 0, [0; 2]);
    for line in text.lines() {
        out.push_str(line);
        out.push('\n');
        if !line.ends_with("next_comm=xen-qemu-system next_pid=147 next_prio=120") {
            continue;
        }
        seen += 1;
        let stamp =
            line.split_whitespace().find_map(|word| word.strip_suffix(':')?.parse::<u64>().ok());
        let cpu = line.split(['[', ']']).nth(1).expect("a CPU");
        let works = [(3, 0, "wait_rcu_exp_gp"), (9, 1, "lru_add_drain_per_cpu")];
        for (_, at, function) in works.into_iter().filter(|(every, ..)| seen % every == 0) {
            counts[at] += 1;
            let (stamp, worker) = (stamp.expect("a stamp") + 4 * at as u64, 9001 + at);
            let (qemu, own) = ("xen-qemu-system", format!("kworker/0:{worker}"));
            let events = [
                format!("{qemu}-147 sched_wakeup: comm={own} pid={worker} prio=120 target_cpu=000"),
                format!("{qemu}-147 sched_switch: prev_comm={qemu} prev_pid=147 prev_prio=120 prev_state=R+ ==> next_comm={own} next_pid={worker} next_prio=120"),
                format!("{own}-{worker} workqueue_execute_start: work struct 0x{worker}: function {function}"),
                format!("{own}-{worker} sched_switch: prev_comm={own} prev_pid={worker} prev_prio=120 prev_state=I ==> next_comm={qemu} next_pid=147 next_prio=120"),
            ];
            for (after, event) in (stamp + 1..).zip(&events) {
                let (thread, event) = event.split_once(' ').expect("a thread");
                out.push_str(&format!(" {thread} [{cpu}] d..2. {after}: {event}\n"));
            }
        }
    }
    let path = folder.join("dom0.txt");
    std::fs::write(&path, out).expect("a file");
    (path, counts)
}

#[test]
fn what_the_device_model_has_workers_run_is_named_and_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let (dom0, [graces, drains]) = with_drains(folder.path());
    let files = [fixture("xen-hvm-ide-boot.xtr.gz"), dom0];
    let options = Options { cpu_hz: Some(2e9), ..Options::default() };
    let result = explain(&files, &options).expect("two traces");
    let first = result.findings.first().expect("a finding");
    assert_eq!(word(first), "kernel-work", "{first:?}");
    let told: Vec<&str> = first.chain.iter().map(|link| link.claim.as_str()).collect();
    for (function, count) in [("wait_rcu_exp_gp", graces), ("lru_add_drain_per_cpu", drains)] {
        // Of the first, nothing says that the worker slept before.
        let said = format!("{function} {} times", count - 1);
        assert!(told.iter().any(|claim| claim.contains(&said)), "{said}: {told:#?}");
    }
}

#[test]
fn xen_alone_still_tells_the_ports() {
    let files = [fixture("xen-hvm-ide-boot.xtr.gz")];
    let result = explain(&files, &Options::default()).expect("a trace");
    let model = |finding: &&Finding| finding.summary.contains("the vCPU waits while");
    let model = result.findings.iter().find(model).expect("a finding");
    assert!(model.summary.contains("the device model"), "{model:?}");
    // Without the clock's rate nothing is in seconds, and that is said.
    assert_eq!(result.duration_s, None);
    assert!(result.warnings.iter().any(|warning| warning.contains("--cpu-hz")));
}

#[test]
fn dom0_alone_has_nothing_that_stands_out() {
    let files = [fixture("xen-hvm-ide-boot.dom0-ftrace.txt.gz")];
    let result = explain(&files, &Options::default()).expect("a trace");
    let alarms = result.findings.iter().filter(|finding| finding.severity > Severity::Low);
    assert_eq!(alarms.count(), 0, "{:#?}", result.findings);
}

#[test]
fn a_serial_console_is_an_exit_a_byte_and_the_overwritten_part_is_told() {
    let files = [fixture("kvm-nested-boot.ftrace.txt.gz")];
    let result = explain(&files, &Options::default()).expect("a trace");
    assert_eq!(kinds(&result), ["unbatched"], "{:#?}", result.findings);
    let finding = &result.findings[0];
    assert!(finding.subject.contains("0x3f8"), "{finding:?}");
    let bytes = &finding.chain[0];
    assert_eq!(bytes.evidence.count, Some(6504), "{bytes:?}");
    assert_eq!(bytes.evidence.lost_events, Some(842_596));
    // The vCPU was on a CPU whose events are overwritten for ten seconds: not the port's.
    assert!(bytes.evidence.total_s.is_some_and(|s| s < 4.0), "{bytes:?}");
    let unknown = result.vcpus[0].parts.iter().find(|part| part.name == "not recorded");
    assert!(unknown.is_some_and(|part| part.share > 0.4), "{:?}", result.vcpus);
    assert!(result.warnings.iter().any(|w| w.contains("overwritten")), "{:?}", result.warnings);
}

#[test]
fn order_of_the_files_changes_names_only() {
    let files =
        [fixture("xen-hvm-ide-boot.dom0-ftrace.txt.gz"), fixture("xen-hvm-ide-boot.xtr.gz")];
    let swapped =
        explain(&files, &Options { cpu_hz: Some(2e9), ..Options::default() }).expect("two traces");
    let result = xen();
    assert_eq!(kinds(&result), kinds(&swapped));
    assert_eq!(result.findings[0].chain[0].claim, swapped.findings[0].chain[0].claim);
}

#[test]
fn no_file_and_no_trace_are_told_apart() {
    assert!(matches!(explain(&[], &Options::default()), Err(ExplainError::NoFile)));
    let many = vec![fixture("small.ftrace.txt"); 65];
    let error = explain(&many, &Options::default());
    assert!(matches!(error, Err(ExplainError::TooMany { found: 65, .. })));
    let error = explain(&[fixture("README.md")], &Options::default());
    assert!(matches!(error, Err(ExplainError::Trace(_))));
}

#[test]
fn every_small_trace_is_read() {
    for name in ["small.ftrace.txt", "small.perf.txt", "small.qemu.log", "small.strace.txt"] {
        let result = explain(&[fixture(name)], &Options::default());
        assert!(result.is_ok_and(|result| result.files[0].events > 0), "{name}");
    }
}
