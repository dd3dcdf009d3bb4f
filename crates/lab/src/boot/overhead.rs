//! What watching costs: watched and unwatched boots in turn, and the last answer.
//!
//! The answer is kept per host, watch level and machine, so that the header of
//! every later boot can state it. No figure is ever scaled by it.

use std::path::PathBuf;
use vmeter_base::{files, fnv};
use vmeter_model::result::Overhead;
use vmeter_model::run::{Outcome, RunRecord, SessionMachine, WatchLevel};
use vmeter_model::time::seconds;
use vmeter_model::Estimate;
use vmeter_session::{state_dir, Session};
use vmeter_stats::{estimate, paired_ratio};

/// The last measured cost of watching the session's machine as its runs are watched.
pub fn last(session: &Session) -> Option<Overhead> {
    let machine = session.record.machines.first()?;
    let watches = || session.record.plan.iter().map(|p| p.watch);
    let watch = watches()
        .find(|w| *w == WatchLevel::Full)
        .or_else(|| watches().find(|w| *w != WatchLevel::None))?;
    // The boots that `full` times are watched lightly.
    last_for(machine, watch).or_else(|| last_for(machine, WatchLevel::Light))
}

/// The last measured cost of watching `machine` at `watch`, on this host.
pub fn last_for(machine: &SessionMachine, watch: WatchLevel) -> Option<Overhead> {
    let bytes = files::read_limited(&file(machine, watch), 1 << 20).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Keeps an answer for later boots. Not being able to is not an error of the boot.
pub fn remember(machine: &SessionMachine, overhead: &Overhead) {
    let path = file(machine, overhead.watch);
    let kept = serde_json::to_vec_pretty(overhead)
        .map_err(std::io::Error::from)
        .and_then(|bytes| files::write_in_new_folder(&path, &bytes));
    if let Err(error) = kept {
        tracing::warn!("cannot remember the cost of watching in {}: {error}", path.display());
    }
}

/// One file a machine (its argv without anything added) and watch level.
fn file(machine: &SessionMachine, watch: WatchLevel) -> PathBuf {
    let level = format!("{watch:?}").to_lowercase();
    let key = fnv::hash(machine.argv.join("\0").as_bytes());
    state_dir().join("overhead").join(format!("{level}-{key:016x}.json"))
}

/// A watched run and the unwatched one of the same block.
pub type Pair<'a> = (&'a RunRecord, &'a RunRecord);

/// The pairs of a session's measured runs: each run watched at `level` with the
/// unwatched one of its block of `per_block` runs.
///
/// Block k is runs `k * per_block` and those that follow, in whichever order the seed
/// chose; a block of which one of the two failed is no pair.
pub fn pairs(runs: &[RunRecord], level: WatchLevel, per_block: u32) -> Vec<Pair<'_>> {
    let done = |r: &&RunRecord| !r.warmup && r.outcome == Outcome::Done;
    let measured: Vec<&RunRecord> = runs.iter().filter(done).collect();
    let of_block = |block: u32, level: WatchLevel| {
        measured.iter().find(|r| r.index / per_block == block && r.watch == level).copied()
    };
    let blocks = runs.iter().map(|r| r.index / per_block + 1).max().unwrap_or(0);
    (0..blocks)
        .filter_map(|block| Some((of_block(block, level)?, of_block(block, WatchLevel::None)?)))
        .collect()
}

/// Wall times of pairs, s.
pub fn walls(pairs: &[Pair<'_>]) -> Vec<(f64, f64)> {
    pairs.iter().map(|(w, b)| (seconds(w.total_ns), seconds(b.total_ns))).collect()
}

/// What the pairs say: `timed` of the boots that are timed, `counting` of those that
/// count instructions, where they are others.
pub fn summarise(watch: WatchLevel, timed: &[Pair<'_>], counting: Option<&[Pair<'_>]>) -> Overhead {
    let cpu = |r: &RunRecord| r.usage.cpu_s();
    let cpus: Vec<(f64, f64)> = timed.iter().map(|(w, b)| (cpu(w), cpu(b))).collect();
    let walls_of_timed = walls(timed);
    Overhead {
        watch,
        ratio: ratio(&walls_of_timed),
        cpu_ratio: ratio(&cpus),
        pairs: timed.len(),
        measured_at: vmeter_session::host::now(),
        samples_s: walls_of_timed,
        counting_ratio: counting.map(|pairs| ratio(&walls(pairs))),
    }
}

fn ratio(pairs: &[(f64, f64)]) -> Estimate {
    paired_ratio(pairs).map_or_else(|| estimate(&[]), |ratio| ratio.estimate)
}
