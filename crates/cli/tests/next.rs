//! `vmeter boot --next`: the VM that a daemon starts, followed from its VMM's exec, and left as it is.

mod common;

use common::{has_qemu, kernel, text, Lab};
use std::process::Command;
use std::time::{Duration, Instant};

/// A launcher as a daemon's client is one: the VM is another's child when it has ended, in a session of its own and
/// without the launcher's environment. Its pid is in `pid`.
fn launcher(lab: &Lab, name: &str, kernel: &std::path::Path) -> std::path::PathBuf {
    let script = format!(
        "#!/bin/sh\n\
         echo 'Domain started'\n\
         qemu-system-x86_64 --version >/dev/null\n\
         env -i PATH=\"$PATH\" setsid qemu-system-x86_64 -name guest={name} -accel tcg -m 256 -nodefaults \
         -display none -no-reboot -kernel {} -append 'console=ttyS0 quiet panic=0' \
         </dev/null >/dev/null 2>&1 &\n\
         echo $! > {}\n",
        text(kernel),
        text(&lab.path("pid"))
    );
    lab.script("launcher", &script)
}

fn pid(lab: &Lab) -> u32 {
    let text = std::fs::read_to_string(lab.path("pid")).expect("the launcher ran");
    text.trim().parse().expect("a number")
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
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
    let launcher = launcher(&lab, &name, &image);
    // Its kernel finds no root, says so and stays.
    let until = "line:VFS: Unable to mount root|Kernel panic|not syncing";
    let saved = lab.path("saved");
    let kill = format!("kill -9 $(cat {} 2>/dev/null) 2>/dev/null; true", text(&lab.path("pid")));
    let words = ["boot", "--next", "--runs", "2", "--match", &name, "--until", until];
    let more = ["--prepare", &kill, "--save", text(&saved), "--", text(&launcher)];
    let ran = lab.run(&[&words[..], &more].concat());
    if ran.stderr.contains("is not to be read by this user") {
        return eprintln!("skipped: {}", ran.stderr);
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
        // A guest that stands still ties its clock by its VMM's start alone.
        assert!(run["coverage"].as_f64().expect("a share") > 0.25, "{run}");
    }
}

#[test]
fn no_vm_is_an_answer_and_what_can_not_be_is_refused() {
    if !has_qemu() {
        return;
    }
    let lab = Lab::new();
    let fails = lab.script("fails", "#!/bin/sh\nexit 7\n");
    let cases: [(&[&str], i32, &str); 7] = [
        (&["--within", "0.2"], 1, "no VMM was started"),
        (&["--", text(&fails)], 1, "exit status: 7, and no VMM was started"),
        (&["--", "/nonexistent/launcher"], 2, "cannot start /nonexistent/launcher"),
        (&["--match", "["], 2, "--match: "),
        (&["--emulator", "/nonexistent/qemu"], 2, "--emulator /nonexistent/qemu"),
        (&["--memory", "64"], 2, "--until and --timeout"),
        (&["--watch", "full"], 2, "cannot be used with"),
    ];
    for (arguments, status, words) in cases {
        let ran = lab.run(&[&["boot", "--next"], arguments].concat());
        assert_eq!(ran.status, status, "{arguments:?}: {}", ran.stderr);
        let said = ran.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
    let runs = std::fs::read_dir(lab.path("vmeter/runs")).into_iter().flatten().count();
    assert_eq!(runs, 0, "nothing is left of what found nothing");
}
