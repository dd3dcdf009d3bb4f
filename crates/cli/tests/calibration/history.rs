//! Years of sessions: `vmeter runs trend`.

use crate::rates::{all_kept, Rate};
use crate::worlds::{each, trials, Many};
use serde_json::Value;

/// The changes that the sessions of one machine show: `slower` ms more from session `at` on.
fn trend(many: &Many, seed: u64, sessions: u64, at: u64, slower: &str) -> Vec<Value> {
    let name = format!("trend{seed}");
    let folder = many.path(&name);
    let script = many.path(&format!("{name}.mock")).display().to_string();
    for session in 0..sessions {
        let more =
            if session >= at { format!("{slower} note slower") } else { "0 note as ever".into() };
        many.machine(&format!("{name}.mock"), &["normal 2%", "session 3%"], &[&more]);
        let words = ["boot", "--vmm", "mock", "--machine", &script, "--warmup", "0", "--runs", "3"];
        let more = ["--watch", "none"];
        let save = folder.join(format!("{session:03}"));
        many.saved(&[&words[..], &more].concat(), seed * 1000 + session, &save);
        many.dated(&save, session);
    }
    let text = folder.display().to_string();
    let result = many.json(&["runs", "trend", &text]);
    let _ = std::fs::remove_dir_all(&folder);
    let machines = result["machines"].as_array().expect("machines");
    assert_eq!(machines.len(), 1, "{result}");
    assert!(machines[0]["detectable_pct"].as_f64() > Some(0.0), "{result}");
    machines[0]["changes"].as_array().expect("changes").clone()
}

#[test]
fn sessions_of_a_machine_that_changed_and_of_one_that_did_not() {
    let many = Many::new();
    let calm = each(trials(2, 400), |seed| !trend(&many, seed, 20, 20, "0ms").is_empty());
    Rate::of(&calm)
        .at_most(0.01, "runs trend, 20 sessions that differ by 3 %, nothing changed: a change");
    let found = each(trials(2, 200), |seed| {
        let changes = trend(&many, 1000 + seed, 20, 12, "9ms");
        let near = ["-12T", "-13T", "-14T"];
        let since = |c: &Value| c["since"].as_str().unwrap_or_default().to_owned();
        changes.iter().any(|c| near.iter().any(|day| since(c).contains(day)))
    });
    Rate::of(&found).at_least(
        0.8,
        "runs trend, 20 sessions that differ by 3 %, 9 % slower from the 13th on: found within one",
    );
    all_kept();
}
