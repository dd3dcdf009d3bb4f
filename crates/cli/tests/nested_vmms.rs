//! VMMs that are not QEMU, under nested KVM (see `nested_kvm.rs`): the tests' own, with the
//! habits of others, and of Firecracker, cloud-hypervisor, crosvm and kvmtool those that are in
//! PATH or in the folder `VMETER_VMMS`. Each boots Debian's kernel, with little RAM and with some
//! above 4 GiB, with one vCPU and with two, and vmeter has to account for it: by the guest's trace,
//! or, with --no-inject, by its log alone. `perf stat`, where it is installed, counts KVM's events
//! of the same boots.
//!
//! `VMETER_NESTED=1 cargo test -p vmeter --test nested_vmms -- --nocapture`: a minute or two a
//! boot on a busy machine. `VMETER_NESTED_ONLY=NAME,…` boots those whose names begin so.

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

/// A machine in L1.
struct Boot {
    name: String,
    /// Words for the shell after `vmeter boot`.
    words: String,
    /// How many initcalls its trace has to have; none without one.
    initcalls: usize,
}

/// What a machine has without PCI and ACPI, and one of the usual kind.
const FEW: usize = 500;
const ALL: usize = 570;

fn boot(name: &str, words: impl Into<String>) -> Boot {
    Boot { name: name.to_owned(), words: words.into(), initcalls: FEW }
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
        boot("own-config", "-- firecracker-test --no-api --config-file /etc/fc-512-1.json"),
        boot("own-api", "-- /etc/own-api"),
    ];
    let untold = "--no-inject -- firecracker-test --no-api --config-file /etc/fc-512-1.json";
    boots.push(Boot { initcalls: 0, ..boot("own-untold", untold) });
    boots
}

/// The real VMMs, and how they are told of a machine.
const OTHERS: [(&str, Words); 4] = [
    ("lkvm", lkvm),
    ("firecracker", firecracker),
    ("cloud-hypervisor", cloud_hypervisor),
    ("crosvm", crosvm),
];

/// Command lines of the real VMMs that are there.
fn of_others() -> Vec<Boot> {
    let mut boots = Vec::new();
    for (name, words) in OTHERS {
        if vmm(name).is_none() {
            println!("skipped: no {name} in PATH or VMETER_VMMS");
            continue;
        }
        for (memory, vcpus) in SIZES {
            let told = boot(&format!("{name}-{memory}-{vcpus}"), words(memory, vcpus));
            boots.push(Boot { initcalls: ALL, ..told });
        }
        let untold = boot(&format!("{name}-untold"), format!("--no-inject {}", words(512, 1)));
        boots.push(Boot { initcalls: 0, ..untold });
        if name == "firecracker" {
            boots.push(Boot { initcalls: ALL, ..boot("firecracker-api", "-- /etc/fc-api") });
        }
    }
    boots
}

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

/// What is compared: the command lines of `vmeter bench`, each as a change to the first.
const COMPARED: [(&str, &str); 4] = [
    ("firecracker", "--vmm firecracker"),
    ("cloud-hypervisor", "--vmm cloud-hypervisor"),
    ("crosvm", "--vmm crosvm"),
    ("qemu-system-x86_64", "--vmm qemu --machine microvm"),
];
/// What QEMU reads for a microvm, where Debian has it.
const QEMUS: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu/qemu/accel-tcg-x86_64.so",
    "/usr/share/qemu/qboot.rom",
    "/usr/share/seabios/bios-microvm.bin",
];

/// Under nested KVM times say little of a real host's; that they are taken in turn and compared
/// is what is looked at.
#[test]
fn vmms_are_compared_in_turn() {
    let Some(kernel) = asked() else { return };
    let there: Vec<(&str, &str)> =
        COMPARED.into_iter().filter(|(name, _)| vmm(name).is_some()).collect();
    let [(_, first), others @ ..] = there.as_slice() else { return };
    if others.is_empty() {
        println!("skipped: there is only one VMM in PATH or VMETER_VMMS");
        return;
    }
    let against: Vec<String> = others.iter().map(|(_, words)| format!("--vs '{words}'")).collect();
    let runs = std::env::var("VMETER_NESTED_RUNS").unwrap_or_else(|_| "3".into());
    let script = format!(
        "{BEGIN}vmeter bench --warmup 0 --runs {runs} --timeout 1500 --color never --accel kvm \\
         --kernel /boot/vmlinux --memory 512 {first} {} --export-json /tmp/bench.json\n\
         echo \"L1: bench: $?\"; cat /tmp/bench.json >/dev/ttyS1\n",
        against.join(" ")
    );
    let lab = Lab::new();
    let patience = PATIENCE * there.len() as u32;
    let lines = in_l1(&lab, &kernel, &script, patience);
    let result: Value = serde_json::from_str(&lines[1]).expect("JSON");
    let machines = result["machines"].as_array().expect("machines");
    for machine in machines {
        println!("{}: {} {}", machine["label"], machine["samples_s"], machine["estimate"]);
    }
    println!("{:#}", result["comparisons"]);
    assert_eq!(machines.len(), there.len());
    let samples = |machine: &Value| machine["samples_s"].as_array().map_or(0, Vec::len);
    assert!(machines.iter().all(|machine| samples(machine).to_string() == runs), "{result:#}");
}

/// What watching costs a boot of each, threads that are traced and KVM's events with it. In an
/// interpreter events cost many times what they do on a real host: only that it is measured is
/// looked at.
#[test]
fn the_cost_of_watching_them_is_measured() {
    let Some(kernel) = asked() else { return };
    let only = std::env::var("VMETER_NESTED_ONLY").unwrap_or_default();
    let mut there = OTHERS.to_vec();
    there.retain(|(name, _)| vmm(name).is_some() && only.split(',').any(|o| name.starts_with(o)));
    let runs = std::env::var("VMETER_NESTED_RUNS").unwrap_or_else(|_| "3".into());
    let boot = |(name, words): &(&str, Words)| {
        format!(
            "vmeter boot --overhead --warmup 1 --runs {runs} --timeout 1500 --color never \\\n\
             --export-json /tmp/{name}.json {}\necho '=== {name}' >/dev/ttyS1\n\
             cat /tmp/{name}.json >/dev/ttyS1; rm -rf /tmp/state/vmeter/runs\n",
            words(512, 1)
        )
    };
    let script = format!("{BEGIN}{}", there.iter().map(boot).collect::<String>());
    let lines = in_l1(&Lab::new(), &kernel, &script, PATIENCE * there.len() as u32);
    let mut results = lines[1].split("=== ").skip(1);
    for (name, _) in there {
        let (_, result) = results.next().and_then(|r| r.split_once('\n')).expect("a result");
        let cost = &serde_json::from_str::<Value>(result).expect("JSON")["overhead"];
        println!("{name}: {} CPU {} {}", cost["ratio"], cost["cpu_ratio"], cost["verdict"]);
        assert!(cost["pairs"].as_u64() >= Some(1), "{name}: {cost:#}");
    }
}

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

#[test]
fn every_vmm_is_accounted_for() {
    let Some(kernel) = asked() else { return };
    let only = std::env::var("VMETER_NESTED_ONLY").unwrap_or_default();
    let wanted = |b: &Boot| only.is_empty() || only.split(',').any(|name| b.name.starts_with(name));
    let boots: Vec<Boot> =
        of_the_tests_own().into_iter().chain(of_others()).filter(wanted).collect();
    let lab = Lab::new();
    let results = boot_all(&lab, &kernel, &boots);
    let mut failures = Vec::new();
    for boot in &boots {
        match results.iter().find(|result| result.name == boot.name) {
            Some(result) => failures.extend(problems(boot, result)),
            None => failures.push(format!("{}: no result", boot.name)),
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// What L1 handed out of a boot.
struct FromL1 {
    name: String,
    result: Value,
    /// What `perf stat` counted beside it.
    counted: String,
    /// In how many pieces its RAM was, as KVM was told: the kernel there has kprobes.
    ram_slots: u64,
}

fn boot_all(lab: &Lab, kernel: &kernel::KernelPaths, boots: &[Boot]) -> Vec<FromL1> {
    let runs: String = boots.iter().map(|b| format!("run {} {}\n", b.name, b.words)).collect();
    let patience = PATIENCE * boots.len() as u32;
    let lines = in_l1(lab, kernel, &format!("{BEGIN}{runs}"), patience);
    assert!(!lines[0].contains("L1: left: "), "instances and probes are removed");
    let results = lines[1].split("=== ").skip(1);
    results
        .filter_map(|result| {
            let (name, rest) = result.split_once('\n')?;
            let mut parts = rest.split("+++\n");
            let result = serde_json::from_str(parts.next()?).ok()?;
            let counted = parts.next()?.to_owned();
            let run: Value = serde_json::from_str(parts.next()?).ok()?;
            let sources = run["sources"].as_array()?;
            let by_kvm = sources.iter().find(|source| source["name"] == "kvm-trace");
            let ram_slots = by_kvm.and_then(|kvm| kvm["parameters"]["ram_slots"].as_u64());
            let ram_slots = ram_slots.unwrap_or(0);
            Some(FromL1 { name: name.trim().to_owned(), result, counted, ram_slots })
        })
        .collect()
}

/// Runs a script in a host that has KVM, every VMM that there is, and a kernel for their guests;
/// what it wrote to its console and to its second serial line.
fn in_l1(lab: &Lab, kernel: &kernel::KernelPaths, script: &str, patience: u32) -> Vec<String> {
    let (vmlinux, initrd) = (lab.path("vmlinux"), lab.path("initrd"));
    let image = KernelImage::open(&kernel.vmlinuz).expect("a kernel");
    image.write_vmlinux(&vmlinux).expect("scratch space");
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
    let here = configs.iter().chain(&found);
    programs.extend(here.map(|(path, guest)| (path.as_path(), guest.as_str())));
    programs.extend(QEMUS.map(|path| (Path::new(path), path)).into_iter().filter(|p| p.0.exists()));
    let l1 =
        L1 { modules: &["kvm_amd"], programs: &programs, script, qemu: QEMU, append: "", patience };
    l1.run(lab, kernel, &["results"])
}

/// What `perf stat -x,` counted of an event.
fn counted(by_perf: &str, event: &str) -> Option<u64> {
    let mut lines = by_perf.lines().map(|line| line.split(',').collect::<Vec<_>>());
    lines.find(|line| line.get(2) == Some(&event)).and_then(|line| line[0].parse().ok())
}

fn problems(boot: &Boot, from_l1: &FromL1) -> Vec<String> {
    let FromL1 { result, counted: by_perf, ram_slots, .. } = from_l1;
    let run = &result["runs"][0];
    let spans = run["spans"].as_array().map(Vec::as_slice).unwrap_or_default();
    let names = || spans.iter().filter_map(|s| s["name"].as_str());
    let initcalls = names().filter(|name| name.starts_with("initcall ")).count();
    let coverage = run["coverage"].as_f64().unwrap_or(0.0);
    let count = |name: &str| run["counts"][name].as_u64().unwrap_or(0);
    let ports = run["counts"].as_object().into_iter().flatten();
    let ports = ports.filter(|(name, _)| name.starts_with("kvm_pio:"));
    let ports: u64 = ports.filter_map(|(_, n)| n.as_u64()).sum();
    let ours = [
        ("kvm:kvm_exit", count("exits")),
        ("kvm:kvm_userspace_exit", count("userspace_exits")),
        ("kvm:kvm_pio", ports),
    ];
    let counts = ours.map(|(event, ours)| (event, ours, counted(by_perf, event)));
    println!(
        "{}: coverage {coverage:.4}, {initcalls} initcalls, io {} and {}, {counts:?}, \
         {ram_slots} pieces of RAM, total {} s, warnings {}",
        boot.name,
        count("exits:io"),
        count("kvm_io_exits"),
        run["total_s"],
        result["warnings"]
    );
    let mut problems = Vec::new();
    let mut check = |holds: bool, what: &str| {
        if !holds {
            problems.push(format!("{}: {what}", boot.name));
        }
    };
    check(coverage >= 0.99, "less than 99 % are named");
    check(initcalls >= boot.initcalls, "initcalls are missing");
    for (event, ours, perfs) in counts {
        check(perfs.is_none_or(|perfs| perfs == ours), &format!("perf counts {event} otherwise"));
    }
    check(*ram_slots > 0, "KVM's word on where RAM is was not heard");
    check(count("exits") > 1000, "no exits were counted");
    check(count("exits:io") == count("kvm_io_exits"), "two counts of port exits differ");
    check(names().any(|name| name == "vmm:init"), "no vmm:init");
    check(names().any(|name| name == "shutdown:vmm"), "no tear-down");
    check(!names().any(|name| name.starts_with("bios:")), "a firmware that is not there");
    problems
}
