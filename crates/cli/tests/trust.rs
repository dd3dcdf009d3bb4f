//! A session's folder that was made elsewhere is data, until the user says otherwise; and a
//! repository is anyone's.

use crate::common;

use common::{text, Lab};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Changes a field of a JSON file.
fn edit(file: &Path, change: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&std::fs::read(file).expect("a file")).expect("JSON");
    change(&mut value);
    std::fs::write(file, value.to_string()).expect("written");
}

fn boot(lab: &Lab) -> PathBuf {
    let dir = lab.path("session");
    lab.json(&["boot", "--vmm", "mock", "--warmup", "0", "--runs", "1", "--save", text(&dir)]);
    dir
}

/// Rows 38 and 39: a command line, and a preparation.
#[test]
fn edited_commands_are_shown_and_not_run() {
    let lab = Lab::new();
    let dir = boot(&lab);
    let made = lab.path("made");
    let touch = format!("touch {}", text(&made));
    let own = std::fs::read(dir.join("session.json")).expect("session.json");
    for (field, runs) in [("prepare", "2"), ("command", "3")] {
        std::fs::write(dir.join("session.json"), &own).expect("written");
        edit(&dir.join("session.json"), |session| match field {
            "prepare" => session["prepare"] = touch.clone().into(),
            _ => {
                let spec = &mut session["machines"][0]["spec"];
                spec["vmm"] = Value::Null;
                spec["command"] = vec!["touch", text(&made)].into();
                // Or it is refused as a machine that has changed.
                session["machines"][0]["provenance"] = serde_json::json!({});
            }
        });
        for reading in [&["show", text(&dir)][..], &["diff", text(&dir), text(&dir)]] {
            assert_ne!(lab.run(reading).status, 3, "{reading:?}");
        }
        let asked = lab.run(&["boot", "--resume", text(&dir), "--runs", runs]);
        assert_eq!(asked.status, 2, "{}", asked.stderr);
        assert!(asked.stderr.contains(&touch), "what would run is shown: {}", asked.stderr);
        assert!(asked.stderr.contains("--trust"), "{}", asked.stderr);
        assert!(!made.exists(), "{field} was run");
        let trusted = lab.run(&["boot", "--resume", text(&dir), "--runs", runs, "--trust"]);
        assert!(made.exists(), "{field}: {}", trusted.stderr);
        std::fs::remove_file(&made).expect("it is there");
    }
}

/// What a VMM is told, and what a sweep puts into a preparation, is executed as well.
#[test]
fn what_comes_into_a_command_is_shown() {
    let lab = Lab::new();
    let shown = |kind: &str, dir: &Path, what: &str| {
        let asked = lab.run(&[kind, "--resume", text(dir)]);
        assert_eq!(asked.status, 2, "{}", asked.stderr);
        assert!(asked.stderr.contains(what), "{}", asked.stderr);
    };
    let dir = boot(&lab);
    edit(&dir.join("session.json"), |session| {
        session["machines"][0]["spec"]["vmm_arg"] = vec!["-netdev", "tap,script=/evil"].into();
    });
    shown("boot", &dir, "script=/evil");
    let dir = lab.path("sweep");
    let sweep = ["sweep", "--vmm", "mock", "-L", "x=1,2", "--prepare", "true {x}", "--warmup", "0"];
    lab.json(&[&sweep[..], &["--runs", "1", "--save", text(&dir)]].concat());
    edit(&dir.join("session.json"), |session| {
        session["machines"][0]["parameters"][0][1] = "1; touch /evil".into();
    });
    shown("sweep", &dir, "{x}: 1; touch /evil");
}

#[test]
fn a_copy_and_a_strangers_folder_are_asked_about_and_ones_own_is_not() {
    let lab = Lab::new();
    let dir = boot(&lab);
    let resume = |lab: &Lab, dir: &Path, runs: &str| {
        lab.run(&["boot", "--resume", text(dir), "--runs", runs]).status
    };
    assert_eq!(resume(&lab, &dir, "2"), 0);
    // Moved within a file system it stays the same folder.
    let moved = lab.path("moved");
    std::fs::rename(&dir, &moved).expect("moved");
    assert_eq!(resume(&lab, &moved, "3"), 0);
    let copy = lab.path("copy");
    let copied = Command::new("cp").args(["-a", text(&moved), text(&copy)]).status();
    assert!(copied.expect("cp").success());
    assert_eq!(resume(&lab, &copy, "4"), 2);
    assert_eq!(resume(&Lab::new(), &moved, "4"), 2, "another user's key");
    assert_eq!(resume(&lab, &moved, "4"), 0);
    // Once it is trusted it is this user's.
    let trusted = lab.run(&["boot", "--resume", text(&copy), "--runs", "4", "--trust"]);
    assert_eq!(trusted.status, 0, "{}", trusted.stderr);
    assert_eq!(resume(&lab, &copy, "5"), 0);
}

/// On a terminal, which script(1) gives it: what is typed, and what came of it.
fn typed(lab: &Lab, line: &str, keys: &str) -> (i32, String) {
    use std::io::Write;
    let line = format!("{} {line}", env!("CARGO_BIN_EXE_vmeter"));
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).env("XDG_STATE_HOME", lab.folder.path());
    script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = script.spawn().expect("script(1) is part of util-linux");
    let mut keyboard = child.stdin.take().expect("piped");
    let mut screen = child.stdout.take().expect("piped");
    let mut seen = Vec::new();
    let mut bytes = [0; 4096];
    let mut asked = false;
    while let Ok(count @ 1..) = std::io::Read::read(&mut screen, &mut bytes) {
        seen.extend_from_slice(&bytes[..count]);
        if !asked && seen.windows(5).any(|part| part == b"[y/N]") {
            asked = true;
            keyboard.write_all(keys.as_bytes()).expect("it listens");
        }
    }
    drop(keyboard);
    let status = child.wait().expect("it ends").code().unwrap_or(-1);
    (status, String::from_utf8_lossy(&seen).into_owned())
}

#[test]
fn on_a_terminal_the_user_is_asked() {
    let lab = Lab::new();
    let copy = lab.path("copy");
    let copied = Command::new("cp").args(["-a", text(&boot(&lab)), text(&copy)]).status();
    assert!(copied.expect("cp").success());
    edit(&copy.join("session.json"), |s| s["prepare"] = "true # \u{1b}]0;evil\u{7}".into());
    let resume = format!("boot --quiet --resume {} --runs 2", text(&copy));
    let runs = || std::fs::read_dir(copy.join("runs")).expect("runs").count();
    for (keys, status) in [("n\n", 2), ("\n", 2), ("yessir\n", 2), ("\u{4}", 2), ("\u{3}", 130)] {
        let (ended, screen) = typed(&lab, &resume, keys);
        assert_eq!((ended, runs()), (status, 1), "{keys:?}: {screen}");
        assert!(screen.contains("prepare: true # \\x1b]0;evil"), "{screen}");
        assert!(!screen.contains("kernel: "), "what is not executed: {screen}");
    }
    let (ended, screen) = typed(&lab, &resume, "y\n");
    assert_eq!((ended, runs()), (0, 2), "{screen}");
    // It is this user's now.
    let (ended, screen) = typed(&lab, &resume.replace("--runs 2", "--runs 3"), "");
    assert_eq!((ended, runs(), screen.contains("[y/N]")), (0, 3, false), "{screen}");
}

/// A repository of three commits, whose own configuration and attributes name programs.
fn hostile(lab: &Lab, made: &Path) -> PathBuf {
    let repo = lab.path("repo");
    let run = lab.script("run", &format!("#!/bin/sh\ntouch {}\n", text(made)));
    let script = "set -e; git init -q \"$1\"; cd \"$1\"
        for n in 0 1 2; do
            echo $n >n; echo 'n filter=evil diff=evil' >.gitattributes; git add .
            git -c user.name=t -c user.email=t@example.org commit -q -m $n
        done
        for key in core.fsmonitor core.pager gpg.program core.sshCommand diff.external \
                filter.evil.smudge filter.evil.clean diff.evil.textconv core.alternateRefsCommand \
                uploadpack.packObjectsHook; do
            git config $key \"$2\"
        done
        git config log.showSignature true; git config commit.gpgSign true
        for hook in post-checkout post-index-change reference-transaction pre-auto-gc; do
            cp \"$2\" .git/hooks/$hook
        done";
    let made = Command::new("sh").args(["-c", script, "sh", text(&repo), text(&run)]).status();
    assert!(made.expect("sh").success());
    repo
}

/// Row 170, and its sisters: the repository's configuration and the user's.
#[test]
fn a_repository_runs_nothing_and_signers_can_use_range() {
    let lab = Lab::new();
    let made = lab.path("made");
    let repo = hostile(&lab, &made);
    let run = lab.path("run");
    let home = lab.path("home");
    std::fs::create_dir(&home).expect("scratch space");
    let of_user = format!(
        "[log]\nshowSignature = true\n[gpg]\nprogram = {0}\n[core]\nhooksPath = {1}\nfsmonitor = {0}\n\
         [filter \"evil\"]\nsmudge = {0}\nclean = {0}\nrequired = true\n",
        text(&run),
        text(&repo.join(".git/hooks"))
    );
    std::fs::write(home.join(".gitconfig"), of_user).expect("scratch space");
    // Setting it up may have run what it names.
    let _ = std::fs::remove_file(&made);
    let mut command = lab.command(&[
        "range",
        "--repo",
        text(&repo),
        "HEAD~2..HEAD",
        "--warmup",
        "0",
        "--runs",
        "1",
        "--build",
        "test -f n",
        "--run",
        "test -f {worktree}/n",
        "--export-json",
        "-",
    ]);
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    command.env("XDG_CACHE_HOME", cache.unwrap_or_default()).env("HOME", &home);
    let ran: common::Ran = command.output().expect("vmeter runs").into();
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert!(!made.exists(), "a program of the repository's or the user's git was run");
    assert!(ran.stderr.contains("filter"), "that no filter is run is said: {}", ran.stderr);
    let result: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(result["commits"][0]["subject"], "0");
}

/// Row 166.
#[test]
fn sessions_are_the_users_alone() {
    let lab = Lab::new();
    let dir = boot(&lab);
    let mut all = vec![dir];
    let mut seen = 0;
    while let Some(path) = all.pop() {
        let metadata = path.metadata().expect("it is there");
        let mode = metadata.permissions().mode() & 0o777;
        let own = if metadata.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode & !own, 0, "{}: {mode:o}", path.display());
        if metadata.is_dir() {
            all.extend(std::fs::read_dir(&path).expect("a folder").flatten().map(|e| e.path()));
        }
        seen += 1;
    }
    assert!(seen > 4, "{seen}");
    let state = lab.folder.path().join("vmeter").metadata().expect("the state folder");
    assert_eq!(state.permissions().mode() & 0o777, 0o700);
}

/// Row 118.
#[test]
fn without_a_home_there_is_an_error() {
    let at_root = || ["/.local", "/.cache"].map(|path| Path::new(path).exists());
    let before = at_root();
    for arguments in [&["runs", "list"][..], &["boot", "--vmm", "mock"], &["doctor"]] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_vmeter")).args(arguments).env_clear().output();
        let output = output.expect("vmeter runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{arguments:?}: {said}");
        assert!(said.contains("HOME"), "{said}");
    }
    assert_eq!(at_root(), before);
}

/// Row 173.
#[test]
fn hints_paste_back() {
    let lab = Lab::new();
    let dir = lab.path("it's a $(touch x) folder");
    let ran =
        lab.run(&["boot", "--vmm", "mock", "--warmup", "0", "--runs", "1", "--save", text(&dir)]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    // It may be wrapped, at blanks of the folder's name too.
    let words: Vec<&str> = ran.stdout.lines().map(str::trim).collect();
    let words = words.join(" ");
    let (_, hint) = words.split_once("vmeter show ").expect("a hint");
    let (folder, _) = hint.split_once(" --long").expect("a folder");
    let line = format!("printf %s {folder}");
    let echoed = Command::new("sh").args(["-c", &line]).output().expect("sh");
    assert_eq!(String::from_utf8_lossy(&echoed.stdout), text(&dir));
}

/// Row 116.
#[test]
fn a_folder_for_sockets_that_is_too_long_is_named_with_its_cure() {
    if common::kernel().is_none() {
        return;
    }
    let lab = Lab::new();
    let long = lab.path(&"x".repeat(100));
    std::fs::create_dir(&long).expect("scratch space");
    let mut command =
        lab.command(&["migrate", "--dirty-rate", "0", "--memory", "32", "--runs", "1"]);
    let ran: common::Ran = command.env("TMPDIR", &long).output().expect("vmeter runs").into();
    assert_eq!(ran.status, 2, "{}", ran.stderr);
    assert!(ran.stderr.contains("TMPDIR"), "{}", ran.stderr);
}

/// Row 150 to 152, where the guard was killed as well: found, named, cleared; nothing of a
/// vmeter that lives.
#[test]
fn doctor_names_and_clears_what_no_guard_did() {
    let lab = Lab::new();
    let temporary = lab.path("tmp");
    std::fs::create_dir(&temporary).expect("scratch space");
    // What is traced dies with its tracer.
    let unwatched = ["boot", "--watch", "none", "--no-inject", "--warmup", "0", "--runs", "1"];
    let wrapped = ["--", "bash", "-c", "sleep 1000; true"];
    let start = || {
        let mut command = lab.command(&[&unwatched[..], &wrapped].concat());
        command.env("TMPDIR", &temporary).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("vmeter runs")
    };
    let tag = format!("TMPDIR={}", text(&temporary));
    let ours = |name: &str| -> Vec<i32> {
        let all = std::fs::read_dir("/proc").expect("proc").flatten();
        let numbers = all.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
        let is_ours = |pid: &i32| {
            let file =
                |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            file("environ").split(|b| *b == 0).any(|entry| entry == tag.as_bytes())
                && file("comm").trim_ascii_end() == name.as_bytes()
        };
        numbers.filter(is_ours).collect()
    };
    let wait_for = |name: &str, count: usize| {
        let begin = std::time::Instant::now();
        while ours(name).len() != count {
            assert!(begin.elapsed().as_secs() < 120, "{count} x {name}: {:?}", ours(name));
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    };
    let mut killed = start();
    wait_for("sleep", 1);
    let orphan = ours("sleep")[0];
    let mut lives = start();
    wait_for("sleep", 2);
    let guard_of = |vmeter: u32| {
        let is_its = |pid: &i32| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            String::from_utf8_lossy(&environment)
                .contains(&format!("VMETER_GUARD=vmeter-{vmeter}-"))
        };
        ours("vmm-guard").into_iter().find(is_its).expect("a guard")
    };
    let guard = guard_of(killed.id());
    for pid in [guard, i32::try_from(killed.id()).expect("a process id")] {
        assert!(Command::new("sh")
            .args(["-c", &format!("kill -9 {pid}")])
            .status()
            .expect("sh")
            .success());
    }
    killed.wait().expect("its end");
    let doctor = |more: &[&str]| {
        let mut command = lab.command(&[&["doctor", "--export-csv", "-"], more].concat());
        let ran: common::Ran =
            command.env("TMPDIR", &temporary).output().expect("vmeter runs").into();
        ran.stdout.lines().find(|line| line.starts_with("leavings")).expect("a row").to_owned()
    };
    assert!(doctor(&[]).contains(&format!("process {orphan} (sleep)")), "{}", doctor(&[]));
    assert!(Path::new(&format!("/proc/{orphan}")).exists(), "only named");
    assert!(doctor(&["--clean"]).contains("cleared"));
    wait_for("sleep", 1);
    assert!(lives.try_wait().expect("a child").is_none(), "one that lives was touched");
    assert!(!doctor(&[]).contains(&format!("process {orphan} ")));
    lives.kill().expect("kill");
    lives.wait().expect("its end");
    wait_for("sleep", 0);
    wait_for("vmm-guard", 0);
}
