//! What vmeter itself costs: analysing a saved boot again, and a session of boots
//! beside the same boots started plainly.
//!
//! `cargo bench -p vmeter --bench cost`. Numbers, no assertions: a busy host says more
//! about itself than about vmeter.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

const RUNS: usize = 5;
const ROUNDS: usize = 8;

fn main() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let session = folder.path().join("first");
    let Some(first) = boot(&session, 1) else {
        println!("cost: skipped: vmeter boot does not work here (make boot says why)");
        return;
    };
    println!("cost: one watched boot with start-up and report: {first:.3} s");
    reanalyse(&session);
    beside_plain(folder.path(), &session);
}

/// A session of watched boots; its wall time, s.
fn boot(session: &Path, runs: usize) -> Option<f64> {
    let begin = Instant::now();
    let status = Command::new(env!("CARGO_BIN_EXE_vmeter"))
        .args(["boot", "-q", "--warmup", "0", "--runs", &runs.to_string(), "--save"])
        .arg(session)
        .stdout(Stdio::null())
        .status()
        .ok()?;
    status.success().then(|| begin.elapsed().as_secs_f64())
}

/// Decodes and accounts for the same saved run again and again.
fn reanalyse(session: &Path) {
    let session = vmeter_session::Session::open(session).expect("the session just saved");
    let mut times: Vec<f64> = (0..20)
        .map(|_| {
            let begin = Instant::now();
            let result = vmeter_lab::boot::result(&session).expect("an analysis");
            assert!(!result.runs.is_empty());
            begin.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!(
        "cost: a saved full boot is analysed again in {:.1} ms (median of {}, {:.1} to {:.1})",
        times[times.len() / 2],
        times.len(),
        times[0],
        times[times.len() - 1]
    );
}

/// Sessions of boots and the same number of plain starts of the same VMM, in turn.
fn beside_plain(folder: &Path, session: &Path) {
    let text = std::fs::read(session.join("session.json")).expect("session.json");
    let record: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let argv: Vec<String> =
        serde_json::from_value(record["machines"][0]["argv"].clone()).expect("an argv");
    let plain = || {
        let begin = Instant::now();
        for _ in 0..RUNS {
            let status = Command::new(&argv[0])
                .args(&argv[1..])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .status();
            assert!(status.is_ok_and(|s| s.success()), "{argv:?}");
        }
        begin.elapsed().as_secs_f64()
    };
    let mut ratios: Vec<f64> = (0..ROUNDS)
        .filter_map(|round| {
            let watched = boot(&folder.join(format!("round-{round}")), RUNS)?;
            Some(watched / plain())
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    println!(
        "cost: vmeter boot --runs {RUNS} takes {:.3} x {RUNS} plain boots (median of {ROUNDS}, {:.3} to {:.3})",
        ratios[ratios.len() / 2],
        ratios[0],
        ratios[ratios.len() - 1]
    );
}
