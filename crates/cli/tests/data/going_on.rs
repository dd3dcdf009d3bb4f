//! Sessions that are gone on with, damaged or not.

use crate::common::{signal, text, Lab, Ran};
use crate::data::tools::{boots, contents, edit, mocks, refused, saved, with};
use crate::repository::{build, repository};
use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;

/// A session goes on in the folder that it was begun in, with what it was begun with.
#[test]
fn a_session_goes_on_where_it_was_begun() {
    let lab = Lab::new();
    for name in ["a", "b"] {
        std::fs::create_dir(lab.path(name)).expect("scratch space");
        lab.script(
            &format!("{name}/m.sh"),
            &format!("#!/bin/sh\necho {name} >>$LOG; echo Linux version 6\n"),
        );
    }
    let log = lab.path("log");
    let vmeter = |folder: &str, more: &[&str]| {
        let mut command = lab.command(&[&["boot", "--warmup", "0"], more].concat());
        let output = command.current_dir(lab.path(folder)).env("LOG", &log).output();
        let output = output.expect("vmeter runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let begun = vmeter("a", &["--runs", "2", "--save", "s", "--", "./m.sh"]);
    assert_eq!(begun.0, Some(0), "{}", begun.1);
    let resume = ["--resume", "../a/s", "--runs", "3", "--export-json", "here.json"];
    let resumed = vmeter("b", &resume);
    assert_eq!(resumed.0, Some(0), "{}", resumed.1);
    assert!(!std::fs::read_to_string(&log).expect("runs").contains('b'));
    assert!(lab.path("b/here.json").exists(), "results go where vmeter was called");
    // The script is another one by now.
    let runs = || std::fs::read_dir(lab.path("a/s/runs")).expect("runs").count();
    lab.script("a/m.sh", "#!/bin/sh\necho c >>$LOG; echo Linux version 6\n");
    let resumed = vmeter("b", &["--resume", "../a/s", "--runs", "4"]);
    assert!(resumed.0 == Some(2) && resumed.1.contains("m.sh"), "{resumed:?}");
    std::fs::rename(lab.path("a"), lab.path("moved")).expect("moved");
    let resumed = vmeter("b", &["--resume", "../moved/s", "--runs", "4"]);
    assert!(resumed.0 == Some(2) && resumed.1.contains("was begun in"), "{resumed:?}");
    std::fs::rename(lab.path("moved"), lab.path("a")).expect("moved back");
    assert_eq!(runs(), 3);
}

/// A script is known again as the argument of an interpreter too, in every kind; what the runs
/// write themselves is no other machine.
#[test]
fn a_script_that_an_interpreter_is_given_is_known_again() {
    let lab = Lab::new();
    let (script, log) = (lab.path("m.sh"), lab.path("log"));
    let write = |line: &str| std::fs::write(&script, format!("{line}\n")).expect("scratch space");
    let (repo, range) = repository(&lab, 2, |_| vec![("source", String::new()), build(1, &[])]);
    let line = format!("sh {} {} {{worktree}}/product", text(&script), text(&log));
    let own = ["sh", text(&script), text(&log)];
    for (name, first, more, command) in [
        ("boot", vec![], vec![], own.to_vec()),
        ("bench", vec![], vec![], own.to_vec()),
        ("sweep", vec!["-L", "x=1,2"], vec![], [&own[..], &["{x}"]].concat()),
        ("findings", vec![], vec![], own.to_vec()),
        ("memory", vec![], vec![], own.to_vec()),
        (
            "range",
            vec!["--repo", text(&repo), &range, "--run", &line],
            vec!["--build", "sh build.sh"],
            vec![],
        ),
    ] {
        write("echo x >>$1; echo Linux version 6");
        std::fs::write(&log, "").expect("scratch space");
        let save = lab.path(name);
        let mut all = vec![name, "--warmup", "0", "--runs", "2", "--save", text(&save)];
        all.extend(first.iter().chain(&more));
        if !command.is_empty() {
            all.extend(["--"].iter().chain(&command));
        }
        let begun = lab.run(&all);
        assert_eq!(begun.status, 0, "{name}: {}", begun.stderr);
        let less = || std::fs::remove_dir_all(save.join("runs/0000")).expect("a run");
        less();
        let resume = [name, "--resume", text(&save)];
        let resumed = lab.run(&resume);
        assert_eq!(resumed.status, 0, "{name}: {}", resumed.stderr);
        write("echo y >>$1; echo up");
        less();
        refused(&lab.run(&resume), "m.sh (sha256:");
    }
}

/// A log that was there before, and that a run which is cut off goes on writing.
#[test]
fn a_log_of_a_run_that_was_cut_off_is_no_other_machine() {
    for finished in [0, 1] {
        let lab = Lab::new();
        let [log, slow, save] = ["log", "slow", "s"].map(|name| lab.path(name));
        // Longer after the run before than files' clocks may differ.
        let line = "echo x >>$1; echo Linux version 6; [ ! -e $2 ] || { rm $2; sleep 3.2; echo last >>$1; sleep 30; }\n";
        let script = lab.script("m.sh", line);
        std::fs::write(&log, "of yesterday\n").expect("scratch space");
        let when = if finished == 0 {
            "true".into()
        } else {
            format!("test -e {}/runs/0000", text(&save))
        };
        let once = text(&lab.path("once")).to_owned();
        let prepare = format!("test -e {once} || ! {when} || touch {once} {}", text(&slow));
        let begin = ["boot", "--warmup", "0", "--runs", "3", "--prepare", &prepare, "--save"];
        let own = [text(&save), "--", "sh", text(&script), text(&log), text(&slow)];
        let mut command = lab.command(&[&begin[..], &own].concat());
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut child = child.expect("vmeter starts");
        let said = || std::fs::read_to_string(&log).expect("a log");
        while !said().contains("last") {
            assert!(child.try_wait().expect("a child").is_none(), "it ended by itself");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        signal(&child, "INT");
        assert_eq!(child.wait().expect("a child").code(), Some(130));
        assert_eq!(std::fs::read_dir(save.join("runs")).expect("runs").count(), finished);
        let resumed = lab.run(&["boot", "--resume", text(&save)]);
        assert_eq!(resumed.status, 0, "{finished} finished: {}", resumed.stderr);
    }
}

/// What differs is said with both values; pairs are not taken up by a session without.
#[test]
fn other_options_are_refused_with_their_values() {
    let lab = Lab::new();
    let dir = boots(&lab, "plain");
    let before = contents(&dir);
    let resume =
        |dir: &Path, more: &[&str]| lab.run(&[&["boot", "--resume", text(dir)], more].concat());
    refused(&resume(&dir, &["--overhead"]), "--overhead: begun without it");
    refused(&resume(&dir, &["--runs", "1"]), "2 runs");
    refused(&resume(&dir, &["--seed", "9"]), "--seed: begun with 1, asked 9");
    assert_eq!(contents(&dir), before);
    let words = "boot --vmm mock --warmup 0 --runs 2 --overhead".split(' ').map(str::to_owned);
    let pairs = saved(&lab, &words.collect::<Vec<_>>(), "pairs");
    refused(&resume(&pairs, &["--runs", "1"]), "--runs: begun with 2, asked 1");
}

/// Makes every run of a session one of no time at all, which no boot is.
fn take_their_time(dir: &std::path::Path) {
    for run in std::fs::read_dir(dir.join("runs")).expect("runs").flatten() {
        let file = run.path().join("run.json");
        let text = std::fs::read_to_string(&file).expect("run.json");
        let mut record: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        record["total_ns"] = 0.into();
        std::fs::write(&file, record.to_string()).expect("run.json");
    }
}

/// What goes and what cannot be read is said as it is.
#[test]
fn damaged_sessions_are_spoken_of_as_they_are() {
    let lab = Lab::new();
    let dir = boots(&lab, "odd");
    take_their_time(&dir);
    let shown = lab.run(&["show", text(&dir)]);
    refused(&shown, "no run can be read");
    assert!(!shown.stderr.contains("--resume"), "{}", shown.stderr);
    // Three runs, one of them a warm-up.
    std::fs::write(dir.join("session.json"), "{").expect("session.json");
    let removed = lab.run(&["runs", "rm", text(&dir)]);
    assert!(removed.stdout.contains("3 runs"), "{}{}", removed.stdout, removed.stderr);
}

/// What no boot can say is no run of a boot's: it is one that is yet to be made.
#[test]
fn a_run_that_cannot_be_is_made_again() {
    let lab = Lab::new();
    for command in ["boot --vmm mock --runs 2", "findings console-log --vmm mock --runs 1"] {
        let words = command.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let dir = saved(&lab, &words, &words[0]);
        take_their_time(&dir);
        let shown = lab.run(&["show", text(&dir)]);
        refused(&shown, "is impossible");
        let resumed = lab.run(&[&words[0], "--resume", text(&dir)]);
        assert_eq!(resumed.status, 0, "{}", resumed.stderr);
        assert!(dir.join("runs/0001.damaged").exists(), "{}", resumed.stderr);
    }
}

/// A run that names another machine, or another place, is somebody else's: that is the reason
/// why nothing is shown.
#[test]
fn a_run_that_is_none_of_the_sessions_is_named() {
    let lab = Lab::new();
    for (field, value) in [("label", "../../x".into()), ("index", serde_json::Value::from(7))] {
        let dir = boots(&lab, field);
        for run in std::fs::read_dir(dir.join("runs")).expect("runs").flatten() {
            let file = run.path().join("run.json");
            let bytes = std::fs::read(&file).expect("run.json");
            let mut record: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
            record[field] = value.clone();
            std::fs::write(&file, record.to_string()).expect("run.json");
        }
        let shown = lab.run(&["show", text(&dir)]);
        refused(&shown, "not a run of this session");
        assert!(
            shown.stderr.contains(value.as_str().unwrap_or("in this file is 7")),
            "{}",
            shown.stderr
        );
    }
}

/// With the first sign of a session there is all that it was begun with.
#[test]
fn a_session_is_saved_with_its_plan() {
    let lab = Lab::new();
    for i in 0..4 {
        let dir = lab.path(&format!("killed-{i}"));
        let mut child = lab
            .command(&[
                "boot",
                "--vmm",
                "mock",
                "--runs",
                "3",
                "--warmup",
                "0",
                "--save",
                text(&dir),
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("vmeter starts");
        while !dir.join("session.json").exists() && child.try_wait().expect("a child").is_none() {
            std::thread::yield_now();
        }
        let _ = child.kill();
        child.wait().expect("a child");
        let bytes = std::fs::read(dir.join("session.json")).expect("session.json");
        let session: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
        assert_eq!(session["plan"].as_array().map(Vec::len), Some(3));
    }
    let dir = lab.path("killed-0");
    assert_eq!(lab.run(&["boot", "--resume", text(&dir)]).status, 0);
    assert_eq!(std::fs::read_dir(dir.join("runs")).expect("runs").count(), 3);
    edit(&dir, |session| session["plan"] = Vec::<u8>::new().into());
    refused(&lab.run(&["boot", "--resume", text(&dir), "--trust"]), "no plan");
}

/// Row 34.
#[test]
fn a_damaged_run_is_made_again_and_kept_beside() {
    let lab = Lab::new();
    for (i, arguments) in mocks(&lab).iter().enumerate() {
        let dir = saved(&lab, arguments, &format!("damaged-{i}"));
        let whole = contents(&dir.join("runs"));
        for n in 1..3 {
            std::fs::write(dir.join("runs/0001/run.json"), "{ torn").expect("damaged");
            let ran = lab.run(&[&arguments[0], "--resume", text(&dir)]);
            assert_eq!(ran.status, 0, "{}", ran.stderr);
            let after = contents(&dir.join("runs"));
            assert!(whole.iter().all(|(path, bytes)| after.get(path) == Some(bytes)));
            let kept = if n == 1 { "0001.damaged" } else { "0001.damaged-2" };
            let torn = std::fs::read(dir.join("runs").join(kept).join("run.json"));
            assert_eq!(torn.expect(kept), b"{ torn");
        }
    }
}

/// Rows 35 and 37.
#[test]
fn a_session_is_gone_on_with_as_it_was_begun() {
    let lab = Lab::new();
    for (i, arguments) in mocks(&lab).iter().enumerate() {
        let (dir, log) = (lab.path(&format!("begun-{i}")), lab.path(&format!("log-{i}")));
        let prepare = format!("echo x >>{}", text(&log));
        let options = ["--prepare", &prepare, "--pin", "0", "--save", text(&dir)];
        assert_eq!(lab.run(&with(arguments, &options)).status, 0);
        let prepared = || std::fs::read_to_string(&log).unwrap_or_default().lines().count();
        let before = prepared();
        std::fs::remove_dir_all(dir.join("runs/0001")).expect("a run");
        let ran = lab.run(&[&arguments[0], "--resume", text(&dir)]);
        assert_eq!(ran.status, 0, "{}", ran.stderr);
        assert_eq!(prepared(), before + 1, "{arguments:?}");
        let session = std::fs::read_to_string(dir.join("session.json")).expect("session.json");
        let session: serde_json::Value = serde_json::from_str(&session).expect("JSON");
        assert_eq!(session["pin"], "0", "{arguments:?}");
        // Row 36.
        for other in [["--prepare", "true"], ["--pin", "0-0,0"], ["--seed", "7"], ["--smp", "4"]] {
            let given = [arguments[0].as_str(), "--resume", text(&dir), other[0], other[1]];
            refused(&lab.run(&given), other[0]);
        }
    }
}

/// Row 41.
#[test]
fn a_lock_is_no_link_that_is_followed() {
    let lab = Lab::new();
    let victim = lab.path("victim");
    for (i, arguments) in mocks(&lab).iter().enumerate() {
        let dir = saved(&lab, arguments, &format!("locked-{i}"));
        std::fs::write(&victim, "dear").expect("scratch space");
        std::fs::remove_file(dir.join("lock")).expect("the lock");
        symlink(&victim, dir.join("lock")).expect("a link");
        refused(&lab.run(&[&arguments[0], "--resume", text(&dir)]), "a symbolic link");
        refused(&lab.run(&["runs", "rm", text(&dir)]), "a symbolic link");
        assert_eq!(std::fs::read(&victim).expect("read"), b"dear");
        assert!(dir.join("session.json").exists());
    }
}

/// Rows 16, 44 and 47.
#[test]
fn a_damaged_session_is_an_unreadable_input() {
    let lab = Lab::new();
    let dir = boots(&lab, "session");
    refused(&lab.run(&["migrate", "--resume", text(&dir)]), "vmeter boot --resume");
    let empty = lab.path("empty");
    std::fs::create_dir(&empty).expect("scratch space");
    refused(&lab.run(&["migrate", "--resume", text(&empty)]), "session.json");
    assert_eq!(contents(&empty), BTreeMap::new());
    for (i, arguments) in mocks(&lab).iter().enumerate() {
        let dir = saved(&lab, arguments, &format!("plan-{i}"));
        std::fs::remove_dir_all(dir.join("runs/0001")).expect("a run");
        edit(&dir, |session| session["plan"][1]["machine"] = 7.into());
        let ran = lab.run(&[&arguments[0], "--resume", text(&dir), "--trust"]);
        assert_eq!(ran.status, 2, "{arguments:?}: {}", ran.stderr);
        edit(&dir, |session| session["machines"] = serde_json::json!([]));
        let ran = lab.run(&["show", text(&dir)]);
        let said = [ran.stdout, ran.stderr].concat();
        assert!(ran.status == 2 && !said.contains("no run was finished"), "{arguments:?}: {said}");
    }
}

/// Rows 162 and 163, as often as chance needs.
#[test]
fn two_at_once_are_one() {
    let lab = Lab::new();
    for i in 0..8 {
        let dir = lab.path(&format!("race-{i}"));
        let arguments = [
            "boot",
            "--vmm",
            "mock",
            "--runs",
            "3",
            "--prepare",
            "sleep 0.02",
            "--save",
            text(&dir),
        ];
        let begin = || {
            let mut command = lab.command(&arguments);
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("vmeter starts")
        };
        let both = [begin(), begin()];
        let ended: Vec<Ran> =
            both.into_iter().map(|c| c.wait_with_output().expect("it ends").into()).collect();
        let done = ended.iter().filter(|ran| ran.status == 0).count();
        let said: Vec<&str> = ended.iter().map(|ran| ran.stderr.as_str()).collect();
        assert_eq!(done, 1, "{said:?}");
        for ran in ended.iter().filter(|ran| ran.status != 0) {
            let known = ["another vmeter is at work", "holds a session already"];
            assert!(known.iter().any(|words| ran.stderr.contains(words)), "{}", ran.stderr);
        }
        assert_eq!(lab.json(&["show", text(&dir)])["runs"].as_array().map(Vec::len), Some(3));
    }
}
