//! Launchers, scripts and programs of the users' own: what vmeter must not break, end or misname.

use crate::common;

use common::{is_alive, text, Lab};
use std::process::Command;

/// The last line that a program prints is read before its end is judged.
#[test]
fn a_ready_line_just_before_the_end_is_seen() {
    let lab = Lab::new();
    let vmm = lab.script("vmm", "#!/bin/sh\necho ready\n");
    let all_times = common::amount(25, 100);
    let times = all_times.to_string();
    for watch in ["none", "light"] {
        let words = ["boot", "--warmup", "0", "--runs", &times, "--watch", watch];
        let all = [words.as_slice(), &["--until", "line:ready", "--", text(&vmm)]].concat();
        let run = lab.json(&all);
        let runs = run["runs"].as_array().expect("runs");
        let done = runs.iter().filter(|run| run["outcome"] == "done").count();
        assert_eq!((runs.len(), done), (all_times, all_times), "--watch {watch}");
    }
}

/// A QEMU by name, which does as its first word says: it prints a kernel's line, or is asked
/// something, or becomes a daemon. Who it is shows by the name of its image alone.
const VMM: &str = r#"
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>
int main(int argc, char **argv) {
    int forks = 0, seconds = 0;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "-version")) { puts("QEMU emulator version 7.2.0"); return 0; }
        if (!strcmp(argv[i], "--fails-with-more") && strcmp(argv[argc - 1], "--fails-with-more")) {
            fprintf(stderr, "cannot use stdio by multiple character devices\n");
            return 1;
        }
        if (!strcmp(argv[i], "--double-fork")) forks = 1;
        if (!strcmp(argv[i], "--for")) sscanf(argv[i + 1], "%d", &seconds);
        if (!strcmp(argv[i], "--pid-file") && !forks) {
            FILE *file = fopen(argv[i + 1], "w");
            fprintf(file, "%d\n", getpid());
            fclose(file);
        }
    }
    if (forks) {
        if (fork()) { usleep(100000); return 0; }
        setsid();
        if (fork()) _exit(0);
        for (int i = 1; i < argc; i++) if (!strcmp(argv[i], "--pid-file")) {
            FILE *file = fopen(argv[i + 1], "w");
            fprintf(file, "%d\n", getpid());
            fclose(file);
        }
    }
    puts("[    0.000000] Linux version 6.1.0");
    puts("vmeter: ready");
    fflush(stdout);
    sleep(seconds);
    puts("[    1.000000] reboot: Power down");
    return 0;
}
"#;

/// The program above, in a folder of the lab; none without a compiler.
fn vmm(lab: &Lab) -> Option<String> {
    let (code, program) = (lab.path("vmm.c"), lab.path("qemu-system-x86_64"));
    std::fs::write(&code, VMM).expect("scratch space");
    let built = Command::new("cc").arg("-o").args([&program, &code]).status();
    if !built.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no C compiler");
        return None;
    }
    Some(text(&program).to_owned())
}

/// What a launcher starts, and whether it is there when vmeter is gone.
#[test]
fn what_is_not_vmeters_is_never_ended() {
    let lab = Lab::new();
    let Some(vmm) = vmm(&lab) else { return };
    let file = lab.path("pid");
    let run = format!("{vmm} --for 60 --pid-file {}", text(&file));
    let (quick, daemon) = (format!("{vmm} --for 0"), format!("{run} --double-fork"));
    let pid = format!("while ! [ -s {} ]; do sleep 0.01; done", text(&file));
    for (name, script, options, lives, says) in [
        ("a daemon of its own", daemon.clone(), "", true, "keeps running"),
        ("setsid, launcher exits", format!("setsid {run} & {pid}"), "", true, "keeps running"),
        ("in the background, launcher exits", format!("{run} & {pid}"), "", true, "keeps running"),
        (
            "its own environment",
            format!("setsid env -i {run} >/dev/null 2>&1 & {pid}"),
            "",
            true,
            "keeps running",
        ),
        (
            "the same, nothing watched",
            format!("setsid env -i {run} >/dev/null 2>&1 & {pid}"),
            "--watch none",
            true,
            "keeps running",
        ),
        (
            "a daemon at the ready point",
            format!("{daemon}; sleep 60"),
            "--until userspace",
            true,
            "keeps running",
        ),
        (
            "in a session of its own at the ready point",
            format!("setsid {run} & {pid}; sleep 60"),
            "--until userspace",
            true,
            "keeps running",
        ),
        (
            "the same, all to be ended",
            format!("setsid {run} & {pid}; sleep 60"),
            "--until userspace --end-vm",
            false,
            "",
        ),
        ("a daemon, all to be ended", daemon.clone(), "--end-vm", false, "(vmeter ended it)"),
        ("its launcher waits", format!("setsid --wait {run}"), "--timeout 2", false, "timed out"),
        ("in the session", format!("{run} & wait"), "--timeout 2", false, "timed out"),
        (
            "its launcher fails",
            format!("{run} & {pid}; sleep 0.3; exit 3"),
            "",
            false,
            "ended with it: qemu",
        ),
        ("done", quick.clone(), "", false, ""),
    ] {
        let _ = std::fs::remove_file(&file);
        let script = lab.script("launcher", &format!("#!/bin/sh\n{script}\n"));
        let options: Vec<&str> = options.split_whitespace().collect();
        let words = ["boot", "--warmup", "0", "--runs", "1"];
        let all = [words.as_slice(), &options, &["--", text(&script)]].concat();
        let ran = lab.run(&all);
        let said = format!("{}{}", ran.stdout, ran.stderr);
        let pid = std::fs::read_to_string(&file).unwrap_or_default().trim().to_owned();
        std::thread::sleep(std::time::Duration::from_millis(500));
        let alive = is_alive(&pid);
        if alive {
            let killed = Command::new("kill").args(["-9", &pid]).status();
            assert!(killed.expect("kill").success());
        }
        assert_eq!(alive, lives, "{name}: {said}");
        let flat = crate::common::one_line(&said);
        assert!(flat.contains(says), "{name}: {said}");
        assert!(!lives || says.is_empty() || flat.contains(&pid), "{name}, its number: {said}");
        assert_eq!(ran.status, i32::from(!says.is_empty()), "{name}: {said}");
    }
}

/// A VMM that is only asked something is none, and what follows it is found.
/// Where nothing is watched, too, a launcher whose VM runs on has refused nothing: it is not started again.
#[test]
fn a_launcher_that_leaves_its_vm_is_started_once() {
    let lab = Lab::new();
    let Some(vmm) = vmm(&lab) else { return };
    let starts = lab.path("starts");
    let launcher = format!(
        "#!/bin/sh\nsetsid {vmm} --for 60 </dev/null >/dev/null 2>&1 &\necho $! >> {}\nsleep 0.3\n",
        text(&starts)
    );
    let launcher = lab.script("launcher", &launcher);
    for arguments in
        [["boot", "--watch", "none"], ["bench", "--warmup", "0"], ["boot", "--end-vm", "-q"]]
    {
        let more = ["--runs", "2", "--", text(&launcher)];
        let _ = std::fs::remove_file(&starts);
        let ran = lab.run(&[&arguments[..], &more].concat());
        let all = std::fs::read_to_string(&starts).expect("it was started");
        all.lines().for_each(|pid| drop(Command::new("kill").args(["-9", pid]).output()));
        assert_eq!(all.lines().count(), 1, "{arguments:?}: {}", ran.stderr);
        assert_eq!(ran.status, 1, "{arguments:?}: {}", ran.stdout);
        let said = crate::common::one_line(&ran.stderr);
        assert!(
            said.contains("keeps running") || said.contains("(vmeter ended it)"),
            "{arguments:?}: {said}"
        );
    }
}

#[test]
fn a_probe_is_no_vmm() {
    let lab = Lab::new();
    let Some(vmm) = vmm(&lab) else { return };
    for (name, script) in [
        ("a child", format!("{vmm} -version; {vmm} -machine none; {vmm} --for 0")),
        ("an exec", format!("{vmm} -version; {vmm} -device help; exec {vmm} --for 0")),
        ("without a sign of a guest", format!("{vmm} -S >/dev/null; {vmm} --for 0")),
    ] {
        let script = lab.script("launcher", &format!("#!/bin/sh\n{script}\n"));
        let words = ["boot", "--warmup", "0", "--runs", "1", "--", text(&script)];
        let run = lab.json(&words);
        let argv = run["runs"][0]["argv"].to_string();
        assert!(argv.contains("--for"), "{name}: {argv}");
        let long =
            lab.run(&["boot", "--warmup", "0", "--runs", "1", "--long", "--", text(&script)]);
        let counted = long.stdout.contains("asked first") && long.stdout.contains("2 VMMs");
        assert_eq!(counted, name != "without a sign of a guest", "{name}: {}", long.stdout);
        assert_eq!(run["runs"][0]["outcome"], "done", "{name}");
    }
    for command in [
        vec![vmm.as_str(), "-version"],
        vec!["true"],
        // Any program prints.
        vec!["sh", "-c", "echo hello; sleep 0"],
        vec!["cat", "/proc/self/status"],
    ] {
        let words = ["boot", "--warmup", "0", "--runs", "1", "--"];
        let ran = lab.run(&[words.as_slice(), &command].concat());
        assert_eq!(ran.status, 1, "{command:?}: {}", ran.stdout);
        assert!(ran.stderr.contains("no VMM was seen among its processes"), "{}", ran.stderr);
        assert_eq!(ran.stdout, "", "nothing was measured");
    }
}

/// A daemon of this test, as libvirtd is one: answers whoever connects, until it is dropped.
fn daemon(lab: &Lab) -> std::path::PathBuf {
    use std::io::Write;
    let path = lab.path("daemon");
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("bound");
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.expect("a client");
            std::thread::sleep(std::time::Duration::from_millis(200));
            let _ = client.write_all(b"Domain started\n");
        }
    });
    path
}

/// What a client of a daemon prints is no guest's, however it is wrapped, and at any ready point.
/// Who asks on the way to a VMM is no client.
#[test]
fn a_client_of_a_daemon_is_no_vmm() {
    let lab = Lab::new();
    let code = format!(
        "import socket, subprocess, sys\n\
         s = socket.socket(socket.AF_UNIX)\n\
         s.connect('{}')\n\
         print(s.makefile().readline().strip(), flush=True)\n\
         if sys.argv[1:]: subprocess.run(sys.argv[1:])\n",
        text(&daemon(&lab))
    );
    let client = lab.script("client", &format!("#!/usr/bin/env python3\n{code}"));
    let client = text(&client);
    let wrapped = lab.script("wrapped", &format!("#!/bin/sh\n{client}\necho ready\n"));
    let vmm = lab.script("vmm", "#!/bin/sh\nsleep 0.1\necho ready\n");
    if Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: no python3");
        return;
    }
    let boot = |options: &[&str], command: &[&str]| {
        let words = ["boot", "--warmup", "0", "--runs", "1"];
        lab.run(&[words.as_slice(), options, &["--"], command].concat())
    };
    for (name, options, command) in [
        ("alone", vec![], vec![client]),
        ("its own line", vec!["--until", "line:started"], vec![client]),
        ("a script's line", vec!["--until", "line:ready"], vec![text(&wrapped)]),
        ("another session", vec!["--until", "line:started"], vec!["setsid", "--wait", client]),
        ("unwatched", vec!["--until", "line:ready", "--watch", "none"], vec![text(&wrapped)]),
    ] {
        let ran = boot(&options, &command);
        assert_eq!(ran.status, 1, "{name}: {}{}", ran.stdout, ran.stderr);
        let said = crate::common::one_line(&ran.stderr);
        assert!(said.contains("no VMM was seen among its processes"), "{name}: {said}");
        let pid = format!("(pid {})", std::process::id());
        assert!(said.contains(" is a client of ") && said.contains(&pid), "{name}: {said}");
        assert_eq!(ran.stdout, "", "{name}: nothing was measured");
    }
    let ran = boot(&["--until", "line:ready"], &[client, text(&vmm)]);
    assert_eq!(ran.status, 0, "it asked, and started a VMM then: {}", ran.stderr);
}

/// As libguestfs does: the launcher has what it wanted, ends its VMM and exits with 0.
#[test]
fn a_launcher_that_ends_its_vmm_is_content_with_it() {
    let lab = Lab::new();
    let Some(vmm) = vmm(&lab) else { return };
    for (script, cause) in [
        (format!("{vmm} --for 60 & sleep 0.5; kill $!; wait; exit 0"), "ended-by-launcher"),
        (format!("{vmm} --for 60 & sleep 0.5; kill $!; wait; exit 5"), "vmm-failure"),
    ] {
        let script = lab.script("launcher", &format!("#!/bin/sh\n{script}\n"));
        let words = ["boot", "--warmup", "0", "--runs", "1", "--no-inject"];
        let more = ["--export-json", "-", "--", text(&script)];
        let ran = lab.run(&[words.as_slice(), &more].concat());
        let run: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
        assert_eq!(run["runs"][0]["end"]["cause"], cause, "{}", ran.stderr);
        assert_eq!(ran.status, i32::from(cause == "vmm-failure"), "{}", ran.stderr);
    }
}

/// Of two VMMs one is measured, and it is said that there are two.
#[test]
fn two_vmms_are_said_to_be_two() {
    let lab = Lab::new();
    let Some(vmm) = vmm(&lab) else { return };
    let script = format!("#!/bin/sh\n{vmm} --for 1 & sleep 0.3; {vmm} --for 0; wait\n");
    let script = lab.script("launcher", &script);
    let run = lab.json(&["boot", "--warmup", "0", "--runs", "1", "--", text(&script)]);
    let warnings = run["runs"][0].to_string();
    assert!(warnings.contains("more than one VMM ran: vmeter measured qemu-system"), "{warnings}");
    assert!(warnings.contains("vmeter uses none of its lines"), "{warnings}");
    // The screen says it, whatever else is on it.
    let words = ["boot", "--warmup", "0", "--runs", "1", "--until", "line:Power down"];
    let ran = lab.run(&[words.as_slice(), &["--", text(&script)]].concat());
    let said = format!("{}{}", ran.stdout, ran.stderr);
    let said = crate::common::one_line(&said);
    assert!(said.contains("more than one VMM ran"), "{said}");
    assert!(said.contains("cannot tell which guest printed the line"), "{said}");
    // One whose console is a file of its own shares it with nobody.
    let file = lab.path("console.log");
    let own = format!("{vmm} --for 1 -serial file:{} & sleep 0.3", text(&file));
    let script = lab.script("own", &format!("#!/bin/sh\n{own}; {vmm} --for 0; wait\n"));
    let run =
        lab.json(&["boot", "--warmup", "0", "--runs", "1", "--no-inject", "--", text(&script)]);
    let warnings = run["runs"][0].to_string();
    assert!(warnings.contains("more than one VMM ran: vmeter measured qemu-system"), "{warnings}");
    assert!(!warnings.contains("vmeter uses none of its lines"), "{warnings}");
}

/// What is added goes to the VMM as it is executed, whatever the script passes on; where the VMM
/// refuses it, the run is made again without.
#[test]
fn a_scripts_own_arguments_are_added_to_and_never_broken() {
    let lab = Lab::new();
    let Some(vmm) = vmm(&lab) else { return };
    let boot = |script: String| {
        let script = lab.script("launcher", &format!("#!/bin/sh\n{script}\n"));
        let words = ["boot", "--warmup", "0", "--runs", "1", "--", text(&script)];
        lab.json(&words)["runs"][0].clone()
    };
    let run = boot(format!("exec {vmm} -kernel k -append 'own words' --for 0"));
    let argv = run["argv"].to_string();
    assert!(argv.contains("\"own words trace_event="), "{argv}");
    assert!(argv.contains("-serial") && argv.contains("vmeter-qmp"), "{argv}");
    let run = boot(format!("{vmm} -monitor stdio --for 0; exit 0"));
    assert!(!run["argv"].to_string().contains("-serial"), "{run}");
    let run = boot(format!("exec {vmm} --for 0 --fails-with-more"));
    assert_eq!((&run["outcome"], run["injected"].to_string()), (&"done".into(), "[]".into()));
    assert!(run.to_string().contains("cannot use stdio by multiple"), "{run}");
}

/// As in a container that `docker exec` enters: the numbers of vmeter's own session and group
/// are none in its PID namespace. What a launcher leaves in its session is ended all the same.
#[test]
fn a_session_begun_outside_of_the_pid_namespace() {
    let lab = Lab::new();
    let script = lab.script("launcher", "#!/bin/sh\nsleep 600 &\necho ready\nexit 3\n");
    let left = lab.path("left");
    let inside = format!(
        "[ \"$(cut -d' ' -f6 /proc/self/stat)\" = 0 ] || exit 77
         \"$@\" boot --warmup 0 --runs 1 -- {} >/dev/null 2>&1; ended=$?
         cat /proc/[0-9]*/comm | grep -c sleep > {}
         \"$@\" bench --warmup 0 --runs 2 --prepare true -- true && exit $((40 + ended))",
        text(&script),
        text(&left)
    );
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", &inside, "sh"]);
    let command = command.args([env!("CARGO_BIN_EXE_vmeter"), "-q"]);
    let ran: common::Ran =
        command.env("XDG_STATE_HOME", lab.path("state")).output().expect("unshare(1)").into();
    if ran.status == 77 || ran.stderr.starts_with("unshare") {
        println!("skipped: another PID namespace needs the right to unshare one");
        return;
    }
    assert_eq!(ran.status, 41, "{}", ran.stderr);
    assert_eq!(std::fs::read_to_string(left).expect("counted").trim(), "0");
}
