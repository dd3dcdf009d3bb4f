//! Every VMM with little RAM and much, one vCPU and two, what KVM did counted by perf as well.

use super::common::Lab;
use super::{asked, guests_kernel, host, in_l1, vmm, BEGIN, LINE, OTHERS, PATIENCE, SIZES, WORDS};
use serde_json::Value;
use vmeter_appliance::kernel;

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
        // As libkrun's launchers end.
        boot("own-exit", format!("{} --end exit", own("low-high", 512))),
        boot("own-config", "-- firecracker-test --no-api --config-file /etc/fc-512-1.json"),
        boot("own-api", "-- /etc/own-api"),
    ];
    let untold = "--no-inject -- firecracker-test --no-api --config-file /etc/fc-512-1.json";
    boots.push(Boot { initcalls: 0, ..boot("own-untold", untold) });
    boots
}

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

/// The names that are to be booted, if not all are.
pub fn asked_for() -> Option<String> {
    std::env::var("VMETER_NESTED_ONLY").ok()
}

/// Leaves those that are asked for. A name that is none's fails.
pub fn only_asked<T>(only: Option<&str>, all: &mut Vec<T>, name: impl Fn(&T) -> &str) {
    let Some(only) = only else { return };
    let names = |of: &str| all.iter().any(|one| name(one).starts_with(of));
    if let Some(unknown) = only.split(',').find(|of| of.is_empty() || !names(of)) {
        let there: Vec<&str> = all.iter().map(&name).collect();
        panic!("VMETER_NESTED_ONLY={only}: nothing is called {unknown:?}; there are {there:?}");
    }
    all.retain(|one| only.split(',').any(|of| name(one).starts_with(of)));
}

#[test]
#[should_panic(expected = "nothing is called \"kvmtool\"; there are [\"lkvm\"]")]
fn what_is_asked_for_and_is_not_there_fails() {
    only_asked(Some("kvmtool"), &mut vec!["lkvm"], |name| name);
}

#[test]
fn every_vmm_is_accounted_for() {
    let Some(kernel) = asked() else { return };
    let mut boots: Vec<Boot> = of_the_tests_own().into_iter().chain(of_others()).collect();
    only_asked(asked_for().as_deref(), &mut boots, |boot| &boot.name);
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
    /// True if vmeter said that it went as it should.
    succeeded: bool,
    /// What `perf stat` counted beside it.
    counted: String,
    /// In how many pieces its RAM was, as KVM was told: the kernel there has kprobes.
    ram_slots: u64,
}

fn boot_all(lab: &Lab, kernel: &kernel::KernelPaths, boots: &[Boot]) -> Vec<FromL1> {
    let runs: String = boots.iter().map(|b| format!("run {} {}\n", b.name, b.words)).collect();
    let patience = PATIENCE * boots.len() as u32;
    let lines = in_l1(lab, kernel, &format!("{BEGIN}{runs}"), (host(), patience));
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
            let name = name.trim().to_owned();
            let succeeded = lines[0].contains(&format!("L1: {name}: 0\n"));
            Some(FromL1 { name, result, succeeded, counted, ram_slots })
        })
        .collect()
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
    let wanted = if guests_kernel().is_some() { boot.initcalls.min(FEW) } else { boot.initcalls };
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
    check(from_l1.succeeded, "its end is no success");
    check(coverage >= 0.99, "less than 99 % are named");
    check(initcalls >= wanted, "initcalls are missing");
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
