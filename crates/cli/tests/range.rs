//! `vmeter range` on real git repositories.

use crate::common;
use crate::repository;

use common::{kernel, signal, text, Lab};
use repository::{build, mock_guest, repository, slower_host};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Every file below a folder with its size and time of change.
fn listing(folder: &Path) -> BTreeMap<PathBuf, (u64, std::time::SystemTime)> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.metadata() {
            Ok(m) if m.is_dir() => all.extend(listing(&entry.path())),
            Ok(m) => {
                all.insert(entry.path(), (m.len(), m.modified().expect("a time")));
            }
            Err(_) => {}
        }
    }
    all
}

fn subjects(result: &Value) -> Vec<String> {
    let commits = result["changes"][0]["commits"].as_array().expect("a change").iter();
    let subject = |at: &Value| &result["commits"][at.as_u64().expect("a position") as usize];
    commits.map(|at| subject(at)["subject"].as_str().expect("a subject").to_owned()).collect()
}

#[test]
fn the_first_slow_commit_of_64_is_found_and_what_it_did() {
    let lab = Lab::new();
    let (repo, range) = repository(&lab, 64, |i| {
        // 8 % of some 600 ms.
        let guest = mock_guest(if i >= 37 { 98.0 } else { 50.0 });
        vec![("source", guest), build(i, &[20, 45])]
    });
    let before = listing(&repo);
    let arguments = ["range", "--repo", text(&repo), &range, "--bisect", "--build", "sh build.sh"];
    let machine = ["--vmm", "mock", "--machine", "{worktree}/product", "--warmup", "0"];
    let result = lab.json(&[&arguments[..], &machine[..]].concat());
    assert_eq!(result["verdict"], "changed");
    assert_eq!(subjects(&result), ["change 37"]);
    let change = &result["changes"][0];
    assert_eq!(change["verdict"], "slower");
    assert!(change["probability"].as_f64() >= Some(0.97), "{change}");
    let ratio = change["ratio"]["mean"].as_f64().expect("a ratio");
    assert!((1.04..1.12).contains(&ratio), "{ratio}");
    let effort = &result["effort"];
    assert!(effort["boots"].as_u64() < Some(100), "{effort}");
    assert!(effort["builds"].as_u64() < Some(20) && effort["linear_builds"] == 64, "{effort}");
    let rows = result["explained"]["rows"].as_array().expect("rows");
    let activity = rows.iter().find(|row| row["kind"] == "activity").expect("an activity");
    assert_eq!(activity["name"], "initcall slow_init");
    assert_eq!(listing(&repo), before, "the user's repository was touched");
}

#[test]
fn every_commit_measured_finds_steps_both_ways_and_none_where_there_is_none() {
    let lab = Lab::new();
    let length = |i: usize| if (3..7).contains(&i) { 120.0 } else { 50.0 };
    let (repo, range) =
        repository(&lab, 10, |i| vec![("source", mock_guest(length(i))), build(i, &[8])]);
    let all = |range: &str, more: &[&str]| {
        let mut words = vec!["range", "--repo", text(&repo), range, "--build", "sh build.sh"];
        words.extend(["--vmm", "mock", "--machine", "{worktree}/product", "--runs", "6"]);
        words.extend(more);
        lab.run(&[&words[..], &["--export-json", "-"]].concat())
    };
    let ran = all(&range, &[]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let result: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let changes = result["changes"].as_array().expect("changes");
    let found: Vec<(&str, u64)> = changes
        .iter()
        .map(|c| (c["verdict"].as_str().expect("a word"), c["commits"][0].as_u64().expect("n")))
        .collect();
    assert_eq!(found, [("slower", 3), ("faster", 7)]);
    // What changed in it is told by all runs of the two builds, not by those alone that size the step.
    for (side, commit) in [("a", 2), ("b", 3)] {
        let runs = |value: &Value| value.as_array().map(Vec::len);
        let samples = runs(&result["commits"][commit]["samples_s"]);
        assert_eq!(runs(&result["explained"][side]["runs"]), samples, "{side}");
    }
    assert_eq!(result["commits"][8]["state"], "build failed");
    assert!(result["commits"][8]["failure"].as_str().expect("why").contains("no rule"));
    assert_eq!(all(&range, &["--fail-if-slower", "5"]).status, 1);
    let saved = result["saved_in"].as_str().expect("a folder");
    let shown = lab.run(&["show", saved]).stdout;
    let inside = shown.split_once("What changed in it").expect("a heading").1;
    let inside = crate::common::one_line(inside);
    assert!(inside.contains("the first sentence of the report gives the verdict"), "{shown}");
    assert!(!inside.contains("is slower than"), "{shown}");

    let calm = all("HEAD~2..HEAD", &[]);
    let calm: Value = serde_json::from_str(&calm.stdout).expect("JSON");
    assert_eq!(
        (&calm["verdict"], calm["changes"].as_array().map(Vec::len)),
        (&"no change".into(), Some(0))
    );
}

/// The reviewer's ranges named "c6, seen once and not again, is not slower" beside a mean since c6 that was.
#[test]
fn slow_boots_that_a_commit_brings_are_counted_anew_and_the_commit_is_not_acquitted() {
    let lab = Lab::new();
    let (repo, range) = repository(&lab, 9, |i| {
        let noise = if i >= 4 { "rare 1% 1/4 x2" } else { "normal 1%" };
        let guest = mock_guest(90.0).replacen('\n', &format!("\nnoise {noise}\n"), 1);
        vec![("guest", guest), ("number", i.to_string())]
    });
    let words = ["range", "--repo", text(&repo), &range, "--runs", "10", "--watch", "none"];
    let machine = ["--vmm", "mock", "--machine", "{worktree}/guest", "--fail-if-slower", "3"];
    let saved = lab.path("saved");
    let ran = lab.run(&[&words[..], &machine, &["--save", text(&saved)]].concat());
    let result = lab.json(&["show", text(&saved)]);
    let changes = result["changes"].as_array().expect("changes");
    let [change] = changes.as_slice() else { panic!("{}{}", ran.stdout, ran.stderr) };
    assert_eq!((&change["shape"], &change["verdict"]), (&"tail".into(), &"slower".into()));
    let place = change["place"].as_array().expect("a place");
    assert!(place[0].as_u64() <= Some(4) && place[1].as_u64() >= Some(4), "{change}");
    assert_eq!(result["seen_once"], Value::Null, "{}", ran.stdout);
    // By new boots of all commits, as often as half of the first pass.
    let counted = result["effort"]["slow"].as_u64().expect("runs");
    assert!([45, 90].contains(&counted), "{result}");
    let share = |side: &str| change["slow"][side].as_array().map(|s| s[1].as_u64().unwrap_or(0));
    assert_eq!(share("before").zip(share("since")).map(|(a, b)| a + b), Some(counted));
    assert!(ran.stdout.contains("new boots take 2.0 times as long"), "{}", ran.stdout);
    assert!(!ran.stderr.contains("is not slower"), "{}", ran.stderr);
    assert_ne!(ran.status, 0, "{}", ran.stderr);
}

#[test]
fn a_range_in_which_nothing_is_found_promises_nothing_by_what_it_saw() {
    let lab = Lab::new();
    let (repo, range) =
        repository(&lab, 6, |i| vec![("guest", mock_guest(50.0)), ("number", i.to_string())]);
    let mut figures = Vec::new();
    for seed in ["1", "2", "3", "4"] {
        let saved = lab.path(seed);
        let mut words = vec!["range", "--repo", text(&repo), &range, "--seed", seed];
        words.extend(["--vmm", "mock", "--machine", "{worktree}/guest", "--save", text(&saved)]);
        let ran = lab.run(&[&words[..], &["--fail-if-slower", "20"]].concat());
        let said = crate::common::one_line(&ran.stdout);
        if !said.contains("These runs do not show that any of") {
            continue;
        }
        assert!(said.contains("would have found, with 80 % power"), "{said}");
        assert!(!said.contains("would have shown with any"), "{said}");
        assert!(
            ran.stderr.contains("a slowdown of more than 20 %") && !ran.stderr.contains(" -"),
            "{}",
            ran.stderr
        );
        let result = lab.json(&["show", text(&saved)]);
        assert!(result["excluded_pct"].as_f64() >= Some(0.0), "{result}");
        figures.push(result["detectable_pct"].as_f64().expect("a figure"));
    }
    let least = figures.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(figures.len() > 1 && figures.iter().all(|figure| *figure < 4.0 * least), "{figures:?}");
}

#[test]
fn killed_half_way_and_resumed_it_repeats_nothing() {
    let lab = Lab::new();
    let (repo, range) = repository(&lab, 16, |i| {
        let ms = if i >= 9 { 140 } else { 70 };
        vec![("source", format!("sleep 0.{ms:03}\n")), build(i, &[4])]
    });
    let saved = lab.path("saved");
    let arguments = ["range", "--repo", text(&repo), &range, "--bisect", "--build", "sh build.sh"];
    let run = ["--run", "sh {worktree}/product", "--warmup", "0", "--save", text(&saved)];
    let mut child = lab
        .command(&[&arguments[..], &run[..]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("vmeter starts");
    // Each end is measured four times before anything is decided.
    while !saved.join("runs/0006").exists() {
        assert!(child.try_wait().expect("a state").is_none(), "it ended before it was killed");
        std::thread::yield_now();
    }
    signal(&child, "KILL");
    let _ = child.wait();
    // The log of the build in the middle of which it was killed is begun again.
    let finished = |path: &Path| {
        !path.display().to_string().contains("partial") && path.extension() != Some("log".as_ref())
    };
    let kept = |folder: &str| -> BTreeMap<PathBuf, _> {
        listing(&saved.join(folder)).into_iter().filter(|(path, _)| finished(path)).collect()
    };
    let before = [kept("runs"), kept("builds"), kept("kept")];
    let result = lab.json(&["range", "--resume", text(&saved)]);
    assert_eq!(result["verdict"], "changed");
    assert_eq!(subjects(&result), ["change 9"]);
    for (folder, before) in ["runs", "builds", "kept"].into_iter().zip(before) {
        let after = kept(folder);
        assert!(before.iter().all(|file| after.get(file.0) == Some(file.1)), "{folder} repeated");
    }
    for (option, value) in
        [("--metric", "cpu"), ("--confidence", "0.9"), ("--max-boots", "9"), ("--watch", "light")]
    {
        let other = lab.run(&["range", "--resume", text(&saved), option, value]);
        assert_eq!(other.status, 2, "{option}: {}", other.stderr);
        assert!(other.stderr.contains(&format!("another {option}:")), "{}", other.stderr);
    }
    let shown = lab.json(&["show", text(&saved)]);
    assert_eq!(shown["changes"], result["changes"]);
}

/// Each commit twice, and the good end beside each sample: killed half way it takes the same
/// decisions, and what it made is all vmeter's to remove.
#[test]
fn built_twice_beside_a_reference_it_goes_on_as_if_not_killed() {
    let lab = Lab::new();
    let (repo, range) = repository(&lab, 8, |i| {
        let guest = mock_guest(if i >= 5 { 98.0 } else { 50.0 });
        let build = "cp source product; echo $VMETER_BUILD $PWD >build\n".to_owned();
        vec![("source", guest), ("build.sh", build)]
    });
    let [whole, killed] = ["whole", "killed"].map(|name| lab.path(name));
    let arguments = ["range", "--repo", text(&repo), &range, "--build", "sh build.sh"];
    let machine =
        ["--vmm", "mock", "--machine", "{worktree}/product", "--append", "{worktree}/build"];
    let how =
        ["--bisect", "--builds", "2", "--reference", "--warmup", "0", "--seed", "3", "--save"];
    let words = |save| [&arguments[..], &machine[..], &how[..], &[save]].concat();
    let result = lab.json(&words(text(&whole)));
    assert_eq!(subjects(&result), ["change 5"], "{result}");
    assert!(!result["warnings"].to_string().contains("--builds has no effect"), "{result}");
    let mut command = lab.command(&words(text(&killed)));
    let mut child =
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("vmeter starts");
    while !killed.join("runs/0009").exists() {
        assert!(child.try_wait().expect("a state").is_none(), "it ended before it was killed");
        std::thread::yield_now();
    }
    signal(&child, "KILL");
    let _ = child.wait();
    let resumed = lab.json(&["range", "--resume", text(&killed)]);
    assert_eq!(resumed["commits"], result["commits"]);
    let of = |name: &str| -> Vec<String> {
        let kept = std::fs::read_dir(whole.join("kept")).expect("what was kept").flatten();
        let is_own = |path: &PathBuf| path.is_dir() && path.to_string_lossy().ends_with("-2");
        let own = kept.map(|entry| entry.path()).filter(|path| is_own(path) == (name == "2"));
        let read = |path: PathBuf| std::fs::read_to_string(path.join("build")).ok();
        own.filter_map(read).collect()
    };
    assert!(of("1").iter().all(|said| said.starts_with("1 ") && said.ends_with("checkout\n")));
    assert!(of("2")
        .iter()
        .all(|said| said.starts_with("2 ") && said.ends_with("checkout-again\n")));
    assert!(!of("2").is_empty());
    let same = ["--builds", "2", "--runs", "2", "--warmup", "0"];
    let result = lab.json(&[&arguments[..], &machine[..4], &same].concat());
    assert!(result["warnings"].to_string().contains("for 8 commits, another build"), "{result}");
    let removed = lab.run(&["runs", "rm", text(&whole)]);
    assert!(removed.status == 0 && !whole.exists(), "{}", removed.stderr);
}

/// A search names one commit, and says when that is not all; what was taken back it cannot see, and says so.
#[test]
fn a_search_says_what_it_did_not_look_for() {
    let twice = |i: usize| 50.0 + [4, 9].iter().filter(|from| i >= **from).count() as f64 * 40.0;
    let back = |i: usize| if (4..8).contains(&i) { 90.0 } else { 50.0 };
    let machine = ["--vmm", "mock", "--machine", "{worktree}/guest", "--bisect", "--warmup", "0"];
    let search = |length: &dyn Fn(usize) -> f64| {
        let lab = Lab::new();
        let (repo, range) = repository(&lab, 12, |i| vec![("guest", mock_guest(length(i)))]);
        let ran = lab.run(&[&["range", "--repo", text(&repo), &range], &machine[..]].concat());
        assert_eq!(ran.status, 0, "{}", ran.stderr);
        crate::common::one_line(&ran.stdout)
    };
    let said = search(&twice);
    let both = said.contains("another commit changed the time too")
        || said.contains("If several commits made the change");
    assert!(both, "{said}");
    // Nothing is built.
    assert!(said.contains("usual variation from commit to commit"), "{said}");
    assert!(!said.contains("two builds"), "{said}");
    assert!(search(&back).contains("so it can miss a change that a later commit reverted"));
}

/// What no number of runs can find, or nobody can add runs to, is refused in words.
#[test]
fn what_cannot_be_detected_is_refused() {
    let lab = Lab::new();
    let (repo, range) = repository(&lab, 3, |_| vec![("guest", mock_guest(50.0))]);
    let machine = ["--vmm", "mock", "--machine", "{worktree}/guest"];
    let range = ["range", "--repo", text(&repo), &range];
    for (words, what) in
        [(["--bisect", "--detect", "1"], "--builds N"), (["--shard=1/2", "--detect", "1"], "shard")]
    {
        let ran = lab.run(&[&range[..], &machine, &words].concat());
        assert!(ran.status == 2 && ran.stderr.contains(what), "{words:?}: {}", ran.stderr);
    }
    let script = lab.path("guest.mock");
    std::fs::write(&script, mock_guest(50.0)).expect("a script");
    let [a, b] = ["a", "b"].map(|name| lab.path(name));
    for dir in [&a, &b] {
        let boot = ["boot", "--vmm", "mock", "--machine", text(&script), "--save", text(dir)];
        assert_eq!(lab.run(&[&boot[..], &["--warmup", "0", "--runs", "4"]].concat()).status, 0);
    }
    let ran = lab.run(&["diff", text(&a), text(&b), "--detect", "0.1"]);
    let told = |what: &str| assert!(ran.stderr.contains(what), "{what}: {}", ran.stderr);
    assert_eq!(ran.status, 2);
    told("have 4 and 4 runs");
    told("of each machine would have shown the difference");
    told("boot --baseline");
}

/// Review E5: raw times of two hosts went into one search.
#[test]
fn a_search_that_goes_on_elsewhere_holds_no_times_of_two_hosts_against_each_other() {
    let lab = Lab::new();
    let length = |i: usize| if i >= 9 { 120.0 } else { 50.0 };
    let (repo, range) =
        repository(&lab, 16, |i| vec![("source", mock_guest(length(i))), build(i, &[])]);
    let saved = lab.path("saved");
    let arguments = ["range", "--repo", text(&repo), &range, "--bisect", "--build", "sh build.sh"];
    let machine = ["--vmm", "mock", "--machine", "{worktree}/product", "--warmup", "0"];
    let save = ["--save", text(&saved)];
    let ran = lab.run(&[&arguments[..], &machine[..], &save[..]].concat());
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let before = listing(&saved.join("builds")).len();
    // As slow as the change makes it: mixed, its runs would pass for slow commits.
    slower_host(&saved, 1.15);
    let result = lab.json(&["range", "--resume", text(&saved), "--trust"]);
    let warnings = result["warnings"].to_string();
    assert!(warnings.contains(" of other)"), "{warnings}");
    assert_eq!(result["verdict"], "changed", "{warnings}");
    assert_eq!(subjects(&result), ["change 9"]);
    for commit in result["commits"].as_array().expect("commits") {
        let runs = commit["samples_s"].as_array().map_or(0, Vec::len);
        assert_eq!(commit["estimate"].is_null(), runs < 2, "one run has no interval: {commit}");
    }
    assert!(listing(&saved.join("builds")).len() >= before, "what was built is kept");
}

#[test]
fn an_init_that_gets_slower_in_a_real_guest() {
    if common::is_left_to_test_long() {
        return;
    }
    if kernel().is_none() || Command::new("busybox").output().is_err() {
        return;
    }
    let lab = Lab::new();
    let (repo, range) = repository(&lab, 4, |i| {
        let rounds: u64 = if i >= 2 { 6_000_000 } else { 2_000_000 };
        let source = format!(
            "#include <sys/reboot.h>\nint main(void) {{ for (volatile unsigned long i = 0; i < \
             {rounds}UL; i++); return reboot(RB_POWER_OFF); }}\n"
        );
        let build =
            "cc -static -O1 -o init -x c source && echo init | busybox cpio -o -H newc > product\n";
        vec![("source", source), ("build.sh", build.to_owned())]
    });
    let arguments = ["range", "--repo", text(&repo), &range, "--bisect", "--build", "sh build.sh"];
    let machine = ["--machine", "pvh", "--initrd", "{worktree}/product", "--warmup", "0"];
    let exact = ["--accel", "icount"];
    let result = lab.json(&[&arguments[..], &machine[..], &exact[..]].concat());
    assert_eq!(subjects(&result), ["change 2"]);
    assert_eq!(result["explained"]["exact"], true);
}

#[test]
fn what_is_not_valid_is_refused() {
    let lab = Lab::new();
    let (repo, range) = repository(&lab, 3, |i| vec![("source", i.to_string())]);
    let given = |words: &[&str]| lab.run(&[&["range", "--repo", text(&repo)], words].concat());
    for (words, what) in [
        (vec![range.as_str(), "--kernel", "/boot/vmlinuz"], "{worktree}"),
        (vec!["HEAD", "--run", "true"], "expected A..B"),
        (vec!["nowhere..HEAD", "--run", "true"], "nowhere"),
        (vec![range.as_str(), "--run", "true", "--", "qemu"], "not both"),
        (vec![range.as_str(), "--vmm", "{worktree}/../../bin/sh"], "outside"),
    ] {
        let ran = given(&words);
        assert_eq!(ran.status, 2, "{words:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(what), "{words:?}: {}", ran.stderr);
    }
    // Nothing can be measured: an answer, and a bad one.
    let ran = given(&[range.as_str(), "--build", "exit 3", "--run", "true", "--bisect"]);
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    assert!(ran.stdout.contains("Fewer than two commits"), "{}", ran.stdout);
}
