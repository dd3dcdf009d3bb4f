//! `vmeter runs` from the command line.

use crate::common;

use common::{text, Lab};
use serde_json::Value;

/// Three sessions on the mock: two boots of different machines, one sweep saved elsewhere.
fn sessions(lab: &Lab) {
    let mock = ["--vmm", "mock", "--warmup", "1", "--quiet"];
    let save = lab.path("my sweep");
    for words in [
        &["boot", "--runs", "3"][..],
        &["boot", "--runs", "2", "--memory", "640"],
        &["sweep", "-L", "smp=1,2", "--runs", "2", "--save", text(&save)],
    ] {
        let ran = lab.run(&[words, &mock[..]].concat());
        assert_eq!(ran.status, 0, "{}", ran.stderr);
    }
}

fn ids(result: &Value) -> Vec<&str> {
    let sessions = result["sessions"].as_array().expect("sessions").iter();
    sessions.map(|s| s["id"].as_str().expect("an id")).collect()
}

#[test]
fn sessions_are_listed_shown_exported_and_removed() {
    let lab = Lab::new();
    let none = lab.run(&["runs", "list"]);
    assert!(none.status == 0 && none.stdout.contains("vmeter boot"), "{}", none.stdout);
    sessions(&lab);
    let all = lab.json(&["runs", "list"]);
    assert_eq!((&all["schema"], &all["command"]), (&"vmeter/1".into(), &"runs list".into()));
    assert_eq!((&all["found"], &all["runs"]), (&3.into(), &(4 + 3 + 6).into()));
    let sweep = &all["sessions"][2];
    assert_eq!((&sweep["id"], &sweep["machines"]), (&"my sweep".into(), &2.into()));
    assert_eq!((&sweep["runs"], &sweep["warmups"]), (&4.into(), &2.into()));

    let boots = lab.json(&["runs", "list", "--command", "boot", "--since", "1d"]);
    assert_eq!(ids(&boots).len(), 2);
    // Begun in the same second: told apart by their runs.
    let of_runs = |n: u64| {
        let mut all = boots["sessions"].as_array().expect("sessions").iter();
        let found = all.find(|s| s["runs"] == n).expect("a session");
        found["id"].as_str().expect("an id")
    };
    let boots = [of_runs(3), of_runs(2)];
    assert_eq!(ids(&lab.json(&["runs", "list", "--machine", "smp=2"])), ["my sweep"]);
    let page = lab.run(&["runs", "list", "--limit", "1"]);
    assert!(
        page.stdout.contains("the latest 1 ") && page.stdout.contains("my sweep"),
        "{}",
        page.stdout
    );
    let shown = lab.run(&["show", boots[0]]);
    assert_eq!(shown.status, 0, "{}", shown.stderr);

    let exported = lab.json(&["runs", "export", "--command", "boot"]);
    let runs = exported["runs"].as_array().expect("runs");
    let measured = runs.iter().filter(|run| run["warmup"] == false);
    assert_eq!((runs.len(), measured.count()), (7, 5));
    assert!(runs.iter().all(|run| run["total_s"].as_f64() > Some(0.1)));
    let csv = lab.run(&["runs", "export", "--export-csv", "-"]);
    assert_eq!(csv.stdout.lines().count(), 1 + 13, "{}", csv.stdout);
    assert!(csv.stdout.starts_with("session,command,"), "{}", csv.stdout);

    let dry = lab.json(&["runs", "rm", "--dry-run", "my", boots[0]]);
    assert_eq!((ids(&dry).len(), &dry["action"]), (2, &"to be removed".into()));
    assert!(lab.path("my sweep/session.json").exists());
    let removed = lab.json(&["runs", "rm", boots[0]]);
    assert_eq!((ids(&removed), &removed["runs"]), (vec![boots[0]], &4.into()));
    assert!(!lab.path("vmeter/runs").join(boots[0]).exists());
    assert_eq!(ids(&lab.json(&["runs", "rm", "--older-than", "1h"])).len(), 0);
    let tomorrow = lab.json(&["runs", "rm", "--older-than", "0s", "--command", "sweep"]);
    // Begun in this very second, it may be no older.
    assert!(ids(&tomorrow).len() <= 1);
    assert_eq!(ids(&lab.json(&["runs", "list", "--command", "boot"])), [boots[1]]);
}

#[test]
fn a_damaged_index_is_no_loss_and_a_foreign_folder_added() {
    let lab = Lab::new();
    sessions(&lab);
    lab.json(&["runs", "list"]);
    let index = lab.path("vmeter/index.jsonl");
    std::fs::write(&index, "no index".repeat(1000)).expect("written");
    let ran = lab.run(&["runs", "list"]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains("my sweep"), "{}", ran.stdout);

    let other = Lab::new();
    let before = other.json(&["runs", "list", "--rebuild"]);
    assert_eq!(before["found"], 0);
    let added = other.run(&["runs", "add", text(&lab.path("vmeter/runs"))]);
    assert_eq!(added.status, 0, "{}", added.stderr);
    assert_eq!(other.json(&["runs", "list"])["found"], 2);
}

#[test]
fn what_is_not_valid_is_refused_with_what_is() {
    let lab = Lab::new();
    for (arguments, expected) in [
        (&["runs", "list", "--since", "May"][..], "2026-05-01"),
        (&["runs", "rm", "nothing"], "runs list"),
        (&["runs", "rm", "/"], "runs list"),
        (&["runs", "rm"], "SESSION"),
        (&["runs", "rm", "a", "--older-than", "3d"], "cannot be used with"),
        (&["runs", "export"], "--export-csv"),
        (&["runs", "add", "/usr/lib"], "session.json"),
    ] {
        let ran = lab.run(arguments);
        assert_eq!(ran.status, 2, "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(expected), "{arguments:?}: {}", ran.stderr);
    }
}

/// What a trend can't be of is said, not left out without a word.
#[test]
fn a_trend_says_what_it_cannot_read() {
    let lab = Lab::new();
    sessions(&lab);
    let broken = lab.path("vmeter/runs/broken");
    std::fs::create_dir_all(&broken).expect("scratch space");
    std::fs::write(broken.join("session.json"), "{").expect("scratch space");
    let ran = lab.run(&["runs", "trend"]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let all = format!("{}{}", ran.stdout, ran.stderr);
    assert!(all.contains("1 session left out") && all.contains("broken"), "{all}");
    for none in ["/nonexistent", "/etc/passwd", "/dev/zero"] {
        let ran = lab.run(&["runs", "trend", none]);
        assert_eq!(ran.status, 2, "{none}: {}", ran.stdout);
        assert!(ran.stderr.contains(none), "{}", ran.stderr);
    }
}

/// Sessions of one second are in the order in which their runs were.
#[test]
fn a_trend_of_one_second() {
    let lab = Lab::new();
    let machine = lab.path("guest.mock");
    let folder = lab.path("all");
    std::fs::create_dir_all(&folder).expect("a folder");
    // Folders are named against the order.
    let names: Vec<String> = (0..6).map(|i| format!("{}", 9 - i)).collect();
    for (i, name) in names.iter().enumerate() {
        // No two take exactly as long: sessions that do, of one second, are copies.
        let time = if i >= 3 { 120.0 } else { 60.0 } + 0.001 * i as f64;
        let script = format!(
            "vmeter-mock 1\n1ms vmm-exec\n{time}ms reach start_kernel\n9ms poweroff\n0 exit 0\n"
        );
        std::fs::write(&machine, script).expect("a script");
        let save = folder.join(name);
        let words = ["boot", "--vmm", "mock", "--machine", text(&machine), "--runs", "1"];
        let ran = lab.run(&[&words[..], &["--warmup", "0", "--save", text(&save)]].concat());
        assert_eq!(ran.status, 0, "{}", ran.stderr);
        let file = save.join("session.json");
        let mut record: Value =
            serde_json::from_slice(&std::fs::read(&file).expect("a session")).expect("JSON");
        record["started_at"] = "2026-01-01T12:00:00Z".into();
        std::fs::write(&file, record.to_string()).expect("written");
    }
    let result = lab.json(&["runs", "trend", text(&folder)]);
    let sessions = result["machines"][0]["sessions"].as_array().expect("sessions").clone();
    let found: Vec<String> = sessions
        .iter()
        .map(|s| s["path"].as_str().unwrap_or_default().rsplit('/').next().unwrap_or("").to_owned())
        .collect();
    assert_eq!(found, names);
}

/// What a session is held to is kept with it; another is refused beside `--resume`.
#[test]
fn the_gate_of_a_session_is_its_own() {
    let lab = Lab::new();
    let machine = lab.path("guest.mock");
    let script = "vmeter-mock 1\nnoise normal 1%\n1ms vmm-exec\n60ms reach start_kernel\n9ms poweroff\n0 exit 0\n";
    std::fs::write(&machine, script).expect("a script");
    let saved = lab.path("gated");
    let vs = format!("--machine {}", text(&machine));
    let words = ["bench", "--vmm", "mock", "--machine", text(&machine), "--vs", &vs, "--runs", "6"];
    let gate = ["--fail-if-slower", "30", "--save", text(&saved)];
    let ran = lab.run(&[&words[..], &gate].concat());
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let resumed = |more: &[&str]| lab.run(&[&["bench", "--resume", text(&saved)], more].concat());
    let again = resumed(&[]);
    assert!(again.status == 0 && again.stderr.contains("gate: "), "{}", again.stderr);
    assert_eq!(resumed(&["--fail-if-slower", "30"]).status, 0);
    let other = resumed(&["--fail-if-slower", "5"]);
    assert!(other.status == 2 && other.stderr.contains("--fail-if-slower"), "{}", other.stderr);
    let boot = ["boot", "--vmm", "mock", "--machine", text(&machine), "--warmup", "0"];
    let base = lab.path("base");
    assert_eq!(lab.run(&[&boot[..], &["--runs", "6", "--save", text(&base)]].concat()).status, 0);
    let few = lab.run(&[&boot[..], &["--runs", "4", "--baseline", text(&base)]].concat());
    assert!(few.stderr.contains("cannot distinguish even a large difference"), "{}", few.stderr);
}

/// Review E7: `diff` said that it was rather the host than the machine, and failed all the same.
#[test]
fn what_is_rather_the_hosts_fails_no_gate() {
    let lab = Lab::new();
    let machine = lab.path("guest.mock");
    let folder = lab.path("sessions");
    std::fs::create_dir(&folder).expect("a folder");
    let boots = |name: &str, all: f64, one: f64| {
        let mut script =
            "vmeter-mock 1\nspread 0.2%\nrun-spread 0.2%\n1ms vmm-exec\n60ms reach start_kernel\n"
                .to_owned();
        for n in 0..12 {
            let ms = (10 + n) as f64 * all + if n == 3 { one } else { 0.0 };
            script.push_str(&format!("{ms}ms initcall part_{n}\n"));
        }
        script.push_str("9ms poweroff\n0 exit 0\n");
        std::fs::write(&machine, script).expect("a script");
        let save = folder.join(name);
        let words = ["boot", "--vmm", "mock", "--machine", text(&machine), "--warmup", "0"];
        let more = ["--watch", "light", "--runs", "5", "--seed", name, "--save", text(&save)];
        let ran = lab.run(&[&words[..], &more].concat());
        assert_eq!(ran.status, 0, "{}", ran.stderr);
        text(&save).to_owned()
    };
    let before: Vec<String> = (0..6).map(|n| boots(&format!("0{n}"), 1.0, 0.0)).collect();
    let held =
        |now: &str, limit: &str| lab.run(&["diff", &before[5], now, "--fail-if-slower", limit]);
    let gate = |now: &str| held(now, "5");
    let told = |stdout: &str| {
        let words: Vec<&str> = stdout.split_whitespace().collect();
        words.join(" ").contains("so the host probably changed, and not the machine")
    };
    let slower = boots("10", 1.0, 90.0);
    let slow_machine = gate(&slower);
    assert!(!told(&slow_machine.stdout), "{}", slow_machine.stdout);
    assert_eq!(slow_machine.status, 1, "{}", slow_machine.stderr);
    // Held against what it is, it is left open by how far sessions lie apart, not by their runs.
    let is = slow_machine.stderr.split('+').nth(1).and_then(|rest| rest.split(' ').next());
    let open = held(&slower, is.expect("a percentage"));
    assert_eq!(open.status, 4, "{}", open.stderr);
    let says = |word: &str| open.stderr.contains(word);
    assert!(says("cannot decide") && says("boot --baseline"), "{}", open.stderr);
    assert!(!says("about"), "{}", open.stderr);
    let slow_host = gate(&boots("11", 1.4, 0.0));
    assert!(told(&slow_host.stdout), "{}", slow_host.stdout);
    assert_eq!(slow_host.status, 4, "{}", slow_host.stderr);
    let why =
        ["nearly every part", "--baseline"].iter().all(|word| slow_host.stderr.contains(word));
    assert!(why, "{}", slow_host.stderr);
}
