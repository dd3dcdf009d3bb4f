//! The KVM path on real hardware virtualisation, wherever this runs.
//!
//! QEMU's interpreter has SVM: with `-cpu max`, a Debian kernel in it loads
//! `kvm_amd`, and `/dev/kvm` there behaves as on a bare-metal host, real mode and
//! ring 0 native and `kvm_exit` with its reasons. `vmeter boot --accel kvm` runs in
//! that guest (L1), boots a Debian kernel under KVM (L2), and hands its JSON out.
//!
//! It takes minutes on a busy machine, so it is asked for: `VMETER_NESTED=1 cargo test
//! -p vmeter --test nested_kvm -- --nocapture`.

mod common;

use common::l1::{host_file, libraries};
use common::{text, Lab};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use vmeter_appliance::{build_to, kernel, ApplianceSpec, Content, ExtraFile};
use vmeter_trace::ops::{Access, Op};

const ASKED: &str = "VMETER_NESTED";
/// Half a minute on a quiet machine of two cores, two minutes on a busy one.
const PATIENCE: &str = "1200";
/// Programs of L1, with their libraries.
const PROGRAMS: [&str; 4] = ["/bin/sh", "/bin/mount", "/bin/stty", "/bin/cat"];
/// Where Debian's QEMU has its translator, which it loads even to say what it can do.
const QEMU_MODULE: &str = "/usr/lib/x86_64-linux-gnu/qemu/accel-tcg-x86_64.so";
const FIRMWARE: [&str; 3] = [
    "/usr/share/seabios/bios-256k.bin",
    "/usr/share/qemu/linuxboot_dma.bin",
    "/usr/share/qemu/kvmvapic.bin",
];

/// What L1 does; its last line says how that ended.
const SCRIPT: &str = "#!/bin/sh
export PATH=/usr/bin:/bin HOME=/root XDG_STATE_HOME=/tmp/state XDG_CACHE_HOME=/tmp/cache
[ -d /sys/kernel/tracing/events ] || mount -t tracefs tracefs /sys/kernel/tracing
mount -t debugfs debugfs /sys/kernel/debug
for tty in 1 2 3; do stty raw </dev/ttyS$tty; done
vmeter boot --accel kvm --runs 1 --warmup 0 --timeout 600 --kernel /boot/vmlinuz \\
    --color never --export-json /tmp/boot.json
echo \"L1: vmeter boot: $?\"
for instance in /sys/kernel/tracing/instances/*; do echo \"L1: left: $instance\"; done
cat /tmp/boot.json >/dev/ttyS1
cat /tmp/state/vmeter/runs/*/runs/0000/run.json >/dev/ttyS2
cat /tmp/state/vmeter/runs/*/runs/0000/kvm-trace.dat >/dev/ttyS3
";

/// L1's initramfs.
fn l1(lab: &Lab, kernel: &kernel::KernelPaths) -> PathBuf {
    let vmeter = Path::new(env!("CARGO_BIN_EXE_vmeter"));
    let qemu = Path::new("/usr/bin/qemu-system-x86_64");
    let mut files = vec![
        host_file(vmeter, "/usr/bin/vmeter", 0o755),
        host_file(qemu, "/usr/bin/qemu-system-x86_64", 0o755),
        host_file(&kernel.vmlinuz, "/boot/vmlinuz", 0o644),
    ];
    let mut needed: BTreeSet<PathBuf> = libraries(vmeter);
    needed.extend(libraries(qemu));
    for program in PROGRAMS.map(Path::new) {
        files.push(host_file(program, text(program), 0o755));
        needed.extend(libraries(program));
    }
    if Path::new(QEMU_MODULE).exists() {
        needed.extend(libraries(Path::new(QEMU_MODULE)));
        needed.insert(QEMU_MODULE.into());
    }
    files.extend(needed.iter().map(|path| host_file(path, text(path), 0o755)));
    for path in FIRMWARE.map(Path::new) {
        files.push(host_file(path, text(path), 0o644));
    }
    for (path, content) in [
        ("/run-vmeter", SCRIPT.to_owned()),
        ("/tmp/.here", String::new()),
        ("/root/.here", String::new()),
    ] {
        let content = Content::Bytes(content.into_bytes());
        files.push(ExtraFile { path: path.into(), content, mode: 0o755 });
    }
    let spec = ApplianceSpec {
        modules_from: Some(kernel.modules()),
        load: vec!["kvm_amd".into()],
        extra_files: files,
        ..ApplianceSpec::minimal()
    };
    let path = lab.path("l1.cpio");
    build_to(&spec, &path).expect("an initramfs");
    path
}

/// What L1 handed out.
struct FromL1 {
    console: String,
    boot: Value,
    run: Value,
    trace: PathBuf,
}

fn boot_l1(lab: &Lab, kernel: &Path, initrd: &Path) -> FromL1 {
    let outputs = ["console", "boot.json", "run.json", "kvm-trace.dat"].map(|n| lab.path(n));
    let mut command = Command::new("timeout");
    command.args([PATIENCE, "qemu-system-x86_64", "-accel", "tcg", "-cpu", "max,+invtsc"]);
    command.args(["-machine", "q35", "-m", "3072", "-smp", "2", "-nodefaults"]);
    command.args(["-display", "none", "-no-reboot"]);
    for output in &outputs {
        command.arg("-serial").arg(format!("file:{}", text(output)));
    }
    command.arg("-kernel").arg(kernel).arg("-initrd").arg(initrd).arg("-append");
    // The translator gives all vCPUs one TSC, which Linux could not know.
    command.arg(
        "console=ttyS0 quiet panic=-1 cryptomgr.notests no_timer_check random.trust_cpu=on \
         tsc=reliable vmeter.run=/run-vmeter",
    );
    let status = command.stdin(Stdio::null()).status().expect("QEMU");
    let read = |path: &Path| {
        let bytes = std::fs::read(path).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\r', "")
    };
    let console = read(&outputs[0]);
    println!("{console}");
    assert!(status.success(), "L1: {status}");
    assert!(console.contains("L1: vmeter boot: 0"));
    let json = |path: &Path| serde_json::from_str(&read(path)).expect("JSON");
    let [_, boot, run, trace] = &outputs;
    FromL1 { boot: json(boot), run: json(run), trace: trace.clone(), console }
}

#[test]
fn a_boot_under_nested_kvm_is_accounted_for() {
    if std::env::var_os(ASKED).is_none() {
        println!("skipped: takes minutes on a busy machine; {ASKED}=1 runs it");
        return;
    }
    let Some(kernel) = kernel::default_kernel() else {
        println!("skipped: no kernel; `vmeter kernel fetch`");
        return;
    };
    let lab = Lab::new();
    let initrd = l1(&lab, &kernel);
    let l1 = boot_l1(&lab, &kernel.vmlinuz, &initrd);
    assert!(!l1.console.contains("instances/vmeter-"), "an instance was left");
    let run = &l1.boot["runs"][0];
    the_timeline_is_complete(run);
    exits_are_counted_twice_alike(run);
    // Initcalls of consoles come long before the others.
    let first = common::spans(run, "initcalls:early").first().expect("a level").0;
    let outside = pci_exits(&l1)
        .into_iter()
        .filter(|at| *at > first && !inside_a_pci_initcall(run, *at))
        .count();
    assert_eq!(outside, 0, "two clocks say when the guest was in its PCI initcalls");
}

fn the_timeline_is_complete(run: &Value) {
    assert!(run["coverage"].as_f64() > Some(0.99), "{}", run["coverage"]);
    let names: BTreeSet<&str> =
        run["spans"].as_array().expect("spans").iter().filter_map(|s| s["name"].as_str()).collect();
    for phase in ["vmm:init", "bios:overhead", "kernel:load", "kernel:setup", "kernel:decompress"] {
        assert!(names.contains(phase), "{phase} is missing: {names:?}");
    }
    assert!(initcalls(run).len() > 400, "initcalls by name: {names:?}");
    let unnamed = names.iter().filter(|name| name.starts_with("initcall 0x")).count();
    assert_eq!(unnamed, 0);
    // By the offset that KVM keeps, the guest's own stamps are as good as the host's.
    let spans = run["spans"].as_array().expect("spans");
    let by_guest = spans.iter().filter(|s| s["source"] == "guest-ftrace");
    let errors: Vec<f64> = by_guest
        .filter(|s| s["name"].as_str().is_some_and(|n| n.starts_with("initcall ")))
        .filter_map(|s| s["error_s"].as_f64())
        .collect();
    assert!(errors.iter().all(|e| *e > 0.0 && *e < 1e-3), "{errors:?}");
}

/// KVM's tracepoints and KVM's counters saw the same exits.
fn exits_are_counted_twice_alike(run: &Value) {
    let counts = run["counts"].as_object().expect("counts");
    let count = |name: &str| counts.get(name).and_then(Value::as_u64).unwrap_or(0);
    let by_reason: u64 = counts
        .iter()
        .filter(|(k, _)| k.starts_with("exits:"))
        .filter_map(|(_, v)| v.as_u64())
        .sum();
    assert_eq!(count("exits"), by_reason);
    assert!(count("exits") > 10_000, "{counts:?}");
    assert_eq!(count("exits:io"), count("kvm_io_exits"));
    assert!(count("exits:npf") > 0 && count("exits:cpuid") > 0 && count("exits:msr") > 0);
    assert_eq!(count("kvm_trace_lost"), 0);
    // An address and a data access make one.
    let (exits, accesses) = (count("pci_config_exits"), count("pci_config_accesses"));
    assert!(accesses > 0 && (exits as f64 / accesses as f64 - 2.0).abs() < 0.1, "{counts:?}");
    let seen_by_qemu = count("pci_config_reads") + count("pci_config_writes");
    assert!(seen_by_qemu > 0 && seen_by_qemu <= accesses, "{counts:?}");
}

/// (begin, end, name) of each initcall, s, in order.
fn initcalls(run: &Value) -> Vec<(f64, f64, String)> {
    let mut calls: Vec<(f64, f64, String)> = run["spans"]
        .as_array()
        .expect("spans")
        .iter()
        .filter_map(|s| {
            let name = s["name"].as_str()?.strip_prefix("initcall ")?.to_owned();
            Some((s["start_s"].as_f64()?, s["end_s"].as_f64()?, name))
        })
        .collect();
    calls.sort_by(|a, b| a.0.total_cmp(&b.0));
    calls
}

fn inside_a_pci_initcall(run: &Value, at: f64) -> bool {
    const THEIRS: [&str; 4] = ["pci", "acpi", "pnp", "amd"];
    initcalls(run)
        .iter()
        .filter(|(from, to, _)| (*from..=*to).contains(&at))
        .any(|(_, _, name)| THEIRS.iter().any(|word| name.contains(word)))
}

/// When the guest left for PCI's ports, by the host's clock, s after the exec.
fn pci_exits(l1: &FromL1) -> Vec<f64> {
    let exec = l1.run["exec_ns"].as_i64().expect("a moment");
    let input = vmeter_trace::Input::open(&l1.trace).expect("handed out");
    let mut reader = vmeter_trace::open(input).expect("a trace.dat");
    let mut decoder = vmeter_trace::ops::Decoder::default();
    let mut at = Vec::new();
    while let Some(event) = reader.next_event() {
        let op = decoder.decode(&event);
        if let Op::Access(Access::Port { port: 0xcf8..=0xcff, .. }) = op {
            at.push((event.ts as i64 - exec) as f64 / 1e9);
        }
    }
    at
}
