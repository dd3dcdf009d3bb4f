//! Histories of which every commit is measured: `vmeter range`.

use crate::common::text;
use crate::rates::{all_kept, Rate};
use crate::worlds::{each, trials, Many, World, BUILD, NORMAL, RARE, WORLDS};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A repository of `n` commits after the first, each with a machine of its own. Its commits have
/// the same names each time: what builds differ by is drawn from these.
pub fn history(many: &Many, name: &str, n: usize, machine: impl Fn(usize) -> String) -> PathBuf {
    let dir = many.path(name);
    std::fs::create_dir_all(&dir).expect("a folder");
    let git = |words: &[&str]| {
        let run = Command::new("git")
            .current_dir(&dir)
            .args(["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"])
            .args(words)
            .env("GIT_AUTHOR_DATE", "2026-01-01T00:00:00Z")
            .env("GIT_COMMITTER_DATE", "2026-01-01T00:00:00Z")
            .output();
        assert!(run.expect("git").status.success(), "{words:?}");
    };
    git(&["init", "-q"]);
    for i in 0..=n {
        std::fs::write(dir.join("guest.mock"), machine(i)).expect("a machine");
        std::fs::write(dir.join("n"), i.to_string()).expect("a file");
        git(&["add", "."]);
        git(&["commit", "-q", "-m", &format!("commit {i}")]);
    }
    dir
}

pub fn guest(noise: &[&str], ms: f64) -> String {
    let mut text = String::from("vmeter-mock 1\n");
    noise.iter().for_each(|n| text += &format!("noise {n}\n"));
    text + &format!("1ms vmm-exec\n{ms:.4}ms reach start_kernel\n9ms poweroff\n0 exit 0\n")
}

pub fn range(many: &Many, repo: &Path, n: usize, more: &[&str], seed: u64) -> Value {
    searched(many, repo, n, more, seed).1
}

/// As [`range`], and the exit status.
pub fn searched(many: &Many, repo: &Path, n: usize, more: &[&str], seed: u64) -> (i32, Value) {
    let commits = format!("HEAD~{n}..HEAD");
    let mut words = vec!["range", "--repo", text(repo), &commits, "--vmm", "mock"];
    words.extend(["--machine", "{worktree}/guest.mock", "--warmup", "0"]);
    words.extend(more);
    many.session(&words, seed)
}

/// The commits that are said to have changed it.
pub fn named(result: &Value) -> Vec<u64> {
    let changes = result["changes"].as_array().expect("changes");
    changes.iter().filter_map(|c| c["commits"][0].as_u64()).collect()
}

/// Of these the ones of which one commit is told.
fn culprits(result: &Value) -> Vec<u64> {
    let changes = result["changes"].as_array().expect("changes").iter();
    changes.filter(|c| c["shape"] == "step").filter_map(|c| c["commits"][0].as_u64()).collect()
}

/// What each change is told to be.
fn shapes(result: &Value) -> Vec<String> {
    let changes = result["changes"].as_array().expect("changes");
    changes.iter().filter_map(|c| Some(c["shape"].as_str()?.to_owned())).collect()
}

/// Whether the nearest change to `at` says that it may be there.
fn holds(result: &Value, at: usize) -> Option<bool> {
    let changes = result["changes"].as_array().expect("changes");
    let place = |c: &Value| Some([c["place"][0].as_u64()?, c["place"][1].as_u64()?]);
    let near =
        changes.iter().min_by_key(|c| c["commits"][0].as_u64().map(|c| c.abs_diff(at as u64)));
    near.and_then(place).map(|[from, to]| (from..=to).contains(&(at as u64)))
}

const FIVE: [&str; 4] = ["--watch", "none", "--runs", "5"];

/// The guest of a commit in which nothing changed; one in the middle may be noisier.
fn calm(world: &World, is_noisy: bool) -> String {
    let more: &[&str] = if is_noisy { &["normal 14.7%"] } else { &[] };
    guest(&[world.noise, more].concat(), 90.0)
}

#[test]
fn a_range_in_which_nothing_changed() {
    let many = Many::new();
    let n = trials(12, 24) as usize;
    for world in std::iter::once(&BUILD).chain(&WORLDS).chain(&RARE) {
        let few = u64::from(
            [BUILD.name, NORMAL.name, RARE[0].name].contains(&world.name) || world.is_uneven,
        );
        let count = trials(2 * few, 60);
        if count == 0 {
            continue;
        }
        let name = world.name;
        let machine = |i: usize| calm(world, world.is_uneven && i == n / 2);
        let repo = history(&many, &format!("calm-{name}"), n, machine);
        let found = each(count, |seed| !named(&range(&many, &repo, n, &FIVE, seed)).is_empty());
        Rate::of(&found)
            .at_most(0.05, &format!("range of {n} commits x 5, {name}, nothing changed: a change"));
    }
    all_kept();
}

/// A step of 10 % among boots that are rarely slow: by medians of five it was found in half of the ranges, or fewer.
#[test]
fn a_step_among_rare_slow_boots() {
    const N: usize = 12;
    let many = Many::new();
    for (world, few) in RARE.iter().zip([1, 0, 0, 0]) {
        let count = trials(few, 40);
        if count == 0 {
            continue;
        }
        let slower = |i: usize| guest(world.noise, if i >= 6 { 100.0 } else { 90.0 });
        let repo = history(&many, &format!("rare-{}", world.name), N, slower);
        let found = each(count, |seed| {
            let result = range(&many, &repo, N, &FIVE, 300 + seed);
            let right =
                |c: &Value| (c["ratio"]["mean"].as_f64() > Some(1.0)) == (c["verdict"] == "slower");
            assert!(result["changes"].as_array().expect("changes").iter().all(right), "{result}");
            culprits(&result).contains(&6)
        });
        let what = format!("range of {N} commits x 5, {}, one slower by 10 %: named", world.name);
        Rate::of(&found).told(&what);
    }
    all_kept();
}

/// From one commit on a boot of ten takes twice as long; the typical boot is as before.
#[test]
fn a_commit_that_brings_slow_boots() {
    const N: usize = 12;
    let many = Many::new();
    let machine = |i: usize| {
        let noise = if i >= 6 { "rare 1% 1/10 x2" } else { "normal 1%" };
        guest(&[noise], 90.0)
    };
    let repo = history(&many, "tail", N, machine);
    for (runs, few, all) in [("5", 1, 40), ("20", 0, 40)] {
        let count = trials(few, all);
        if count == 0 {
            continue;
        }
        let words = ["--watch", "none", "--runs", runs, "--fail-if-slower", "3"];
        let found = each(count, |seed| {
            let (status, result) = searched(&many, &repo, N, &words, 400 + seed);
            let near = |c: &&Value| c["commits"][0].as_u64().is_some_and(|c| c.abs_diff(6) <= 1);
            let all = result["changes"].as_array().expect("changes").iter();
            let told = all.filter(|c| c["shape"] == "tail").filter(near).count() > 0;
            (told, status == 0)
        });
        let what = format!(
            "range of {N} commits x {runs}, one brings a boot of ten that takes twice as long"
        );
        let (told, passed): (Vec<bool>, Vec<bool>) = found.into_iter().unzip();
        Rate::of(&told).told(&format!("{what}: told within a commit"));
        Rate::of(&passed).at_most(0.05, &format!("{what}: --fail-if-slower 3 passes"));
    }
    all_kept();
}

/// Each commit built twice: builds that differ are no change, whatever their number.
#[test]
fn a_range_that_is_built_twice() {
    let many = Many::new();
    for n in [2, trials(12, 24) as usize] {
        let repo = history(&many, &format!("twice-{n}"), n, |_| calm(&BUILD, false));
        let more = [&FIVE[..], &["--builds", "2"]].concat();
        let found = each(trials(2, 100), |seed| {
            let result = range(&many, &repo, n, &more, seed);
            assert_eq!(result["effort"]["builds"], 2 * (n + 1), "{result}");
            !named(&result).is_empty()
        });
        let what = format!("range --builds 2 of {n} commits x 5, builds 1 %, nothing changed");
        Rate::of(&found).at_most(0.05, &format!("{what}: a change"));
    }
    all_kept();
}

/// `--detect`: as many runs of each commit as finds a step that a quarter of them have.
#[test]
fn what_a_range_is_asked_to_detect() {
    let many = Many::new();
    let n = trials(8, 24) as usize;
    for (world, pct, few) in [(&NORMAL, 2.5, 2), (&BUILD, 3.0, 0)] {
        let asked = pct.to_string();
        let detect = ["--watch", "none", "--detect", &asked, "--no-place"];
        let name = world.name;
        for slower in [false, true] {
            let later = |i: usize| slower && i > n - (n + 1).div_ceil(4);
            let machine = |i: usize| guest(world.noise, if later(i) { 90.0 + pct } else { 90.0 });
            let repo = history(&many, &format!("detect-{name}-{slower}"), n, machine);
            let mut runs = Vec::new();
            let found = each(trials(few, 50), |seed| {
                let result = range(&many, &repo, n, &detect, seed);
                (!named(&result).is_empty(), result["effort"]["boots"].as_u64().unwrap_or(0))
            });
            let found: Vec<bool> = found
                .into_iter()
                .map(|(found, boots)| {
                    runs.push(boots / (n as u64 + 1));
                    found
                })
                .collect();
            let runs = runs.iter().sum::<u64>() / runs.len().max(1) as u64;
            let what = format!("range --detect {pct} of {n} commits ({runs} runs of each), {name}");
            if slower {
                let what = format!("{what}, the last quarter {pct} % slower: found");
                Rate::of(&found).at_least(0.78, &what);
            } else {
                let what = format!("{what}, nothing changed: a change");
                Rate::of(&found).at_most(0.05, &what);
            }
        }
    }
    all_kept();
}

/// A step that five runs of each commit find and do not place; runs beside it decide nothing else.
#[test]
fn a_step_is_placed_by_more_runs_about_it() {
    let many = Many::new();
    let repo = history(&many, "placed", 20, |i| {
        guest(&["normal 3%"], 90.0 + f64::from(u8::from(i >= 9)) * 4.0)
    });
    let spent = |result: &Value, on: &str| result["effort"][on].as_u64().unwrap_or(0);
    let placing = |result: &Value| spent(result, "placing");
    let mut more = 0;
    for seed in 1..4 {
        let alone = range(&many, &repo, 20, &[&FIVE[..], &["--no-place"]].concat(), seed);
        let result = range(&many, &repo, 20, &FIVE, seed);
        assert_eq!((placing(&alone), &alone["effort"]["boots"]), (0, &Value::from(105)));
        // What the first runs show stays a change, be it one of another shape, or is seen once.
        let list = |of: &str| result[of].as_array().cloned().unwrap_or_default();
        let (changes, once) = (list("changes"), list("seen_once"));
        assert_eq!(named(&alone).is_empty(), changes.is_empty() && once.is_empty(), "{result}");
        let further = placing(&result) + spent(&result, "sizing");
        assert_eq!(result["effort"]["boots"].as_u64(), Some(105 + further));
        assert!(further <= 2 * 105, "{result}");
        assert_eq!(spent(&alone, "sizing"), 0);
        let steps = changes.iter().filter(|change| change["shape"] == "step").chain(&once);
        for step in steps {
            assert!(step["sizing"].as_u64().is_some(), "fresh runs tell the size: {step}");
        }
        more += placing(&result);
    }
    assert!(more > 0);
    let exact = history(&many, "exact", 6, |i| guest(&[], if i >= 3 { 95.0 } else { 90.0 }));
    let result = range(&many, &exact, 6, &["--accel", "icount", "--runs", "2"], 1);
    assert_eq!((placing(&result), named(&result)), (0, vec![3]), "one boot says it all");
    assert_eq!(spent(&result, "sizing"), 0);
    all_kept();
}

/// How large a step is: of small ones those are found that chance makes look larger, and by the runs that
/// found them the interval of rightly named ones was missed from above, up to 8 of 36 times.
#[test]
fn what_a_range_says_of_a_steps_size() {
    const N: usize = 24;
    const AT: u64 = 18;
    let many = Many::new();
    for (world, by, few, all) in
        [(&NORMAL, 4.0, 1, 240), (&NORMAL, 2.5, 0, 240), (&BUILD, 4.0, 0, 240)]
    {
        let count = trials(few, all);
        if count == 0 {
            continue;
        }
        let slower = |i: usize| guest(world.noise, if i as u64 >= AT { 90.0 + by } else { 90.0 });
        let repo = history(&many, &format!("size-{}-{by}", world.name), N, slower);
        let above = (by + 0.5).to_string();
        let words = [&FIVE[..], &["--fail-if-slower", &above]].concat();
        let found = each(count, |seed| {
            let (status, result) = searched(&many, &repo, N, &words, 7000 + seed);
            let changes = result["changes"].as_array().expect("changes");
            let own = changes.iter().find(|c| c["commits"] == serde_json::json!([AT]));
            let end = |i: usize| own.and_then(|c| c["ratio"]["ci95"][i].as_f64());
            let truth = 1.0 + by / 100.0;
            let covers = end(0).zip(end(1)).map(|(low, high)| low <= truth && truth <= high);
            (!changes.is_empty(), covers, status == 1, result["effort"]["boots"].as_u64())
        });
        let boots = found.iter().filter_map(|f| f.3).sum::<u64>() / found.len() as u64;
        let name = world.name;
        let what = format!("range of {N} commits x 5, {name}, one slower by {by} %");
        let named: Vec<_> = found.iter().filter(|f| f.0).collect();
        Rate::of(&found.iter().map(|f| f.0).collect::<Vec<_>>())
            .told(&format!("{what} ({boots} boots on average): a change"));
        Rate::of(&named.iter().map(|f| f.1.is_some()).collect::<Vec<_>>())
            .told(&format!("{what}: of these at its commit"));
        let covers: Vec<bool> = found.iter().filter_map(|f| f.1).collect();
        let interval = format!("{what}: the interval of those at its commit covers");
        Rate::of(&covers).between(0.93, 0.97, &interval);
        Rate::of(&found.iter().map(|f| f.2).collect::<Vec<_>>())
            .at_most(0.025, &format!("{what}, --fail-if-slower {above}: exit status 1"));
    }
    all_kept();
}

/// 64 commits, 5 boots each, whose standard deviation is 3 %.
#[test]
fn what_many_commits_show() {
    const N: usize = 64;
    let many = Many::new();
    if trials(0, 1) == 0 {
        return;
    }
    let sigma = 0.03;
    for (world, least, each_place) in [(&NORMAL, Some(0.95), 27), (&BUILD, None, 80)] {
        let mut off: Vec<Option<u64>> = Vec::new();
        let (mut placing, mut held, mut seen) = (0, Vec::new(), Vec::new());
        for at in [12, 33, 52] {
            let machine =
                |i: usize| guest(world.noise, if i >= at { 90.0 + 100.0 * sigma } else { 90.0 });
            let repo = history(&many, &format!("step-{at}-{}", world.name), N, machine);
            let found = each(each_place, |seed| {
                let result = range(&many, &repo, N, &FIVE, seed + 100 * at as u64);
                let nearest = culprits(&result).iter().map(|c| c.abs_diff(at as u64)).min();
                let placing = result["effort"]["placing"].as_u64().unwrap_or(0);
                (nearest, placing, holds(&result, at), !named(&result).is_empty())
            });
            seen.extend(found.iter().map(|f| f.3));
            off.extend(found.iter().map(|f| f.0));
            placing += found.iter().map(|f| f.1).sum::<u64>();
            held.extend(found.iter().filter_map(|f| f.2));
        }
        let within = |most: u64| {
            Rate::of(&off.iter().map(|o| o.is_some_and(|o| o <= most)).collect::<Vec<_>>())
        };
        let more = placing / off.len() as u64;
        let what = format!(
            "range of 64 commits x 5, {}, a step of one standard deviation ({more} runs more on average)",
            world.name
        );
        Rate::of(&seen).at_least(0.95, &format!("{what}: found"));
        // Where builds differ, a step may look like a creep: then nobody is named.
        within(u64::MAX).told(&format!("{what}: a commit is named"));
        match least {
            Some(least) => within(1).at_least(least, &format!("{what}: found within a commit")),
            None => within(1).told(&format!("{what}: found within a commit")),
        }
        within(0).told(&format!("{what}: found at its commit"));
        Rate::of(&held).at_least(0.95, &format!("{what}: among the commits that are said"));
    }
    all_kept();
}

/// Every commit adds a little: none is named, and the gate holds the whole stretch against its limit.
#[test]
fn what_a_creep_is_told_as() {
    let many = Many::new();
    let cases = [
        (16, 0.5, 2, 3, 150),
        (16, 0.25, 2, 0, 150),
        (16, 1.0, 2, 0, 60),
        (16, 0.25, 1, 0, 60),
        (16, 0.5, 1, 0, 60),
        (16, 1.0, 1, 0, 60),
        (63, 0.25, 2, 0, 30),
        (63, 0.5, 2, 0, 30),
        (63, 1.0, 2, 0, 30),
        (63, 0.25, 1, 0, 30),
        (63, 0.5, 1, 0, 30),
        (63, 1.0, 1, 0, 30),
    ];
    for (n, each_adds, noise, few, all) in cases {
        let count = trials(few, all);
        if count == 0 {
            continue;
        }
        let noise_of = format!("normal {noise}%");
        let machine = |i: usize| guest(&[&noise_of], 90.0 + each_adds * i as f64);
        let repo = history(&many, &format!("creep-{n}-{each_adds}-{noise}"), n, machine);
        let found = each(count, |seed| {
            let result = range(&many, &repo, n, &FIVE, 9000 + seed);
            let truth = 1.0 + each_adds * n as f64 / 100.0;
            let whole = result["changes"]
                .as_array()
                .expect("changes")
                .iter()
                .find(|c| c["shape"] != "step");
            let end = |i: usize| whole.and_then(|c| c["ratio"]["ci95"][i].as_f64());
            let covers = end(0).zip(end(1)).map(|(low, high)| low <= truth && truth <= high);
            let one = shapes(&result).contains(&"step".to_owned());
            (!named(&result).is_empty(), one, shapes(&result) == ["creep"], covers)
        });
        let what = format!(
            "range of {} commits x 5, normal {noise} %, a creep of {each_adds} % a commit",
            n + 1
        );
        Rate::of(&found.iter().map(|f| f.0).collect::<Vec<_>>()).told(&format!("{what}: a change"));
        Rate::of(&found.iter().map(|f| f.1).collect::<Vec<_>>())
            .at_most(0.05, &format!("{what}: a commit is named"));
        Rate::of(&found.iter().map(|f| f.2).collect::<Vec<_>>())
            .told(&format!("{what}: told as a creep"));
        let covers: Vec<bool> = found.iter().filter_map(|f| f.3).collect();
        Rate::of(&covers).at_least(0.93, &format!("{what}: the interval of the whole covers"));
    }
    if trials(0, 1) == 1 {
        let machine = |i: usize| guest(NORMAL.noise, 90.0 + 0.75 * i as f64);
        let repo = history(&many, "creep", 64, machine);
        let found = each(20, |seed| shapes(&range(&many, &repo, 64, &FIVE, seed)) == ["creep"]);
        let what =
            "range of 64 commits x 5, normal 3 %, a creep of 16 standard deviations: told as one";
        Rate::of(&found).at_least(0.95, what);
    }
    all_kept();
}
