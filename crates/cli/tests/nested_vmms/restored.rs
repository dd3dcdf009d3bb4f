//! A guest that Firecracker restores from a snapshot, by its API, so that no command line says so:
//! what its kernel logged and traced is of the boot before.

use super::common::l1::host_file;
use super::common::Lab;
use super::{asked, put, serving, vmm, with_files, BEGIN, COUNTED, LINE, PATIENCE, QEMU, WORDS};
use serde_json::{json, Value};
use std::path::Path;
use vmeter_appliance::{build_to, ApplianceSpec};

/// What the guest runs; a snapshot is taken after some ticks.
const TICKS: &str = "#!/bin/sh\nn=0\nwhile [ $n -lt 60 ]; do echo tick $n; sleep 0.05; \
                     n=$((n+1)); done\n";

/// A guest is booted, paused and saved, and its Firecracker ended.
fn saved() -> String {
    let source = json!({
        "kernel_image_path": "/boot/vmlinux",
        "initrd_path": "/boot/initrd-ticks",
        "boot_args": format!("{LINE} pci=off vmeter.run=/run-ticks {WORDS}"),
    });
    let files = json!({ "snapshot_path": "/tmp/state.fc", "mem_file_path": "/tmp/ram.fc" });
    format!(
        "{}{}{}{}\
         while case $(cat /tmp/said.fc) in *'tick 5'*) false;; esac; do sleep 0.1; done\n\
         {}{}kill $!; wait $!\n",
        serving("firecracker").replace(" &\n", " >/tmp/said.fc &\n"),
        put("boot-source", &source),
        put("machine-config", &json!({ "vcpu_count": 1, "mem_size_mib": 256 })),
        put("actions", &json!({ "action_type": "InstanceStart" })),
        put("vm", &json!({ "state": "Paused" })).replace("-X PUT", "-X PATCH"),
        put("snapshot/create", &files),
    )
}

/// A launcher that restores it and lets it go on.
fn restore() -> String {
    let from = json!({
        "snapshot_path": "/tmp/state.fc",
        "mem_backend": { "backend_path": "/tmp/ram.fc", "backend_type": "File" },
        "resume_vm": true,
    });
    format!("{}{}wait\n", serving("firecracker"), put("snapshot/load", &from))
}

#[test]
fn a_guest_that_its_vmm_restored_did_not_boot() {
    let Some(kernel) = asked() else { return };
    if vmm("firecracker").is_none() || vmm("curl").is_none() {
        println!("skipped: no firecracker or no curl in PATH or VMETER_VMMS");
        return;
    }
    let lab = Lab::new();
    let initrd = lab.path("initrd-ticks");
    let shell = [Path::new("/bin/sh"), Path::new("/bin/sleep")];
    let mut programs: Vec<_> = shell.iter().map(|p| (p.to_path_buf(), 0o755)).collect();
    programs.extend(shell.iter().flat_map(|p| super::common::l1::libraries(p)).map(|p| (p, 0o755)));
    programs.sort();
    programs.dedup();
    let ticks = lab.script("run-ticks", TICKS);
    let mut extra_files: Vec<_> = programs
        .iter()
        .map(|(path, mode)| host_file(path, &path.display().to_string(), *mode))
        .collect();
    extra_files.push(host_file(&ticks, "/run-ticks", 0o755));
    let spec = ApplianceSpec { extra_files, ..ApplianceSpec::minimal() };
    build_to(&spec, &initrd).expect("an initramfs");
    let (save, restore) = (lab.script("save", &saved()), lab.script("restore", &restore()));
    let script = format!(
        "{BEGIN}/etc/save; echo \"L1: saved: $?\"\n\
         vmeter boot --warmup 0 --runs 1 --timeout 600 --color never --long \
         --export-json /tmp/j -- /etc/restore\n\
         echo \"L1: restored: $?\"; cat /tmp/j >/dev/ttyS1\n"
    );
    let files = [
        (initrd.as_path(), "/boot/initrd-ticks"),
        (save.as_path(), "/etc/save"),
        (restore.as_path(), "/etc/restore"),
    ];
    let lines = with_files(&lab, &kernel, &script, (QEMU, PATIENCE), &files);
    let result: Value = serde_json::from_str(&lines[1]).expect("JSON");
    let run = &result["runs"][0];
    let spans = run["spans"].as_array().expect("spans");
    let names: Vec<&str> = spans.iter().filter_map(|span| span["name"].as_str()).collect();
    println!("{names:?} {} {}", run["coverage"], result["warnings"]);
    let of_a_boot =
        |name: &&&str| ["kernel:", "initcall ", "bios:"].iter().any(|p| name.starts_with(p));
    assert_eq!(names.iter().filter(of_a_boot).count(), 0, "{names:?}");
    assert!(names.contains(&"vmm:init"), "{names:?}");
    assert!(lines[0].contains("was restored from a snapshot"), "it is said");
    for wrong in ["misaligned", "records were lost", "out of order"] {
        assert!(!lines[0].contains(wrong), "{wrong}");
    }
}

/// The phases that a restore by these VMMs has.
const PHASES: [&str; 4] = ["vmm:link", "vmm:init", "vmm:load-state", "guest:until-ready"];

/// In a host whose clock counts its instructions: one whose clock is this host's can drown in timer
/// interrupts when this host is slow, and then neither it nor its guest gets any further.
#[test]
fn vmeter_saves_and_restores_by_their_apis() {
    let Some(kernel) = asked() else { return };
    let found: Vec<(&str, &str)> =
        [("firecracker", "file,uffd"), ("cloud-hypervisor", "copy,on-demand")]
            .into_iter()
            .filter(|(name, _)| vmm(name).is_some())
            .collect();
    if found.is_empty() {
        println!("skipped: no firecracker and no cloud-hypervisor in PATH or VMETER_VMMS");
        return;
    }
    let lab = Lab::new();
    let each = |(name, methods): &(&str, &str)| {
        format!(
            "vmeter restore --vmm {name} --method {methods} --kernel /boot/vmlinux --memory 256 --warmup 1 \
             --runs 3 --timeout 600 --color never --long --export-json /tmp/j\n\
             echo \"L1: {name}: $?\"; cat /tmp/j >/dev/ttyS1; rm -rf /tmp/state\n"
        )
    };
    let script: String = std::iter::once(BEGIN.to_owned()).chain(found.iter().map(each)).collect();
    let lines = with_files(&lab, &kernel, &script, (&COUNTED, PATIENCE * found.len() as u32), &[]);
    let results: Vec<Value> = serde_json::Deserializer::from_str(&lines[1])
        .into_iter()
        .collect::<Result<_, _>>()
        .expect("JSON");
    assert_eq!(results.len(), found.len());
    for (result, (name, methods)) in results.iter().zip(&found) {
        let machines = result["machines"].as_array().expect("machines");
        assert_eq!(machines.len(), methods.split(',').count(), "{name}");
        for machine in machines {
            let label = machine["label"].as_str().expect("a label");
            assert_eq!(machine["proofs"], json!(["nonce", "nonce", "nonce"]), "{name} {label}");
            for phase in PHASES {
                // What Firecracker loads on a host with one CPU is loaded before vmeter sees a file open.
                let at_once = if phase == "vmm:load-state" { "vmm:load" } else { phase };
                let of = |phase| super::common::phase(machine, phase);
                assert!(of(phase).max(of(at_once)) > 0.0, "{name} {label}: {phase}");
            }
        }
        for run in result["runs"].as_array().expect("runs") {
            if run["label"] != "cold boot" {
                let coverage = run["coverage"].as_f64().expect("a share");
                println!("{name} {}: {coverage}", run["label"]);
                assert!(coverage >= 0.98, "{name} {run}");
            }
        }
    }
}
