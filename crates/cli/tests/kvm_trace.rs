//! KVM's tracepoints, recorded of a guest whose exits are known to the last one.
//!
//! The VMM is this test program itself, started again by `vmeter boot`: it runs a
//! guest of a few instructions in ring 3, which every KVM runs natively.

use crate::common;

use common::traced_guest::{possible, INSTANCES};
use common::Lab;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use vmeter_kvm_probe::kvm_bindings::kvm_regs;
use vmeter_kvm_probe::{code, Ring, Stop, VcpuExit, Vm};

/// Set to have this program be the VMM; see [`guest`].
const GUEST: &str = "VMETER_TEST_GUEST";
const DONE: u8 = 0xf4;
const PORT: u8 = 0x42;
const PORT_WRITES: u64 = 1234;
const MMIO_READS: u64 = 321;
/// Nothing is there. It is also where a guest of Firecracker says, by the byte 123, that it has
/// booted (`--boot-timer`).
const HOLE: u64 = 3 << 30;
const BOOTED: u8 = 123;

/// The VMM's half: not a test by itself.
#[test]
fn guest() {
    let Ok(what) = std::env::var(GUEST) else { return };
    let soon = Some(Instant::now() + Duration::from_secs(60));
    let run = |program: Vec<u8>, regs: kvm_regs| {
        let vm = Vm::builder().code(program).build().expect("a VM");
        let mut vcpu = vm.vcpu(0).expect("a vCPU");
        vcpu.enter(Ring::Three, regs).expect("ring 3");
        let stop = vcpu.run(soon, |exit| match exit {
            VcpuExit::IoOut(port, _) if port == u16::from(DONE) => std::ops::ControlFlow::Break(()),
            _ => std::ops::ControlFlow::Continue(()),
        });
        assert_eq!(stop.expect("it runs"), Stop::Done(()));
    };
    run(code::port_writes(PORT, DONE), kvm_regs { rcx: PORT_WRITES, ..Default::default() });
    run(code::mmio_reads(DONE), kvm_regs { rcx: MMIO_READS, rdi: HOLE, ..Default::default() });
    // mov byte [rdi], BOOTED; out DONE, al; jmp -4.
    let booted = vec![0xc6, 0x07, BOOTED, 0xe6, DONE, 0xeb, 0xfc];
    run(booted, kvm_regs { rdi: HOLE, ..Default::default() });
    if what == "booted" {
        // Some time later the VMM says so.
        std::thread::sleep(Duration::from_millis(200));
        println!("\n2026-11-23T00:00:00.123456789 [vm:fc_vcpu 0] Guest-boot-time =  99 us 0 ms");
    }
    if what == "stay" || what == "booted" {
        println!("guest stays");
        let mut line = String::new();
        let _ = std::io::stdin().read_line(&mut line);
        loop {
            std::thread::park();
        }
    }
}

fn vmm() -> String {
    std::env::current_exe().expect("this program").display().to_string()
}

fn instances() -> Vec<String> {
    let entries = std::fs::read_dir(INSTANCES).expect("readable");
    entries
        .flatten()
        .filter_map(|e| e.file_name().into_string().ok())
        .filter(|name| name.starts_with("vmeter-"))
        .collect()
}

#[test]
fn exits_and_ports_are_counted_to_the_last_one() {
    if !possible() {
        return;
    }
    let lab = Lab::new();
    let mut command = lab.command(&["boot", "--runs", "1", "--warmup", "0", "--export-json", "-"]);
    command.args(["--", &vmm(), "--exact", "kvm_trace::guest"]).env(GUEST, "run");
    let output = command.output().expect("vmeter");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let counts = &result["runs"][0]["counts"];
    let count = |name: &str| counts[name].as_u64().unwrap_or(0);
    assert_eq!(count("kvm_pio:0x42"), PORT_WRITES, "{counts:#}\n{errors}");
    assert_eq!(count("kvm_pio:0xf4"), 3, "{counts:#}");
    assert_eq!(count("mmio"), MMIO_READS + 1, "{counts:#}");
    assert_eq!(count("kvm_trace_lost"), 0);
    assert!(count("exits") >= PORT_WRITES + MMIO_READS + 4, "{counts:#}");
    // What the VMM was asked for, by the reason: the deadline's signal may add to it.
    let handled = count("userspace_exits");
    let done = PORT_WRITES + MMIO_READS + 4;
    assert!((done..done + 10).contains(&handled), "{handled}");
    // Before its guest ran, and after: the VMM's own.
    let spans = result["runs"][0]["spans"].as_array().expect("spans");
    for name in ["vmm:init", "shutdown:vmm"] {
        assert!(spans.iter().any(|span| span["name"] == name), "no {name}: {spans:#?}");
    }
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains("Firecracker's boot timer"), "{shown}");
    let trace = find(lab.folder.path(), "kvm-trace.dat").expect("saved");
    assert!(std::fs::metadata(trace).expect("a file").len() > 4096);
}

/// Firecracker prints what its guest told it some time before.
#[test]
fn a_run_ends_when_the_guest_says_that_it_has_booted() {
    if !possible() {
        return;
    }
    let lab = Lab::new();
    let until = ["--until", "guest-booted", "--timeout", "60"];
    let mut command = lab.command(&["boot", "--runs", "1", "--warmup", "0", "--export-json", "-"]);
    command.args(until).args(["--", &vmm(), "--exact", "kvm_trace::guest", "--nocapture"]);
    let output = command.env(GUEST, "booted").output().expect("vmeter");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let run = &result["runs"][0];
    let marks = run["marks"].as_array().expect("marks");
    let at = |text: &str| {
        let found = marks.iter().find(|mark| mark.to_string().contains(text));
        found.and_then(|mark| mark["at_s"].as_f64()).unwrap_or_else(|| panic!("{text}: {run:#}"))
    };
    let said = at("Firecracker's boot timer");
    // Where KVM saw it, and not where it was printed, 0.2 s later.
    assert!((at("\"ready\"") - said).abs() < 1e-4, "{run:#}");
    assert!((run["total_s"].as_f64().expect("a total") - said).abs() < 1e-4, "{run:#}");
    assert_eq!(run["end"]["cause"], "ready");
}

/// A file of that name, anywhere below a folder.
fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let entries: Vec<PathBuf> =
        std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    let here = entries.iter().find(|path| path.file_name().is_some_and(|n| n == name)).cloned();
    here.or_else(|| entries.iter().find_map(|path| find(path, name)))
}

#[test]
fn after_kill_9_the_next_boot_removes_what_was_left() {
    if !possible() {
        return;
    }
    let lab = Lab::new();
    let until = ["--until", "line:never"];
    let mut command = lab.command(&["boot", "--runs", "1", "--warmup", "0", "--timeout", "60"]);
    command
        .args(until)
        .args(["--", &vmm(), "--exact", "kvm_trace::guest", "--nocapture"])
        .env(GUEST, "stay");
    let mut vmeter = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("vmeter");
    let own = format!("vmeter-{}-", vmeter.id());
    let begun = || instances().into_iter().find(|name| name.starts_with(&own));
    // The recording in the run's folder says that the VMM runs.
    let deadline = Instant::now() + Duration::from_secs(60);
    let left = loop {
        match begun().filter(|_| find(lab.folder.path(), "console.chunks").is_some()) {
            Some(instance) => break instance,
            None => assert!(Instant::now() < deadline, "it never recorded"),
        }
        std::thread::park_timeout(Duration::from_millis(20));
    };
    vmeter.kill().expect("kill -9");
    vmeter.wait().expect("gone");
    assert!(instances().contains(&left), "nobody could remove it");
    let mut command = lab.command(&["boot", "--runs", "1", "--warmup", "0"]);
    command.args(["--", &vmm(), "--exact", "kvm_trace::guest"]).env(GUEST, "run");
    assert!(command.output().expect("vmeter").status.success());
    assert!(!instances().contains(&left), "the next boot removes it");
    assert!(begun().is_none());
}
