//! Many points: `vmeter sweep`.

use crate::rates::{all_kept, Rate};
use crate::worlds::{each, trials, Many, World, NORMAL, RARE, WORLDS};
use serde_json::Value;

fn sweep(many: &Many, script: &str, runs: &str, seed: u64) -> Value {
    let words = ["sweep", "-P", "pcie-root-ports=0..6", "--vmm", "mock", "--machine", script];
    let more = ["--warmup", "0", "--runs", runs];
    many.session(&[&words[..], &more].concat(), seed).1
}

/// The row of a series in `scaling`.
fn row<'v>(result: &'v Value, name: &str) -> &'v Value {
    let rows = result["scaling"].as_array().expect("scaling");
    rows.iter().find(|row| row["phase"] == name).expect("the row")
}

fn has_break(result: &Value) -> bool {
    let rows = result["scaling"].as_array().expect("scaling");
    rows.iter().any(|row| row["breaks"].as_array().is_some_and(|b| !b.is_empty()))
}

fn slope_covers(result: &Value, truth: f64) -> bool {
    let ends = &row(result, "TOTAL")["slope_ci95"];
    let end = |i: usize| ends[i].as_f64().expect("an end");
    end(0) <= truth && truth <= end(1)
}

#[test]
fn a_sweep_in_which_nothing_grows() {
    let many = Many::new();
    for world in WORLDS.iter().chain(&RARE) {
        let script = many.on(world, "flat.mock", "pcie_root_ports=6", &[]);
        let few = if [NORMAL.name, "steal bursts"].contains(&world.name) || world.is_uneven {
            6
        } else {
            2
        };
        let found = each(trials(few, 300), |seed| {
            let result = sweep(&many, &script, "5", seed);
            (has_break(&result), slope_covers(&result, 0.0))
        });
        let (broken, cover): (Vec<bool>, Vec<bool>) = found.into_iter().unzip();
        let name = |what: &str| format!("sweep 7 x 5, {}, flat: {what}", world.name);
        Rate::of(&broken).at_most(0.05, &name("a break"));
        Rate::of(&cover).between(0.93, 0.97, &name("the slope's interval covers"));
    }
    all_kept();
}

/// 10 ms more of 100 from the fifth point on. By means it was found in none of 30 sweeps with rare slow boots.
#[test]
fn a_jump_among_rare_slow_boots() {
    let many = Many::new();
    let quiet = World { name: "normal 1 %", noise: &["normal 1%"], ..NORMAL };
    let later = ["4", "5", "6"].map(|n| format!("if pcie_root_ports={n}: 10ms note slower"));
    let later = later.each_ref().map(String::as_str);
    for (world, few) in std::iter::once(&quiet).chain(&RARE).zip([0, 2, 0, 0, 0]) {
        let count = trials(few, 60);
        if count == 0 {
            continue;
        }
        let script = many.on(world, "jump.mock", "pcie_root_ports=6", &later);
        let found = each(count, |seed| {
            let result = sweep(&many, &script, "5", 500 + seed);
            let total = row(&result, "TOTAL");
            let breaks = total["breaks"].as_array().expect("breaks");
            let at = |b: &Value| b["between"] == serde_json::json!([3.0, 4.0]);
            assert!(
                !breaks.is_empty() || total["detectable_jump_s"].as_f64() > Some(0.0),
                "{total}"
            );
            breaks.iter().any(at)
        });
        let name = world.name;
        Rate::of(&found)
            .told(&format!("sweep 7 x 5, {name}, a jump of 10 ms of 100: found in the whole boot"));
    }
    all_kept();
}

/// Points without an order, compared with the first.
#[test]
fn a_list_of_the_same() {
    let many = Many::new();
    for world in &WORLDS {
        let script = many.on(world, "list.mock", "append~c", &[]);
        let found = each(trials(1, 120), |seed| {
            let words = ["sweep", "-L", "words=a,b,c", "--append", "{words}", "--vmm", "mock"];
            let more = ["--machine", &script, "--warmup", "0"];
            let (_, result) = many.session(&[&words[..], &more].concat(), seed);
            let comparisons = result["comparisons"].as_array().expect("comparisons");
            let differs = |c: &Value| c["verdict"] == "slower" || c["verdict"] == "faster";
            assert_eq!(comparisons.len(), 2, "{result}");
            comparisons.iter().any(differs)
        });
        let what = format!("sweep -L of three, {}, all the same: faster or slower", world.name);
        Rate::of(&found).at_most(0.05, &what);
    }
    all_kept();
}

/// Slow spells of the host as long as a block are the block's, and cancel.
#[test]
fn a_slope_among_slow_spells() {
    let many = Many::new();
    let noise = ["normal 3%", "spell 20% 7"];
    let script = many.machine("slope.mock", &noise, &["2ms*pcie_root_ports note grows"]);
    let found = each(trials(10, 300), |seed| {
        let result = sweep(&many, &script, "5", seed);
        let p = &row(&result, "TOTAL")["p_value"];
        p.as_f64().is_some_and(|p| p <= 0.05)
    });
    Rate::of(&found)
        .at_least(0.95, "sweep 7 x 5, blocks 20 %, runs 3 %: a slope of 2 % a point is found");
    all_kept();
}

/// Review E1: ten times slower was "no difference found" at the defaults, with any number of values.
#[test]
fn ten_times_slower_is_found_at_the_defaults() {
    let many = Many::new();
    let script = many.machine("words.mock", &["normal 3%"], &["if append~slow: 900ms note slow"]);
    for values in ["fast,slow", "fast,other,slow", "fast,a,b,c,d,e,f,g,h,i,j,slow"] {
        let list = format!("words={values}");
        let words = ["sweep", "-L", &list, "--append", "{words}", "--vmm", "mock"];
        let more = ["--machine", &script, "--warmup", "0"];
        let (_, result) = many.session(&[&words[..], &more].concat(), 1);
        let comparisons = result["comparisons"].as_array().expect("comparisons");
        let slow = comparisons.last().expect("the slow one");
        assert_eq!(slow["verdict"], "slower", "{values}: {slow}");
    }
}
