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

#[test]
fn overhead_that_is_known() {
    let many = Many::new();
    let mut by_verdict: BTreeMap<String, Vec<bool>> = BTreeMap::new();
    let worlds: [(&str, &[&str]); 7] = [
        ("normal 3 %", &["normal 3%"]),
        ("normal 1 %", &["normal 1%"]),
        ("skewed, slow spells", &["skewed 3%"]),
        ("AR(1) 0.5", &["ar1 3% 0.5"]),
        ("sessions 3 %", &["normal 2%", "session 3%"]),
        ("drift 0.2 % a boot", &["normal 3%", "drift 0.2%"]),
        ("steal bursts", &["normal 3%", "steal 30%"]),
    ];
    let cases = [(2.0, 0), (2.0, 2), (1.0, 1), (3.0, 1), (5.0, 0)];
    let others = [(2.0, 3), (2.0, 4), (2.0, 5), (2.0, 6)];
    let cases = cases.into_iter().chain(others).take(trials(5, 9) as usize);
    for (at, (cost, world)) in (0u64..).zip(cases) {
        let (name, noise) = worlds[world];
        let script = format!("overhead-{at}.mock");
        let lines = [format!("cost light {cost}%")];
        let script = many.settings(&script, &lines, noise);
        let found = each(trials(2, 150), |seed| measured(&many, &script, cost, 1000 * at + seed));
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
