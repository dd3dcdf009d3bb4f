//! `vmeter boot --next`: the VM that a daemon starts, followed from its VMM's exec, and left as it is.

use crate::common;

use common::{has_qemu, is_alive, kernel, text, Lab, Ran};
use std::process::Command;
use std::time::{Duration, Instant};

/// A launcher as a daemon's client is one: the VM is another's child when it has ended, in a session of its own and
/// without the launcher's environment. Its pid is in `pid`.
fn launcher(lab: &Lab, name: &str, kernel: &std::path::Path, panics: &str) -> std::path::PathBuf {
    let script = format!(
        "#!/bin/sh\n\
         echo 'Domain started'\n\
         qemu-system-x86_64 --version >/dev/null\n\
         env -i PATH=\"$PATH\" setsid qemu-system-x86_64 -name guest={name} -accel tcg -m 256 -nodefaults \
         -display none -no-reboot -kernel {} -append 'console=ttyS0 quiet panic={panics}' \
         </dev/null >/dev/null 2>&1 &\n\
         echo $! > {}\n",
        text(kernel),
        text(&lab.path("pid"))
    );
    lab.script("launcher", &script)
}

/// True where this user may not read the VMM, which is said.
fn is_refused(ran: &Ran) -> bool {
    let is = ran.stderr.contains("this user may not read the memory");
    if is {
        eprintln!("skipped: {}", ran.stderr);
    }
    is
}

fn pid(lab: &Lab) -> u32 {
    let text = std::fs::read_to_string(lab.path("pid")).expect("the launcher ran");
    text.trim().parse().expect("a number")
}

fn end(pid: u32) {
    let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
    let begun = Instant::now();
    while is_alive(pid) && begun.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_vm_of_a_launcher_that_exits_is_followed_and_lives_on() {
    let Some((_, image)) = kernel() else { return };
    let lab = Lab::new();
    let name = format!("vmeter-next-{}", std::process::id());
    let launcher = launcher(&lab, &name, &image, "0");
    // Its kernel finds no root, says so and stays.
    let until = "line:VFS: Unable to mount root|Kernel panic|not syncing";
    let saved = lab.path("saved");
    let kill = format!("kill -9 $(cat {} 2>/dev/null) 2>/dev/null; true", text(&lab.path("pid")));
    let words = ["boot", "--next", "--runs", "2", "--match", &name, "--until", until];
    let more = ["--prepare", &kill, "--save", text(&saved), "--", text(&launcher)];
    let ran = lab.run(&[&words[..], &more].concat());
    if is_refused(&ran) {
        return;
    }
    let last = pid(&lab);
    let lives = is_alive(last);
    end(last);
    assert_eq!(ran.status, 0, "{}\n{}", ran.stderr, ran.stdout);
    assert!(lives, "it runs on: {}", ran.stderr);
    assert!(!ran.stdout.contains("Domain started") && ran.stderr.contains("Domain started"));
    assert!(ran.stdout.contains("from the VMM's exec to the line"), "{}", ran.stdout);
    let shown = lab.json(&["show", text(&saved)]);
    let runs = shown["runs"].as_array().expect("runs");
    assert_eq!((runs.len(), &shown["command"]), (2, &"next".into()));
    assert_ne!(runs[0]["exec_monotonic_ns"], runs[1]["exec_monotonic_ns"]);
    for run in runs {
        assert_eq!((&run["origin"], &run["outcome"]), (&"next".into(), &"done".into()));
        let argv = run["argv"].to_string();
        assert!(argv.contains(&name) && !argv.contains("trace_event"), "nothing is added: {argv}");
        let phases: Vec<&str> = run["phases"]
            .as_array()
            .expect("phases")
            .iter()
            .filter_map(|p| p["name"].as_str())
            .collect();
        let before = phases.iter().any(|name| name.starts_with("vmm:"));
        assert!(before && phases.iter().any(|name| name.starts_with("kernel:")), "{phases:?}");
        // Its clock is tied while it boots, as it stands still now; an unoptimised vmeter may be too late for that.
        assert!(run["coverage"].as_f64().expect("a share") > 0.25, "{run}");
    }
}

/// Reviewed with guestfish: of a VM that powers off before it was up nothing was left, though its log had been read
/// all the while.
#[test]
fn of_a_vm_that_ends_the_last_poll_is_kept() {
    let Some((_, image)) = kernel() else { return };
    let lab = Lab::new();
    let name = format!("vmeter-ends-{}", std::process::id());
    // With -no-reboot its panic ends the VMM, 10 s later: an unoptimised vmeter takes seconds to find a kernel.
    let launcher = launcher(&lab, &name, &image, "10");
    let saved = lab.path("saved");
    let words = ["boot", "--next", "--match", &name, "--until", "line:nobody says this"];
    let ran = lab.run(&[&words[..], &["--save", text(&saved), "--", text(&launcher)]].concat());
    if is_refused(&ran) {
        return;
    }
    assert_eq!(ran.status, 1, "{}\n{}", ran.stderr, ran.stdout);
    assert!(ran.stderr.contains("the VMM ended before"), "{}", ran.stderr);
    let shown = lab.json(&["show", text(&saved)]);
    let run = &shown["runs"][0];
    let phases = run["phases"].as_array().expect("phases");
    let is_kernel =
        |p: &&serde_json::Value| p["name"].as_str().is_some_and(|n| n.starts_with("kernel"));
    let mut kernel = phases.iter().filter(is_kernel);
    assert!(kernel.any(|phase| phase["total_s"].as_f64() > Some(0.0)), "{run}");
    assert!(run["counts"]["kernel_lines"].as_u64() > Some(100), "{run}");
}

/// A line of before the kernel's clock has no time in the log; and a vmeter that was stopped meanwhile keeps its run,
/// as somebody else's VM can't be started again.
#[test]
fn an_early_line_has_the_time_of_its_poll_and_a_run_is_never_made_again() {
    let Some((_, image)) = kernel() else { return };
    let lab = Lab::new();
    let name = format!("vmeter-early-{}", std::process::id());
    let launcher = launcher(&lab, &name, &image, "0");
    let words = ["boot", "--next", "--match", &name, "--until", "line:Linux version"];
    let ran = lab.run(&[&words[..], &["--", text(&launcher)]].concat());
    if is_refused(&ran) {
        return;
    }
    end(pid(&lab));
    assert_eq!(ran.status, 0, "{}\n{}", ran.stderr, ran.stdout);
    let _ = std::fs::remove_file(lab.path("pid"));

    let words = ["boot", "--next", "--match", &name, "--until", "line:Unable to mount root"];
    let mut watching = lab.command(&[&words[..], &["--", text(&launcher)]].concat());
    let watching = watching.stderr(std::process::Stdio::piped()).spawn().expect("vmeter");
    let signal = |name: &str| {
        let _ = Command::new("kill").args([name, &watching.id().to_string()]).status();
    };
    let begun = Instant::now();
    while !lab.path("pid").exists() && begun.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(500));
    signal("-STOP");
    std::thread::sleep(Duration::from_secs(1));
    signal("-CONT");
    let ran = watching.wait_with_output().expect("it ends");
    end(pid(&lab));
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success() && !said.contains("made again"), "{said}");
}

#[test]
fn no_vm_is_an_answer_and_what_can_not_be_is_refused() {
    if !has_qemu() {
        return;
    }
    let lab = Lab::new();
    let fails = lab.script("fails", "#!/bin/sh\nexit 7\n");
    let cases: [(&[&str], i32, &str); 7] = [
        (&["--match", "^nobody$", "--within", "0.2"], 1, "vmeter saw no VMM start"),
        (&["--match", "^nobody$", "--", text(&fails)], 1, "exit status: 7, and no VMM was started"),
        (&["--", "/nonexistent/launcher"], 2, "cannot start /nonexistent/launcher"),
        (&["--match", "["], 2, "--match: "),
        (&["--emulator", "/nonexistent/qemu"], 2, "--emulator /nonexistent/qemu"),
        (&["--memory", "64"], 2, "--until and --timeout"),
        (&["--watch", "full"], 2, "cannot be used with"),
    ];
    for (arguments, status, words) in cases {
        let ran = lab.run(&[&["boot", "--next"], arguments].concat());
        assert_eq!(ran.status, status, "{arguments:?}: {}", ran.stderr);
        let said = crate::common::one_line(&ran.stderr);
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
    let runs = std::fs::read_dir(lab.path("vmeter/runs")).into_iter().flatten().count();
    assert_eq!(runs, 0, "nothing is left of what found nothing");
}

/// A VM that goes on where it was saved boots nothing; one that does not match is named.
#[test]
fn a_restored_vm_has_no_boot_and_a_vm_that_does_not_match_is_named() {
    if !has_qemu() {
        return;
    }
    let lab = Lab::new();
    let name = format!("vmeter-restored-{}", std::process::id());
    let script = format!(
        "#!/bin/sh\nsetsid qemu-system-x86_64 -name guest={name} -accel tcg -m 64 -nodefaults -display none \
         -incoming defer </dev/null >/dev/null 2>&1 &\necho $! > {}\n",
        text(&lab.path("pid"))
    );
    let launcher = lab.script("restores", &script);
    let ran = lab.run(&["boot", "--next", "--match", &name, "--", text(&launcher)]);
    if is_refused(&ran) {
        return;
    }
    let restored = pid(&lab);
    let looked = lab.run(&["look", &restored.to_string()]);
    let lives = is_alive(restored);
    end(restored);
    assert_eq!(ran.status, 1, "{}\n{}", ran.stderr, ran.stdout);
    assert!(ran.stderr.contains("-incoming") && ran.stdout.is_empty(), "{}", ran.stderr);
    assert_eq!(looked.status, 3, "{}", looked.stderr);
    assert!(looked.stderr.contains("-incoming"), "{}", looked.stderr);
    assert!(lives);

    let words = ["boot", "--next", "--match", "^nobody$", "--within", "2", "--"];
    let ran = lab.run(&[&words[..], &[text(&launcher)]].concat());
    end(pid(&lab));
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    let said = crate::common::one_line(&ran.stderr);
    // The last of them may be another test's.
    assert!(said.contains("the command line of this VMM: pid "), "{said}");
}
