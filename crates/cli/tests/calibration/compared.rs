//! Two machines in turn: `vmeter bench`.

use crate::rates::{all_kept, Rate};
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
        let script = many.on(world, "same.mock", "append~same", &[]);
        let found = each(trials(20, 600), |seed| {
            let seed = seed + 10_000 * at;
            let (_, result) = bench(&many, &script, "same", &["--runs", "10"], seed);
            (differs(&result), covers(&result, 1.0))
        });
        let (differ, cover): (Vec<bool>, Vec<bool>) = found.into_iter().unzip();
        let name = |what: &str| format!("bench, 10 runs, {}, nothing changed: {what}", world.name);
        Rate::of(&differ).at_most(0.05, &name("faster or slower"));
        Rate::of(&cover).between(0.93, 0.97, &name("the interval covers"));
    }
    all_kept();
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
            let wrong = each(trials(8, 400), |seed| {
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
    all_kept();
}

/// The smallest difference that is called detectable is the one that is found in 80 % of cases: a
/// tenth less in fewer, a tenth more in more.
#[test]
fn what_is_called_detectable_is_found() {
    let many = Many::new();
    let script = many.machine("same.mock", NORMAL.noise, &[]);
    let said = each(trials(10, 150), |seed| {
        let (_, result) = bench(&many, &script, "same", &["--runs", "12"], seed);
        result["comparisons"][0]["detectable_pct"].as_f64().expect("what is detectable")
    });
    let mut sorted = said.clone();
    sorted.sort_by(f64::total_cmp);
    let typical = sorted[sorted.len() / 2];
    let found = |name: &str, effect: f64, count: u64| {
        let line = format!("if append~other: {effect:.3}ms note slower");
        let script = many.machine(&format!("{name}.mock"), NORMAL.noise, &[&line]);
        Rate::of(&each(count, |seed| {
            let (_, result) = bench(&many, &script, "other", &["--runs", "12"], 7000 + seed);
            result["comparisons"][0]["verdict"] == "slower"
        }))
    };
    let name = |share: &str| {
        format!(
            "bench, 12 runs, {}: {share} the {typical:.2} % that are called detectable are found",
            NORMAL.name
        )
    };
    found("less", 0.9 * typical, trials(0, 600)).at_most(0.8, &name("nine tenths of"));
    found("as-said", typical, trials(12, 600)).between(0.72, 0.88, &name(""));
    found("more", 1.1 * typical, trials(0, 600)).at_least(0.8, &name("eleven tenths of"));
    all_kept();
}

/// `--detect 2%` has as many runs as that needs, and its error, however often it looks.
#[test]
fn detecting_what_was_asked_for() {
    let many = Many::new();
    let mean = |pairs: &[u64]| pairs.iter().sum::<u64>() / pairs.len().max(1) as u64;
    let tried = |script: &str, count: u64, seeds: u64| {
        let found = each(count, |seed| {
            let (_, result) = bench(&many, script, "other", &["--detect", "2"], seeds + seed);
            (differs(&result), result["comparisons"][0]["pairs"].as_u64().unwrap_or(0))
        });
        let (differ, pairs): (Vec<bool>, Vec<u64>) = found.into_iter().unzip();
        (differ, mean(&pairs))
    };
    let mut all = Vec::new();
    for (at, world) in (0u64..).zip(&WORLDS) {
        let script = many.on(world, "calm.mock", "append~other", &[]);
        let most = if world.is_uneven { 60 } else { 300 };
        let few = if world.name == NORMAL.name { 8 } else { 0 };
        let (differ, pairs) = tried(&script, trials(few, most), 20_000 + 1000 * at);
        let name = world.name;
        Rate::of(&differ).at_most(
            0.05,
            &format!("bench --detect 2, {name}, nothing changed ({pairs} pairs on average): faster or slower"),
        );
        all.extend(differ);
    }
    let what = "bench --detect 2, all of these, nothing changed: faster or slower";
    Rate::of(&all).at_most(0.05, what);
    let line = "if append~other: 2ms note slower";
    let script = many.machine("slower.mock", NORMAL.noise, &[line]);
    let (found, pairs) = tried(&script, trials(8, 700), 40_000);
    let what =
        format!("bench --detect 2, 2 % slower, normal 3 % ({pairs} pairs on average): found");
    Rate::of(&found).between(0.78, 0.85, &what);
    all_kept();
}
