//! What is on the user's disk stays there: folders that are not vmeter's, links, locks,
//! sessions that are gone on with in another way than they were begun, mistakes that leave
//! nothing behind.

use crate::common;
mod going_on;
mod tools;

use common::{signal, text, Lab, Ran};
use std::os::unix::fs::symlink;
use std::process::Stdio;
use tools::{boots, contents, mocks, refused, saved, slow_boot, with, write};

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
            refused(&ran, "that vmeter did not make");
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

#[test]
fn a_folder_of_another_program_is_not_removed() {
    let lab = Lab::new();
    let other = lab.path("other");
    write(&other, &["session.json"]);
    refused(&lab.run(&["runs", "rm", text(&other)]), "removed nothing");
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

/// What a command reads, and what vmeter saved, is no place for its results: by any name, for any
/// option that names a file to write.
#[test]
fn results_are_not_written_over_what_they_are_of() {
    let lab = Lab::new();
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/trace/small.perf.txt");
    let original = std::fs::read(trace).expect("a fixture");
    let file = |name: &str| text(&lab.path(name)).to_owned();
    let [t, link, hard, mock] = ["t.csv", "link.csv", "hard.json", "m.mock"].map(file);
    std::fs::write(&t, &original).expect("scratch space");
    symlink(&t, &link).expect("a link");
    std::fs::hard_link(&t, &hard).expect("a link");
    std::fs::write(&mock, "vmeter-mock 1\n9ms console\n0 poweroff\n0 exit 0\n").expect("a mock");
    let motd = format!("/etc/motd={t}");
    let drive = format!("-drive file={t},format=raw");
    let saved = boots(&lab, "vmeter/runs/p");
    let recording = saved.with_file_name("1-explain-2").join("trace.dat");
    std::fs::create_dir(recording.parent().expect("its folder")).expect("scratch space");
    std::fs::write(&recording, &original).expect("scratch space");
    let recording = text(&recording);
    let read = "reads";
    let rows: &[(&[&str], &str)] = &[
        (&["trace", "convert", &t, "-o", &t], read),
        (&["trace", "convert", &t, "-o", &link], read),
        (&["trace", "convert", &link, "-o", &hard, "--format", "text"], read),
        (&["trace", "stat", &t, "--export-csv", &t], read),
        (&["trace", "stat", trace, "--vs", &t, "--export-json", &hard], read),
        (&["trace", "stat", trace, "--mtree", &t, "--export-markdown", &t], read),
        (&["explain", trace, &t, "--export-html", &link], read),
        (&["boot", "--vmm", "mock", "--machine", &mock, "--export-json", &mock], read),
        (&["bench", "--export-json", &t, "--", "qemu-system-x86_64", &drive], read),
        (&["appliance", "build", "--file", &motd, "-o", &t], read),
        (&["trace", "stat", trace, "--export-json", "x", "--export-csv", "./x"], "both write"),
        (&["show", text(&saved), "--export-json", recording], "vmeter saved"),
        (&["trace", "convert", trace, "--format", "csv", "-o", recording], "vmeter saved"),
    ];
    let before = contents(lab.folder.path());
    for (arguments, expected) in rows {
        refused(&lab.run(arguments), expected);
    }
    let mut appended = lab.command(&["trace", "report", &t]);
    let out = std::fs::File::options().append(true).open(&t).expect("the trace");
    refused(
        &appended.stdout(out).output().expect("vmeter").into(),
        "standard output is redirected to",
    );
    assert_eq!(contents(lab.folder.path()), before);
    // What is neither is written, and written again.
    let fine = file("fine.csv");
    for _ in 0..2 {
        assert_eq!(lab.run(&["trace", "convert", &t, "-o", &fine]).status, 0);
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
        &["memory", "--export-perfetto", "-"],
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
