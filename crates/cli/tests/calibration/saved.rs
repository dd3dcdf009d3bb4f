//! What was measured on another day: `vmeter boot --baseline`, `vmeter diff`.

use crate::rates::{all_kept, Rate};
use crate::worlds::{each, trials, Many, World, WORLDS};

const DAYS: World =
    World { name: "sessions 5 %", noise: &["normal 2%", "session 5%"], is_uneven: false };

fn boot<'w>(script: &'w str, more: &[&'w str]) -> Vec<&'w str> {
    let words = ["boot", "--vmm", "mock", "--machine", script, "--warmup", "0"];
    words.iter().chain(more).copied().collect()
}

/// Review E6: runs of last week's session were taken for exchangeable with today's.
/// The machine of a baseline is booted again, in turn with the other: another day does not
/// matter.
#[test]
fn a_baseline_of_another_day() {
    let many = Many::new();
    for (at, world) in (0u64..).zip(std::iter::once(&DAYS).chain(&WORLDS)) {
        let script = many.on(world, "day.mock", "label=baseline", &[]);
        let gate = |base: &str, seed: u64| {
            let more = ["--baseline", base, "--fail-if-slower", "3", "--runs", "10"];
            let (status, result) = many.session(&boot(&script, &more), 90_000 + seed);
            let ends = &result["comparison"]["ratio"]["ci95"];
            let end = |i: usize| ends[i].as_f64().expect("an end");
            (status == 1, end(0) <= 1.0 && 1.0 <= end(1))
        };
        let count = if at == 0 { trials(6, 300) } else { trials(0, 120) };
        let base = many.path(&format!("base{at}"));
        if count > 0 {
            let (status, _) = many.saved(&boot(&script, &["--runs", "6"]), 5 + at, &base);
            assert_eq!(status, 0);
        }
        let shown = base.display().to_string();
        let (failed, cover): (Vec<bool>, Vec<bool>) =
            each(count, |seed| gate(&shown, seed + 1000 * at)).into_iter().unzip();
        let name = world.name;
        let what = format!("boot --baseline --fail-if-slower 3, {name}, nothing changed");
        Rate::of(&failed).at_most(0.025, &format!("{what}: exit status 1"));
        Rate::of(&cover).between(0.93, 0.97, &format!("{what}: the interval covers"));
    }
    all_kept();
}

/// `--detect` beside a baseline, as in a bench.
#[test]
fn what_a_baseline_is_asked_to_detect() {
    let many = Many::new();
    for (line, count) in [("0 note as-ever", trials(0, 300)), ("2ms note slower", trials(2, 400))] {
        let line = format!("if label=default: {line}");
        let script = many.machine("detect.mock", &["normal 2%"], &[&line]);
        let base = many.path("base-detect");
        let (status, _) = many.saved(&boot(&script, &["--runs", "6"]), 1, &base);
        assert_eq!(status, 0);
        let shown = base.display().to_string();
        let found = each(count, |seed| {
            let more = ["--baseline", shown.as_str(), "--detect", "2"];
            let (_, result) = many.session(&boot(&script, &more), 50_000 + seed);
            let found = &result["comparison"];
            let pairs = found["pairs"].as_u64().expect("pairs");
            assert!(pairs >= 12, "{found}");
            found["verdict"].as_str().unwrap_or_default().to_owned()
        });
        let _ = std::fs::remove_dir_all(&base);
        let of = |words: &[&str]| {
            Rate::of(&found.iter().map(|v| words.contains(&v.as_str())).collect::<Vec<_>>())
        };
        let what = "boot --baseline --detect 2, normal 2 %";
        if line.ends_with("slower") {
            of(&["slower"]).between(0.78, 0.85, &format!("{what}, 2 % slower: found"));
        } else {
            of(&["slower", "faster"])
                .at_most(0.05, &format!("{what}, nothing changed: faster or slower"));
        }
    }
    let script = many.machine("detect.mock", &["normal 2%"], &[]);
    let refused = many.status(&boot(&script, &["--detect", "2"]));
    assert_eq!(refused, 2, "a difference to what?");
    all_kept();
}

/// Where sessions are saved, what these differ by is known, and a gate can fail: one session among
/// those that it is held against made itself an ordinary one, and none failed.
#[test]
fn a_session_against_many() {
    let many = Many::new();
    let days = |more: &str, seed: u64| {
        let years = many.path(&format!("years{seed}"));
        std::fs::create_dir(&years).expect("a folder");
        let folders: Vec<String> = (0..9)
            .map(|day| {
                let line = if day == 8 { more } else { "0 note as ever" };
                let name = format!("years{seed}.mock");
                let script = many.machine(&name, &["normal 1%", "session 2%"], &[line]);
                let folder = years.join(format!("{day}"));
                let words = boot(&script, &["--runs", "3"]);
                let (status, _) = many.saved(&words, 100 * seed + day, &folder);
                assert_eq!(status, 0);
                folder.display().to_string()
            })
            .collect();
        let status = many.status(&["diff", &folders[7], &folders[8], "--fail-if-slower", "3"]);
        let _ = std::fs::remove_dir_all(years);
        status
    };
    let calm = each(trials(2, 200), |seed| days("0 note as ever", seed) == 1);
    Rate::of(&calm).at_most(
        0.025,
        "diff of two of nine sessions that differ by 2 %, nothing changed: exit status 1 of \
         --fail-if-slower 3",
    );
    let slower = each(trials(2, 100), |seed| days("25ms note slower", 1000 + seed) == 1);
    Rate::of(&slower).told(
        "diff of two of nine sessions that differ by 2 %, 25 % slower: exit status 1 of \
         --fail-if-slower 3",
    );
    all_kept();
}

/// Two sessions alone say nothing of whether it is the machine that is slower: where their runs
/// differ, that is said beside it, and a gate does not fail.
#[test]
fn two_sessions() {
    let many = Many::new();
    for (at, world) in (0u64..).zip(std::iter::once(&DAYS).chain(&WORLDS)) {
        // One script, unless one side is the noisier one.
        let calm = many.machine("calm.mock", world.noise, &[]);
        let noisier = || many.on(world, "noisier.mock", "watch=light", &[]);
        let other = if world.is_uneven { noisier() } else { calm.clone() };
        let count = if at == 0 { trials(6, 200) } else { trials(0, 150) };
        let found = each(count, |seed| {
            let seed = seed + 1000 * at;
            let [a, b] = [(0, &calm), (1, &other)].map(|(side, script)| {
                let folder = many.path(&format!("two{side}-{seed}"));
                let words = boot(script, &["--runs", "6"]);
                let (status, _) = many.saved(&words, 2 * seed + side, &folder);
                assert_eq!(status, 0);
                folder.display().to_string()
            });
            let status = many.status(&["diff", &a, &b, "--fail-if-slower", "3"]);
            let result = many.json(&["diff", &a, &b]);
            for folder in [a, b] {
                let _ = std::fs::remove_dir_all(folder);
            }
            let verdict = result["verdict"].as_str().unwrap_or_default();
            let differs = ["slower", "faster", "different"].contains(&verdict);
            let warnings = result["warnings"].as_array().expect("warnings");
            let is_said = warnings.iter().any(|w| {
                w.as_str().is_some_and(|w| w.contains("the two sessions ran at different times"))
            });
            (status == 1, differs, differs && !is_said)
        });
        let rate = |of: &dyn Fn(&(bool, bool, bool)) -> bool| {
            Rate::of(&found.iter().map(of).collect::<Vec<bool>>())
        };
        let what = format!("diff of two sessions, {}, nothing changed", world.name);
        rate(&|f| f.0).at_most(0.025, &format!("{what}: exit status 1 of --fail-if-slower 3"));
        rate(&|f| f.2).at_most(
            0.05,
            &format!("{what}: runs differ, and it is not said that an hour can do that"),
        );
        rate(&|f| f.1).told(&format!("{what}: runs differ"));
    }
    all_kept();
}
