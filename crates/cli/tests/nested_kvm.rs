//! The KVM path on real hardware virtualisation, wherever this runs.
//!
//! QEMU's interpreter has SVM: with `-cpu max`, a Debian kernel in it loads
//! `kvm_amd`, and `/dev/kvm` there behaves as on a bare-metal host, real mode and
//! ring 0 native and `kvm_exit` with its reasons. `vmeter boot --accel kvm` runs in
//! that guest (L1), boots a Debian kernel under KVM (L2), and hands its JSON out.
//!
//! It takes minutes on a busy machine, so it is asked for: `VMETER_NESTED=1 cargo test
//! -p vmeter --test nested nested_kvm -- --nocapture`.

use crate::common;

use common::l1::L1;
use common::Lab;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use vmeter_appliance::kernel;
use vmeter_trace::ops::{Access, Op};

const ASKED: &str = "VMETER_NESTED";
/// Half a minute on a quiet machine of two cores, two minutes on a busy one.
const PATIENCE: u32 = 2400;
const QEMU: &[&str] = &["-cpu", "max,+invtsc", "-machine", "q35", "-m", "3072", "-smp", "2"];
/// QEMU, its translator, which it loads even to say what it can do, and its firmware.
const PARTS: [&str; 5] = [
    "/usr/bin/qemu-system-x86_64",
    "/usr/lib/x86_64-linux-gnu/qemu/accel-tcg-x86_64.so",
    "/usr/share/seabios/bios-256k.bin",
    "/usr/share/qemu/linuxboot_dma.bin",
    "/usr/share/qemu/kvmvapic.bin",
];

/// What L1 does first.
const BEGIN: &str = "#!/bin/sh
export PATH=/usr/bin:/bin HOME=/root XDG_STATE_HOME=/tmp/state XDG_CACHE_HOME=/tmp/cache
[ -d /sys/kernel/tracing/events ] || mount -t tracefs tracefs /sys/kernel/tracing
mount -t debugfs debugfs /sys/kernel/debug
for tty in 1 2 3; do stty raw </dev/ttyS$tty 2>/dev/null; done
";

/// Then, for one boot.
const BOOT: &str = "
vmeter boot --accel kvm --runs 1 --warmup 0 --timeout 600 --kernel /boot/vmlinuz \\
    --color never --export-json /tmp/boot.json
echo \"L1: vmeter: $?\"
for instance in /sys/kernel/tracing/instances/*; do echo \"L1: left: $instance\"; done
cat /tmp/boot.json >/dev/ttyS1
cat /tmp/state/vmeter/runs/*/runs/0000/run.json >/dev/ttyS2
cat /tmp/state/vmeter/runs/*/runs/0000/kvm-trace.dat >/dev/ttyS3
";

/// Then, for what a character costs.
const CHARACTERS: &str = "
vmeter findings uart-cost --accel kvm --runs 1 --warmup 0 --timeout 600 --color never \\
    --export-json /tmp/findings.json
echo \"L1: vmeter: $?\"
cat /tmp/findings.json >/dev/ttyS1
";

/// Runs a script in L1 that has KVM; what it wrote to its serial lines.
fn in_l1(lab: &Lab, script: &str, files: &[(PathBuf, String)], lines: &[&str]) -> Vec<String> {
    let kernel = kernel::default_kernel().expect("asked for before");
    let mut programs: Vec<(&Path, &str)> = vec![(&kernel.vmlinuz, "/boot/vmlinuz")];
    programs.extend(PARTS.iter().map(|path| (Path::new(*path), *path)).filter(|p| p.0.exists()));
    programs.extend(files.iter().map(|(path, guest)| (path.as_path(), guest.as_str())));
    let l1 = L1 {
        modules: &["kvm_amd"],
        programs: &programs,
        script: &format!("{BEGIN}{script}"),
        qemu: QEMU,
        append: "",
        patience: PATIENCE,
    };
    let read = l1.run(lab, &kernel, lines);
    assert!(read[0].contains("L1: vmeter: 0"), "it failed there");
    read
}

fn is_asked() -> bool {
    if std::env::var_os(ASKED).is_none() {
        println!("skipped: takes minutes on a busy machine; {ASKED}=1 runs it");
        return false;
    }
    if kernel::default_kernel().is_none() {
        println!("skipped: no kernel; `vmeter kernel fetch`");
        return false;
    }
    true
}

/// What L1 handed out.
struct FromL1 {
    run: Value,
    trace: PathBuf,
}

#[test]
fn a_boot_under_nested_kvm_is_accounted_for() {
    if !is_asked() {
        return;
    }
    let lab = Lab::new();
    let outputs = ["boot.json", "run.json", "kvm-trace.dat"];
    let read = in_l1(&lab, BOOT, &[], &outputs);
    let json = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
    let (boot, run) = (json(&read[1]), json(&read[2]));
    let l1 = FromL1 { run, trace: lab.path(outputs[2]) };
    assert!(!read[0].contains("instances/vmeter-"), "an instance was left");
    let run = &boot["runs"][0];
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

/// The kernel as vmeter's cache has it, with the modules that consoles need.
fn cached_kernel(kernel: &kernel::KernelPaths) -> Vec<(PathBuf, String)> {
    let modules = &kernel.modules_dir;
    let listed = |folder: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_file()).collect()
    };
    let mut all = listed(modules);
    all.extend(listed(&modules.join("kernel/drivers/virtio")));
    all.extend(
        ["char/virtio_console.ko", "char/virtio_console.ko.xz"]
            .map(|name| modules.join("kernel/drivers").join(name)),
    );
    all.retain(|path| path.is_file());
    let root = format!("/tmp/cache/vmeter/kernels/{}", kernel.version);
    let mut files = vec![(kernel.vmlinuz.clone(), format!("{root}/vmlinuz"))];
    for path in all {
        let within = path.strip_prefix(modules).expect("listed there").display().to_string();
        files.push((path, format!("{root}/modules/{within}")));
    }
    files
}

/// Each character is written to the UART's port, and what the driver asks besides comes once for
/// a FIFO of them.
#[test]
fn exits_of_a_character_are_counted_under_nested_kvm() {
    if !is_asked() {
        return;
    }
    let files = cached_kernel(&kernel::default_kernel().expect("asked for before"));
    let read = in_l1(&Lab::new(), CHARACTERS, &files, &["findings.json"]);
    let result: Value = serde_json::from_str(&read[1]).expect("JSON");
    let consoles = result["consoles"].as_array().expect("consoles");
    println!("{consoles:#?}\n{:#?}", result["warnings"]);
    let exits = |name: &str| {
        let row = consoles.iter().find(|row| row["console"] == name)?;
        row["exits_per_char"]["mean"].as_f64()
    };
    for name in ["ttyS0 (UART)", "ttyS1 (UART, to null)"] {
        let each = exits(name).expect("its ports are counted");
        assert!((1.0..8.0).contains(&each), "{name}: {each}");
    }
    assert_eq!(exits("hvc0 (virtio-console)"), None, "no port is its own");
    // Where a program may not write to ports, that is said, and the others are there all the same.
    match exits("debugcon, an outb each") {
        Some(each) => assert_eq!(each, 1.0),
        None => assert!(result["warnings"].to_string().contains("debugcon"), "{result}"),
    }
    let each = &result["findings"][0]["comparisons"][0]["exits_per_unit"]["mean"];
    let each = each.as_f64().expect("KVM counts here");
    assert!(each > 0.8 * exits("ttyS0 (UART)").unwrap_or(0.0), "all exits, the UART's among them");
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
