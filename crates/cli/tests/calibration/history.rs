//! Years of sessions: `vmeter runs trend`.

use crate::rates::{all_kept, Rate};
use crate::worlds::{each, trials, Many, World, BUILD, NORMAL, RARE, SESSION, WORLDS};
use serde_json::Value;
use vmeter_stats::rng::Rng;

const SESSIONS: u64 = 20;

/// The changes that the sessions of one machine show: `slower` ms more from session `at` on.
fn trend(many: &Many, world: &World, seed: u64, at: u64, slower: &str) -> Vec<Value> {
    trend_on(many, world, seed, |session| {
        if session >= at {
            format!("{slower} note slower")
        } else {
            "0 note as ever".into()
        }
    })
}

/// As [`trend`], `more` being a line of a session's own.
fn trend_on(many: &Many, world: &World, seed: u64, more: impl Fn(u64) -> String) -> Vec<Value> {
    trend_of(SESSIONS, many, world, seed, (|_| 12, more))
}

/// As [`trend_on`], each session of its hour of the day.
fn trend_of(
    sessions: u64,
    many: &Many,
    world: &World,
    seed: u64,
    (hour, more): (fn(u64) -> u64, impl Fn(u64) -> String),
) -> Vec<Value> {
    let name = format!("trend{seed}");
    let folder = many.path(&name);
    let script = many.path(&format!("{name}.mock")).display().to_string();
    for session in 0..sessions {
        let more = more(session);
        let is_noisy = world.is_uneven && session == sessions / 2;
        let noisier: &[&str] = if is_noisy { &["normal 14.7%"] } else { &[] };
        many.machine(&format!("{name}.mock"), &[world.noise, noisier].concat(), &[&more]);
        let words = ["boot", "--vmm", "mock", "--machine", &script, "--warmup", "0", "--runs", "3"];
        let more = ["--watch", "none"];
        let save = folder.join(format!("{session:03}"));
        many.saved(&[&words[..], &more].concat(), seed * 1000 + session, &save);
        many.dated(&save, session, hour(session));
    }
    let text = folder.display().to_string();
    let result = many.json(&["runs", "trend", &text]);
    let _ = std::fs::remove_dir_all(&folder);
    let machines = result["machines"].as_array().expect("machines");
    assert_eq!(machines.len(), 1, "{result}");
    assert!(machines[0]["detectable_pct"].as_f64() > Some(0.0), "{result}");
    machines[0]["changes"].as_array().expect("changes").clone()
}

/// Sessions of a host that remembers, in standard deviations: each has `memory` of the one before it.
fn remembering(seed: u64, memory: f64) -> Vec<f64> {
    let mut rng = Rng::new(seed);
    let mut last = rng.normal();
    let next = |_| {
        let new = memory * last + (1.0 - memory * memory).sqrt() * rng.normal();
        std::mem::replace(&mut last, new)
    };
    (0..SESSIONS).map(next).collect()
}

/// True for a change that is said to be one of the machine.
fn is_told(change: &Value) -> bool {
    change["verdict"] != "undecided"
}

/// True if a change is said to have come with the 13th session, or the one before or after.
fn is_placed(changes: &[Value]) -> bool {
    let near = ["-12T", "-13T", "-14T"];
    let since = |c: &Value| c["since"].as_str().unwrap_or_default().to_owned();
    changes.iter().any(|c| near.iter().any(|day| since(c).contains(day)))
}

#[test]
fn sessions_of_a_machine_that_changed_and_of_one_that_did_not() {
    let many = Many::new();
    let calm = |seed| !trend(&many, &SESSION, seed, SESSIONS, "0ms").is_empty();
    let calm = each(trials(2, 150), calm);
    Rate::of(&calm)
        .at_most(0.01, "runs trend, 20 sessions that differ by 3 %, nothing changed: a change");
    for (slower, many_more) in [("9ms", 300), ("15ms", 100)] {
        let found = |seed| trend(&many, &SESSION, 1000 + seed, 12, slower);
        let found = each(trials(u64::from(slower == "9ms") * 2, many_more), found);
        let what = format!(
            "runs trend, 20 sessions that differ by 3 %, {} % slower from the 13th on",
            slower.trim_end_matches("ms")
        );
        let placed: Vec<bool> = found.iter().map(|changes| is_placed(changes)).collect();
        Rate::of(&placed).at_least(0.8, &format!("{what}: found within one"));
        let told: Vec<bool> = found.iter().map(|changes| changes.iter().any(is_told)).collect();
        Rate::of(&told).told(&format!("{what}: said to be the machine's"));
    }
    all_kept();
}

/// 24 sessions of several levels. Cut by cut, of two steps upward none had both told: in two of six histories one lay in
/// the middle, where nothing happened.
#[test]
fn stairs() {
    let many = Many::new();
    let calm = World { noise: &["normal 0.5%", "session 0.5%"], ..NORMAL };
    // The machine boots in 100 ms: from which session on by how many ms more.
    let all = [
        ("two steps up, 15 and 13 %", &[(8, 15), (16, 30)][..]),
        ("two steps up, 5 and 14 %", &[(8, 5), (16, 20)]),
        ("three steps up, 10 % each", &[(6, 10), (12, 21), (18, 33)]),
        ("15 % up and down again", &[(8, 15), (16, 0)]),
    ];
    for (at, (name, steps)) in (1u64..).zip(all) {
        let more = |session: u64| {
            let level = steps.iter().rev().find(|step| session >= step.0).map_or(0, |step| step.1);
            format!("{level}ms note a level")
        };
        let trial = |seed: u64| {
            let found = trend_of(24, &many, &calm, 700_000 + 1000 * at + seed, (|_| 12, more));
            let is_near = |(change, step): (&Value, &(u64, i32))| {
                let day = change["since"].as_str().and_then(|since| since.get(8..10)?.parse().ok());
                day.is_some_and(|day: u64| day.abs_diff(step.0 + 1) <= 1) && is_told(change)
            };
            found.len() == steps.len() && found.iter().zip(steps).all(is_near)
        };
        let told = each(trials(u64::from(at < 3), 60), trial);
        let what = format!("runs trend, 24 sessions, runs and sessions 0.5 %, {name}: each told within one, and no other");
        Rate::of(&told).at_least(0.95, &what);
    }
    all_kept();
}

/// Ten sessions at 10:00, then ten at 22:00 on a host that is 8 % quicker at night; and sessions every 12 hours.
#[test]
fn day_and_night() {
    let many = Many::new();
    let calm = World { noise: &["normal 2%", "session 1%"], ..NORMAL };
    let at_night =
        |is_night: bool| if is_night { "0 note night" } else { "8ms note day" }.to_owned();
    let apart = |seed| {
        let more = |session: u64| at_night(session >= 10);
        trend_of(
            20,
            &many,
            &calm,
            800_000 + seed,
            (|session| if session >= 10 { 22 } else { 10 }, more),
        )
    };
    let found = each(trials(2, 40), apart);
    let what = "runs trend, 10 sessions by day, then 10 by night, 8 % faster by night";
    let told: Vec<bool> = found.iter().map(|changes| changes.iter().any(is_told)).collect();
    Rate::of(&told).at_most(0.01, &format!("{what}: said to be the machine's"));
    let hour = |c: &Value| c["other_hours"] == serde_json::json!([[10, 10], [22, 22]]);
    let said: Vec<bool> = found.iter().map(|changes| changes.iter().any(hour)).collect();
    Rate::of(&said).told(&format!("{what}: said to be of another hour"));
    all_kept();
}

/// Sessions that resemble the ones before them: levels come and go, and 15 of 100 histories were said to have
/// changed.
#[test]
fn sessions_that_resemble_those_before_them() {
    let many = Many::new();
    for (memory, few, all) in [(0.5, 2, 300), (0.8, 0, 150)] {
        let trial = |seed: u64| {
            let seed = (1000.0 * memory) as u64 * 1000 + seed;
            let levels = remembering(seed, memory);
            // With the 100 ms that there are 120, and 3 % of these.
            let more =
                |session: u64| 20.0 + 3.6 * levels.get(session as usize).copied().unwrap_or(0.0);
            let line = |session: u64| format!("{:.4}ms note the host", more(session).max(0.0));
            trend_on(&many, &World { noise: &["normal 2%"], ..NORMAL }, seed, line)
        };
        let found = each(trials(few, all), trial);
        let told: Vec<bool> = found.iter().map(|changes| changes.iter().any(is_told)).collect();
        let what =
            format!("runs trend, 20 sessions, AR(1) {memory} between sessions, nothing changed");
        let (told, of_machine) = (Rate::of(&told), format!("{what}: a change of the machine"));
        // What is promised ends at 0.5.
        if memory <= 0.5 {
            told.at_most(0.01, &of_machine);
        } else {
            told.told(&of_machine);
        }
        let shown: Vec<bool> = found.iter().map(|changes| !changes.is_empty()).collect();
        Rate::of(&shown).told(&format!("{what}: one, or that it can't tell from the host's"));
    }
    all_kept();
}

/// Sessions on every host. By normal scatter slow boots that happened to meet one session made
/// it a change.
#[test]
fn sessions_on_other_hosts() {
    let many = Many::new();
    let others = WORLDS.iter().filter(|world| world.name != SESSION.name);
    let all = (1u64..).zip(std::iter::once(&BUILD).chain(others).chain(&RARE));
    for (at, world) in all.filter(|(_, world)| world.is_asked()) {
        let seed = |seed: u64| 10_000 * at + seed;
        let is_skewed = world.name.starts_with("skewed");
        let few = u64::from(is_skewed);
        let calm = |own| !trend(&many, world, seed(own), SESSIONS, "0ms").is_empty();
        let what = format!("runs trend, 20 sessions of 3 runs, {}", world.name);
        Rate::of(&each(trials(few, 150), calm))
            .at_most(0.01, &format!("{what}, nothing changed: a change"));
        let many_more = if is_skewed { 60 } else { 0 };
        let found = |own| is_placed(&trend(&many, world, seed(1000 + own), 12, "9ms"));
        Rate::of(&each(trials(0, many_more), found))
            .told(&format!("{what}, 9 % slower from the 13th on: found within one"));
    }
    all_kept();
}
