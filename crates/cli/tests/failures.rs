//! Bad input and bad days: the message and the exit code that a user would want.

use crate::common;

use common::{kernel, signal, text, Lab};
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Stdio};

/// vmeter on the mock, whose runs take no time.
fn mock(lab: &Lab, arguments: &[&str]) -> common::Ran {
    let mut all = vec!["boot", "--vmm", "mock"];
    all.extend(arguments);
    lab.run(&all)
}

fn finished_runs(session: &Path) -> usize {
    let entries = std::fs::read_dir(session.join("runs")).expect("the session's runs");
    entries.flatten().filter(|e| e.path().join("run.json").exists()).count()
}

#[test]
fn an_unwritable_export_is_refused_before_the_first_boot() {
    let lab = Lab::new();
    let ran = mock(&lab, &["--export-json", "/nonexistent/out.json"]);
    assert_eq!(ran.status, 2);
    assert!(ran.stderr.contains("/nonexistent/out.json"), "{}", ran.stderr);
    assert!(!lab.path("vmeter").exists(), "a session was begun");
}

#[test]
fn what_is_not_valid_is_refused_with_what_is() {
    let lab = Lab::new();
    let refused = [
        (&["boot", "--machine", "i440"][..], "q35, pc, microvm or pvh"),
        (&["boot", "--until", "ready"], "line:REGEX"),
        (&["boot", "--until", "line:("], "line:("),
        (&["boot", "--pin", "x", "--vmm", "mock"], "0,2-3"),
        (&["boot", "--pin", "0,1023", "--vmm", "mock"], "CPU 1023 does not exist"),
        (&["irq", "--pin", "0,9999"], "CPU numbers below 8192"),
        (&["boot", "--kernel", "/nonexistent"], "/nonexistent"),
        (&["boot", "--", "no-such-vmm"], "no-such-vmm"),
        (&["bench", "--vs", "--machin pc"], "--machin"),
        (&["show", "/nonexistent"], "session.json"),
        (&["boot", "--resume", "/nonexistent"], "session.json"),
        (&["report", "/nonexistent", "-o", "x.docx"], ".html"),
        (&["boot", "--timeout", "0"], "--timeout"),
        (&["boot", "--watch", "none", "--overhead"], "--watch light"),
        (&["boot", "--memory", "300", "--", "true"], "--memory: vmeter runs a command line after"),
        (&["bench", "--vs", "--smp 2", "--", "true"], "--smp: vmeter runs a command line after"),
        (&["diff", "/a", "/b", "--fail-if-slower", "nan"], "0 or more"),
    ];
    let seeded = lab.command(&["bench", "--vmm", "mock"]).env("VMETER_SEED", "0x1f").output();
    let seeded: common::Ran = seeded.expect("vmeter").into();
    assert_eq!(seeded.status, 2, "{}", seeded.stderr);
    assert!(seeded.stderr.contains("VMETER_SEED=0x1f: expected an integer"), "{}", seeded.stderr);
    for (arguments, expected) in refused {
        let ran = lab.run(arguments);
        assert_eq!(ran.status, 2, "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(expected), "{arguments:?}: {}", ran.stderr);
    }
}

#[test]
fn a_file_that_is_no_kernel() {
    let Some(_) = kernel() else { return };
    let lab = Lab::new();
    let junk = lab.path("junk");
    std::fs::write(&junk, "not a kernel").expect("scratch space");
    let ran = lab.run(&["boot", "--kernel", text(&junk)]);
    assert_eq!(ran.status, 2, "{}", ran.stderr);
    assert!(ran.stderr.contains("not a kernel"), "{}", ran.stderr);
}

#[test]
fn a_guest_that_panics() {
    let Some(_) = kernel() else { return };
    let lab = Lab::new();
    let ran = lab.run(&["boot", "--append", "rdinit=/none", "--export-json", "-"]);
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    let result: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let runs = result["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 1, "it is not booted again");
    assert_eq!(runs[0]["outcome"], "panicked");
    assert!(ran.stderr.contains("Kernel panic - not syncing"), "{}", ran.stderr);
}

#[test]
fn a_guest_that_never_becomes_ready() {
    let Some(_) = kernel() else { return };
    let lab = Lab::new();
    let arguments = ["boot", "--append", "vmeter.exit=stay vmeter.noready", "--timeout", "12"];
    let ran = lab.run(&arguments);
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("timed out; the last thing seen"), "{}", ran.stderr);
    assert_no_qemu_of(&lab);
}

#[test]
fn a_ready_point_that_the_guest_never_reaches() {
    let Some(_) = kernel() else { return };
    let lab = Lab::new();
    let ran = lab.run(&["boot", "--until", "line:^never$"]);
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("before the guest was ready"), "{}", ran.stderr);
}

#[test]
fn a_vmm_that_fails_says_why() {
    let lab = Lab::new();
    let vmm = lab.script("vmm", "#!/bin/sh\necho \"cannot: $1\" >&2\nexit 7\n");
    let ran = lab.run(&["boot", "--", text(&vmm), "memory"]);
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("exit status 7"), "{}", ran.stderr);
    assert!(ran.stderr.contains("cannot: memory"), "{}", ran.stderr);
}

#[test]
fn a_vmm_that_runs_on_behind_its_launcher() {
    let lab = Lab::new();
    let up = lab.path("up");
    let text_of = format!(
        "#!/bin/sh\nmkfifo {0}\nsetsid sh -c 'echo >{0}; exec sleep 1000' >&- 2>&- &\n\
         read x <{0}\nexit 0\n",
        text(&up)
    );
    let vmm = lab.script("vmm", &text_of);
    let ran = lab.run(&["boot", "--", text(&vmm)]);
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("no VMM was seen among its processes"), "{}", ran.stderr);
    // It is said by its number, and it is there.
    let said = ran.stderr.split("(pid ").nth(1).and_then(|rest| rest.split(')').next());
    let pid = said.expect("its number");
    let killed = std::process::Command::new("kill").args(["-9", pid]).status();
    assert!(killed.expect("kill").success(), "{}", ran.stderr);
}

#[test]
fn escape_sequences_on_the_serial_line_stay_words() {
    let lab = Lab::new();
    let vmm = lab.script(
        "vmm",
        "#!/bin/sh\nprintf 'Kernel panic - not syncing: \\033]0;owned\\007\\033[2J\\n'\n",
    );
    let ran = lab.run(&["boot", "--color", "never", "--", text(&vmm)]);
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    for (name, output) in [("stdout", &ran.stdout), ("stderr", &ran.stderr)] {
        let raw = output.chars().find(|c| c.is_control() && *c != '\n');
        assert_eq!(raw, None, "{name} has a control character: {output:?}");
        // What begins a sequence is taken off a console's line; what is left of it is words.
        assert!(output.contains("0;owned\\x07"), "{name}: {output}");
    }
}

/// vmeter on a guest that boots and stays, so that there is time to end it.
fn boots_and_stays(lab: &Lab) -> Child {
    let save = lab.path("session");
    lab.command(&["boot", "--warmup", "0", "--runs", "3", "--save", text(&save)])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("vmeter starts")
}

/// Waits until so many runs are saved and the next one's VMM is running.
fn wait_for_runs(lab: &Lab, runs: usize) {
    let next = lab.path("session").join(format!("runs/{runs:04}.partial/console.chunks"));
    while !next.exists() {
        std::thread::yield_now();
    }
}

/// No QEMU still runs that was started from this lab's folder.
fn assert_no_qemu_of(lab: &Lab) {
    let own = text(lab.folder.path()).to_owned();
    let left: Vec<String> = std::fs::read_dir("/proc")
        .expect("/proc")
        .flatten()
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .map(|bytes| String::from_utf8_lossy(&bytes).replace('\0', " "))
        .filter(|line| line.contains("qemu-system") && line.contains(&own))
        .collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

#[test]
fn interrupted_in_the_second_of_three_runs() {
    let Some(_) = kernel() else { return };
    let lab = Lab::new();
    let child = boots_and_stays(&lab);
    wait_for_runs(&lab, 1);
    signal(&child, "INT");
    let ran: common::Ran = child.wait_with_output().expect("vmeter ends").into();
    assert_eq!(ran.status, 130, "{}", ran.stderr);
    assert!(ran.stderr.contains("1 finished run is saved"), "{}", ran.stderr);
    assert_eq!(finished_runs(&lab.path("session")), 1);
    assert_no_qemu_of(&lab);

    let resumed = lab.json(&["boot", "--resume", text(&lab.path("session"))]);
    let indices: Vec<u64> = resumed["runs"]
        .as_array()
        .expect("runs")
        .iter()
        .map(|run| run["index"].as_u64().expect("index"))
        .collect();
    assert_eq!(indices, [0, 1, 2]);
}

#[test]
fn killed_vmeter_leaves_no_vmm_and_loses_no_finished_run() {
    let Some(_) = kernel() else { return };
    let lab = Lab::new();
    let mut child = boots_and_stays(&lab);
    wait_for_runs(&lab, 1);
    signal(&child, "KILL");
    child.wait().expect("vmeter is gone");
    let session = lab.path("session");
    assert_eq!(finished_runs(&session), 1);
    // The kernel kills the VMM with its tracer; it is a zombie of init's for a moment at most.
    for _ in 0..1000 {
        std::thread::yield_now();
    }
    assert_no_qemu_of(&lab);
    let shown = lab.run(&["show", text(&session)]);
    assert_eq!(shown.status, 0, "{}", shown.stderr);
}

#[test]
fn a_saved_session_is_shown_as_it_was() {
    let lab = Lab::new();
    let save = lab.path("session");
    let first = mock(&lab, &["--runs", "3", "--save", text(&save)]);
    assert_eq!(first.status, 0, "{}", first.stderr);
    let again = lab.run(&["show", text(&save)]);
    let body =
        |out: &str| out.lines().filter(|l| !l.starts_with("try:")).collect::<Vec<_>>().join("\n");
    assert_eq!(body(&first.stdout), body(&again.stdout));
}

#[test]
fn a_full_disk_is_an_error_and_earlier_runs_stand() {
    let lab = Lab::new();
    let save = lab.path("session");
    // A limit on file size fails writes as a full disk does (EFBIG instead of ENOSPC).
    let ok = mock(&lab, &["--runs", "1", "--warmup", "0", "--save", text(&save)]);
    assert_eq!(ok.status, 0, "{}", ok.stderr);
    let script = lab.script(
        "limited",
        &format!(
            "#!/bin/sh\ntrap '' XFSZ\nulimit -f 1\nexec {} boot --vmm mock --warmup 0 --runs 2 --save \"$1\"\n",
            env!("CARGO_BIN_EXE_vmeter")
        ),
    );
    let other = lab.path("limited-session");
    let ran: common::Ran = std::process::Command::new(&script)
        .arg(&other)
        .env("XDG_STATE_HOME", lab.folder.path())
        .output()
        .expect("sh")
        .into();
    assert_eq!(ran.status, 3, "{}", ran.stderr);
    assert!(ran.stderr.contains(text(&other)), "{}", ran.stderr);
    assert_eq!(finished_runs(&save), 1);
}

#[test]
fn a_reader_that_has_gone_and_a_full_disk_are_no_panic() {
    let lab = Lab::new();
    let full = || Stdio::from(std::fs::File::create("/dev/full").expect("Linux has it"));
    let ended = |arguments: &[&str], stdout: Stdio, stderr: Stdio| {
        let mut command = lab.command(arguments);
        command.stdout(stdout).stderr(stderr);
        command.status().expect("vmeter runs").code()
    };
    assert_eq!(ended(&["--generate", "complete-bash"], full(), Stdio::null()), Some(3));
    assert_eq!(ended(&["--generate", "man"], full(), Stdio::null()), Some(3));
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    assert_eq!(ended(&["--generate", "complete-zsh"], writer.into(), Stdio::null()), Some(0));
    assert_eq!(ended(&["show", "/nonexistent"], Stdio::null(), full()), Some(2));
}

#[test]
fn the_time_of_a_vmm_that_failed_is_no_boot_time() {
    let lab = Lab::new();
    let ran = lab.run(&["boot", "--", "false"]);
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    assert!(ran.stdout.contains("No run reached its end"), "{}", ran.stdout);
    assert!(
        !ran.stdout.contains("from the VMM's exec to its exit after power-off"),
        "{}",
        ran.stdout
    );
    assert!(ran.stderr.contains("(exit status 1); vmeter skips the remaining"), "{}", ran.stderr);
}

/// Firmware that finds nothing to boot waits for ever: the run ends when it says so.
#[test]
fn firmware_that_finds_nothing_to_boot_is_not_waited_for() {
    let lab = Lab::new();
    let vmm = "printf 'PXE-E53: no boot file\\nNo bootable device.\\n'; sleep 100";
    let ran = lab.run(&[
        "boot",
        "--runs",
        "1",
        "--warmup",
        "0",
        "--timeout",
        "90",
        "--",
        "sh",
        "-c",
        vmm,
    ]);
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    let text = crate::common::one_line(&ran.stdout);
    assert!(text.contains("no kernel was seen: the firmware found nothing to boot"), "{text}");
    assert!(!text.contains("timed out"), "{text}");
}

/// Whether a run was to warm up or not: one that failed is a failed run, of every kind that boots.
#[test]
fn a_machine_that_fails_each_time_is_a_bad_answer() {
    let lab = Lab::new();
    // Its guest stays where it is.
    let stuck = ["--timeout", "1", "--", "sleep", "9"];
    let crashes = ["--", "sh", "-c", "kill -SEGV $$"];
    let rows: [(&[&str], &[&str]); 8] = [
        (&["boot", "--watch", "none"], &crashes),
        (&["bench", "--until", "line:up"], &crashes),
        (&["bench", "--vs", "-- false"], &crashes),
        (&["bench", "--vs", "-- false", "--detect", "3"], &crashes),
        (&["bench"], &stuck),
        (&["sweep", "-L", "n=1,2", "--until", "line:up"], &["--", "sh", "-c", "exit {n}"]),
        (&["findings", "vcpus"], &crashes),
        (&["findings", "vcpus"], &stuck),
    ];
    for (command, vmm) in rows {
        for warmups in ["0", "1", "2"] {
            let arguments = [command, &["--warmup", warmups, "--runs", "2"], vmm].concat();
            let ran = lab.run(&arguments);
            assert_eq!(ran.status, 1, "{arguments:?}: {}{}", ran.stdout, ran.stderr);
            let said = ran.stdout + &ran.stderr;
            assert!(said.contains("failed") || said.contains("timed out"), "{arguments:?}: {said}");
        }
    }
}

/// `ulimit -s 64`: an overflow of the stack has no message.
/// A clock_gettime(2) by which the wall's clock is off; Linux itself sets none before 1970.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *time) {
    int r = syscall(SYS_clock_gettime, clock, time);
    if (!r && clock == CLOCK_REALTIME) time->tv_sec += atol(getenv("CLOCK_OFF"));
    return r;
}
"#;

/// A host without a battery for its clock, or with one that is far ahead.
#[test]
fn a_clock_before_1970_or_after_9999_stops_nothing() {
    let lab = Lab::new();
    let (code, library) = (lab.path("clock.c"), lab.path("clock.so"));
    std::fs::write(&code, CLOCK).expect("scratch space");
    let mut cc = std::process::Command::new("cc");
    let built = cc.args(["-shared", "-fPIC", "-o"]).args([&library, &code]).status();
    if !built.is_ok_and(|status| status.success()) {
        println!("skipped: no C compiler");
        return;
    }
    let vmm = lab.script("vmm", "#!/bin/sh\necho ready\n");
    let boot = ["boot", "--warmup", "0", "--runs", "2", "--until", "line:ready", "--", text(&vmm)];
    for (off, year) in [("-4000000000", "1970-01-01"), ("300000000000", "9999-12-31")] {
        let run = |arguments: &[&str]| -> common::Ran {
            let mut command = lab.command(arguments);
            command.env("LD_PRELOAD", &library).env("CLOCK_OFF", off);
            command.output().expect("vmeter runs").into()
        };
        for arguments in [&boot[..], &["runs", "trend"], &["runs", "list", "--since", "5d"]] {
            let ran = run(arguments);
            assert_eq!(ran.status, 0, "{off} {arguments:?}: {}", ran.stderr);
        }
        let listed = run(&["runs", "list", "--since", "5d"]);
        assert!(listed.stdout.contains(year), "{off}: {}", listed.stdout);
        assert!([0, 1].contains(&run(&["doctor"]).status), "{off}");
    }
}

#[test]
fn a_small_stack_is_enough() {
    let lab = Lab::new();
    let bench = lab.command(&["bench", "--vmm", "mock", "--runs", "2", "--export-json", "-"]);
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "ulimit -s 64 && exec \"$0\" \"$@\""]).arg(bench.get_program());
    limited.args(bench.get_args());
    limited.envs(bench.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let ran: common::Ran = limited.output().expect("sh").into();
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains("samples_s"), "{}", ran.stdout);
}

/// Names of folders are bytes.
#[test]
fn sessions_whose_paths_are_not_utf_8_are_compared() {
    use std::os::unix::ffi::OsStrExt;
    let lab = Lab::new();
    let odd = lab.folder.path().join(std::ffi::OsStr::from_bytes(b"a\xff"));
    let plain = lab.path("b");
    for save in [&odd, &plain] {
        let boot = ["boot", "--vmm", "mock", "--runs", "3", "--save"];
        assert!(lab.command(&boot).arg(save).output().expect("vmeter").status.success());
    }
    let mut labelled = odd.clone().into_os_string();
    labelled.push("#default");
    for a in [odd.as_os_str(), &labelled] {
        let ran = lab.command(&["diff"]).arg(a).arg(&plain).output().expect("vmeter");
        let ran = common::Ran::from(ran);
        assert_eq!(ran.status, 0, "{}", ran.stderr);
    }
}

/// What changed since a baseline was measured is said; nobody goes on with anything.
#[test]
fn a_baseline_whose_program_changed_is_not_booted_again() {
    let lab = Lab::new();
    let vmm = lab.script("vmm", "#!/bin/sh\necho up\n");
    let boot = |more: &[&str]| {
        let fixed =
            ["boot", "--watch", "none", "--until", "line:up", "--warmup", "0", "--runs", "3"];
        lab.run(&[&fixed, more, &["--", text(&vmm)]].concat())
    };
    let before = lab.path("before");
    assert_eq!(boot(&["--save", text(&before)]).status, 0);
    lab.script("vmm", "#!/bin/sh\nsleep 0.01; echo up\n");
    let ran = boot(&["--baseline", text(&before)]);
    let said = common::one_line(&(ran.stdout + &ran.stderr));
    assert!(
        said.contains("inputs of the baseline's boots changed") && said.contains(text(&vmm)),
        "{said}"
    );
    assert!(!said.contains("--resume"), "{said}");
}
