//! Ctrl-C once is heard, whatever vmeter is doing: it ends soon, by 130, and says what is
//! saved. Times are limits against hangs: each row would take a minute or for ever without.

use crate::common;
use crate::sources;

use common::{kernel, signal, text, Lab, Ran};
use sources::{has_make, Sources};
use std::io::Read;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// What a hang is, on a host of any speed.
const LIMIT: Duration = Duration::from_secs(120);

fn started(lab: &Lab, arguments: &[&str]) -> Child {
    in_a_group(lab.command(arguments))
}

fn in_a_group(mut command: std::process::Command) -> Child {
    use std::os::unix::process::CommandExt;
    // As a shell starts it: the terminal's Ctrl-C goes to the whole group.
    command.stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    command.spawn().expect("vmeter runs")
}

fn wait_for(what: &str, mut there: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !there() {
        assert!(begin.elapsed() < Duration::from_secs(120), "{what} did not come");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Its end, and how long that took.
fn ended(mut child: Child) -> (Ran, Duration) {
    let begin = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if begin.elapsed() > LIMIT {
            signal(&child, "KILL");
            child.wait().expect("a child");
            panic!("not heard for {LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let took = begin.elapsed();
    let mut stderr = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("text");
    let status = child.wait().expect("a child").code().unwrap_or(-1);
    (Ran { status, stdout: String::new(), stderr }, took)
}

fn group(child: &Child, name: &str) {
    let line = format!("kill -{name} -{}", child.id());
    let status = std::process::Command::new("sh").args(["-c", &line]).status();
    assert!(status.expect("sh").success(), "{line}");
}

fn gone(pids: &Path) {
    for pid in std::fs::read_to_string(pids).expect("process ids").lines() {
        let process = Path::new("/proc").join(pid).join("exe");
        wait_for("the end of a process", || std::fs::read_link(&process).is_err());
    }
}

/// Row 157 and 158: to the group, as a terminal does it, and to vmeter alone.
#[test]
fn in_a_preparation() {
    for to_all in [true, false] {
        let lab = Lab::new();
        let (save, pids) = (lab.path("s"), lab.path("pids"));
        let prepare = format!("echo $$ >{0}; sleep 1000 & echo $! >>{0}; wait", text(&pids));
        let boot = ["boot", "--vmm", "mock", "--runs", "2", "--save", text(&save)];
        let child = started(&lab, &[&boot[..], &["--prepare", &prepare]].concat());
        let both = || std::fs::read_to_string(&pids).is_ok_and(|t| t.lines().count() == 2);
        wait_for("the preparation", both);
        if to_all {
            group(&child, "INT");
        } else {
            signal(&child, "INT");
        }
        let (ran, took) = ended(child);
        assert_eq!(ran.status, 130, "to all: {to_all}: {}", ran.stderr);
        assert!(ran.stderr.contains("continue with --resume"), "{}", ran.stderr);
        eprintln!("preparation, to all {to_all}: {took:?}");
        gone(&pids);
    }
}

/// The VMM of a command line of the user's own, whoever measures it.
#[test]
fn in_a_run_of_every_kind_that_takes_a_command_line() {
    for line in ["boot", "bench", "sweep -L x=1,2", "findings", "tune", "memory"] {
        let lab = Lab::new();
        let (save, pids) = (lab.path("s"), lab.path("pids"));
        let vmm = format!("echo $$ >{0}; sleep 1000 & echo $! >>{0}; wait", text(&pids));
        let mut all: Vec<&str> = line.split(' ').collect();
        let of_sweep = if line.starts_with("sweep") { "{x}" } else { "x" };
        all.extend(["--save", text(&save), "--", "sh", "-c", &vmm, of_sweep]);
        let child = started(&lab, &all);
        let both = || std::fs::read_to_string(&pids).is_ok_and(|t| t.lines().count() == 2);
        wait_for("the VMM", both);
        signal(&child, "INT");
        let (ran, took) = ended(child);
        assert_eq!(ran.status, 130, "{line}: {}", ran.stderr);
        assert!(ran.stderr.contains("continue with --resume"), "{line}: {}", ran.stderr);
        eprintln!("{line}: {took:?}");
        gone(&pids);
    }
}

/// To the group, whose make ends with it, and to vmeter alone, whose make does not.
#[test]
fn in_a_kernel_build() {
    if !has_make() {
        return;
    }
    for to_all in [true, false] {
        let lab = Lab::new();
        let sources = Sources::new(&lab);
        let pids = lab.path("pids");
        let makefile = std::fs::read_to_string(sources.folder.join("Makefile")).expect("a file");
        let slow = format!("@echo $$$$ >>{}; sleep 1000; echo", text(&pids));
        let makefile = makefile.replace("@sleep 0.1; echo", &slow);
        std::fs::write(sources.folder.join("Makefile"), makefile).expect("a file");
        let mut command = lab.command(&sources.arguments());
        command.envs(sources.environment.iter().cloned());
        let child = in_a_group(command);
        wait_for("the compiler", || {
            std::fs::read_to_string(&pids).is_ok_and(|t| t.ends_with('\n'))
        });
        if to_all {
            group(&child, "INT");
        } else {
            signal(&child, "TERM");
        }
        let (ran, took) = ended(child);
        assert_eq!(ran.status, 130, "to all: {to_all}: {}", ran.stderr);
        assert!(ran.stderr.contains("interrupted"), "{}", ran.stderr);
        eprintln!("kernel build, to all {to_all}: {took:?}");
        gone(&pids);
    }
}

/// A preparation that ends by such a signal of its own is one that failed.
#[test]
fn a_preparation_that_interrupts_itself_has_failed() {
    let lab = Lab::new();
    let ran = lab.run(&["boot", "--vmm", "mock", "--prepare", "kill -INT $$"]);
    assert_eq!(ran.status, 3, "{}", ran.stderr);
    assert!(ran.stderr.contains("nothing is measured"), "{}", ran.stderr);
}

/// Row 153's other half: a build that hears nothing, with a child in a session of its own.
#[test]
fn in_a_build_that_ignores_it() {
    let lab = Lab::new();
    let (repo, save, pids) = (lab.path("repo"), lab.path("s"), lab.path("pids"));
    let script = "set -e; git init -q \"$1\"; cd \"$1\"
        for n in 0 1 2; do echo $n >n; git add n
        git -c user.name=t -c user.email=t@example.org commit -q -m $n; done";
    let made = std::process::Command::new("sh").args(["-c", script, "sh", text(&repo)]).status();
    assert!(made.expect("sh").success());
    let build = format!(
        "trap '' TERM INT; echo $$ >{0}; setsid sh -c 'echo $$ >>{0}; sleep 1000' & wait; sleep 1000",
        text(&pids)
    );
    let child = started(
        &lab,
        &[
            "range",
            "--repo",
            text(&repo),
            "HEAD~1..HEAD",
            "--build",
            &build,
            "--run",
            "true",
            "--save",
            text(&save),
        ],
    );
    let both = || std::fs::read_to_string(&pids).is_ok_and(|t| t.lines().count() == 2);
    wait_for("the build", both);
    signal(&child, "INT");
    let (ran, took) = ended(child);
    assert_eq!(ran.status, 130, "{}", ran.stderr);
    assert!(ran.stderr.contains("continue with --resume"), "{}", ran.stderr);
    eprintln!("build: {took:?}");
    gone(&pids);
}

fn can_trace() -> bool {
    let there =
        vmeter_tracefs::Tracefs::find().is_ok() && vmeter_tracefs::Tracefs::same_processes();
    if !there {
        println!("skipped: needs tracefs, and the host's PID namespace");
    }
    there
}

/// Row 159: neither a signal nor the end of the time is waited for for ever.
#[test]
fn recorded_commands_that_ignore_it_or_are_stopped() {
    if !can_trace() {
        return;
    }
    for line in [
        "trap '' TERM INT; echo $$ >PIDS; sleep 1000; sleep 1000",
        "echo $$ >PIDS; kill -STOP $$; sleep 1000",
    ] {
        for duration in [None, Some("0.5")] {
            let lab = Lab::new();
            let (trace, pids) = (lab.path("t.dat"), lab.path("pids"));
            let line = line.replace("PIDS", text(&pids));
            let mut arguments =
                vec!["trace", "record", "--event", "sched:sched_process_exec", "-o", text(&trace)];
            arguments.extend(duration.iter().flat_map(|s| ["--duration", *s]));
            arguments.extend(["--", "sh", "-c", &line]);
            let child = started(&lab, &arguments);
            let there = || std::fs::read_to_string(&pids).is_ok_and(|t| t.ends_with('\n'));
            wait_for("the command", there);
            if duration.is_none() {
                signal(&child, "INT");
            }
            let (ran, took) = ended(child);
            assert!(trace.exists(), "{line}: {}", ran.stderr);
            eprintln!("{line:.20} duration {duration:?}: {took:?}, status {}", ran.status);
            gone(&pids);
        }
    }
}

/// Work that never looks up: the guard is the time itself.
#[test]
fn in_what_cannot_look_up() {
    if kernel().is_none() {
        return;
    }
    let lab = Lab::new();
    let image = lab.path("image");
    // Sparse, as large as an image may be, and slow to hash in a debug build.
    let file = std::fs::File::create(&image).expect("scratch space");
    file.set_len(4 << 30).expect("a sparse file");
    let child = started(&lab, &["boot", "--initrd", text(&image), "--runs", "1"]);
    std::thread::sleep(Duration::from_millis(1500));
    signal(&child, "INT");
    let (ran, took) = ended(child);
    assert_eq!(ran.status, 130, "{}", ran.stderr);
    eprintln!("hashing: {took:?}, status {}", ran.status);
}

/// Row 155: guests with gigabytes of memory are given back while the user waits.
#[test]
fn in_dirty_with_large_slots() {
    if std::fs::File::options().read(true).write(true).open("/dev/kvm").is_err() {
        eprintln!("skipped: needs /dev/kvm");
        return;
    }
    let lab = Lab::new();
    let save = lab.path("s");
    for wait in [300, 1500, 4000] {
        let child = started(
            &lab,
            &[
                "dirty",
                "--memory",
                "1024",
                "--buffer",
                "512",
                "--save",
                text(&save.join(wait.to_string())),
            ],
        );
        std::thread::sleep(Duration::from_millis(wait));
        signal(&child, "INT");
        let (ran, took) = ended(child);
        assert_eq!(ran.status, 130, "{}", ran.stderr);
        eprintln!("dirty after {wait} ms: {took:?}");
    }
}
