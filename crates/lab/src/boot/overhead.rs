//! What watching costs: watched and unwatched boots in turn, and the last answer.
//!
//! The answer is kept per host, watch level and machine, so that the header of
//! every later boot can state it. No figure is ever scaled by it.

use super::plan::Levels;
use crate::boots::watched;
use crate::looks::Repeats;
use std::collections::BTreeMap;
use std::path::PathBuf;
use vmeter_base::{files, fnv};
use vmeter_model::result::Overhead;
use vmeter_model::run::{Outcome, PlannedRun, RunRecord, SessionMachine, WatchLevel};
use vmeter_model::time::seconds;
use vmeter_model::{Estimate, OverheadVerdict};
use vmeter_session::{state_dir, SavedRun, Session, Watch};
use vmeter_stats::sequential::{Decision, OverheadRule};
use vmeter_stats::{estimate, observations, paired_ratio, MeanRatio};

type Host = BTreeMap<String, serde_json::Value>;

/// What watching the session's machine as its runs are watched costs: by its own pairs of
/// boots, of which `asked` were asked for, or as it was measured last.
pub(crate) fn of(session: &Session, finished: &[SavedRun], asked: Option<u32>) -> Option<Overhead> {
    let plan = &session.record.plan;
    if is_measured(plan) {
        let design = Design::new(levels_of(plan), asked);
        return Some(summarised(finished, &design, &session.record.started_at));
    }
    let machine = session.record.machines.first()?;
    let watch = watched(plan).unwrap_or_default();
    if watch == WatchLevel::None {
        return None;
    }
    // The boots that `full` times are watched lightly.
    let host = &session.record.host;
    last_for(machine, host, watch).or_else(|| last_for(machine, host, WatchLevel::Light))
}

/// True for a plan in which watched and unwatched boots take turns.
pub(super) fn is_measured(plan: &[PlannedRun]) -> bool {
    let has = |unwatched: bool| plan.iter().any(|p| (p.watch == WatchLevel::None) == unwatched);
    has(true) && has(false)
}

/// The levels of a plan in which watched and unwatched boots take turns.
fn levels_of(plan: &[PlannedRun]) -> Levels {
    let has = |level: WatchLevel| plan.iter().any(|p| p.watch == level);
    let asked = if has(WatchLevel::Full) { WatchLevel::Full } else { WatchLevel::Light };
    Levels { asked, timed: if has(WatchLevel::Light) { WatchLevel::Light } else { asked } }
}

fn per_block(levels: Levels) -> u32 {
    if levels.counts_apart() {
        3
    } else {
        2
    }
}

/// What the pairs of these runs say; `at` is when they were made.
fn summarised(finished: &[SavedRun], design: &Design, at: &str) -> Overhead {
    let levels = design.levels;
    let of = |level| pairs(finished.iter().map(|(_, run)| run), level, per_block(levels));
    let timed = of(levels.timed);
    let counting = levels.counts_apart().then(|| of(levels.asked));
    summarise(levels.asked, &timed, counting.as_deref(), design, at)
}

/// The last measured cost of watching `machine` at `watch`, on this host.
pub fn last_for(machine: &SessionMachine, host: &Host, watch: WatchLevel) -> Option<Overhead> {
    let bytes = files::read_limited(&file(machine, host, watch)?, 1 << 20).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Keeps an answer for later boots. Not being able to is not an error of the boot.
pub fn remember(machine: &SessionMachine, host: &Host, overhead: &Overhead) {
    let Some(path) = file(machine, host, overhead.watch) else { return };
    let kept = serde_json::to_vec_pretty(overhead)
        .map_err(std::io::Error::from)
        .and_then(|bytes| files::write_in_new_folder(&path, &bytes));
    if let Err(error) = kept {
        tracing::warn!("cannot write the measured cost of watching to {}: {error}", path.display());
    }
}

/// One file for each watch level of a machine (its argv without anything added, the versions of
/// its VMM, kernel and firmware) on a host (its name, CPU and kernel).
fn file(machine: &SessionMachine, host: &Host, watch: WatchLevel) -> Option<PathBuf> {
    let mut parts = machine.argv.clone();
    parts.extend(machine.provenance.iter().map(|(what, version)| format!("{what}={version}")));
    let of_host = ["hostname", "cpu_model", "kernel"].into_iter();
    parts.extend(of_host.filter_map(|field| host.get(field).map(ToString::to_string)));
    let key = fnv::hash(parts.join("\0").as_bytes());
    Some(state_dir().ok()?.join("overhead").join(format!("{watch}-{key:016x}.json")))
}

/// A watched run and the unwatched one of the same block.
pub type Pair<'a> = (&'a RunRecord, &'a RunRecord);

/// The pairs of a session's measured runs: each run watched at `level` with the
/// unwatched one of its block of `per_block` runs.
///
/// Block k is runs `k * per_block` and those that follow, in whichever order the seed
/// chose; a block of which one of the two failed is no pair.
pub fn pairs<'r>(
    runs: impl IntoIterator<Item = &'r RunRecord>,
    level: WatchLevel,
    per_block: u32,
) -> Vec<Pair<'r>> {
    let done = |r: &&RunRecord| !r.warmup && r.outcome == Outcome::Done;
    let measured: Vec<&RunRecord> = runs.into_iter().filter(done).collect();
    let of_block = |block: u32, level: WatchLevel| {
        measured.iter().find(|r| r.index / per_block == block && r.watch == level).copied()
    };
    let blocks = measured.iter().map(|r| r.index / per_block + 1).max().unwrap_or(0);
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
fn summarise(
    watch: WatchLevel,
    timed: &[Pair<'_>],
    counting: Option<&[Pair<'_>]>,
    design: &Design,
    at: &str,
) -> Overhead {
    let cpu = |r: &RunRecord| r.usage.cpu_s();
    let cpus: Vec<(f64, f64)> = timed.iter().map(|(w, b)| (cpu(w), cpu(b))).collect();
    let walls_of_timed = walls(timed);
    let verdict = match design.decide(&walls_of_timed) {
        Decision::Within => OverheadVerdict::Within,
        Decision::Exceeds => OverheadVerdict::Exceeds,
        Decision::Continue { .. } | Decision::Undecided => OverheadVerdict::Undecided,
    };
    let all = design.ratio(&walls_of_timed);
    let (centre, ci95) = design.stopped(&walls_of_timed).unwrap_or((all.mean, [all.min, all.max]));
    Overhead {
        watch,
        ratio: Estimate { mean: centre, ci95, ..all },
        verdict: Some(verdict),
        bound_pct: 100.0 * (design.rule.bound - 1.0),
        cpu_ratio: design.ratio(&cpus),
        pairs: timed.len(),
        measured_at: at.to_owned(),
        samples_s: walls_of_timed,
        counting_ratio: counting.map(|pairs| design.ratio(&walls(pairs))),
    }
}

/// The bound that is promised for boots that are timed.
const BOUND: f64 = 1.03;

/// Pairs at most, of those asked for or by default.
pub(crate) fn most_pairs(asked: Option<u32>) -> u32 {
    asked.unwrap_or(OverheadRule::default().max_pairs as u32)
}

/// How many pairs it takes to take two mirrored ones for one observation: below it too few
/// observations are left to decide on.
const MIRRORED_FROM: u32 = 24;

/// In which order watched and unwatched boots are made, and what is made of their pairs.
#[derive(Debug, Clone, Copy)]
struct Design {
    levels: Levels,
    /// Of observations.
    rule: OverheadRule,
    /// Pairs in a row that are one observation: two that mirror each other, or one.
    pairs: usize,
}

impl Design {
    fn new(levels: Levels, asked: Option<u32>) -> Self {
        let most = most_pairs(asked);
        let pairs = if levels.counts_apart() || most < MIRRORED_FROM { 1 } else { 2 };
        let default = OverheadRule::default();
        let max_pairs = most as usize / pairs;
        let min_pairs = default.min_pairs.min(max_pairs);
        let rule = OverheadRule { bound: BOUND, max_pairs, min_pairs, ..default };
        Design { levels, rule, pairs }
    }

    /// What the pairs so far say; `next_look` in pairs.
    fn decide(&self, pairs: &[(f64, f64)]) -> Decision {
        match self.rule.decide(&observations(pairs, self.pairs)) {
            Decision::Continue { next_look } => {
                Decision::Continue { next_look: next_look * self.pairs }
            }
            Decision::Within if !self.mean_is_within(pairs) => {
                let looks = self.rule.schedule().into_iter().map(|(look, _)| look * self.pairs);
                let next = looks.into_iter().find(|look| *look > pairs.len());
                next.map_or(Decision::Undecided, |next_look| Decision::Continue { next_look })
            }
            decided => decided,
        }
    }

    /// True if a few slow boots among those that were watched leave the mean within the bound too.
    fn mean_is_within(&self, pairs: &[(f64, f64)]) -> bool {
        let pairs: Vec<(f64, f64)> =
            pairs.iter().map(|(watched, bare)| (*bare, *watched)).collect();
        MeanRatio::of_pairs(&pairs).filter(MeanRatio::has_slow).is_none_or(|found| {
            let [_, high] = found.interval(2.0 * self.rule.alpha);
            high <= self.rule.bound
        })
    }

    fn stopped(&self, pairs: &[(f64, f64)]) -> Option<(f64, [f64; 2])> {
        self.rule.stopped(&observations(pairs, self.pairs))
    }

    fn ratio(&self, pairs: &[(f64, f64)]) -> Estimate {
        let observed = observations(pairs, self.pairs);
        paired_ratio(&observed).map_or_else(|| estimate(&[]), |ratio| ratio.estimate)
    }

    /// Pairs at the first look, and at most.
    fn looks(&self) -> (usize, usize) {
        let first = self.rule.schedule().first().map_or(self.rule.max_pairs, |(n, _)| *n);
        (first * self.pairs, self.rule.max_pairs * self.pairs)
    }

    /// Blocks of one timed boot and one unwatched (and, where counting has boots of its own,
    /// one of those): each block in random order, or every other one mirrored.
    fn plan(&self, warmups: usize, seed: u64) -> Vec<PlannedRun> {
        let mut kinds = vec![self.levels.timed, WatchLevel::None];
        if self.levels.counts_apart() {
            kinds.push(self.levels.asked);
        }
        let (_, most) = self.looks();
        let slots = match self.pairs {
            2 => vmeter_stats::mirrored(warmups, most, seed),
            _ => vmeter_stats::plan(kinds.len(), warmups, most, seed),
        };
        let planned = |slot: vmeter_stats::Slot| PlannedRun {
            machine: 0,
            warmup: slot.warmup,
            watch: kinds[slot.machine],
        };
        slots.into_iter().map(planned).collect()
    }
}

/// Watched and unwatched boots in turn, until the next look at their pairs.
pub(crate) fn plan(levels: Levels, repeats: &Repeats, seed: u64) -> Vec<PlannedRun> {
    let design = Design::new(levels, repeats.runs);
    let warmups = (repeats.warmups() as usize).max(usize::from(levels.counts_apart()));
    let mut whole = design.plan(warmups, seed);
    let (first, _) = design.looks();
    whole.truncate(per_block(levels) as usize * (warmups + repeats.next.unwrap_or(first)));
    whole
}

/// Warns of pairs that can decide nothing.
pub(crate) fn warn_of_few(plan: &[PlannedRun], asked: Option<u32>, watch: &mut Watch<'_>) {
    let design = Design::new(levels_of(plan), asked);
    if let Some(least) = design.rule.too_few() {
        watch.progress.warn(&format!(
            "{} pairs of runs are too few to decide whether watching costs at most {:.0} %: use \
                --runs {} or more",
            design.rule.max_pairs * design.pairs,
            100.0 * (design.rule.bound - 1.0),
            least * design.pairs
        ));
    }
}

/// True if the pairs do not yet say whether the bound holds, and more may. What they say in the
/// end is kept for later boots.
pub(crate) fn extend(repeats: &mut Repeats, session: &Session, finished: &[SavedRun]) -> bool {
    let levels = levels_of(&session.record.plan);
    let design = Design::new(levels, repeats.runs);
    let look = repeats.next.unwrap_or(design.looks().0);
    let failed = finished.iter().any(|(_, run)| run.outcome != Outcome::Done);
    let runs = finished.iter().map(|(_, run)| run);
    let found = pairs(runs, levels.timed, per_block(levels));
    if let Decision::Continue { next_look } = design.decide(&walls(&found)) {
        if !failed && next_look > look {
            repeats.next = Some(next_look);
            return true;
        }
    }
    let record = &session.record;
    if let Some(machine) = record.machines.first().filter(|_| !failed) {
        remember(machine, &record.host, &summarised(finished, &design, &record.started_at));
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIGHT: Levels = Levels { asked: WatchLevel::Light, timed: WatchLevel::Light };

    #[test]
    fn pairs_mirror_each_other_where_there_are_enough() {
        let design = Design::new(LIGHT, Some(40));
        assert_eq!((design.pairs, design.looks()), (2, (20, 40)));
        let plan = design.plan(1, 7);
        assert_eq!(plan.len(), 82);
        for quad in plan[2..].chunks(4) {
            assert_eq!([quad[0].watch, quad[1].watch], [quad[3].watch, quad[2].watch]);
        }
        assert_eq!(Design::new(LIGHT, Some(10)).looks(), (10, 10));
        let counted = Levels { asked: WatchLevel::Full, ..LIGHT };
        assert_eq!(Design::new(counted, None).pairs, 1);
    }

    /// Every second boot takes 10 % more, watched or not.
    #[test]
    fn a_host_that_alternates_hides_nothing() {
        let design = Design::new(LIGHT, Some(40));
        let plan = design.plan(0, 3);
        let mut sides = [Vec::new(), Vec::new()];
        for (at, planned) in plan.iter().enumerate() {
            let watched = planned.watch != WatchLevel::None;
            let cold = if at % 2 == 0 { 1.1 } else { 1.0 };
            sides[usize::from(!watched)].push(cold * if watched { 1.02 } else { 1.0 });
        }
        let pairs: Vec<(f64, f64)> =
            sides[0].iter().copied().zip(sides[1].iter().copied()).collect();
        let decided = design.decide(&pairs[..20]);
        assert!(matches!(decided, Decision::Within), "{decided:?}");
        assert!((design.ratio(&pairs).mean - 1.02).abs() < 1e-9);
        let one_by_one = Design { pairs: 1, ..design };
        let undecided = one_by_one.decide(&pairs);
        assert!(!matches!(undecided, Decision::Within), "{undecided:?}");
    }
}
