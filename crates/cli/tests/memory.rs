//! `vmeter memory` on real guests: each of its figures against those who are asked otherwise:
//! `free` of procps and of busybox, `smaps_rollup`, GNU time.

use crate::common;

use common::{kernel, stages, text, Lab};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const MIB: u64 = 1 << 20;
const FAST: [&str; 8] = ["--warmup", "0", "--runs", "1", "--machine", "pvh", "--firmware", "qboot"];
/// The fields of `guest` in the order of free's columns.
const COLUMNS: [&str; 6] = [
    "total_bytes",
    "used_bytes",
    "free_bytes",
    "shared_bytes",
    "buff_cache_bytes",
    "available_bytes",
];

fn bytes(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or_else(|| panic!("{field}: {value}"))
}

/// What a program that is not vmeter's says, if it is here.
fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).env("LC_ALL", "C").output();
    let output = output.ok().filter(|output| output.status.success());
    if output.is_none() {
        eprintln!("not compared: {program} {arguments:?} can't be run here");
    }
    Some(String::from_utf8_lossy(&output?.stdout).into_owned())
}

/// The row `Mem:` of `free -b`.
fn row(text: &str) -> Option<Vec<u64>> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix("Mem:"))?;
    line.split_whitespace().map(|word| word.parse().ok()).collect()
}

/// A guest's own `/proc/meminfo`, given to this host's `free`.
fn free_of(lab: &Lab, meminfo: &Value) -> Option<Vec<u64>> {
    let lines = meminfo.as_object()?.iter().map(|(name, value)| match name.as_str() {
        count if count.starts_with("HugePages_") => format!("{name}: {value}\n"),
        _ => format!("{name}: {} kB\n", value.as_u64().expect("bytes") / 1024),
    });
    let file = lab.path("meminfo");
    std::fs::write(&file, lines.collect::<String>()).ok()?;
    let script = "mount --bind \"$0\" /proc/meminfo && exec free -b";
    row(&said("unshare", &["--mount", "sh", "-c", script, text(&file)])?)
}

/// The looks of a run of vmeter, each with its run's folder.
fn looks(result: &Value) -> Vec<(Value, String)> {
    let saved = result["saved_in"].as_str().expect("a folder");
    let machines = result["machines"].as_array().expect("machines").iter();
    let moments = machines.flat_map(|machine| machine["moments"].as_array().expect("moments"));
    let runs = moments.flat_map(|moment| moment["runs"].as_array().expect("runs"));
    runs.map(|run| (run.clone(), format!("{saved}/runs/{:04}", run["run"].as_u64().expect("one"))))
        .collect()
}

/// The VMM's figures are the kernel's own texts, and its parts add up.
fn is_what_proc_says(vmm: &Value, dir: &str) {
    let read = |name: &str| std::fs::read_to_string(Path::new(dir).join(name)).expect(name);
    let kib = |text: &str, key: &str| -> u64 {
        let line = text.lines().find(|line| line.starts_with(&format!("{key}:"))).expect(key);
        line.split_whitespace().nth(1).expect("a figure").parse().expect("a number")
    };
    let rollup = read("vmm-smaps-rollup.txt");
    for (field, key) in [
        ("rss_bytes", "Rss"),
        ("pss_bytes", "Pss"),
        ("anonymous_bytes", "Anonymous"),
        ("swap_bytes", "Swap"),
    ] {
        assert_eq!(bytes(vmm, field), kib(&rollup, key) * 1024, "{field}");
    }
    assert_eq!(bytes(vmm, "peak_rss_bytes"), kib(&read("vmm-status.txt"), "VmHWM") * 1024);
    let parts = vmm["parts"].as_array().expect("parts");
    let sum: u64 = parts.iter().map(|part| bytes(part, "rss_bytes")).sum();
    assert_eq!(sum, bytes(vmm, "rss_bytes"), "{vmm}");
}

fn part(vmm: &Value, name: &str) -> u64 {
    let parts = vmm["parts"].as_array().expect("parts").iter();
    parts.filter(|part| part["part"] == name).map(|part| bytes(part, "rss_bytes")).sum()
}

#[test]
fn roots_side_by_side_as_free_and_proc_say() {
    if common::is_left_to_test_long() {
        return;
    }
    let Some(_) = kernel() else { return };
    let lab = Lab::new();
    let result = lab.json(&[&["memory", "--root", "dax,virtio-blk,nvdimm"][..], &FAST].concat());
    let looks = looks(&result);
    assert_eq!(looks.len(), 6);
    for (look, dir) in &looks {
        is_what_proc_says(&look["vmm"], dir);
        let Some(free) = free_of(&lab, &look["meminfo"]) else { continue };
        let ours: Vec<u64> = COLUMNS.iter().map(|name| bytes(&look["guest"], name)).collect();
        assert_eq!(ours, free, "free -b of the same meminfo");
    }
    let at = |machine: usize, moment: usize, side: &str| {
        result["machines"][machine]["moments"][moment][side].clone()
    };
    let grown = |machine: usize| {
        let cache = |moment| bytes(&at(machine, moment, "guest"), "buff_cache_bytes");
        cache(1).saturating_sub(cache(0))
    };
    assert_eq!(result["machines"][0]["label"], "dax");
    for machine in [0, 2] {
        let grown = grown(machine);
        assert!(grown < 8 * MIB, "machine {machine}: a file on DAX is in no cache: {grown}");
        assert!(part(&at(machine, 1, "vmm"), "guest-files") > 56 * MIB);
    }
    assert!(grown(1) > 56 * MIB, "64 MiB were read through the cache: {}", grown(1));
    // What was read is the VMM's all the same, in one place or the other.
    assert_eq!(part(&at(1, 1, "vmm"), "guest-files"), 0);
    assert!(part(&at(1, 1, "vmm"), "guest-ram") > part(&at(1, 0, "vmm"), "guest-ram") + 40 * MIB);
    assert_eq!(result["machines"][1]["guest"], at(1, 1, "guest"), "the last moment stands for all");
}

/// A guest that is not vmeter's own, and its VMM under GNU time, to its power-off.
#[test]
fn a_guest_and_a_vmm_that_say_themselves_what_they_use() {
    let Some((_, image)) = kernel() else { return };
    let lab = Lab::new();
    let busybox = Path::new("/bin/busybox");
    if !busybox.exists() || said("/usr/bin/time", &["--version"]).is_none() {
        return eprintln!("skipped: needs busybox-static and GNU time");
    }
    let script = "#!/bin/busybox sh\nbusybox free -b\nbusybox cat /proc/meminfo\nbusybox free -b\n";
    let script = lab.script("look", script);
    let (initrd, time) = (lab.path("initrd"), lab.path("time"));
    let file = |guest: &str, host: &Path| format!("{guest}={}", host.display());
    let built = lab.run(&[
        "appliance",
        "build",
        "--file",
        &file("/bin/busybox", busybox),
        "--file",
        &file("/bin/look", &script),
        "-o",
        text(&initrd),
    ]);
    assert_eq!(built.status, 0, "{}", built.stderr);
    let line = "console=ttyS0 quiet panic=-1 no_timer_check vmeter.run=/bin/look";
    let vmm = "qemu-system-x86_64 -nodefaults -display none -no-reboot -accel tcg -M q35 -m 256 \
               -serial stdio -kernel";
    let own = ["/usr/bin/time", "-v", "-o", text(&time)];
    let words: Vec<&str> = own.into_iter().chain(vmm.split_whitespace()).collect();
    let rest = [text(&image), "-initrd", text(&initrd), "-append", line];
    let head = ["memory", "--warmup", "0", "--runs", "1", "--"];
    let result = lab.json(&[&head[..], &words, &rest].concat());
    let (look, dir) = looks(&result).remove(0);
    is_what_proc_says(&look["vmm"], &dir);
    assert!(part(&look["vmm"], "guest-ram") > 20 * MIB, "{look}");
    // Its own free, before and after: what moved meanwhile is little.
    let console = stages::console(Path::new(&dir), 0);
    let rows: Vec<Vec<u64>> = console.iter().filter_map(|said| row(&said.text)).collect();
    assert!(rows.len() == 2 && rows[0].len() == COLUMNS.len(), "{rows:?}");
    for (name, column) in COLUMNS.into_iter().zip(0..).filter(|(name, _)| *name != "used_bytes") {
        let ours = bytes(&look["guest"], name);
        let near = |row: &Vec<u64>| row[column].abs_diff(ours) <= 2 * MIB;
        assert!(rows.iter().any(near), "{name}: {ours}, free -b {rows:?}");
    }
    assert_eq!(bytes(&look["guest"], "total_bytes"), rows[0][0]);
    let told = std::fs::read_to_string(&time).expect("what time wrote");
    let peak = told.lines().find_map(|line| {
        line.trim().strip_prefix("Maximum resident set size (kbytes): ")?.parse::<u64>().ok()
    });
    let (peak, ours) = (peak.expect("a peak") * 1024, bytes(&look["vmm"], "peak_rss_bytes"));
    // The kernel counts pages by CPU and adds them up in steps.
    assert!(peak.abs_diff(ours) <= MIB, "time says {peak}, vmeter {ours}");
}
