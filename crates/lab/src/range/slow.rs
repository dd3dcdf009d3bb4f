//! Which commit changed how often boots are slow.
//!
//! The typical boot is as before, and one of ten takes twice as long. The first pass finds such a change
//! ([`vmeter_stats::rare`]); then all commits are run anew, as their slow boots are too few for those about one commit
//! to tell. The change is told if all runs together show it and the new ones do by themselves.

use super::added::{Added, Part};
use super::found::Found;
use super::level::{self, Level};
use super::samples::{samples, Sample};
use super::times::timed;
use anyhow::Result;
use std::collections::BTreeSet;
use vmeter_model::range::{Change, MeasuredCommit, RangeRecord, SlowBoots};
use vmeter_model::{ChangeShape, RangeVerdict, Verdict};
use vmeter_session::Session;
use vmeter_stats::rare::{is_more, is_shown, RareChange, SlowRuns, CANDIDATE};
use vmeter_stats::segments::{LevelChange, Run, FEWEST};
use vmeter_stats::{mean, ratio_of_means};

/// All commits are run anew so often at most.
const TRIES: usize = 2;
/// Chance of such a change in a range without one, where no fresh runs are made.
const ALPHA: f64 = 0.005;

/// What the runs say of slow boots.
pub(super) enum Counted {
    /// They are as frequent before any commit as since.
    Alike,
    /// They seem to have changed, which no fresh runs were asked.
    Open,
    /// They changed.
    Changed(Change),
    /// They seemed to, and fresh runs do not show it.
    SeenOnce(Change),
}

impl Counted {
    /// Enters what is told into what was found of the levels.
    pub fn enter(self, found: &mut Found) {
        match self {
            Counted::Alike | Counted::Open => {}
            Counted::Changed(change) => {
                found.verdict = RangeVerdict::Changed;
                found.changes.push(change);
            }
            Counted::SeenOnce(change) => {
                if found.verdict == RangeVerdict::NoChange {
                    found.verdict = RangeVerdict::Undecided;
                }
                found.seen_once.push(change);
            }
        }
    }
}

/// What the samples of these commits say; the levels of the first pass change at `steps`.
pub(super) fn counted(
    (first, steps): (&[Level<'_>], &[LevelChange]),
    (commits, samples): (&[MeasuredCommit], &[Sample]),
    seed: u64,
) -> Counted {
    let commit = |step: &LevelChange| Some(first.get(step.at)?.commit.index);
    let steps: Vec<usize> = steps.iter().filter_map(commit).collect();
    let Some((slow, change)) = found(first, &steps, seed).filter(|(_, c)| c.p_value <= CANDIDATE)
    else {
        return Counted::Alike;
    };
    let is_fresh = |sample: &&Sample| sample.part == Part::CountsSlow;
    let fresh: BTreeSet<usize> = samples.iter().filter(is_fresh).map(|s| s.of.host).collect();
    if fresh.is_empty() {
        let told = told(first, (&slow, &change), |_| true);
        return told.filter(|_| change.p_value <= ALPHA).map_or(Counted::Open, Counted::Changed);
    }
    let all = level::levels(commits, samples, |part| part.is_first() || part == Part::CountsSlow);
    let is_fresh = |block: usize| fresh.contains(&block);
    let Some((slow, change)) = found(&all, &steps, seed) else { return Counted::Alike };
    let runs =
        all.iter().flat_map(|level| &level.runs).filter(|(block, _)| is_fresh(*block)).count();
    let told = told(&all, (&slow, &change), is_fresh);
    match told.map(|told| Change { sizing: Some(runs), ..told }) {
        Some(told) if is_shown(&slow, &change, is_fresh) => Counted::Changed(told),
        Some(told) => Counted::SeenOnce(told),
        None => Counted::Alike,
    }
}

/// The slow runs of these levels, which change with the commits `steps`, and where there are more or fewer of them.
fn found(levels: &[Level<'_>], steps: &[usize], seed: u64) -> Option<(SlowRuns, RareChange)> {
    let place = |commit: &usize| levels.iter().position(|l| l.commit.index == *commit);
    let at: Vec<usize> = steps.iter().filter_map(place).collect();
    let runs: Vec<Vec<Run>> = levels.iter().map(|level| level.runs.clone()).collect();
    let slow = SlowRuns::of(&runs, &at)?;
    let change = slow.change(seed)?;
    Some((slow, change))
}

/// The change in words and figures, by the runs whose block `counts`.
fn told(
    levels: &[Level<'_>],
    (slow, change): (&SlowRuns, &RareChange),
    counts: impl Fn(usize) -> bool,
) -> Option<Change> {
    let (before, after) = levels.split_at_checked(change.at)?;
    let times = |side: &[Level<'_>]| -> Vec<f64> {
        let runs = side.iter().flat_map(|level| &level.runs);
        runs.filter(|(block, _)| counts(*block)).map(|(_, y)| y.exp()).collect()
    };
    let (a, b) = (times(before), times(after));
    let ratio = ratio_of_means(&a, &b)?;
    let index = |at: usize| levels.get(at).map(|level| level.commit.index);
    let is_more = is_more(&slow.shares(change.at, |_| true));
    let [before_it, since] = slow.shares(change.at, counts);
    Some(Change {
        shape: ChangeShape::Tail,
        verdict: if is_more { Verdict::Slower } else { Verdict::Faster },
        jump_s: mean(&b) - mean(&a),
        place: index(change.within[0]).zip(index(change.within[1])).map(|(a, b)| [a, b]),
        slow: Some(SlowBoots { before: before_it, since, times: slow.times }),
        ..level::change(before, after, Some(ratio), change.p_value)?
    })
}

/// True if all commits of a range on disk are to be run anew.
///
/// # Errors
/// When the session cannot be read.
pub(super) fn is_open(record: &RangeRecord, session: &Session) -> Result<bool> {
    let (finished, _) = session.finished()?;
    let tries = Added::of(&session.record).slow.len();
    if tries >= TRIES || finished.iter().all(|(_, run)| run.icount) {
        return Ok(false);
    }
    let (times, commits) = timed(record, session, &finished)?;
    let samples = samples((record, session), &finished, &times);
    let first = level::levels(&commits, &samples, Part::is_first);
    if first.len() < FEWEST {
        return Ok(false);
    }
    let seed = session.record.seed;
    let steps = level::steps(&first, seed);
    let counted = counted((&first, &steps), (&commits, &samples), seed);
    Ok(match counted {
        Counted::Alike => false,
        Counted::Changed(_) => tries == 0,
        Counted::Open | Counted::SeenOnce(_) => true,
    })
}
