//! VMMs against each other, and against themselves unwatched.

use super::common::Lab;
use super::matrix::{asked_for, only_asked};
use super::{asked, host, in_l1, vmm, Words, BEGIN, COUNTED, OTHERS, PATIENCE};
use serde_json::Value;

/// What is compared: the command lines of `vmeter bench`, each as a change to the first.
const COMPARED: [(&str, &str); 4] = [
    ("firecracker", "--vmm firecracker"),
    ("cloud-hypervisor", "--vmm cloud-hypervisor"),
    ("crosvm", "--vmm crosvm"),
    ("qemu-system-x86_64", "--vmm qemu --machine microvm"),
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
    let lines = in_l1(&lab, &kernel, &script, (host(), patience));
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

/// What watching costs a boot of each, threads that are traced and KVM's events with it, in
/// instructions of a host of one CPU: its clock counts them, and the machine that interprets it
/// may be as busy as it likes.
#[test]
fn the_cost_of_watching_them_is_measured() {
    let Some(kernel) = asked() else { return };
    let mut there = OTHERS.to_vec();
    there.retain(|(name, _)| vmm(name).is_some());
    only_asked(asked_for().as_deref(), &mut there, |(name, _)| name);
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
    let patience = PATIENCE * there.len() as u32;
    let lines = in_l1(&Lab::new(), &kernel, &script, (&COUNTED, patience));
    let mut results = lines[1].split("=== ").skip(1);
    for (name, _) in there {
        let (_, result) = results.next().and_then(|r| r.split_once('\n')).expect("a result");
        let cost = &serde_json::from_str::<Value>(result).expect("JSON")["overhead"];
        println!("{name}: {} CPU {} {}", cost["ratio"], cost["cpu_ratio"], cost["verdict"]);
        assert!(cost["pairs"].as_u64() >= Some(1), "{name}: {cost:#}");
    }
}
