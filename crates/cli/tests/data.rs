//! What is on the user's disk stays there: folders that are not vmeter's, links, locks,
//! sessions that are gone on with in another way than they were begun, mistakes that leave
//! nothing behind.

mod common;
#[path = "common/repository.rs"]
mod repository;

use common::{signal, text, Lab, Ran};
use repository::{build, mock_guest, repository};
use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// Everything in a folder, by path: files with their bytes, links with their targets.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let kind = entry.file_type().expect("a type");
        if kind.is_dir() {
            found.insert(path.clone(), Vec::new());
            found.extend(contents(&path));
        } else if kind.is_symlink() {
            let target = std::fs::read_link(&path).expect("a link");
            found.insert(path, text(&target).into());
        } else {
            let bytes = std::fs::read(&path).unwrap_or_default();
            found.insert(path, bytes);
        }
    }
    found
}

fn write(dir: &Path, files: &[&str]) {
    for file in files {
        let path = dir.join(file);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("scratch space");
        std::fs::write(path, file).expect("scratch space");
    }
}

/// Kinds that the mock can be measured with, without `--save`.
fn mocks(lab: &Lab) -> Vec<Vec<String>> {
    let (repo, range) = repository(lab, 2, |_| vec![("source", mock_guest(50.0)), build(1, &[])]);
    let mut all: Vec<Vec<String>> = [
        "boot --vmm mock --warmup 1 --runs 2",
        "bench --vmm mock --warmup 0 --runs 2 --vs --append=x",
        "sweep --vmm mock --warmup 0 --runs 2 -P pcie-root-ports=0..1",
        "range --vmm mock --machine {worktree}/product --warmup 0 --runs 2",
    ]
    .map(|line| line.split(' ').map(str::to_owned).collect())
    .into();
    let build = ["--repo", text(&repo), &range, "--build", "sh build.sh"];
    all[3].extend(build.map(str::to_owned));
    all
}

fn with<'a>(arguments: &'a [String], more: &[&'a str]) -> Vec<&'a str> {
    arguments.iter().map(String::as_str).chain(more.iter().copied()).collect()
}

fn refused(ran: &Ran, expected: &str) {
    assert_eq!(ran.status, 2, "{expected}: {}{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.contains(expected), "{expected}: {}", ran.stderr);
}

/// Rewrites a part of a session's `session.json`.
fn edit(dir: &Path, change: impl Fn(&mut serde_json::Value)) {
    let file = dir.join("session.json");
    let bytes = std::fs::read(&file).expect("session.json");
    let mut session = serde_json::from_slice(&bytes).expect("JSON");
    change(&mut session);
    std::fs::write(&file, session.to_string()).expect("session.json");
}

fn saved(lab: &Lab, arguments: &[String], name: &str) -> PathBuf {
    let dir = lab.path(name);
    let ran = lab.run(&with(arguments, &["--save", text(&dir)]));
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    dir
}

fn boots(lab: &Lab, name: &str) -> PathBuf {
    let words = "boot --vmm mock --warmup 1 --runs 2".split(' ').map(str::to_owned);
    saved(lab, &words.collect::<Vec<_>>(), name)
}

/// A boot that takes its time, once its first run is finished.
fn slow_boot(lab: &Lab, dir: &Path) -> Child {
    let arguments = ["boot", "--vmm", "mock", "--runs", "12", "--prepare", "sleep 0.1"];
    let child = lab
        .command(&[&arguments[..], &["--save", text(dir)]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("vmeter starts");
    while !dir.join("runs/0000/run.json").exists() {
        std::thread::yield_now();
    }
    child
}

/// Rows 48 and 49.
#[test]
fn a_folder_with_something_of_the_users_is_not_taken() {
    let lab = Lab::new();
    for (i, arguments) in mocks(&lab).iter().enumerate() {
        for mine in ["runs/exp1/weights", "builds/x", "checkout/dear", "kept/x", "lock", "a"] {
            let dir = lab.path(&format!("mine-{i}"));
            write(&dir, &[mine, "notes/1"]);
            let before = contents(&dir);
            let ran = lab.run(&with(arguments, &["--save", text(&dir)]));
            let name = if mine == "lock" { "notes" } else { mine.split('/').next().unwrap() };
            refused(&ran, "not vmeter's");
            assert!(ran.stderr.contains(name), "{}", ran.stderr);
            assert_eq!(contents(&dir), before);
            let removed = lab.run(&["runs", "rm", text(&dir)]);
            assert_eq!(removed.status, 2, "{}", removed.stderr);
            assert_eq!(contents(&dir), before);
            std::fs::remove_dir_all(&dir).expect("scratch space");
        }
    }
}

/// Row 48: `runs rm`.
#[test]
fn only_what_vmeter_wrote_is_removed() {
    let lab = Lab::new();
    for (i, arguments) in mocks(&lab).iter().enumerate() {
        let dir = saved(&lab, arguments, &format!("own-{i}"));
        let removed = lab.run(&["runs", "rm", text(&dir)]);
        assert_eq!(removed.status, 0, "{}", removed.stderr);
        assert!(!dir.exists(), "{arguments:?} leaves {:?}", contents(&dir).keys());

        let dir = saved(&lab, arguments, &format!("shared-{i}"));
        let mine = ["notes.txt", "runs/exp1/weights", "runs/0000/mine", "shards/x", "kept/dear"];
        write(&dir, &mine);
        symlink("/etc", dir.join("log")).expect("a link");
        let removed = lab.run(&["runs", "rm", text(&dir)]);
        assert_eq!(removed.status, 0, "{}", removed.stderr);
        assert!(removed.stdout.contains("runs/exp1"), "{}", removed.stdout);
        for file in mine {
            assert_eq!(std::fs::read(dir.join(file)).expect(file), file.as_bytes());
        }
        assert!(dir.join("log").is_symlink() && !dir.join("session.json").exists());
        assert!(!dir.join("runs/0000/run.json").exists());
    }
}

/// A session of an older vmeter has no marker, and can lie among things of the user's.
#[test]
fn an_older_session_among_the_users_things() {
    let lab = Lab::new();
    let dir = boots(&lab, "old");
    std::fs::remove_file(dir.join("vmeter-session")).expect("the marker");
    let mine = ["runs/exp1/weights", "builds/x", "checkout/dear", "kept/x"];
    write(&dir, &mine);
    assert_eq!(lab.run(&["runs", "rm", text(&dir)]).status, 0);
    for file in mine {
        assert_eq!(std::fs::read(dir.join(file)).expect(file), file.as_bytes());
    }
    // A file of another program, with a name that vmeter uses as well.
    let other = lab.path("other");
    write(&other, &["session.json"]);
    refused(&lab.run(&["runs", "rm", text(&other)]), "nothing is removed");
    assert!(other.join("session.json").exists());
}

/// Row 49: a checkout that comes between a range's begin and its first build.
#[test]
fn a_checkout_of_the_users_is_not_removed() {
    let lab = Lab::new();
    let dir = saved(&lab, &mocks(&lab)[3], "range");
    let removed = [dir.join("checkout"), dir.join("kept"), dir.join("builds"), dir.join("runs")];
    for folder in removed {
        std::fs::remove_dir_all(folder).expect("vmeter's own");
    }
    std::fs::create_dir(dir.join("runs")).expect("vmeter's own");
    for file in ["checkout.cloned", "vmeter-session"] {
        std::fs::remove_file(dir.join(file)).expect("vmeter's own");
    }
    write(&dir, &["checkout/dear"]);
    refused(&lab.run(&["range", "--resume", text(&dir)]), "did not make it");
    assert!(dir.join("checkout/dear").exists());
    // Names out of a folder that may be anyone's lead nowhere else.
    let victim = lab.path("victim");
    write(&victim, &["dear"]);
    let range = std::fs::read_to_string(dir.join("range.json")).expect("range.json");
    let mut range: serde_json::Value = serde_json::from_str(&range).expect("JSON");
    range["commits"][0]["hash"] = "../../victim".into();
    std::fs::write(dir.join("range.json"), range.to_string()).expect("range.json");
    refused(&lab.run(&["range", "--resume", text(&dir)]), "no commit's hash");
    assert!(victim.join("dear").exists());
}

/// A checkout is vmeter's as its builds left it: what comes into it later is not.
#[test]
fn what_the_user_has_put_into_a_checkout_stays() {
    let lab = Lab::new();
    let dir = saved(&lab, &mocks(&lab)[3], "range");
    let checkout = dir.join("checkout");
    let before = contents(&dir);
    write(&checkout, &["thesis.txt"]);
    let removed = lab.run(&["runs", "rm", text(&dir)]);
    refused(&removed, "checkout (thesis.txt)");
    assert!(before.keys().all(|path| path.exists()), "half removed");
    std::fs::remove_file(checkout.join("thesis.txt")).expect("the user's");
    // An edit of what git has, and a branch.
    let source = checkout.join("source");
    let was = std::fs::read(&source).expect("of the commit");
    std::fs::write(&source, "an edit").expect("an edit");
    refused(&lab.run(&["runs", "rm", text(&dir)]), "checkout (source)");
    let branch =
        std::process::Command::new("git").args(["-C", text(&checkout), "branch", "mine"]).status();
    assert!(branch.expect("git").success());
    refused(&lab.run(&["runs", "rm", text(&dir)]), ".git/");
    // Going on with it builds what is missing, and overwrites nothing of that.
    for entry in std::fs::read_dir(dir.join("builds")).expect("builds").flatten() {
        std::fs::remove_file(entry.path()).expect("vmeter's own");
    }
    let resumed = lab.run(&["range", "--resume", text(&dir), "--runs", "3"]);
    assert_eq!(resumed.status, 0, "{}", resumed.stderr);
    assert!(resumed.stderr.contains("checkout.kept-1"), "{}", resumed.stderr);
    let aside = dir.join("checkout.kept-1");
    assert_eq!(std::fs::read(aside.join("source")).expect("kept"), b"an edit");
    assert!(aside.join(".git/refs/heads/mine").exists());
    assert_eq!(std::fs::read(&source).expect("of a commit").len(), was.len());
    refused(&lab.run(&["runs", "rm", text(&dir)]), "checkout.kept-1");
    let removed = lab.run(&["runs", "rm", "--force", text(&dir)]);
    assert_eq!(removed.status, 0, "{}", removed.stderr);
    assert!(!dir.exists());
}

/// A session goes on in the folder that it was begun in, with what it was begun with.
#[test]
fn a_session_goes_on_where_it_was_begun() {
    let lab = Lab::new();
    for name in ["a", "b"] {
        std::fs::create_dir(lab.path(name)).expect("scratch space");
        lab.script(&format!("{name}/m.sh"), &format!("#!/bin/sh\necho {name} >>$LOG\n"));
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
    lab.script("a/m.sh", "#!/bin/sh\necho c >>$LOG\n");
    let resumed = vmeter("b", &["--resume", "../a/s", "--runs", "4"]);
    assert!(resumed.0 == Some(2) && resumed.1.contains("m.sh"), "{resumed:?}");
    std::fs::rename(lab.path("a"), lab.path("moved")).expect("moved");
    let resumed = vmeter("b", &["--resume", "../moved/s", "--runs", "4"]);
    assert!(resumed.0 == Some(2) && resumed.1.contains("begun in"), "{resumed:?}");
    std::fs::rename(lab.path("moved"), lab.path("a")).expect("moved back");
    assert_eq!(runs(), 3);
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

/// What goes and what cannot be read is said as it is.
#[test]
fn damaged_sessions_are_spoken_of_as_they_are() {
    let lab = Lab::new();
    let dir = boots(&lab, "odd");
    for run in std::fs::read_dir(dir.join("runs")).expect("runs").flatten() {
        let file = run.path().join("run.json");
        let text = std::fs::read_to_string(&file).expect("run.json");
        let mut record: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        record["total_ns"] = 0.into();
        std::fs::write(&file, record.to_string()).expect("run.json");
    }
    let shown = lab.run(&["show", text(&dir)]);
    refused(&shown, "no run can be read");
    assert!(!shown.stderr.contains("--resume"), "{}", shown.stderr);
    // Three runs, one of them a warm-up.
    std::fs::write(dir.join("session.json"), "{").expect("session.json");
    let removed = lab.run(&["runs", "rm", text(&dir)]);
    assert!(removed.stdout.contains("3 runs"), "{}{}", removed.stdout, removed.stderr);
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

/// Row 51.
#[test]
fn a_link_to_a_session_is_not_followed() {
    let lab = Lab::new();
    let dir = boots(&lab, "target");
    let before = contents(&dir);
    let link = lab.path("link");
    symlink(&dir, &link).expect("a link");
    refused(&lab.run(&["runs", "rm", text(&link)]), "symbolic link to");
    assert_eq!(contents(&dir), before);
    // Nor one in the place of its runs.
    std::fs::rename(dir.join("runs"), lab.path("elsewhere")).expect("moved");
    symlink(lab.path("elsewhere"), dir.join("runs")).expect("a link");
    refused(&lab.run(&["boot", "--resume", text(&dir), "--runs", "5"]), "symbolic link");
}

/// Row 52.
#[test]
fn a_session_is_not_removed_while_a_vmeter_is_at_work_in_it() {
    let lab = Lab::new();
    let dir = lab.path("session");
    let child = slow_boot(&lab, &dir);
    let removed = lab.run(&["runs", "rm", text(&dir)]);
    assert_eq!(removed.status, 3, "{}", removed.stderr);
    assert!(removed.stderr.contains(&format!("vmeter {}", child.id())), "{}", removed.stderr);
    let old = lab.run(&["runs", "rm", "--older-than", "0s"]);
    assert_eq!(old.status, 0, "{}", old.stderr);
    let ran: Ran = child.wait_with_output().expect("vmeter ends").into();
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert_eq!(lab.json(&["show", text(&dir)])["runs"].as_array().map(Vec::len), Some(12));
}

/// Row 58.
#[test]
fn a_merge_never_writes_into_what_it_merges() {
    let lab = Lab::new();
    let dir = saved(&lab, &mocks(&lab)[2], "a");
    let before = contents(&dir);
    for save in ["a", "a/runs", "a/whole", "a/runs/0000"] {
        let ran = lab.run(&["merge", text(&dir), "--save", text(&lab.path(save))]);
        assert_eq!(ran.status, 2, "{save}: {}", ran.stderr);
        assert_eq!(contents(&dir), before, "{save}");
    }
}

/// Row 59.
#[test]
fn results_are_not_written_over_the_runs_they_are_of() {
    let lab = Lab::new();
    let dir = boots(&lab, "p");
    let before = contents(&dir);
    for own in ["p/session.json", "p/runs/0000/run.json", "p/runs/0000/report.json"] {
        let file = lab.path(own);
        refused(&lab.run(&["report", text(&dir), "-o", text(&file)]), "part of the session");
        let export = ["--export-json", text(&file)];
        refused(&lab.run(&[&["show", text(&dir)], &export[..]].concat()), "part of the session");
    }
    assert_eq!(contents(&dir), before);
    let page = dir.join("page.html");
    assert_eq!(lab.run(&["report", text(&dir), "-o", text(&page)]).status, 0);
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

/// Rows 131 and 132.
#[test]
fn a_mistake_leaves_nothing_behind() {
    let lab = Lab::new();
    let dir = boots(&lab, "before");
    let save = lab.path("new");
    for arguments in mocks(&lab) {
        for wrong in [
            &["--until", "line:("][..],
            &["--pin", "0,9999"],
            &["--machine", "/nonexistent/x.mock"],
            &["--export-json", "/nonexistent/x"],
            &["--baseline", "/nonexistent"],
            &["--fail-if-slower", "nan"],
        ] {
            let fresh = lab.run(&with(&arguments, wrong));
            let ran = lab.run(&with(&arguments, &[wrong, &["--save", text(&save)]].concat()));
            assert!(!save.exists(), "{arguments:?} {wrong:?} left a folder");
            assert_eq!(ran.status, 2, "{wrong:?}: {}", ran.stderr);
            assert_eq!(fresh.status, 2, "{wrong:?}: {}", fresh.stderr);
        }
    }
    let none = lab.run(&["show"]);
    assert!(none.stderr.contains("no saved session"), "{}{}", none.stdout, none.stderr);
    assert!(dir.exists());
    // What fails to start is a mistake as well.
    let vmm = lab.script("vmm", "#!/nonexistent/interpreter\n");
    let ran = lab.run(&["boot", "--save", text(&save), "--", text(&vmm)]);
    assert_eq!((ran.status, save.exists()), (2, false), "{}", ran.stderr);
    // One that was interrupted before its first run is no latest session.
    let saved = lab.run(&["boot", "--vmm", "mock", "--runs", "1"]);
    assert_eq!(saved.status, 0, "{}", saved.stderr);
    let mut child = lab
        .command(&["boot", "--vmm", "mock", "--prepare", "sleep 60"])
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("vmeter starts");
    let sessions = || std::fs::read_dir(lab.path("vmeter/runs")).map_or(0, Iterator::count);
    while sessions() < 2 {
        std::thread::yield_now();
    }
    let shown = lab.run(&["show"]);
    signal(&child, "KILL");
    child.wait().expect("vmeter is gone");
    assert_eq!(shown.status, 0, "{}", shown.stderr);
    assert_eq!(lab.run(&["show"]).status, 0);
}

/// Rows 140 and 141.
#[test]
fn what_cannot_be_answered_is_refused_before_the_first_run() {
    let lab = Lab::new();
    let failed = lab.path("failed");
    lab.run(&["boot", "--save", text(&failed), "--", "false"]);
    let export = lab.path("x");
    for (i, arguments) in mocks(&lab).iter().enumerate() {
        let save = lab.path(&format!("never-{i}"));
        let wrong: &[&str] = match arguments[0].as_str() {
            "boot" => &["--baseline", text(&failed), "--fail-if-slower", "3"],
            _ => &["--export-perfetto", text(&export)],
        };
        let ran = lab.run(&with(arguments, &[wrong, &["--save", text(&save)]].concat()));
        assert_eq!(ran.status, 2, "{arguments:?}: {}{}", ran.stdout, ran.stderr);
        assert!(!save.exists() && !export.exists(), "{arguments:?}");
    }
    for command in [
        &["dirty", "--export-perfetto", "-"][..],
        &["irq", "--export-perfetto", "-"],
        &["migrate", "--export-perfetto", "-"],
        &["runs", "list", "--export-perfetto", "-"],
        &["doctor", "--export-perfetto", "-"],
    ] {
        refused(&lab.run(command), "timelines");
    }
    let words = "bench --vmm mock --runs 2".split(' ').map(str::to_owned);
    let bench = saved(&lab, &words.collect::<Vec<_>>(), "bench");
    let shown = lab.run(&["show", text(&bench), "--export-perfetto", text(&export)]);
    refused(&shown, "timelines");
    assert_eq!((shown.stdout.as_str(), export.exists()), ("", false));
}

/// Row 55.
#[test]
fn an_index_that_works_against_vmeter_is_built_anew() {
    let lab = Lab::new();
    boots(&lab, "a");
    assert_eq!(lab.run(&["runs", "list"]).status, 0);
    let index = lab.path("vmeter/index.sqlite");
    let db = rusqlite::Connection::open(&index).expect("the index");
    db.execute_batch("CREATE TRIGGER hostile AFTER INSERT ON run BEGIN DELETE FROM session; END;")
        .expect("a trigger");
    drop(db);
    boots(&lab, "b");
    let ran = lab.run(&["runs", "list"]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains("built anew"), "{}", ran.stdout);
    assert_eq!(lab.json(&["runs", "list"])["found"], 2);
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
