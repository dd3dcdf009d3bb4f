//! Reads each trace once and scores it with each switch off: `ablate each|sets FOLDER…`.
//!
//! `switches.py` copies this file into the examples of an instrumented copy of the crate; it does
//! not compile beside the crate itself.

#[path = "../tests/corpus/mod.rs"]
mod corpus;

use corpus::{Corpus, Fault, Marks};
use std::panic::{catch_unwind, AssertUnwindSafe};
use vmeter_explain::{ablate, load, Loaded, Options};

struct Case {
    folder: usize,
    fault: Fault,
    slow: Loaded,
    ok: Loaded,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (mode, folders) = arguments.split_first().expect("each or sets, then folders");
    let options = Options::default();
    let read = |path: &std::path::PathBuf| load(std::slice::from_ref(path), &options).expect("a trace");
    let mut cases = Vec::new();
    for (folder, path) in folders.iter().enumerate() {
        for fault in Corpus::open(path.as_ref()).expect("a folder with truth.json").faults {
            let (slow, ok) = (read(&fault.slow), read(&fault.ok));
            cases.push(Case { folder, fault, slow, ok });
        }
    }
    let judge = || -> Option<Vec<Marks>> {
        let one = |case: &Case| case.fault.marks(&case.slow.told(&options), &case.ok.told(&options));
        cases.iter().map(|case| catch_unwind(AssertUnwindSafe(|| one(case))).ok()).collect()
    };
    let base = judge().expect("no panic with every switch on");
    let say = |off: &[usize], reached: bool| {
        let Some(now) = judge() else {
            return println!("{}", serde_json::json!({"off": off, "panics": true}));
        };
        let names = |differ: fn(&Marks, &Marks) -> bool| -> Vec<String> {
            let all = cases.iter().zip(base.iter().zip(&now));
            let differing = all.filter(|(_, (base, now))| differ(base, now));
            differing.map(|(case, _)| format!("{}:{}", case.folder, case.fault.name)).collect()
        };
        let score = |folder: usize| {
            let own = cases.iter().zip(&now).filter(|(case, _)| case.folder == folder);
            let own: Vec<&Marks> = own.map(|(_, marks)| marks).collect();
            let count = |is: fn(&Marks) -> bool| own.iter().filter(|marks| is(marks)).count();
            [count(|m| m.strict), count(|m| m.mild), count(|m| m.alarm), own.len()]
        };
        let scores: Vec<_> = (0..folders.len()).map(score).collect();
        let line = serde_json::json!({"off": off, "reached": reached, "scores": scores,
            "strict_lost": names(|b, n| b.strict && !n.strict),
            "strict_won": names(|b, n| !b.strict && n.strict),
            "mild_lost": names(|b, n| b.mild && !n.mild),
            "alarms": names(|b, n| !b.alarm && n.alarm),
            "fewer_alarms": names(|b, n| b.alarm && !n.alarm)});
        println!("{line}");
    };
    say(&[], true);
    if mode == "each" {
        for switch in 0..ablate::SWITCHES {
            let reached = ablate::hits(switch) > 0;
            ablate::set(&[switch]);
            say(&[switch], reached);
        }
        return;
    }
    for line in std::io::stdin().lines() {
        let line = line.expect("a line of numbers");
        let off: Vec<usize> = line.split(',').filter_map(|id| id.trim().parse().ok()).collect();
        ablate::set(&off);
        say(&off, true);
    }
}
