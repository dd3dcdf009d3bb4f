//! Boots of which a few are slow (a retry, a timeout, a flush): one in ten or in twenty takes 1.3 or 3 times as long.
//!
//! Where both sides have the same tail nothing changed. Where one has it the typical boot is the same and the mean is
//! not, so "equal", "faster" and a gate that passes are wrong. A session of n boots shows no slow one at all in
//! (1 - rate)^n of cases, and then nothing can tell it: rows of that have as many boots as make this rarer than
//! the level.

use crate::rates::{all_kept, Rate};
use crate::worlds::{each, trials, Many};
use serde_json::Value;

/// Name, noise of all boots, noise of one side, its mean over the other's.
struct Tail {
    name: &'static str,
    both: &'static str,
    one: &'static str,
    mean: f64,
    /// Boots of which hardly any session shows none that is slow.
    runs: &'static str,
}

const fn tail(
    name: &'static str,
    both: &'static str,
    one: &'static str,
    mean: f64,
    runs: &'static str,
) -> Tail {
    Tail { name, both, one, mean, runs }
}

const TAILS: [Tail; 4] = [
    tail("one in 10 takes 3 x", "rare 3% 1/10 x3", "rare 0% 1/10 x3", 1.2, "60"),
    tail("one in 20 takes 3 x", "rare 3% 1/20 x3", "rare 0% 1/20 x3", 1.1, "100"),
    tail("one in 10 takes 1.3 x", "rare 3% 1/10 x1.3", "rare 0% 1/10 x1.3", 1.03, "60"),
    tail("one in 20 takes 1.3 x", "rare 3% 1/20 x1.3", "rare 0% 1/20 x1.3", 1.015, "100"),
];

/// The words of a bench of a machine against one with `--append other`, or of a boot with it against a baseline without.
fn against(script: &str, baseline: Option<&str>, runs: &str) -> Vec<String> {
    let mut words = vec![if baseline.is_some() { "boot" } else { "bench" }];
    words.extend(["--vmm", "mock", "--machine", script, "--warmup", "0", "--runs", runs]);
    words.extend(["--fail-if-slower", "3"]);
    match baseline {
        Some(folder) => words.extend(["--append", "other", "--baseline", folder]),
        None => words.extend(["--vs", "--append other"]),
    }
    words.into_iter().map(str::to_owned).collect()
}

/// Exit status and the comparison of each session of one of these.
fn judged(many: &Many, words: &[String], count: u64, seeds: u64) -> Vec<(i32, Value)> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    each(count, |seed| {
        let (status, mut result) = many.session(&words, seeds + seed);
        let at_bench = result["comparisons"].get_mut(0).map(Value::take);
        (status, at_bench.unwrap_or_else(|| result["comparison"].take()))
    })
}

fn is(found: &Value, verdicts: &[&str]) -> bool {
    verdicts.iter().any(|verdict| found["verdict"] == **verdict)
}

fn covers(found: &Value, truth: f64) -> bool {
    let end = |i: usize| found["mean_ratio"]["ci95"][i].as_f64().expect("an end");
    end(0) <= truth && truth <= end(1)
}

/// Rows of a command: of the same tail on both sides, and of one side's.
fn rows(many: &Many, command: &str, baseline: bool, counts: [u64; 2]) {
    for (at, tail) in (0u64..).zip(&TAILS) {
        let line = format!("if append~other: noise {}", tail.one);
        let scripts = [
            many.machine(&format!("{command}-both{at}.mock"), &[tail.both], &[]),
            many.machine(&format!("{command}-one{at}.mock"), &["normal 3%"], &[&line]),
        ];
        let found = [(0, "20"), (1, tail.runs)].map(|(which, runs)| {
            let script = &scripts[which];
            let base = many.path(&format!("{command}-base{which}{at}")).display().to_string();
            if baseline && counts[which] > 0 {
                let words = ["boot", "--vmm", "mock", "--machine", script, "--runs", "6"];
                assert_eq!(many.saved(&words, 3 + at, base.as_ref()).0, 0);
            }
            let words = against(script, Some(base.as_str()).filter(|_| baseline), runs);
            judged(many, &words, counts[which], 1000 * at + 50_000 * which as u64)
        });
        let [both, one] = found;
        let rate = |found: &[(i32, Value)], of: &dyn Fn(&(i32, Value)) -> bool| {
            Rate::of(&found.iter().map(of).collect::<Vec<bool>>())
        };
        let what = format!("{command}, 20 runs, {} on both sides", tail.name);
        let differs = |f: &(i32, Value)| is(&f.1, &["faster", "slower"]);
        rate(&both, &differs).at_most(0.05, &format!("{what}: faster or slower"));
        rate(&both, &|f| f.0 == 1).at_most(0.025, &format!("{what}: a gate of 3 % fails"));
        rate(&both, &|f| covers(&f.1, 1.0))
            .at_least(0.95, &format!("{what}: the mean's interval covers"));
        let what = format!("{command}, {} runs, {} on one side", tail.runs, tail.name);
        rate(&one, &|f| covers(&f.1, tail.mean))
            .at_least(0.95, &format!("{what}: the mean's interval covers"));
        rate(&one, &|f| is(&f.1, &["faster"])).at_most(0.025, &format!("{what}: faster"));
        if tail.mean > 1.02 {
            let equal = |f: &(i32, Value)| is(&f.1, &["equal within"]);
            rate(&one, &equal).at_most(0.05, &format!("{what}: equal within 2 %"));
        }
        if tail.mean >= 1.03 {
            rate(&one, &|f| f.0 == 0).at_most(0.025, &format!("{what}: a gate of 3 % passes"));
        }
        rate(&one, &|f| is(&f.1, &["slower"])).told(&format!("{what}: slower"));
    }
}

#[test]
fn bench_where_a_few_boots_are_slow() {
    rows(&Many::new(), "bench", false, [trials(3, 400), trials(2, 200)]);
    all_kept();
}

#[test]
fn a_baseline_where_a_few_boots_are_slow() {
    rows(&Many::new(), "boot --baseline", true, [trials(0, 300), trials(0, 120)]);
    all_kept();
}

/// A mean that is 10 % slower by one boot in twenty, and one that is 2.8 % slower where the typical boot is 3 % faster.
#[test]
fn what_the_typical_boot_hides() {
    let many = Many::new();
    let line = "if append~other: noise rare 0% 1/20 x3";
    let script = many.machine("said.mock", &["normal 3%"], &[line]);
    let found = judged(&many, &against(&script, None, "40"), trials(8, 400), 70_000);
    let rate =
        |of: &dyn Fn(&(i32, Value)) -> bool| Rate::of(&found.iter().map(of).collect::<Vec<bool>>());
    let what = "bench, 40 runs, one in 20 takes 3 x on one side";
    let says = |f: &(i32, Value)| f.1["tail"].is_string() && !is(&f.1, &["equal within", "faster"]);
    rate(&says).at_least(0.8, &format!("{what}: said in words, neither equal nor faster"));
    rate(&|f| f.0 == 0).told(&format!("{what}: a gate of 3 % passes (12.9 % show no slow boot)"));
    let lines =
        ["if append~other: noise rare 0% 1/8.333 x1.5", "if append~other: noise rare 0% 1/1 x0.97"];
    let script = many.machine("faster.mock", &["normal 1%"], &lines);
    let found = judged(&many, &against(&script, None, "30"), trials(0, 300), 80_000);
    Rate::of(&found.iter().map(|f| is(&f.1, &["faster", "equal within"])).collect::<Vec<_>>()).at_most(
        0.05,
        "bench, 30 runs, 3 % faster but for 12 % that take 1.5 x, mean 2.8 % slower: faster or equal",
    );
    all_kept();
}

/// The price: a machine that is 3 % slower, on a host without slow boots and on one with them.
#[test]
fn the_price_in_power() {
    let many = Many::new();
    for (at, noise) in [(0, "normal 3%"), (1, "skewed 3%"), (2, "rare 3% 1/20 x3")] {
        let line = "if append~other: 3ms note slower";
        let script = many.machine(&format!("price{at}.mock"), &[noise], &[line]);
        let found =
            judged(&many, &against(&script, None, "20"), trials(0, 300), 90_000 + 1000 * at);
        let slower: Vec<bool> = found.iter().map(|f| is(&f.1, &["slower"])).collect();
        Rate::of(&slower).told(&format!("bench, 20 runs, {noise}, 3 % slower: slower"));
        let script = many.machine(&format!("same{at}.mock"), &[noise], &[]);
        let found =
            judged(&many, &against(&script, None, "40"), trials(0, 300), 95_000 + 1000 * at);
        let equal: Vec<bool> = found.iter().map(|f| is(&f.1, &["equal within"])).collect();
        let passed: Vec<bool> = found.iter().map(|f| f.0 == 0).collect();
        Rate::of(&equal)
            .told(&format!("bench, 40 runs, {noise}, nothing changed: equal within 2 %"));
        Rate::of(&passed)
            .told(&format!("bench, 40 runs, {noise}, nothing changed: a gate of 3 % passes"));
    }
    all_kept();
}

/// Two sessions of the same machine, a few of whose boots are slow.
#[test]
fn two_sessions_where_a_few_boots_are_slow() {
    let many = Many::new();
    for (at, tail) in (0u64..).zip(&TAILS) {
        let script = many.machine(&format!("diff{at}.mock"), &[tail.both], &[]);
        let found = each(trials(0, 100), |seed| {
            let folders = [0, 1].map(|side| {
                let folder = many.path(&format!("rare{at}-{side}-{seed}"));
                let words = [
                    "boot",
                    "--vmm",
                    "mock",
                    "--machine",
                    &script,
                    "--warmup",
                    "0",
                    "--runs",
                    "10",
                ];
                assert_eq!(many.saved(&words, 2 * seed + side + 1000 * at, &folder).0, 0);
                folder.display().to_string()
            });
            let [a, b] = &folders;
            let status = many.status(&["diff", a, b, "--fail-if-slower", "3"]);
            let verdict =
                many.json(&["diff", a, b])["verdict"].as_str().unwrap_or_default().to_owned();
            folders.iter().for_each(|folder| drop(std::fs::remove_dir_all(folder)));
            (status == 1, verdict == "slower" || verdict == "faster")
        });
        let (failed, differs): (Vec<bool>, Vec<bool>) = found.into_iter().unzip();
        let what = format!("diff of two sessions of 10 runs, {} on both sides", tail.name);
        Rate::of(&failed).at_most(0.025, &format!("{what}: a gate of 3 % fails"));
        Rate::of(&differs).at_most(0.05, &format!("{what}: faster or slower"));
    }
    all_kept();
}

/// Watching that costs 2 %, and watching that makes one boot in ten slow besides.
#[test]
fn overhead_where_a_few_boots_are_slow() {
    let many = Many::new();
    let settings = ["cost light 2%".to_owned()];
    let verdicts = |script: &str, count: u64, seeds: u64| -> Vec<String> {
        let words = ["boot", "--vmm", "mock", "--machine", script, "--warmup", "0", "--overhead"];
        each(count, |seed| {
            let (_, result) = many.session(&words, seeds + seed);
            result["overhead"]["verdict"].as_str().unwrap_or_default().to_owned()
        })
    };
    let rate = |found: &[String], verdict: &str| {
        Rate::of(&found.iter().map(|v| v == verdict).collect::<Vec<_>>())
    };
    for (at, tail) in (0u64..).zip(&TAILS) {
        let name = format!("overhead-both{at}.mock");
        let script = many.script(&name, &settings, &[tail.both], &[]);
        let found = verdicts(&script, trials(0, 120), 1000 * at);
        let what = format!("boot --overhead, which costs 2 %, {} on both sides", tail.name);
        rate(&found, "exceeds").at_most(0.05, &format!("{what}: more than 3 %"));
        let line = format!("if watch=light: noise {}", tail.one);
        let name = format!("overhead-one{at}.mock");
        let script = many.script(&name, &settings, &["normal 1%"], &[&line]);
        if tail.name.contains("10") {
            let found = verdicts(&script, trials(2, 120), 500 + 1000 * at);
            let what = format!("boot --overhead, which costs 2 %, {} if watched", tail.name);
            let unseen = "12 % show no slow boot in the 20 pairs of the first look";
            rate(&found, "within").told(&format!("{what}: at most 3 % ({unseen})"));
        }
    }
    all_kept();
}
