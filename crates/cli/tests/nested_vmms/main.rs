//! VMMs that are not QEMU, under nested KVM (see `nested_kvm.rs`): the tests' own, with the
//! habits of others, and of Firecracker, cloud-hypervisor, crosvm and kvmtool those that are in
//! PATH or in the folder `VMETER_VMMS`. Each boots Debian's kernel, with little RAM and with some
//! above 4 GiB, with one vCPU and with two, and vmeter has to account for it: by the guest's trace,
//! or, with --no-inject, by its log alone. `perf stat`, where it is installed, counts KVM's events
//! of the same boots.
//!
//! `VMETER_NESTED=1 cargo test -p vmeter --test nested nested_vmms -- --nocapture`: a minute or two a
//! boot on a busy machine. `VMETER_NESTED_ONLY=NAME,…` boots those whose names begin so, `VMETER_NESTED_KERNEL=FILE`
//! with another kernel (`vmlinux`), which need not have a trace.

use crate::common;
mod compared;
mod matrix;
mod restored;

use common::l1::L1;
use common::Lab;
use serde_json::{json, Value};
use std::path::{Path, PathBuf};
use std::process::Command;
use vmeter_appliance::{build_to, kernel, ApplianceSpec};
use vmeter_kernel_image::KernelImage;

const ASKED: &str = "VMETER_NESTED";
const QEMU: &[&str] = &["-cpu", "max,+invtsc", "-machine", "q35", "-m", "6144", "-smp", "2"];
/// One whose clock is the number of its instructions.
const COUNTED: [&str; 8] =
    ["-cpu", "max,+invtsc", "-machine", "q35", "-m", "6144", "-icount", "shift=0,sleep=off"];
/// The host in which VMMs run: with `VMETER_NESTED_COUNTED=1` its clock counts its instructions, so that
/// what else runs beside it is in none of its times.
fn host() -> &'static [&'static str] {
    match std::env::var_os("VMETER_NESTED_COUNTED") {
        Some(_) => &COUNTED,
        None => QEMU,
    }
}
/// What the user's own words have to be where vmeter can't add them.
const WORDS: &str = "trace_event=initcall:* trace_clock=x86-tsc trace_buf_size=512K";
const LINE: &str = "console=ttyS0 quiet panic=-1 reboot=k vmeter.exit=reset cryptomgr.notests \
                    no_timer_check tsc=reliable random.trust_cpu=on";
/// For one that is powered off by ACPI.
const BY_ACPI: &str = "console=ttyS0 quiet panic=-1 cryptomgr.notests no_timer_check \
                       tsc=reliable random.trust_cpu=on";

const BEGIN: &str = "#!/bin/sh
export PATH=/usr/bin:/bin HOME=/root XDG_STATE_HOME=/tmp/state XDG_CACHE_HOME=/tmp/cache
[ -d /sys/kernel/tracing/events ] || mount -t tracefs tracefs /sys/kernel/tracing
mount -t debugfs debugfs /sys/kernel/debug
stty raw </dev/ttyS1
count=
if perf stat -a -e kvm:kvm_exit true 2>/dev/null; then
    count='perf stat -a -x, -o /tmp/counted -e kvm:kvm_exit -e kvm:kvm_userspace_exit -e kvm:kvm_pio'
fi
run() {
    echo \"=== $1\" >/dev/ttyS1; name=$1; shift; : >/tmp/counted
    $count vmeter boot --warmup 0 --runs 1 --timeout 1500 --color never \\
        --export-json /tmp/$name.json \"$@\" 2>/tmp/said
    echo \"L1: $name: $?\"
    cat /tmp/$name.json >/dev/ttyS1
    # A boot in which vmeter was stopped is made again, and perf counts both.
    while read line; do
        case $line in *'is made again'*) : >/tmp/counted;; esac
    done </tmp/said
    cat /tmp/said
    echo '+++' >/dev/ttyS1
    cat /tmp/counted >/dev/ttyS1
    echo '+++' >/dev/ttyS1
    cat /tmp/state/vmeter/runs/*/runs/0000/run.json >/dev/ttyS1
    while read probe; do echo \"L1: left: $probe\"; done </sys/kernel/tracing/kprobe_events
    for left in /sys/kernel/tracing/instances/vmeter-*; do
        [ -d $left ] && echo \"L1: left: $left\"
    done
    rm -rf /tmp/state
}
";
/// Seconds for one boot; a busy machine needs many.
const PATIENCE: u32 = 1600;
/// What is taken along where it is there.
const OTHERS_PROGRAMS: [&str; 8] = [
    "firecracker",
    "lkvm",
    "cloud-hypervisor",
    "crosvm",
    "qemu-system-x86_64",
    "curl",
    "perf",
    "true",
];
/// A VMM's words for so many MiB and vCPUs.
type Words = fn(u32, u32) -> String;
/// RAM in MiB, and vCPUs.
const SIZES: [(u32, u32); 4] = [(512, 1), (512, 2), (3600, 1), (3600, 2)];

/// A VMM of this host, and its name in L1.
fn vmm(name: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("VMETER_VMMS").into_iter().chain(std::env::var_os("PATH"));
    let paths: Vec<PathBuf> =
        folders.flat_map(|f| std::env::split_paths(&f).collect::<Vec<_>>()).collect();
    paths.into_iter().map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// The tests' VMM, built as this test was.
fn own_vmm() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo).args(["build", "-q", "-p", "vmeter-test-vmm"]).status();
    assert!(status.expect("cargo").success());
    Path::new(env!("CARGO_BIN_EXE_vmeter")).with_file_name("test-vmm")
}

fn config(lab: &Lab, name: &str, memory: u32, vcpus: u32, words: &str) -> PathBuf {
    let path = lab.path(name);
    let told = json!({
        "boot-source": {
            "kernel_image_path": "/boot/vmlinux",
            "initrd_path": "/boot/initrd",
            "boot_args": format!("{LINE} pci=off{words}"),
        },
        "drives": [],
        "machine-config": { "vcpu_count": vcpus, "mem_size_mib": memory },
    });
    std::fs::write(&path, told.to_string()).expect("scratch space");
    path
}

/// A script that tells Firecracker its machine by its API.
fn by_api(lab: &Lab, program: &str) -> PathBuf {
    let source = json!({
        "kernel_image_path": "/boot/vmlinux",
        "initrd_path": "/boot/initrd",
        "boot_args": format!("{LINE} pci=off {WORDS}"),
    });
    let script = format!(
        "{}{}{}{}wait\n",
        serving(program),
        put("boot-source", &source),
        put("machine-config", &json!({ "vcpu_count": 1, "mem_size_mib": 512 })),
        put("actions", &json!({ "action_type": "InstanceStart" })),
    );
    lab.script("by-api", &script)
}

/// Begins a script that starts Firecracker with its API alone.
fn serving(program: &str) -> String {
    format!(
        "#!/bin/sh\nrm -f /tmp/fc.sock\n{program} --api-sock /tmp/fc.sock &\n\
         while [ ! -S /tmp/fc.sock ]; do sleep 0.1; done\n"
    )
}

/// A request to it.
fn put(path: &str, body: &Value) -> String {
    format!("curl -s --unix-socket /tmp/fc.sock -X PUT http://localhost/{path} -d '{body}'\n")
}

/// The real VMMs, and how they are told of a machine.
const OTHERS: [(&str, Words); 4] = [
    ("lkvm", lkvm),
    ("firecracker", firecracker),
    ("cloud-hypervisor", cloud_hypervisor),
    ("crosvm", crosvm),
];

fn lkvm(memory: u32, vcpus: u32) -> String {
    format!(
        "-- lkvm run --console serial -n mode=none -k /boot/vmlinuz -i /boot/initrd -c {vcpus} \
         -m {memory} -p '{LINE}'"
    )
}

fn firecracker(memory: u32, vcpus: u32) -> String {
    format!("-- firecracker --no-api --config-file /etc/fc-{memory}-{vcpus}.json")
}

fn cloud_hypervisor(memory: u32, vcpus: u32) -> String {
    format!(
        "-- cloud-hypervisor --kernel /boot/vmlinux --initramfs /boot/initrd --cpus boot={vcpus} \
         --memory size={memory}M --serial tty --console off --cmdline '{BY_ACPI}'"
    )
}

fn crosvm(memory: u32, vcpus: u32) -> String {
    format!(
        "-- crosvm run --disable-sandbox --cpus {vcpus} --mem {memory} -i /boot/initrd \
         --serial type=stdout,hardware=serial,num=1,console -p '{BY_ACPI}' /boot/vmlinux"
    )
}

/// What QEMU reads for a microvm, where Debian has it.
const QEMUS: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu/qemu/accel-tcg-x86_64.so",
    "/usr/share/qemu/qboot.rom",
    "/usr/share/seabios/bios-microvm.bin",
];

/// The kernel, if these tests are asked for.
fn asked() -> Option<kernel::KernelPaths> {
    if std::env::var_os(ASKED).is_none() {
        println!("skipped: takes minutes on a busy machine; {ASKED}=1 runs it");
        return None;
    }
    let kernel = kernel::default_kernel();
    if kernel.is_none() {
        println!("skipped: no kernel; `vmeter kernel fetch`");
    }
    kernel
}

/// A `vmlinux` that the guests boot instead of Debian's kernel.
fn guests_kernel() -> Option<PathBuf> {
    std::env::var_os("VMETER_NESTED_KERNEL").map(PathBuf::from)
}

/// Runs a script in a host that has KVM, every VMM that there is, and a kernel for their guests;
/// what it wrote to its console and to its second serial line.
fn in_l1(
    lab: &Lab,
    kernel: &kernel::KernelPaths,
    script: &str,
    machine: (&[&str], u32),
) -> Vec<String> {
    with_files(lab, kernel, script, machine, &[])
}

/// The same with further files of this host's.
fn with_files(
    lab: &Lab,
    kernel: &kernel::KernelPaths,
    script: &str,
    (qemu, patience): (&[&str], u32),
    files: &[(&Path, &str)],
) -> Vec<String> {
    let (vmlinux, initrd) = (lab.path("vmlinux"), lab.path("initrd"));
    match guests_kernel() {
        Some(own) => std::fs::copy(own, &vmlinux).map(|_| ()).expect("the guests' kernel"),
        None => {
            let image = KernelImage::open(&kernel.vmlinuz).expect("a kernel");
            image.write_vmlinux(&vmlinux).expect("scratch space");
        }
    }
    build_to(&ApplianceSpec::minimal(), &initrd).expect("an initramfs");
    let configs = SIZES.map(|(memory, vcpus)| {
        let name = format!("fc-{memory}-{vcpus}.json");
        (config(lab, &name, memory, vcpus, ""), format!("/etc/{name}"))
    });
    let (own, own_api) = (own_vmm(), by_api(lab, "firecracker-test"));
    let fc_api = lab.path("fc-api");
    let api = std::fs::read_to_string(&own_api).expect("written");
    std::fs::write(&fc_api, api.replace("firecracker-test", "firecracker")).expect("written");
    let mut programs: Vec<(&Path, &str)> = vec![
        (&vmlinux, "/boot/vmlinux"),
        (&kernel.vmlinuz, "/boot/vmlinuz"),
        (&initrd, "/boot/initrd"),
        (&own, "/usr/bin/test-vmm"),
        (&own, "/usr/bin/firecracker-test"),
        (&own_api, "/etc/own-api"),
        (&fc_api, "/etc/fc-api"),
        (Path::new("/bin/sleep"), "/bin/sleep"),
        (Path::new("/bin/rm"), "/bin/rm"),
    ];
    let found: Vec<(PathBuf, String)> = OTHERS_PROGRAMS
        .iter()
        .filter_map(|name| Some((vmm(name)?, format!("/usr/bin/{name}"))))
        .collect();
    programs.extend(files);
    let here = configs.iter().chain(&found);
    programs.extend(here.map(|(path, guest)| (path.as_path(), guest.as_str())));
    programs.extend(QEMUS.map(|path| (Path::new(path), path)).into_iter().filter(|p| p.0.exists()));
    let l1 = L1 { modules: &["kvm_amd"], programs: &programs, script, qemu, append: "", patience };
    l1.run(lab, kernel, &["results"])
}
