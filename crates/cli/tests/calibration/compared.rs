//! Two machines: `vmeter bench`, `vmeter boot --baseline`, `vmeter diff`.

use crate::rates::Rate;
use crate::worlds::{each, trials, Many, NORMAL, SESSION, WORLDS};
use serde_json::Value;

/// A bench of a machine against one with `append`, of which a script may make something.
fn bench(many: &Many, script: &str, append: &str, more: &[&str], seed: u64) -> (i32, Value) {
    let vs = format!("--append {append}");
    let mut words = vec!["bench", "--vmm", "mock", "--machine", script, "--warmup", "0"];
    words.extend(["--vs", &vs]);
    words.extend(more);
    many.session(&words, seed)
}

fn differs(result: &Value) -> bool {
    let verdict = &result["comparisons"][0]["verdict"];
    verdict == "slower" || verdict == "faster"
}

fn covers(result: &Value, truth: f64) -> bool {
    let ends = &result["comparisons"][0]["ratio"]["ci95"];
    let end = |i: usize| ends[i].as_f64().expect("an end");
    end(0) <= truth && truth <= end(1)
}

#[test]
fn bench_of_the_same_machine() {
    let many = Many::new();
    for (at, world) in (0u64..).zip(&WORLDS) {
        let script = many.machine("same.mock", world.noise, &[]);
        let found = each(trials(25, 600), |seed| {
            let seed = seed + 10_000 * at;
            let (_, result) = bench(&many, &script, "same", &["--runs", "10"], seed);
            (differs(&result), covers(&result, 1.0))
        });
        let (differ, cover): (Vec<bool>, Vec<bool>) = found.into_iter().unzip();
        let name = |what: &str| format!("bench, 10 runs, {}, nothing changed: {what}", world.name);
        Rate::of(&differ).at_most(0.05, &name("faster or slower"));
        Rate::of(&cover).between(0.93, 0.97, &name("the interval covers"));
    }
}

#[test]
fn the_gate_of_a_bench() {
    let many = Many::new();
    for world in [&NORMAL, &SESSION] {
        for (change, allowed) in [("0ms", [0, 4]), ("3ms", [1, 4])] {
            let line = format!("if append~other: {change} note slower");
            let script = many.machine("gate.mock", world.noise, &[&line]);
            let limit = if change == "0ms" { "3" } else { "1" };
            let gate = ["--runs", "20", "--fail-if-slower", limit];
            let wrong = each(trials(10, 400), |seed| {
                let (status, _) = bench(&many, &script, "other", &gate, seed);
                assert!([0, 1, 4].contains(&status), "{status}");
                !allowed.contains(&status)
            });
            let what = format!(
                "bench --fail-if-slower {limit}, 20 runs, {}, slower by {change} of 100: decided wrongly",
                world.name
            );
            Rate::of(&wrong).at_most(0.025, &what);
        }
    }
}

#[test]
fn what_is_called_detectable_is_found() {
    let many = Many::new();
    let script = many.machine("same.mock", NORMAL.noise, &[]);
    let said = each(trials(15, 150), |seed| {
        let (_, result) = bench(&many, &script, "same", &["--runs", "12"], seed);
        result["comparisons"][0]["detectable_pct"].as_f64().expect("what is detectable")
    });
    let mut sorted = said.clone();
    sorted.sort_by(f64::total_cmp);
    let typical = sorted[sorted.len() / 2];
    let line = format!("if append~other: {:.3}ms note slower", typical);
    let script = many.machine("slower.mock", NORMAL.noise, &[&line]);
    let found = each(trials(20, 600), |seed| {
        let (_, result) = bench(&many, &script, "other", &["--runs", "12"], 7000 + seed);
        result["comparisons"][0]["verdict"] == "slower"
    });
    let what = format!(
        "bench, 12 runs, {}: the {typical:.2} % that are called detectable are found",
        NORMAL.name
    );
    Rate::of(&found).between(0.72, 0.88, &what);
}

/// The machine of a baseline is booted again, in turn with the other: another day does not
/// matter.
#[test]
fn a_baseline_of_another_day() {
    let many = Many::new();
    let noise = ["normal 2%", "session 5%"];
    let script = many.machine("day.mock", &noise, &[]);
    let failed = each(trials(8, 300), |seed| {
        let words = ["boot", "--vmm", "mock", "--machine", &script, "--warmup", "0"];
        let base = many.path(&format!("base{seed}"));
        let shown = base.display().to_string();
        let (status, _) = many.saved(&[&words[..], &["--runs", "6"]].concat(), seed, &base);
        assert_eq!(status, 0);
        let gate = ["--baseline", &shown, "--fail-if-slower", "3", "--runs", "10"];
        let (status, _) = many.session(&[&words[..], &gate].concat(), 90_000 + seed);
        let _ = std::fs::remove_dir_all(&base);
        status == 1
    });
    Rate::of(&failed).at_most(
        0.025,
        "boot --baseline --fail-if-slower 3, sessions 5 %, nothing changed: exit status 1",
    );
}

/// Two sessions alone say nothing of whether it is the machine that is slower.
#[test]
fn two_sessions_fail_no_gate() {
    let many = Many::new();
    let script = many.machine("two.mock", &["normal 2%", "session 5%"], &[]);
    let failed = each(trials(8, 200), |seed| {
        let words = ["boot", "--vmm", "mock", "--machine", &script, "--warmup", "0", "--runs", "6"];
        let [a, b] = [0, 1].map(|side| {
            let folder = many.path(&format!("two{side}-{seed}"));
            let (status, _) = many.saved(&words, 2 * seed + side, &folder);
            assert_eq!(status, 0);
            folder.display().to_string()
        });
        let status = many.status(&["diff", &a, &b, "--fail-if-slower", "3"]);
        for folder in [a, b] {
            let _ = std::fs::remove_dir_all(folder);
        }
        status == 1
    });
    Rate::of(&failed).at_most(
        0.025,
        "diff --fail-if-slower 3 of two sessions, sessions 5 %, nothing changed: exit status 1",
    );
}

/// `--detect 2%` has as many runs as that needs, and its error, however often it looks.
#[test]
fn detecting_what_was_asked_for() {
    let many = Many::new();
    let noise = ["normal 3%"];
    for (change, expected) in [("0ms", false), ("2ms", true)] {
        let line = format!("if append~other: {change} note slower");
        let script = many.machine("detect.mock", &noise, &[&line]);
        let found = each(trials(10, 300), |seed| {
            let (_, result) = bench(&many, &script, "other", &["--detect", "2"], seed);
            (differs(&result), result["comparisons"][0]["pairs"].as_u64().unwrap_or(0))
        });
        let (differ, pairs): (Vec<bool>, Vec<u64>) = found.into_iter().unzip();
        let mean = pairs.iter().sum::<u64>() / pairs.len().max(1) as u64;
        if expected {
            let what = format!(
                "bench --detect 2, 2 % slower, normal 3 % ({mean} pairs on average): found"
            );
            Rate::of(&differ).between(0.78, 0.85, &what);
        } else {
            let what = "bench --detect 2, normal 3 %, nothing changed: faster or slower";
            Rate::of(&differ).at_most(0.05, what);
        }
    }
}
