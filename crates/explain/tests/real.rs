//! What is said of the recordings of real machines.

mod common;

use common::{fixture, kinds};
use vmeter_explain::result::Severity;
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
    let first = result.findings.first().expect("a finding");
    assert_eq!(first.kind, "device-model-round-trip");
    assert!(first.summary.contains("xen-qemu-system"), "{}", first.summary);
    let claims: Vec<&str> = first.chain.iter().map(|link| link.claim.as_str()).collect();
    let says = |what: &str| assert!(claims.iter().any(|c| c.contains(what)), "{what}: {claims:#?}");
    // Every one of the 991 writes of 0xcf8 and the 204 of 0x1f7, as xenalyze counts them.
    says("port 0xcf8 write (PCI config address) 991×");
    says("port 0x1f7 write (IDE 1) 204×");
    says("d1v0: paused, waiting for the device model 58 %, running 21 %");
    says("interrupts: 4762 of 50 evtchn:xen-qemu-system");
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

#[test]
fn xen_alone_still_tells_the_ports() {
    let files = [fixture("xen-hvm-ide-boot.xtr.gz")];
    let result = explain(&files, &Options::default()).expect("a trace");
    assert_eq!(kinds(&result)[0], "device-model-round-trip");
    assert!(result.findings[0].summary.contains("the device model"), "{:?}", result.findings[0]);
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
    assert_eq!(kinds(&result), ["exit-per-byte"], "{:#?}", result.findings);
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
