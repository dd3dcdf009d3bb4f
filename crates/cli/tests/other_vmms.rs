//! `vmeter boot` with VMMs that are not QEMU: stand-ins that keep what they were given.

use crate::common;

use common::{kernel, text, Lab};
use serde_json::{json, Value};
use std::path::Path;

/// Keeps its arguments in GIVEN, one a line, and the file after `--config-file`; says a line
/// on its console.
fn stand_in(lab: &Lab, name: &str, version: &str) -> String {
    let given = lab.path("given");
    let told = lab.path("told.json");
    let script = format!(
        "#!/bin/sh\n\
         if [ \"$1\" = --version ]; then echo '{version}'; exit 0; fi\n\
         printf '%s\\n' \"$@\" > '{}'\n\
         while [ $# -gt 0 ]; do\n\
         if [ \"$1\" = --config-file ]; then cp \"$2\" '{}'; fi\n\
         shift; done\n\
         echo 'vmeter: ready'\n",
        given.display(),
        told.display()
    );
    text(&lab.script(name, &script)).to_owned()
}

fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).expect("what it was given").lines().map(str::to_owned).collect()
}

fn injected(result: &Value) -> String {
    result["runs"][0]["injected"].to_string()
}

const BOOT: [&str; 5] = ["boot", "--warmup", "0", "--runs", "1"];

#[test]
fn the_users_own_firecracker_gets_kernel_parameters_in_a_copy_of_its_file() {
    let Some((_, kernel)) = kernel() else { return };
    let lab = Lab::new();
    let vmm = stand_in(&lab, "firecracker", "Firecracker v1.12.0");
    let config = lab.path("vm.json");
    let own = json!({
        "boot-source": { "kernel_image_path": kernel, "boot_args": "console=ttyS0 mine=1" },
        "drives": [],
        "machine-config": { "vcpu_count": 1, "mem_size_mib": 128 },
    });
    std::fs::write(&config, own.to_string()).expect("scratch space");
    let command = ["--", &vmm, "--no-api", "--config-file", text(&config)];

    let run = lab.json(&[BOOT.as_slice(), &command].concat());
    let mut told: Value =
        serde_json::from_slice(&std::fs::read(lab.path("told.json")).expect("a file"))
            .expect("JSON");
    let line = told["boot-source"]["boot_args"].as_str().expect("text").to_owned();
    let added = line.strip_prefix("console=ttyS0 mine=1 ").expect("the user's words first");
    assert!(added.contains("trace_event=initcall:*") && added.contains("trace_clock=x86-tsc"));
    told["boot-source"]["boot_args"] = own["boot-source"]["boot_args"].clone();
    assert_eq!(told, own, "nothing else is changed");
    assert_ne!(lines(&lab.path("given"))[2], text(&config), "a copy");
    assert!(injected(&run).contains(added), "{}", injected(&run));
    assert!(injected(&run).contains("RUN/firecracker.json in place of "), "{}", injected(&run));
    assert_eq!(std::fs::read_to_string(&config).expect("there"), own.to_string());
    assert_eq!(run["counts"]["console_bytes"]["n"], 1, "its console is seen");

    let run = lab.json(&[BOOT.as_slice(), &["--no-inject"], &command].concat());
    assert_eq!(lines(&lab.path("given")), command[2..], "run as given");
    assert_eq!(injected(&run), "[]");
}

#[test]
fn the_users_own_cloud_hypervisor_gets_kernel_parameters_in_its_cmdline() {
    let Some((_, kernel)) = kernel() else { return };
    let lab = Lab::new();
    let vmm = stand_in(&lab, "cloud-hypervisor", "cloud-hypervisor v53.0");
    let command = ["--", &vmm, "--kernel", text(&kernel), "--cmdline", "mine=1", "--serial", "tty"];

    let run = lab.json(&[BOOT.as_slice(), &command].concat());
    let given = lines(&lab.path("given"));
    let added = given[3].strip_prefix("mine=1 ").expect("the user's words first");
    assert!(added.contains("trace_event=initcall:*"));
    assert!(injected(&run).contains(added), "{}", injected(&run));
    assert_eq!(given[4..7], ["--serial", "tty", "--event-monitor"]);
    assert!(given.len() == 8 && given[7].starts_with("fd="), "{given:?}");

    lab.json(&[BOOT.as_slice(), &["--no-inject"], &command].concat());
    assert_eq!(lines(&lab.path("given")), command[2..], "run as given");
}

#[test]
fn machines_of_theirs_are_made_from_options() {
    if kernel().is_none() {
        return;
    }
    if std::fs::File::options().read(true).write(true).open("/dev/kvm").is_err() {
        eprintln!("skipped: no /dev/kvm to open");
        return;
    }
    let lab = Lab::new();
    let firecracker = stand_in(&lab, "firecracker", "Firecracker v1.12.0");
    let machine = ["--vmm", &firecracker, "--memory", "192", "--append", "mine=1"];
    lab.json(&[BOOT.as_slice(), &machine].concat());
    let told: Value =
        serde_json::from_slice(&std::fs::read(lab.path("told.json")).expect("a file"))
            .expect("JSON");
    let line = told["boot-source"]["boot_args"].as_str().expect("text");
    assert!(line.contains("reboot=k") && line.contains(" mine=1 trace_event="), "{line}");
    assert_eq!(told["machine-config"], json!({ "vcpu_count": 1, "mem_size_mib": 192 }));
    for file in ["kernel_image_path", "initrd_path"] {
        let path = told["boot-source"][file].as_str().expect(file);
        assert!(Path::new(path).is_file(), "{path}");
    }
    let hypervisor = stand_in(&lab, "cloud-hypervisor", "cloud-hypervisor v53.0");
    lab.json(&[BOOT.as_slice(), &["--vmm", &hypervisor, "--smp", "2"]].concat());
    let given = lines(&lab.path("given"));
    assert!(given.windows(2).any(|w| w == ["--cpus", "boot=2"]), "{given:?}");
    assert!(given.windows(2).any(|w| w[0] == "--cmdline" && w[1].contains("trace_event=")));
    for (option, said) in [
        (["--accel", "tcg"], "Firecracker runs guests only with KVM"),
        (["--machine", "q35"], "one kind of machine"),
        (["--firmware", "qboot"], "enters the kernel directly"),
    ] {
        let ran = lab.run(&[BOOT.as_slice(), &["--vmm", &firecracker], &option].concat());
        assert_eq!(ran.status, 2, "{}", ran.stderr);
        assert!(ran.stderr.contains(said), "{}", ran.stderr);
    }
}

/// Firecracker logs on its guest's console.
#[test]
fn what_a_vmm_says_itself_is_told_from_its_guest() {
    let lab = Lab::new();
    let script = "#!/bin/sh\n\
         echo '2026-11-23T10:11:12.123456789 [anonymous-instance:main] Running Firecracker v1'\n\
         echo '2026-11-23T10:11:12.123456789 [my-service:worker] of a guest'\n\
         echo '[    0.000000] Linux version 6.1.0 (of a guest)'\n\
         echo '2026-11-23T10:11:13.123456789 [vm-7:fc_vcpu 0:INFO] exits'\n";
    let vmm = lab.script("launcher", script);
    let run = lab.json(&[BOOT.as_slice(), &["--no-inject", "--", text(&vmm)]].concat());
    let marks: Vec<&str> = run["runs"][0]["marks"]
        .as_array()
        .expect("marks")
        .iter()
        .filter_map(|mark| mark["text"].as_str())
        .filter(|text| text.starts_with("Firecracker"))
        .collect();
    assert_eq!(marks, ["Firecracker: Running Firecracker v1", "Firecracker: exits"], "{run:#}");
}

/// cloud-hypervisor reports events of its own to a descriptor, if it is told to.
#[test]
fn events_of_an_event_monitor_are_marks() {
    let lab = Lab::new();
    let script = "#!/bin/sh\n\
         if [ \"$1\" = --version ]; then echo 'cloud-hypervisor v53.0'; exit 0; fi\n\
         for word; do case $word in fd=*) fd=${word#fd=};; esac; done\n\
         say() { echo \"$1\" >/proc/$$/fd/$fd; }\n\
         say '{ \"timestamp\": { \"secs\": 0, \"nanos\": 100 }, \"source\": \"vm\", \"event\": \"booting\", \"properties\": null }'\n\
         sleep 0.2\n\
         say '{ \"timestamp\": { \"secs\": 0, \"nanos\": 150000000 }, \"source\": \"vm\", \"event\": \"booted\", \"properties\": { \"id\": \"x\" } }'\n";
    let vmm = lab.script("cloud-hypervisor", script);
    let run = lab.json(&[BOOT.as_slice(), &["--", text(&vmm), "--kernel", "none"]].concat());
    let marks = run["runs"][0]["marks"].as_array().expect("marks");
    let at = |name: &str| {
        let is_it = |mark: &&Value| mark.to_string().contains(name);
        let mark = marks.iter().find(is_it).unwrap_or_else(|| panic!("no {name}: {run:#}"));
        mark["at_s"].as_f64().expect("a moment")
    };
    let between = at("VMM: vm booted id=x") - at("VMM: vm booting");
    assert!((between - 0.15).abs() < 1e-3, "by its own stamps: {between}");
    assert!(run["runs"][0]["injected"].to_string().contains("--event-monitor"));
}

/// Firecracker says on standard output why it can't run a file, and aborts.
#[test]
fn a_vmm_that_fails_on_its_console_is_quoted() {
    let lab = Lab::new();
    let reason =
        "RunWithoutApiError(BuildMicroVMFromJson(ParseFromJson(Error(\"missing field\"))))";
    let script = format!(
        "#!/bin/sh\n\
         if [ \"$1\" = --version ]; then echo 'Firecracker v1.12.0'; exit 0; fi\n\
         echo 'Running Firecracker v1.12.0'\n\
         echo '{reason}'\n\
         kill -ABRT $$\n"
    );
    let vmm = lab.script("firecracker", &script);
    let ran = lab.run(&[BOOT.as_slice(), &["--no-inject", "--", text(&vmm), "--no-api"]].concat());
    assert_ne!(ran.status, 0);
    let said = format!("{}{}", ran.stdout, ran.stderr);
    assert!(said.contains("SIGABRT") && said.contains("missing field"), "{said}");
}

/// Its threads are traced, and its exits if it has any, though nothing is added to its words.
#[test]
fn watching_somebodys_own_vmm_has_a_cost_that_is_told() {
    let lab = Lab::new();
    let vmm = lab.script("launcher", "#!/bin/sh\necho 'vmeter: ready'\n");
    let words = ["boot", "--warmup", "0", "--runs", "3", "--overhead", "--", text(&vmm)];
    let ran = lab.run(&words);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains("nothing; watching: "), "{}", ran.stdout);
}

/// Small VMMs have no ACPI: a launcher of libkrun's ends when its guest restarts its machine.
#[test]
fn a_restart_is_how_somebodys_own_vmm_ends() {
    let lab = Lab::new();
    let script = "#!/bin/sh\n[ \"$1\" = --version ] && echo 'cloud-hypervisor v53.0' && exit 0\n\
         echo '[    1.000000] reboot: Restarting system'\n";
    for (name, status) in [("krun-launcher", 0), ("cloud-hypervisor", 1)] {
        let vmm = lab.script(name, script);
        let ran = lab.run(&[BOOT.as_slice(), &["--", text(&vmm), "--kernel", "none"]].concat());
        assert_eq!(ran.status, status, "{name}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.stdout.contains("restart"), "{name}: {}", ran.stdout);
    }
}

#[test]
fn help_and_error_name_every_back_end() {
    let lab = Lab::new();
    let help = lab.run(&["boot", "--help"]).stdout;
    let wrong = lab.run(&["boot", "--vmm", "xen"]);
    assert_eq!(wrong.status, 2);
    for name in vmeter_machine::backend::options() {
        assert!(help.contains(name), "--help does not name {name}");
        assert!(wrong.stderr.contains(name), "{}", wrong.stderr);
    }
}
