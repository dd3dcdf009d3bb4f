//! The KVM path on real hardware virtualisation, wherever this runs.
//!
//! QEMU's interpreter has SVM: with `-cpu max`, a Debian kernel in it loads
//! `kvm_amd`, and `/dev/kvm` there behaves as on a bare-metal host, real mode and
//! ring 0 native and `kvm_exit` with its reasons. `vmeter boot --accel kvm` runs in
//! that guest (L1), boots a Debian kernel under KVM (L2), and hands its JSON out.
//!
//! It takes minutes, so it is asked for: `VMETER_NESTED=1 cargo test --release -p
//! vmeter --test nested_kvm -- --nocapture`.

mod common;

use common::{text, Lab};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use vmeter_appliance::{build_to, kernel, ApplianceSpec, Content, ExtraFile};

const ASKED: &str = "VMETER_NESTED";
/// In the interpreter on a busy machine: L1 up in 20 s, the L2 in a minute or two.
const PATIENCE: &str = "1500";
/// Programs of L1, with their libraries.
const PROGRAMS: [&str; 4] = ["/bin/sh", "/bin/mount", "/bin/mkdir", "/bin/cat"];
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
stty raw </dev/ttyS1 2>/dev/null
cat /proc/uptime
vmeter doctor -v
vmeter boot --accel kvm --runs 1 --warmup 0 --timeout 600 --kernel /boot/vmlinuz \\
    WATCH --export-json /tmp/boot.json
echo \"L1: vmeter boot: $?\"
cat /proc/uptime
for f in $(echo /tmp/state/vmeter/runs/*/runs/0000/run.json); do cat $f >/dev/ttyS2; done
echo /sys/kernel/tracing/instances/*
cat /tmp/boot.json >/dev/ttyS1
";

fn host_file(path: &Path, guest: &str, mode: u32) -> ExtraFile {
    ExtraFile { path: guest.into(), content: Content::Host(path.to_owned()), mode }
}

/// The libraries of a program, by the dynamic linker's own word.
fn libraries(program: &Path) -> BTreeSet<PathBuf> {
    let output = Command::new("ldd").arg(program).output().expect("ldd is part of the C library");
    String::from_utf8_lossy(&output.stdout)
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .collect()
}

/// L1's initramfs.
fn l1(lab: &Lab, kernel: &kernel::KernelPaths, watch: &str) -> PathBuf {
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
    files.extend(needed.iter().map(|path| host_file(path, text(path), 0o755)));
    for path in FIRMWARE.map(Path::new) {
        files.push(host_file(path, text(path), 0o644));
    }
    for (path, content) in [
        ("/run-vmeter", SCRIPT.replace("WATCH", watch)),
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

/// Boots L1 and gives its console, what it exported, and the saved run.
fn boot_l1(lab: &Lab, kernel: &Path, initrd: &Path) -> (String, String, String) {
    let outputs = ["console", "boot.json", "run.json"].map(|name| lab.path(name));
    let mut command = Command::new("timeout");
    command.args([PATIENCE, "qemu-system-x86_64", "-accel", "tcg", "-cpu", "max"]);
    command.args(["-machine", "q35", "-m", "3072", "-smp", "2", "-nodefaults"]);
    command.args(["-display", "none", "-no-reboot"]);
    for output in &outputs {
        command.arg("-serial").arg(format!("file:{}", text(output)));
    }
    command.arg("-kernel").arg(kernel).arg("-initrd").arg(initrd).arg("-append");
    command.arg(
        "console=ttyS0 quiet panic=-1 cryptomgr.notests no_timer_check random.trust_cpu=on \
         vmeter.run=/run-vmeter",
    );
    let status = command.stdin(Stdio::null()).status().expect("QEMU");
    let [console, json, run] = outputs.map(|path| {
        let bytes = std::fs::read(&path).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\r', "")
    });
    assert!(status.success(), "{status}\n{console}");
    (console, json, run)
}

#[test]
fn a_boot_under_nested_kvm_is_accounted_for() {
    if std::env::var_os(ASKED).is_none() {
        println!("skipped: takes minutes; {ASKED}=1 runs it");
        return;
    }
    let Some(kernel) = kernel::default_kernel() else {
        println!("skipped: no kernel; `vmeter kernel fetch`");
        return;
    };
    let lab = Lab::new();
    let initrd = l1(&lab, &kernel, &std::env::var("VMETER_NESTED_OPTIONS").unwrap_or_default());
    let (console, json, run) = boot_l1(&lab, &kernel.vmlinuz, &initrd);
    println!("{console}");
    if let Some(keep) = std::env::var_os("VMETER_NESTED_KEEP") {
        std::fs::write(Path::new(&keep).join("boot.json"), &json).expect("kept");
        std::fs::write(Path::new(&keep).join("run.json"), &run).expect("kept");
    }
    assert!(console.contains("L1: vmeter boot: 0"), "{console}");
    let result: Value = serde_json::from_str(&json).expect("JSON");
    assert_timeline(&result["runs"][0]);
}

fn assert_timeline(run: &Value) {
    let counts = &run["counts"];
    assert!(counts["exits"].as_u64() > Some(10_000), "{counts:#}");
}
