//! What watching costs: watched and unwatched boots in turn, and the last answer.
//!
//! The answer is kept per host, watch level and machine, so that the header of
//! every later boot can state it. No figure is ever scaled by it.

use crate::session::{state_dir, Session};
use std::path::PathBuf;
use vmeter_model::files;
use vmeter_model::result::Overhead;
use vmeter_model::run::{RunRecord, SessionMachine, WatchLevel};

/// The last measured cost of watching the session's machine as its runs are watched.
pub fn last(session: &Session) -> Option<Overhead> {
    let machine = session.record.machines.first()?;
    let watch = session.record.plan.iter().map(|p| p.watch).find(|w| *w != WatchLevel::None)?;
    last_for(machine, watch)
}

/// The last measured cost of watching `machine` at `watch`, on this host.
pub fn last_for(machine: &SessionMachine, watch: WatchLevel) -> Option<Overhead> {
    let bytes = files::read_limited(&file(machine, watch), 1 << 20).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Keeps an answer for later boots. Not being able to is not an error of the boot.
pub fn remember(machine: &SessionMachine, overhead: &Overhead) {
    let path = file(machine, overhead.watch);
    let kept = path
        .parent()
        .map_or(Ok(()), std::fs::create_dir_all)
        .and_then(|()| Ok(serde_json::to_vec_pretty(overhead)?))
        .and_then(|bytes| files::write_atomic(&path, &bytes));
    if let Err(error) = kept {
        tracing::warn!("cannot remember the cost of watching in {}: {error}", path.display());
    }
}

/// One file a machine (its argv without anything added) and watch level.
fn file(machine: &SessionMachine, watch: WatchLevel) -> PathBuf {
    let level = format!("{watch:?}").to_lowercase();
    let key = fnv1a(machine.argv.join("\0").as_bytes());
    state_dir().join("overhead").join(format!("{level}-{key:016x}.json"))
}

/// FNV-1a, 64 bits: stable across versions, which `std`'s hasher is not.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The pairs of a session's measured runs: each watched run with the unwatched
/// one of the same turn.
pub fn pairs(runs: &[RunRecord]) -> Vec<(&RunRecord, &RunRecord)> {
    let (watched, bare): (Vec<&RunRecord>, Vec<&RunRecord>) = runs
        .iter()
        .filter(|r| !r.warmup && r.outcome == vmeter_model::Outcome::Done)
        .partition(|r| r.watch != WatchLevel::None);
    // Turn k is runs 2k and 2k + 1, in whichever order the seed chose; a turn of
    // which one run failed is no pair.
    watched
        .into_iter()
        .filter_map(|w| {
            let turn = w.index / 2;
            bare.iter().find(|b| b.index / 2 == turn).map(|b| (w, *b))
        })
        .collect()
}
