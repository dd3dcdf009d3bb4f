//! VMMs that are not QEMU, under nested KVM (see `nested_kvm.rs`): the tests' own, with the
//! habits of others, and of Firecracker, cloud-hypervisor, crosvm and kvmtool those that are in
//! PATH or in the folder `VMETER_VMMS`. Each boots Debian's kernel, and vmeter has to account
//! for it: by the guest's trace, or, with --no-inject, by its log alone.
//!
//! `VMETER_NESTED=1 cargo test -p vmeter --test nested_vmms -- --nocapture`: a minute or two a
//! boot on a busy machine. `VMETER_NESTED_ONLY=NAME,…` boots some of them.

mod common;

use common::l1::L1;
use common::Lab;
use serde_json::{json, Value};
use std::path::{Path, PathBuf};
use std::process::Command;
use vmeter_appliance::{build_to, kernel, ApplianceSpec};
use vmeter_kernel_image::KernelImage;

const ASKED: &str = "VMETER_NESTED";
const QEMU: &[&str] = &["-cpu", "max,+invtsc", "-machine", "q35", "-m", "6144", "-smp", "2"];
/// What the user's own words have to be where vmeter can't add them.
const WORDS: &str = "trace_event=initcall:* trace_clock=x86-tsc trace_buf_size=512K";
const LINE: &str = "console=ttyS0 quiet panic=-1 reboot=k vmeter.exit=reset cryptomgr.notests \
                    no_timer_check tsc=reliable random.trust_cpu=on";

const BEGIN: &str = "#!/bin/sh
export PATH=/usr/bin:/bin HOME=/root XDG_STATE_HOME=/tmp/state XDG_CACHE_HOME=/tmp/cache
[ -d /sys/kernel/tracing/events ] || mount -t tracefs tracefs /sys/kernel/tracing
mount -t debugfs debugfs /sys/kernel/debug
stty raw </dev/ttyS1
run() {
    echo \"=== $1\" >/dev/ttyS1; name=$1; shift
    vmeter boot --warmup 0 --runs 1 --timeout 900 --color never --export-json /tmp/$name.json \"$@\"
    echo \"L1: $name: $?\"
    cat /tmp/$name.json >/dev/ttyS1
    rm -rf /tmp/state
}
";

/// A machine in L1.
struct Boot {
    name: String,
    /// Words for the shell after `vmeter boot`.
    words: String,
    /// True if the guest's trace has its initcalls.
    traced: bool,
}

fn boot(name: &str, words: impl Into<String>) -> Boot {
    Boot { name: name.to_owned(), words: words.into(), traced: true }
}

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
    let put = |path: &str, body: Value| {
        format!("curl -s --unix-socket /tmp/fc.sock -X PUT http://localhost/{path} -d '{body}'\n")
    };
    let source = json!({
        "kernel_image_path": "/boot/vmlinux",
        "initrd_path": "/boot/initrd",
        "boot_args": format!("{LINE} pci=off {WORDS}"),
    });
    let script = format!(
        "#!/bin/sh\nrm -f /tmp/fc.sock\n{program} --api-sock /tmp/fc.sock &\n\
         while [ ! -S /tmp/fc.sock ]; do sleep 0.1; done\n{}{}{}wait\n",
        put("boot-source", source),
        put("machine-config", json!({ "vcpu_count": 1, "mem_size_mib": 512 })),
        put("actions", json!({ "action_type": "InstanceStart" })),
    );
    lab.script("by-api", &script)
}

fn of_the_tests_own() -> Vec<Boot> {
    let own = |layout: &str, memory: u32| {
        format!(
            "--kernel /boot/vmlinux -- test-vmm --memory {memory} --layout {layout} \
             --kernel /boot/vmlinux --initrd /boot/initrd --cmdline '{LINE} {WORDS}'"
        )
    };
    let mut boots = vec![
        boot("own-pieces", own("pieces", 512)),
        boot("own-high-low", own("high-low", 3600)),
        boot("own-config", "-- firecracker-test --no-api --config-file /etc/fc-512.json"),
        boot("own-api", "-- /etc/own-api"),
    ];
    let untold = "--no-inject -- firecracker-test --no-api --config-file /etc/fc-512.json";
    boots.push(Boot { traced: false, ..boot("own-no-inject", untold) });
    boots
}

fn of_others() -> Vec<Boot> {
    let mut boots = Vec::new();
    if vmm("firecracker").is_some() {
        let by = |file: &str| format!("-- firecracker --no-api --config-file /etc/{file}");
        boots.push(boot("firecracker-512", by("fc-512.json")));
        boots.push(boot("firecracker-3600", by("fc-3600.json")));
        boots.push(boot("firecracker-api", "-- /etc/fc-api"));
        let untold = format!("--no-inject {}", by("fc-512.json"));
        boots.push(Boot { traced: false, ..boot("firecracker-no-inject", untold) });
    }
    let size = [(512, 1), (3600, 2)];
    for (memory, vcpus) in size {
        let (kernel, initrd) = ("/boot/vmlinux", "/boot/initrd");
        if vmm("lkvm").is_some() {
            let words = format!(
                "-- lkvm run --console serial -n mode=none -k /boot/vmlinuz -i {initrd} \
                 -c {vcpus} -m {memory} -p '{LINE}'"
            );
            boots.push(boot(&format!("lkvm-{memory}"), words));
        }
        if vmm("cloud-hypervisor").is_some() {
            let words = format!(
                "-- cloud-hypervisor --kernel {kernel} --initramfs {initrd} --cpus boot={vcpus} \
                 --memory size={memory}M --serial tty --console off --cmdline 'console=ttyS0 quiet'"
            );
            boots.push(boot(&format!("cloud-hypervisor-{memory}"), words));
        }
        if vmm("crosvm").is_some() {
            let words = format!(
                "-- crosvm run --disable-sandbox --cpus {vcpus} --mem {memory} -i {initrd} \
                 --serial type=stdout,hardware=serial,num=1,console -p 'console=ttyS0 quiet' {kernel}"
            );
            boots.push(boot(&format!("crosvm-{memory}"), words));
        }
    }
    boots
}

#[test]
fn every_vmm_is_accounted_for() {
    if std::env::var_os(ASKED).is_none() {
        println!("skipped: takes minutes on a busy machine; {ASKED}=1 runs it");
        return;
    }
    let Some(kernel) = kernel::default_kernel() else {
        println!("skipped: no kernel; `vmeter kernel fetch`");
        return;
    };
    let only = std::env::var("VMETER_NESTED_ONLY").unwrap_or_default();
    let wanted = |b: &Boot| only.is_empty() || only.split(',').any(|name| name == b.name);
    let boots: Vec<Boot> =
        of_the_tests_own().into_iter().chain(of_others()).filter(wanted).collect();
    let lab = Lab::new();
    let results = boot_l1(&lab, &kernel, &boots);
    let mut failures = Vec::new();
    for boot in &boots {
        match results.iter().find(|(name, _)| *name == boot.name) {
            Some((_, result)) => failures.extend(problems(boot, result)),
            None => failures.push(format!("{}: no result", boot.name)),
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

fn boot_l1(lab: &Lab, kernel: &kernel::KernelPaths, boots: &[Boot]) -> Vec<(String, Value)> {
    let (vmlinux, initrd) = (lab.path("vmlinux"), lab.path("initrd"));
    let image = KernelImage::open(&kernel.vmlinuz).expect("a kernel");
    image.write_vmlinux(&vmlinux).expect("scratch space");
    build_to(&ApplianceSpec::minimal(), &initrd).expect("an initramfs");
    let (small, large) =
        (config(lab, "fc-512.json", 512, 1, ""), config(lab, "fc-3600.json", 3600, 2, ""));
    let (own, own_api) = (own_vmm(), by_api(lab, "firecracker-test"));
    let fc_api = lab.path("fc-api");
    let script = std::fs::read_to_string(&own_api).expect("written");
    std::fs::write(&fc_api, script.replace("firecracker-test", "firecracker")).expect("written");
    let others = ["firecracker", "lkvm", "cloud-hypervisor", "crosvm", "curl"];
    let found: Vec<(PathBuf, String)> =
        others.iter().filter_map(|name| Some((vmm(name)?, format!("/usr/bin/{name}")))).collect();
    let mut programs: Vec<(&Path, &str)> = vec![
        (&vmlinux, "/boot/vmlinux"),
        (&kernel.vmlinuz, "/boot/vmlinuz"),
        (&initrd, "/boot/initrd"),
        (&own, "/usr/bin/test-vmm"),
        (&own, "/usr/bin/firecracker-test"),
        (&small, "/etc/fc-512.json"),
        (&large, "/etc/fc-3600.json"),
        (&own_api, "/etc/own-api"),
        (&fc_api, "/etc/fc-api"),
        (Path::new("/bin/sleep"), "/bin/sleep"),
        (Path::new("/bin/rm"), "/bin/rm"),
    ];
    programs.extend(found.iter().map(|(path, guest)| (path.as_path(), guest.as_str())));
    let runs: String = boots.iter().map(|b| format!("run {} {}\n", b.name, b.words)).collect();
    let script = format!("{BEGIN}{runs}");
    let l1 = L1 {
        modules: &["kvm_amd"],
        programs: &programs,
        script: &script,
        qemu: QEMU,
        append: "",
        patience: 600 * boots.len() as u32,
    };
    let lines = l1.run(lab, kernel, &["results"]);
    let results = lines[1].split("=== ").skip(1);
    results
        .filter_map(|result| {
            let (name, json) = result.split_once('\n')?;
            Some((name.trim().to_owned(), serde_json::from_str(json).ok()?))
        })
        .collect()
}

fn problems(boot: &Boot, result: &Value) -> Vec<String> {
    let run = &result["runs"][0];
    let spans = run["spans"].as_array().map(Vec::as_slice).unwrap_or_default();
    let names = || spans.iter().filter_map(|s| s["name"].as_str());
    let initcalls = names().filter(|name| name.starts_with("initcall ")).count();
    let coverage = run["coverage"].as_f64().unwrap_or(0.0);
    let count = |name: &str| run["counts"][name].as_u64().unwrap_or(0);
    println!(
        "{}: coverage {coverage:.4}, {initcalls} initcalls, {} exits, io {} and {}, warnings {}",
        boot.name,
        count("exits"),
        count("exits:io"),
        count("kvm_io_exits"),
        result["warnings"]
    );
    let mut problems = Vec::new();
    let mut check = |holds: bool, what: &str| {
        if !holds {
            problems.push(format!("{}: {what}", boot.name));
        }
    };
    check(coverage >= 0.99, "less than 99 % are named");
    check(!boot.traced || initcalls >= 500, "initcalls are missing");
    check(count("exits") > 1000, "no exits were counted");
    check(count("exits:io") == count("kvm_io_exits"), "two counts of port exits differ");
    check(names().any(|name| name == "vmm:init"), "no vmm:init");
    check(!names().any(|name| name.starts_with("bios:")), "a firmware that is not there");
    problems
}
