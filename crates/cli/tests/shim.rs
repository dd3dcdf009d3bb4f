//! `vmeter shim`: a program in front of the VMM, which its caller can't tell from the VMM.

use crate::common;

use common::{has_qemu, kernel, text, Lab};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const NAME: &str = "qemu-system-x86_64";

/// An installed shim of `real`.
struct Installed {
    lab: Lab,
    shim: PathBuf,
    records: PathBuf,
}

impl Installed {
    fn of(real: &Path, more: &[&str]) -> Self {
        Self::in_lab(Lab::new(), real, more)
    }

    fn in_lab(lab: Lab, real: &Path, more: &[&str]) -> Self {
        let lab_path = lab.folder.path().canonicalize().expect("a folder");
        let (shim, records) = (lab_path.join("bin").join(NAME), lab_path.join("records"));
        let places = ["--real", text(real), "--as", text(&shim), "--records", text(&records)];
        let ran = lab.run(&[&["shim", "install"], &places[..], more].concat());
        assert_eq!(ran.status, 0, "{}", ran.stderr);
        assert!(
            ran.stdout.contains(&format!("<emulator>{}</emulator>", text(&shim))),
            "{}",
            ran.stdout
        );
        Installed { lab, shim, records }
    }

    /// Of a program that is called as a VMM is, and sleeps.
    fn of_sleep(more: &[&str]) -> Self {
        let lab = Lab::new();
        let real = sleep(&lab);
        Self::in_lab(lab, &real, more)
    }

    fn real(&self) -> PathBuf {
        self.lab.folder.path().canonicalize().expect("a folder").join("real").join(NAME)
    }

    /// Folders of records, finished or not.
    fn records(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.records).into_iter().flatten().flatten();
        let is_one = |path: &PathBuf| text(path).contains(&format!("-{NAME}-"));
        entries.map(|entry| entry.path()).filter(|path| is_one(path) && path.is_dir()).collect()
    }

    fn watchers(&self) -> Vec<i32> {
        let begin = format!("vmeter\0shim\0watch\0{}\0", text(&self.shim));
        let entries = fs::read_dir("/proc").expect("proc(5)").flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_one = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.starts_with(begin.as_bytes())
        };
        pids.filter(is_one).collect()
    }

    fn no_watcher_is_left(&self) {
        wait("the watcher ends", 120, || self.watchers().is_empty());
    }
}

/// Whatever happens, nothing of a test stays.
impl Drop for Installed {
    fn drop(&mut self) {
        self.watchers().into_iter().for_each(|pid| kill(pid, "KILL"));
    }
}

fn sleep(lab: &Lab) -> PathBuf {
    let folder = lab.folder.path().canonicalize().expect("a folder").join("real");
    fs::create_dir_all(&folder).expect("scratch space");
    let file = folder.join(NAME);
    fs::copy("/bin/sleep", &file).expect("a copy");
    file
}

fn kill(pid: i32, signal: &str) {
    let line = format!("kill -{signal} {pid} 2>/dev/null");
    let _ = Command::new("sh").args(["-c", &line]).status();
}

fn wait(what: &str, seconds: u64, mut until: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !until() {
        assert!(begun.elapsed() < Duration::from_secs(seconds), "in {seconds} s: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn qemu() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&path).map(|folder| folder.join(NAME)).find(|file| file.is_file());
    found.expect("QEMU").canonicalize().expect("QEMU")
}

fn is_image(pid: u32, image: &Path) -> bool {
    fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == image)
}

/// Waits until a process is the VMM; how long that took.
fn becomes(child: &mut Child, image: &Path, begun: Instant) -> Duration {
    wait("it is the VMM", 60, || {
        assert!(child.try_wait().expect("a child").is_none(), "it ended");
        is_image(child.id(), image)
    });
    begun.elapsed()
}

fn end(mut child: Child) {
    child.kill().and_then(|()| child.wait()).expect("it ran");
}

/// What a caller can see of a process.
fn seen(pid: u32) -> Vec<String> {
    let read = |name: &str| {
        String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default())
            .into_owned()
    };
    let fields = [
        "Name:",
        "PPid:",
        "TracerPid:",
        "SigPnd:",
        "ShdPnd:",
        "SigBlk:",
        "SigIgn:",
        "SigCgt:",
        "Threads:",
    ];
    let mut all: Vec<String> = read("status")
        .lines()
        .filter(|line| fields.iter().any(|field| line.starts_with(field)))
        .map(str::to_owned)
        .collect();
    all.extend([
        read("cmdline"),
        read("environ"),
        format!("children {}", read(&format!("task/{pid}/children"))),
    ]);
    let link = |name: &str| fs::read_link(format!("/proc/{pid}/{name}")).unwrap_or_default();
    all.extend(["exe", "cwd"].map(|name| link(name).display().to_string()));
    let mut descriptors: Vec<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("a process")
        .flatten()
        .map(|entry| {
            format!(
                "{:?} {}",
                entry.file_name(),
                fs::read_link(entry.path()).unwrap_or_default().display()
            )
        })
        .collect();
    descriptors.sort();
    all.extend(descriptors);
    all
}

/// Starts a program as an awkward caller does: signals that are ignored, descriptors that are given or closed.
fn called(program: &Path, how: &str) -> Command {
    let mut command = Command::new("sh");
    let line = format!("{how} exec \"$0\" 30");
    command.args(["-c", &line, text(program)]).env("SECRET", "7").current_dir("/tmp");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[test]
fn a_caller_sees_what_it_sees_without() {
    let shim = Installed::of_sleep(&[]);
    let ways = [
        "",
        "trap '' PIPE HUP;",
        "exec 7</dev/zero 9>&1;",
        "exec 0<&-;",
        "exec 0<&- 1>&- 2>&-; trap '' CHLD;",
    ];
    for how in ways {
        let [plain, with] = [shim.real(), shim.shim.clone()].map(|program| {
            let mut child = called(&program, how).spawn().expect("it starts");
            becomes(&mut child, &shim.real(), Instant::now());
            let mut last = Vec::new();
            wait("it is where it stays", 30, || {
                std::thread::sleep(Duration::from_millis(100));
                let now = seen(child.id());
                std::mem::replace(&mut last, now) == last
            });
            end(child);
            last
        });
        let as_called = |line: &String| line.replace(text(&shim.shim), text(&shim.real()));
        assert_eq!(plain, with.iter().map(as_called).collect::<Vec<_>>(), "{how}");
        assert!(
            with.iter().any(|line| line.starts_with(text(&shim.shim))),
            "its name is kept: {with:?}"
        );
    }
    shim.no_watcher_is_left();
    assert!(shim.records().is_empty(), "none had a kernel: {:?}", shim.records());
}

#[test]
fn whatever_fails_the_vm_starts() {
    let shim = Installed::of_sleep(&[]);
    let starts = |what: &str, command: &mut Command| {
        let begun = Instant::now();
        let mut child = command
            .arg("30")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let took = becomes(&mut child, &shim.real(), begun);
        assert!(took < Duration::from_secs(2), "{what}: {took:?}");
        child.kill().expect("it runs");
        let output = child.wait_with_output().expect("it ran");
        assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{what}: {output:?}");
        shim.no_watcher_is_left();
        assert!(shim.records().is_empty(), "{what}");
    };
    let open = |path: &Path| {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("scratch space")
    };
    open(shim.lab.folder.path());
    let mut limited = Command::new(&shim.shim);
    // SAFETY: only system calls between fork and exec.
    unsafe {
        limited.pre_exec(|| {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            if libc::geteuid() == 0 && libc::setgid(65534) + libc::setuid(65534) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            libc::setrlimit(libc::RLIMIT_NPROC, &none);
            Ok(())
        });
    }
    starts("no process may be made", &mut limited);
    let mut few = Command::new(&shim.shim);
    // SAFETY: a system call between fork and exec.
    unsafe {
        few.pre_exec(|| {
            let none = libc::rlimit { rlim_cur: 5, rlim_max: 5 };
            libc::setrlimit(libc::RLIMIT_NOFILE, &none);
            Ok(())
        });
    }
    starts("no descriptor is left", &mut few);
    fs::remove_dir_all(&shim.records).expect("removed");
    starts("the records' folder is gone", &mut Command::new(&shim.shim));
    fs::write(&shim.records, "").expect("written");
    starts("a file is where the records go", &mut Command::new(&shim.shim));
}

#[test]
fn a_watcher_that_is_stopped_or_killed_holds_no_vm() {
    let shim = Installed::of_sleep(&[]);
    for signal in ["KILL", "STOP"] {
        for _ in 0..3 {
            let begun = Instant::now();
            let mut child = Command::new(&shim.shim).arg("30").spawn().expect("it starts");
            while !is_image(child.id(), &shim.real()) && begun.elapsed() < Duration::from_secs(5) {
                shim.watchers().into_iter().for_each(|pid| kill(pid, signal));
            }
            let took = becomes(&mut child, &shim.real(), begun);
            assert!(took < Duration::from_secs(2), "{signal}: {took:?}");
            shim.watchers().into_iter().for_each(|pid| kill(pid, signal));
            std::thread::sleep(Duration::from_millis(200));
            assert!(child.try_wait().expect("a child").is_none(), "{signal}: it lives");
            end(child);
            shim.watchers().into_iter().for_each(|pid| kill(pid, "KILL"));
        }
    }
}

/// A disk whose first sector ends QEMU with a status of its own, by isa-debug-exit.
fn disk(lab: &Lab) -> PathBuf {
    let code = [0xba, 0x01, 0x05, 0xb0, 0x15, 0xee, 0xf4, 0xeb, 0xfd];
    let mut sector = vec![0u8; 512];
    sector[..code.len()].copy_from_slice(&code);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    let file = lab.path("disk");
    fs::write(&file, sector).expect("scratch space");
    file
}

#[test]
fn status_and_words_of_qemu_are_its_own_and_what_asks_leaves_no_record() {
    if !has_qemu() {
        return;
    }
    let real = qemu();
    let shim = Installed::of(&real, &[]);
    let drive = format!("file={},format=raw", text(&disk(&shim.lab)));
    let exits = ["-nodefaults", "-display", "none", "-device", "isa-debug-exit", "-drive", &drive];
    for (arguments, status) in [
        (&exits[..], 43),
        (&["-no-such-option"], 1),
        (&["-version"], 0),
        (&["-machine", "help"], 0),
    ] {
        let [plain, with] = [&real, &shim.shim].map(|program| {
            Command::new(program).arg0("qemu-of-mine").args(arguments).output().expect("it runs")
        });
        assert_eq!(plain.status.code(), Some(status), "{plain:?}");
        assert_eq!(plain, with, "{arguments:?}");
    }
    shim.no_watcher_is_left();
    assert!(shim.records().is_empty(), "no kernel ran");
}

#[test]
fn what_asks_or_does_not_match_has_no_watcher() {
    let shim = Installed::of_sleep(&["--match", " 29$"]);
    let mut child = Command::new(&shim.shim).arg("28").spawn().expect("it starts");
    becomes(&mut child, &shim.real(), Instant::now());
    assert!(shim.watchers().is_empty());
    end(child);
    let mut child = Command::new(&shim.shim).arg("29").spawn().expect("it starts");
    becomes(&mut child, &shim.real(), Instant::now());
    wait("a watcher is there", 30, || !shim.watchers().is_empty());
    end(child);
    shim.no_watcher_is_left();
}

#[test]
fn the_boot_of_a_guest_is_recorded_and_the_shim_goes_without_a_trace() {
    let Some((_, image)) = kernel() else { return };
    let real = qemu();
    // Its kernel finds no root, says so and stays.
    let until = "line:VFS: Unable to mount root|Kernel panic|not syncing";
    let shim = Installed::of(&real, &["--until", until]);
    let mut child = Command::new(&shim.shim)
        .args(["-accel", "tcg", "-m", "256", "-nodefaults", "-display", "none", "-no-reboot"])
        .args(["-kernel", text(&image), "-append", "console=ttyS0 quiet panic=0"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    becomes(&mut child, &real, Instant::now());
    let finished = |dir: &PathBuf| dir.join("runs/0000/run.json").is_file();
    wait("a record", 200, || shim.records().iter().any(finished));
    shim.no_watcher_is_left();
    let status = shim.lab.run(&["shim", "status", "--as", text(&shim.shim)]);
    assert!(child.try_wait().expect("a child").is_none(), "it runs on");
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id()));
    end(child);
    assert_eq!(children.unwrap_or_default(), "");
    let [record] = &shim.records()[..] else { panic!("{:?}", shim.records()) };
    assert!(status.stdout.contains(&format!("vmeter show {}", text(record))), "{}", status.stdout);
    assert!(status.stdout.contains("1 in "), "{}", status.stdout);
    let shown = shim.lab.json(&["show", text(record)]);
    let run = &shown["runs"][0];
    assert_eq!((&run["origin"], &run["outcome"]), (&"shim".into(), &"done".into()), "{run}");
    assert_eq!(run["argv"][0], text(&shim.shim));
    let phases = run["phases"].as_array().expect("phases");
    let begins = |with: &str| {
        phases.iter().any(|p| p["name"].as_str().is_some_and(|name| name.starts_with(with)))
    };
    // On a busy host the watcher can come too late to see the VMM begin, and says so.
    let warnings = run["warnings"].to_string();
    let is_late = warnings.contains("the vCPU began to run is not known");
    assert!(is_late || begins("vmm:") && begins("kernel:"), "{phases:?} {warnings}");
    let removed = shim.lab.run(&["shim", "remove", "--as", text(&shim.shim)]);
    assert_eq!(removed.status, 0, "{}", removed.stderr);
    assert!(removed.stdout.contains("1 record in"), "{}", removed.stdout);
    let left = fs::read_dir(shim.shim.parent().expect("a folder")).expect("a folder").count();
    assert_eq!((left, shim.records().len()), (0, 1));
    assert_eq!(shim.lab.run(&["shim", "status", "--as", text(&shim.shim)]).status, 1);
}

#[test]
fn what_is_not_its_own_is_neither_replaced_nor_removed() {
    let shim = Installed::of_sleep(&[]);
    let lab = &shim.lab;
    let (real, mine) = (shim.real(), lab.script("mine", "#!/bin/sh\n"));
    let free = lab.path("x");
    let cases: [(&[&str], &str); 5] = [
        (&["--real", text(&real), "--as", text(&mine)], "did not put it there"),
        (&["--real", text(&real), "--as", text(&real)], "is the VMM itself"),
        (&["--real", text(&shim.shim), "--as", text(&free)], "is itself a shim"),
        (&["--real", "/nonexistent/qemu"], "--real: "),
        (&["--real", text(&real), "--as", text(&free), "--match", "["], "--match: "),
    ];
    for (arguments, words) in cases {
        let ran = lab.run(&[&["shim", "install"], arguments].concat());
        assert_eq!(ran.status, 2, "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{arguments:?}: {}", ran.stderr);
    }
    assert_eq!(lab.run(&["shim", "remove", "--as", text(&mine)]).status, 1);
    assert!(mine.is_file() && real.is_file());
    // Its own is installed anew, and leaves nothing.
    let again = ["--real", text(&real), "--as", text(&shim.shim), "--records", text(&shim.records)];
    assert_eq!(lab.run(&[&["shim", "install"], &again[..]].concat()).status, 0);
    assert_eq!(lab.run(&["shim", "remove", "--as", text(&shim.shim)]).status, 0);
    assert!(
        !shim.records.exists() && fs::read_dir(lab.path("bin")).expect("a folder").count() == 0
    );
}
