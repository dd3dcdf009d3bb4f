//! Guests that are no Linux, in a real QEMU: a program of a few bytes that a BIOS boots as a kernel,
//! prints its lines and halts. With them what vmeter says of launchers is tried in a second.

use crate::common;

use common::{has_qemu, is_alive, signal, text, Lab, Ran};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// An image with the header of the Linux boot protocol (Documentation/arch/x86/boot.rst), as memtest86+
/// and iPXE have it, whose 16-bit code prints `lines` on the first serial port and halts.
fn image(lab: &Lab, name: &str, lines: &str) -> PathBuf {
    let mut image = vec![0u8; 4096];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    // One sector of setup after the boot sector, and its signature.
    put(0x1f1, &[1]);
    put(0x1fe, &[0x55, 0xaa]);
    // jmp to 0x240 over the header: version 2.03, loaded high.
    put(0x200, &[0xeb, 0x3e]);
    put(0x202, b"HdrS");
    put(0x206, &[3, 2]);
    put(0x211, &[1]);
    // push cs; pop ds; cld; mov si, 0x60; mov dx, 0x3f8
    put(0x240, &[0x0e, 0x1f, 0xfc, 0xbe, 0x60, 0x00, 0xba, 0xf8, 0x03]);
    // next: lodsb; test al, al; jz halt; out dx, al; jmp next; halt: hlt; jmp halt
    put(0x249, &[0xac, 0x84, 0xc0, 0x74, 0x03, 0xee, 0xeb, 0xf8, 0xf4, 0xeb, 0xfd]);
    put(0x260, lines.as_bytes());
    let path = lab.path(name);
    std::fs::write(&path, image).expect("scratch space");
    path
}

/// The command line of a guest that prints `lines`, up to its console.
fn qemu(lab: &Lab, name: &str, lines: &str) -> String {
    let image = image(lab, name, lines);
    let words = "-accel tcg -m 32 -nodefaults -no-user-config -display none -kernel";
    format!("qemu-system-x86_64 {words} {}", text(&image))
}

fn boot(lab: &Lab, options: &str, script: &str) -> Ran {
    let script = lab.script("launcher", &format!("#!/bin/sh\n{script}\n"));
    let words = ["boot", "--warmup", "0", "--runs", "1"];
    let options: Vec<&str> = options.split_whitespace().collect();
    lab.run(&[words.as_slice(), &options, &["--", text(&script)]].concat())
}

fn flat(ran: &Ran) -> String {
    let all = format!("{} {}", ran.stdout, ran.stderr);
    crate::common::one_line(&all)
}

fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).expect("one JSON object")
}

/// The number after `(pid ` in what was said.
fn pid(said: &str) -> String {
    let rest = said.split("(pid ").nth(1).and_then(|rest| rest.split(')').next());
    rest.unwrap_or_else(|| panic!("no number: {said}")).to_owned()
}

fn end(pid: &str) {
    let _ = Command::new("kill").args(["-9", pid]).output();
}

#[test]
fn what_is_no_linux_has_no_user_space() {
    if !has_qemu() {
        return;
    }
    let lab = Lab::new();
    let guest = qemu(&lab, "test.bin", "Foo memory test 1.0\r\nTest 1: running\r\n");
    let script = format!("exec {guest} -serial stdio");
    for options in ["", "--no-inject"] {
        let ran = boot(&lab, &format!("--timeout 3 {options} --export-json -"), &script);
        assert_eq!(ran.status, 1, "{}", ran.stderr);
        let shown = json(&ran)["runs"][0].clone();
        let spans = shown["spans"].as_array().expect("spans");
        let names: Vec<&str> = spans.iter().filter_map(|span| span["name"].as_str()).collect();
        assert!(names.contains(&"guest"), "{options}: {names:?}");
        assert!(!names.iter().any(|name| name.contains("userspace")), "{options}: {names:?}");
        assert!(!names.iter().any(|name| name.starts_with("kernel:entry")), "{names:?}");
    }
}

#[test]
fn a_line_of_another_vmm_is_no_ready_point() {
    if !has_qemu() {
        return;
    }
    let lab = Lab::new();
    let one = qemu(&lab, "one.bin", "one: hello\r\n");
    let other = qemu(&lab, "other.bin", "other: ready\r\n");
    let pair = |own: &str| {
        format!(
            "{one} -serial {own} </dev/null & sleep 0.3; {other} -serial stdio </dev/null & wait"
        )
    };
    let file = lab.path("one.log");
    let apart = pair(&format!("file:{}", text(&file)));
    let ran = boot(&lab, "--no-inject --timeout 4 --until line:ready", &apart);
    assert_eq!(ran.status, 1, "{}", flat(&ran));
    assert!(flat(&ran).contains("timed out"), "{}", flat(&ran));
    // Its own line counts, from its file.
    let ran = boot(&lab, "--no-inject --timeout 20 --until line:hello", &apart);
    assert_eq!(ran.status, 0, "{}", flat(&ran));
    // Where both print to one console nobody knows whose it is.
    let shared = pair("stdio");
    let ran = boot(&lab, "--no-inject --timeout 20 --until line:ready --export-json -", &shared);
    assert_eq!(ran.status, 1, "{}", flat(&ran));
    assert_eq!(json(&ran)["runs"][0]["end"]["cause"], "line-of-any-vmm", "{}", ran.stdout);
}

/// A VM in a session of its own, whose launcher waits.
fn setsid(lab: &Lab) -> String {
    let guest = qemu(lab, "one.bin", "one: hello\r\n");
    format!("setsid {guest} -serial stdio </dev/null & sleep 60")
}

#[test]
fn what_is_ended_with_a_launcher_is_said() {
    if !has_qemu() {
        return;
    }
    let lab = Lab::new();
    let script = setsid(&lab);
    let ran = boot(&lab, "--timeout 2", &script);
    let said = flat(&ran);
    assert_eq!(ran.status, 1, "{said}");
    let ended = said.split("vmeter also ended qemu-system-x86 ").nth(1).expect("it is said");
    assert!(!is_alive(pid(ended)), "{said}");
    // By a Ctrl-C.
    let script = lab.script("waits", &format!("#!/bin/sh\n{script}\n"));
    let mut vmeter: Child = lab
        .command(&["boot", "--warmup", "0", "--runs", "1", "--", text(&script)])
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("vmeter runs");
    std::thread::sleep(Duration::from_secs(2));
    signal(&vmeter, "INT");
    let begin = Instant::now();
    while vmeter.try_wait().expect("it is there").is_none() && begin.elapsed().as_secs() < 10 {
        std::thread::sleep(Duration::from_millis(20));
    }
    let said: Ran = vmeter.wait_with_output().expect("its end").into();
    assert_eq!(said.status, 130, "{}", said.stderr);
    let ended = flat(&said);
    assert!(ended.contains("vmeter also ended qemu-system-x86 (pid "), "{ended}");
    assert!(!is_alive(pid(&ended)), "{ended}");
    let help = lab.run(&["boot", "--help"]).stdout;
    let help = crate::common::one_line(&help);
    assert!(help.contains("does not kill a daemon (-daemonize)"));
}

#[test]
fn of_a_vm_that_runs_on_nothing_is_said_that_is_not_so() {
    if !has_qemu() {
        return;
    }
    let lab = Lab::new();
    let guest = qemu(&lab, "one.bin", "one: hello\r\n");
    let log = lab.path("one.log");
    for script in [
        format!("{guest} -serial file:{} -daemonize; sleep 1", text(&log)),
        format!("{guest} -serial stdio </dev/null & sleep 1"),
    ] {
        let ran = boot(&lab, "--export-json -", &script);
        let run = json(&ran)["runs"][0].clone();
        let said = format!("{run} {}", flat(&ran));
        let pid = pid(run["end"]["evidence"].as_str().expect("why"));
        assert!(is_alive(&pid), "{said}");
        end(&pid);
        assert_eq!((ran.status, run["end"]["cause"].as_str()), (1, Some("vm-runs-on")), "{said}");
        for untrue in
            ["ended before its kernel was loaded", "misaligned", "the VMM failed", "launcher:after"]
        {
            assert!(!said.contains(untrue), "{untrue}: {said}");
        }
    }
}

#[test]
fn a_command_that_traces_its_vmm_is_left_to_it() {
    let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
    let lab = Lab::new();
    let guest = qemu(&lab, "one.bin", "one: ready\r\n");
    let log = lab.path("calls");
    let tracers = [
        ("strace", format!("strace -f -o {}", text(&log))),
        ("gdb", "gdb -batch -ex run --args".to_owned()),
    ];
    for (name, tracer) in tracers {
        if !has_qemu() || !has(name) {
            eprintln!("skipped: no {name}");
            continue;
        }
        let words: Vec<String> = format!("{tracer} {guest} -serial stdio")
            .split_whitespace()
            .map(str::to_owned)
            .collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let options =
            ["boot", "--warmup", "0", "--runs", "2", "--timeout", "60", "--until", "line:ready"];
        let more = ["--export-json", "-", "--"];
        let ran = lab.run(&[options.as_slice(), &more, &words].concat());
        assert_eq!(ran.status, 0, "{name}: {}", flat(&ran));
        let runs = json(&ran)["runs"].as_array().expect("runs").clone();
        for run in &runs {
            assert_eq!(run["outcome"], "done", "{name}: {run}");
            assert!(run.to_string().contains("traces its VMM by ptrace"), "{name}: {run}");
        }
        assert_eq!(runs.len(), 2);
    }
}

/// A VMM that sleeps waits for no CPU, whatever else the host is busy with.
#[test]
fn a_guest_that_idles_met_no_busy_host() {
    if common::is_left_to_test_long() {
        return;
    }
    if !has_qemu() || !Path::new("/proc/pressure/cpu").exists() {
        eprintln!("skipped: needs QEMU and /proc/pressure/cpu");
        return;
    }
    let lab = Lab::new();
    let guest = qemu(&lab, "idle.bin", "idle: now\r\n");
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let busy = |_| Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("sh");
    let mut others: Vec<Child> = (0..2 * cpus).map(busy).collect();
    let ran = boot(&lab, "--timeout 8", &format!("exec {guest} -serial stdio"));
    for other in &mut others {
        let _ = other.kill();
        let _ = other.wait();
    }
    assert_eq!(ran.status, 1, "{}", flat(&ran));
    assert!(!flat(&ran).contains("busy host"), "{}", flat(&ran));
}
