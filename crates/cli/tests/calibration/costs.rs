//! What watching costs: `vmeter boot --overhead`, which ends when it knows enough.

use crate::rates::{all_kept, Rate};
use crate::worlds::{each, trials, Many};
use std::collections::BTreeMap;

/// What one `--overhead` says: its verdict, and whether its interval holds the truth.
fn measured(many: &Many, script: &str, cost: f64, seed: u64) -> (String, bool) {
    let words = ["boot", "--vmm", "mock", "--machine", script, "--warmup", "0", "--overhead"];
    let (_, result) = many.session(&words, seed);
    let overhead = &result["overhead"];
    let end = |i: usize| overhead["ratio"]["ci95"][i].as_f64().expect("an end");
    let truth = 1.0 + cost / 100.0;
    let verdict = overhead["verdict"].as_str().expect("a verdict").to_owned();
    (verdict, end(0) <= truth && truth <= end(1))
}

/// The noise of all boots, and which have five times as much of it.
struct Host {
    name: &'static str,
    noise: &'static [&'static str],
    one_side: Option<&'static str>,
}

const fn host(name: &'static str, noise: &'static [&'static str]) -> Host {
    Host { name, noise, one_side: None }
}

const fn uneven(name: &'static str, side: &'static str) -> Host {
    Host { name, noise: &["normal 3%"], one_side: Some(side) }
}

const HOSTS: [Host; 9] = [
    host("normal 3 %", &["normal 3%"]),
    host("normal 1 %", &["normal 1%"]),
    host("skewed, slow spells", &["skewed 3%"]),
    host("AR(1) 0.5", &["ar1 3% 0.5"]),
    host("sessions 3 %", &["normal 2%", "session 3%"]),
    host("drift 0.2 % a boot", &["normal 3%", "drift 0.2%"]),
    host("steal bursts", &["normal 3%", "steal 30%"]),
    uneven("watched boots five times as noisy", "watch=light"),
    uneven("unwatched boots five times as noisy", "watch=none"),
];

#[test]
fn overhead_that_is_known() {
    let many = Many::new();
    let mut by_verdict: BTreeMap<String, Vec<bool>> = BTreeMap::new();
    let all = [(2.0, 0), (2.0, 2), (1.0, 1), (3.0, 1), (5.0, 0)];
    let others = [(2.0, 3), (2.0, 4), (2.0, 5), (2.0, 6), (2.0, 7), (5.0, 8)];
    let cases = all.into_iter().chain(others).take(trials(5, 11) as usize);
    for (at, (cost, world)) in (0u64..).zip(cases) {
        let Host { name, noise, one_side } = HOSTS[world];
        let script = format!("overhead-{at}.mock");
        let settings = [format!("cost light {cost}%")];
        let lines = one_side.map(|side| format!("if {side}: noise normal 14.7%"));
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let script = many.script(&script, &settings, noise, &lines);
        let count = trials(2, if one_side.is_some() { 600 } else { 150 });
        let found = each(count, |seed| measured(&many, &script, cost, 1000 * at + seed));
        let cover: Vec<bool> = found.iter().map(|(_, covers)| *covers).collect();
        let what = format!("boot --overhead, which costs {cost} %, {name}");
        Rate::of(&cover).at_least(0.95, &format!("{what}: the interval covers"));
        let wrong = |verdict: &str| match verdict {
            "within" => cost > 3.0,
            "exceeds" => cost <= 3.0,
            _ => false,
        };
        let wrong: Vec<bool> = found.iter().map(|(verdict, _)| wrong(verdict)).collect();
        Rate::of(&wrong).at_most(0.05, &format!("{what}: wrongly within 3 %, or beyond"));
        if one_side.is_some() {
            let decided = found.iter().filter(|(verdict, _)| verdict != "undecided");
            Rate::of(&decided.map(|(_, covers)| *covers).collect::<Vec<_>>())
                .at_least(0.9, &format!("{what}: the interval of those with a verdict covers"));
        }
        for (verdict, covers) in found {
            by_verdict.entry(verdict).or_default().push(covers);
        }
    }
    for (verdict, cover) in by_verdict {
        let what =
            format!("boot --overhead, all of these that end {verdict:?}: the interval covers");
        Rate::of(&cover).at_least(0.9, &what);
    }
    all_kept();
}
