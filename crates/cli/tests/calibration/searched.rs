//! Histories that are searched: `vmeter range --bisect`.

use crate::ranges::{guest, history, named, range, searched};
use crate::rates::{all_kept, Rate};
use crate::worlds::{each, trials, Many, RARE};

/// A host and what builds differ by on it, and how it is searched.
struct Case {
    name: &'static str,
    noise: &'static [&'static str],
    words: &'static [&'static str],
}

const fn case(name: &'static str, noise: &'static [&'static str]) -> Case {
    Case { name, noise, words: &["--bisect", "--watch", "none"] }
}

const LAYOUT: Case =
    Case { name: "virtual time, builds 0.1 %", noise: &["build 0.1%"], words: VIRTUAL };

const VIRTUAL: &[&str] = &["--bisect", "--accel", "icount"];

/// Each commit built twice.
const TWICE: [Case; 2] = [
    Case {
        name: "builds 1 %, --builds 2",
        noise: &["normal 3%", "build 1%"],
        words: &["--bisect", "--watch", "none", "--builds", "2"],
    },
    Case {
        name: "builds 1 %, drift 0.2 % a boot, --builds 2 --reference",
        noise: &["normal 3%", "build 1%", "drift 0.2%"],
        words: &["--bisect", "--watch", "none", "--builds", "2", "--reference"],
    },
];

const CASES: [Case; 6] = [
    case("builds 0", &["normal 3%"]),
    case("builds 0.5 %", &["normal 3%", "build 0.5%"]),
    case("builds 1 %", &["normal 3%", "build 1%"]),
    case("builds 0, drift 0.2 % a boot", &["normal 3%", "drift 0.2%"]),
    case("builds 0.5 %, drift 0.2 % a boot", &["normal 3%", "build 0.5%", "drift 0.2%"]),
    case("builds 1 %, drift 0.2 % a boot", &["normal 3%", "build 1%", "drift 0.2%"]),
];

impl Case {
    /// How many searches: a few of the cases are in the small cut.
    fn count(&self, many: u64) -> u64 {
        let in_the_cut = self.is_virtual() || self.name == "builds 1 %" || self.words.len() > 5;
        trials(u64::from(in_the_cut), many)
    }

    /// Slower by this share; one length and no `noise` where the case has none.
    fn guest(&self, share: f64) -> String {
        if self.noise.is_empty() {
            let ms = 307.2 * (1.0 + share);
            return format!("vmeter-mock 1\nrun-spread 3%\n{ms:.3}ms vmm-exec\n0 exit 0\n");
        }
        guest(self.noise, 90.0 + 100.0 * share)
    }

    fn is_virtual(&self) -> bool {
        self.words == VIRTUAL
    }
}

#[test]
fn a_search_in_which_nothing_changed() {
    nothing_changed(std::iter::once(&LAYOUT).chain(&CASES));
}

#[test]
fn a_search_names_who_is_guilty() {
    guilty(std::iter::once(&LAYOUT).chain(&CASES));
}

/// Boots that are rarely slow.
#[test]
fn a_search_among_rare_slow_boots() {
    let cases = RARE.map(|world| case(world.name, world.noise));
    nothing_changed(cases.iter());
    guilty(cases.iter());
}

#[test]
fn a_search_of_commits_that_are_built_twice() {
    nothing_changed(TWICE.iter());
    guilty(TWICE.iter());
}

fn nothing_changed<'c>(cases: impl Iterator<Item = &'c Case>) {
    let many = Many::new();
    let n = trials(12, 31) as usize;
    for case in cases {
        let (count, name) = (case.count(100), case.name);
        if count == 0 {
            continue;
        }
        let repo = history(&many, &format!("calm-{name}"), n, |_| guest(case.noise, 90.0));
        let found =
            each(count, |seed| !named(&range(&many, &repo, n, case.words, seed)).is_empty());
        let what = format!("range --bisect of {n} commits, {name}, nothing changed: a culprit");
        Rate::of(&found).at_most(0.03, &what);
    }
    all_kept();
}

fn guilty<'c>(cases: impl Iterator<Item = &'c Case>) {
    let many = Many::new();
    let n = trials(12, 31) as usize;
    for case in cases {
        let (by, more) = if case.is_virtual() { ("2", 2.0) } else { ("8", 8.0) };
        let count = case.count(90);
        if count == 0 {
            continue;
        }
        let places = if count > 1 { vec![n / 3, n / 2, n - 4] } else { vec![n / 3] };
        let mut found = Vec::new();
        for &at in &places {
            let slower = |i: usize| guest(case.noise, if i >= at { 90.0 + more } else { 90.0 });
            let repo = history(&many, &format!("guilty-{}-{at}", case.name), n, slower);
            found.extend(each(count / places.len() as u64, |seed| {
                let result = range(&many, &repo, n, case.words, seed + 1000 * at as u64);
                named(&result).first().map(|c| *c == at as u64)
            }));
        }
        let what = format!("range --bisect of {n} commits, {}, one slower by {by} %", case.name);
        let told: Vec<bool> = found.iter().copied().flatten().collect();
        Rate::of(&told).at_least(0.95, &format!("{what}: right of those named"));
        Rate::of(&found.iter().map(Option::is_some).collect::<Vec<_>>())
            .told(&format!("{what}: one is named"));
    }
    all_kept();
}

/// Small steps: how often one is named, rightly, with how many boots, and whether what is said of its
/// size holds although it was searched for.
#[test]
fn what_a_search_says_of_a_steps_size() {
    const N: usize = 11;
    const AT: usize = 8;
    const REFERENCE: &[&str] = &["--bisect", "--watch", "none", "--reference"];
    let drift =
        Case { words: REFERENCE, ..case("drift 0.2 % a boot, --reference", CASES[3].noise) };
    let many = Many::new();
    // A mock of another kind: one length, of which runs differ otherwise than by `noise`.
    let spread = case("run-spread 3 %", &[]);
    for (case, by, few, all) in [
        (&CASES[0], 4.0, 2, 120),
        (&CASES[2], 6.0, 0, 120),
        (&drift, 6.0, 0, 80),
        (&spread, 4.0, 0, 500),
    ] {
        let count = trials(few, all);
        if count == 0 {
            continue;
        }
        let slower = |i: usize| case.guest(if i >= AT { by / 100.0 } else { 0.0 });
        let repo = history(&many, &format!("size-{}", case.name), N, slower);
        let above = (by + 0.5).to_string();
        let words = [case.words, &["--fail-if-slower", &above]].concat();
        let found = each(count, |seed| {
            let (status, result) = searched(&many, &repo, N, &words, 5000 + seed);
            let change = &result["changes"][0];
            let end = |i: usize| change["ratio"]["ci95"][i].as_f64().unwrap_or(f64::NAN);
            let truth = 1.0 + by / 100.0;
            let boots = result["effort"]["boots"].as_u64().expect("boots");
            if change["commits"][0].is_u64() {
                assert!(change["sizing"].as_u64() > Some(5), "{change}");
            }
            let named = change["commits"][0].as_u64();
            (named, end(0) <= truth && truth <= end(1), status == 1, boots)
        });
        let boots = found.iter().map(|f| f.3).sum::<u64>() / found.len() as u64;
        let what = format!("range --bisect of {N} commits, {}, one slower by {by} %", case.name);
        let rate = |of: &[bool]| Rate::of(of);
        let named: Vec<_> = found.iter().filter(|f| f.0.is_some()).collect();
        rate(&found.iter().map(|f| f.0 == Some(AT as u64)).collect::<Vec<_>>())
            .told(&format!("{what} ({boots} boots on average): named rightly"));
        rate(&named.iter().map(|f| f.0 == Some(AT as u64)).collect::<Vec<_>>())
            .at_least(0.95, &format!("{what}: right of those named"));
        rate(&named.iter().map(|f| f.1).collect::<Vec<_>>()).between(
            0.93,
            0.97,
            &format!("{what}: the step's interval covers"),
        );
        rate(&found.iter().map(|f| f.2).collect::<Vec<_>>())
            .at_most(0.025, &format!("{what}, --fail-if-slower {above}: exit status 1"));
    }
    all_kept();
}
