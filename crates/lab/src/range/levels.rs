//! All commits measured: where their level changes.
//!
//! A commit is one build, and its runs share what the build itself adds; so its centre is one
//! value. Blocks of the plan met the host in the same state: what a block adds is taken out. Runs that
//! place a step ([`super::place`]) are no part of what finds it.

use super::added::{Added, Part, Sizing};
use super::decision::Taken;
use super::detect::{self, Needs};
use super::found::Found;
use super::level::{change, levels, steps, times_of, Level, ALPHA};
use super::place::{first_pass, Placement};
use super::samples::samples;
use super::sizing::{self, Sized};
use super::slow;
use super::times::timed;
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};
use vmeter_model::range::{Change, MeasuredCommit, RangeRecord};
use vmeter_model::{ChangeShape, Estimate, RangeVerdict, Verdict};
use vmeter_session::{SavedRun, Session};
use vmeter_stats::dist::{t_quantile, t_two_sided};
use vmeter_stats::localisation::Placed;
use vmeter_stats::segments::{neighbour_sd, LevelChange, FEWEST};
use vmeter_stats::shape::{Shape, Stretch};
use vmeter_stats::step;
use vmeter_stats::{mean, ratio_of_means, Rule};

/// What builds are taken to differ by where they are too few to tell it.
const BUILD_SD: f64 = 0.01;

/// All runs that place are this part of the first pass, at most.
const SHARE: usize = 2;

/// The changes in `times` (by run, s), which are of `commits`.
pub(super) fn scanned(
    (record, session): (&RangeRecord, &Session),
    (commits, finished): (&[MeasuredCommit], &[SavedRun]),
    times: &BTreeMap<u32, f64>,
    exact: bool,
) -> Found {
    let samples = samples((record, session), finished, times);
    let levels = levels(commits, &samples, Part::is_first);
    match levels.len() {
        0 | 1 => Found::new(RangeVerdict::NotMeasurable),
        n if n < FEWEST && record.builds > 1 => few_builds(&levels),
        n if n < FEWEST => few(&levels, exact),
        _ => {
            let steps = steps(&levels, session.record.seed);
            let placement = (!exact).then(|| Placement::of(&levels, &steps, &samples));
            let taken = taken(record, finished, times);
            let sized = |step: &Step<'_>| sized(session, &taken, step).filter(|_| !exact);
            let mut found = many(&levels, &steps, placement.as_ref(), sized);
            if !exact {
                let first = (levels.as_slice(), steps.as_slice());
                let counted = slow::counted(first, (commits, &samples), session.record.seed);
                counted.enter(&mut found);
            }
            let is_calm = found.verdict == RangeVerdict::NoChange && !exact;
            let detectable_pct = is_calm.then(|| detect::detectable_pct(&levels)).flatten();
            Found { detectable_pct, ..found }
        }
    }
}

/// What the change that is asked for needs, by the first pass; none where nothing is asked.
pub(super) fn needs(
    (record, session): (&RangeRecord, &Session),
    (commits, finished): (&[MeasuredCommit], &[SavedRun]),
    times: &BTreeMap<u32, f64>,
) -> Option<Needs> {
    let asked = record.detect.filter(|_| !record.bisect)?;
    let samples = samples((record, session), finished, times);
    let levels = levels(commits, &samples, Part::is_first);
    let found =
        if levels.len() < FEWEST { Vec::new() } else { steps(&levels, session.record.seed) };
    detect::needs(asked, &levels, &found)
}

/// The commits of a range on disk that are to be run again to place the steps of the first pass, by their
/// position in it.
///
/// # Errors
/// When the session cannot be read.
pub(super) fn to_place(record: &RangeRecord, session: &Session) -> Result<BTreeSet<usize>> {
    let added = Added::of(&session.record);
    let first = first_pass(session);
    let (finished, _) = session.finished()?;
    let exact = finished.iter().all(|(_, run)| run.icount);
    if exact || added.count() * SHARE >= first {
        return Ok(BTreeSet::new());
    }
    let (times, commits) = timed(record, session, &finished)?;
    let samples = samples((record, session), &finished, &times);
    let levels = levels(&commits, &samples, Part::is_first);
    if levels.len() < FEWEST {
        return Ok(BTreeSet::new());
    }
    let steps = steps(&levels, session.record.seed);
    let wanted = Placement::of(&levels, &steps, &samples).wanted(record.runs as usize);
    Ok(wanted.into_iter().filter_map(|at| Some(levels.get(at)?.commit.index)).collect())
}

/// A step to be sized.
pub(super) struct ToSize {
    /// The commits that it came with.
    pub commits: Vec<usize>,
    /// The commits of the levels that it lies between, the nearest first.
    pub levels: [Vec<usize>; 2],
}

/// The steps of a range on disk that are to be run anew for their size; none in virtual time.
///
/// # Errors
/// When the session cannot be read.
pub(super) fn to_size(record: &RangeRecord, session: &Session) -> Result<Vec<ToSize>> {
    let (finished, _) = session.finished()?;
    let (times, commits) = timed(record, session, &finished)?;
    let samples = samples((record, session), &finished, &times);
    let levels = levels(&commits, &samples, Part::is_first);
    if levels.len() < FEWEST || finished.iter().all(|(_, run)| run.icount) {
        return Ok(Vec::new());
    }
    let steps = steps(&levels, session.record.seed);
    let Placement { placed, stretches, .. } = Placement::of(&levels, &steps, &samples);
    let taken = taken(record, &finished, &times);
    // What is no step has no size of one.
    let is_step = |k: &usize| !stretches.iter().any(|s| is_creep(s) && s.holds(*k));
    let open = between_levels(&levels, &placed).into_iter().enumerate();
    let open = open.filter(|(k, step)| is_step(k) && is_open(session, &taken, step));
    Ok(open.filter_map(|(_, step)| step.to_size()).collect())
}

/// The times by run, with the commit and build that each is of.
fn taken(record: &RangeRecord, finished: &[SavedRun], times: &BTreeMap<u32, f64>) -> Taken {
    let own = finished.iter().filter_map(|(_, run)| {
        let (commit, build) = record.of_label(&run.label)?;
        Some((run.index, (commit, build, *times.get(&run.index)?)))
    });
    own.collect()
}

/// What sizes a step by runs of builds of the levels that it lies between.
fn tries<'s>(added: &'s Added, taken: &Taken, step: &Step<'_>) -> Vec<&'s Sizing> {
    let sides = [step.before, step.after];
    let is_of = |commit: usize| sides.iter().any(|s| s.iter().any(|l| l.commit.index == commit));
    let is_own = |own: &&Sizing| {
        let mut runs = taken.range(own.runs[0]..own.runs[1]);
        runs.all(|(_, (commit, ..))| is_of(*commit))
    };
    let commits = step.to_size().map(|to_size| to_size.commits).unwrap_or_default();
    sizing::of(added, taken, &commits).into_iter().filter(is_own).collect()
}

/// A step's size by such runs, if there are some.
fn sized(session: &Session, taken: &Taken, step: &Step<'_>) -> Option<Sized> {
    let added = Added::of(&session.record);
    let tries = tries(&added, taken, step);
    sizing::step(&tries, &session.record.plan, taken, false, BUILD_SD)
}

/// True for a step that is to be run anew: it was not yet, or that did not show it once.
fn is_open(session: &Session, taken: &Taken, step: &Step<'_>) -> bool {
    let added = Added::of(&session.record);
    let tries = tries(&added, taken, step).len();
    let shown = || sized(session, taken, step).is_some_and(|fresh| fresh.shows(rise(step)));
    tries == 0 || tries < sizing::TRIES && !shown()
}

/// Where two levels meet.
struct Step<'l> {
    before: &'l [Level<'l>],
    after: &'l [Level<'l>],
}

impl Step<'_> {
    fn to_size(&self) -> Option<ToSize> {
        let index = |level: &Level<'_>| level.commit.index;
        let (last, first) = (index(self.before.last()?), index(self.after.first()?));
        let levels =
            [self.before.iter().rev().map(index).collect(), self.after.iter().map(index).collect()];
        Some(ToSize { commits: (last + 1..=first).collect(), levels })
    }
}

/// The steps between the levels, each where it was placed.
fn between_levels<'l>(levels: &'l [Level<'l>], placed: &[Placed]) -> Vec<Step<'l>> {
    let mut ends: Vec<usize> = placed.iter().map(|step| step.at).collect();
    ends.push(levels.len());
    let begins = std::iter::once(0).chain(ends.iter().copied());
    let step = |((own, end), begin): ((&Placed, &usize), usize)| {
        Some(Step { before: levels.get(begin..own.at)?, after: levels.get(own.at..*end)? })
    };
    placed.iter().zip(&ends[1..]).zip(begins).filter_map(step).collect()
}

/// Few commits, or exact times: each against the one before it, block by block.
fn few(levels: &[Level<'_>], exact: bool) -> Found {
    let rule = Rule { alpha: ALPHA, comparisons: levels.len() - 1, exact, ..Rule::default() };
    let mut changes = Vec::new();
    let mut excluded: Option<f64> = None;
    let mut decided_all = true;
    for pair in levels.windows(2) {
        let (pairs, _) = crate::blocks::pairs(&pair[0].by_block, &pair[1].by_block);
        let Some(found) = rule.decide(&pairs) else { continue };
        decided_all &= found.verdict != Verdict::Undecidable;
        if matches!(found.verdict, Verdict::Slower | Verdict::Faster) {
            changes.push(change(&pair[..1], &pair[1..], Some(found.ratio), found.p_value));
        }
        let above = (100.0 * (found.ratio.ci95[1] - 1.0)).clamp(0.0, f64::INFINITY);
        excluded = Some(excluded.map_or(above, |most| most.max(above)));
    }
    let verdict = match (changes.is_empty(), decided_all) {
        (false, _) => RangeVerdict::Changed,
        (true, true) => RangeVerdict::NoChange,
        (true, false) => RangeVerdict::Undecided,
    };
    let excluded_pct = excluded.filter(|_| decided_all);
    Found { changes: changes.into_iter().flatten().collect(), excluded_pct, ..Found::new(verdict) }
}

/// Few commits that were built several times: a build is one observation, so that what layout adds
/// is part of what they scatter (all commits' builds alike).
fn few_builds(levels: &[Level<'_>]) -> Found {
    let squares: f64 = levels.iter().map(|l| vmeter_stats::sample::sum_squares(&l.builds)).sum();
    let freedom = levels.iter().map(|l| l.builds.len().saturating_sub(1)).sum::<usize>() as f64;
    let comparisons = (levels.len() - 1) as f64;
    if freedom < 1.0 {
        return Found::new(RangeVerdict::Undecided);
    }
    let mut changes = Vec::new();
    let mut excluded = 0.0f64;
    for pair in levels.windows(2) {
        let (a, b) = (&pair[0].builds, &pair[1].builds);
        let error = squares / freedom * (1.0 / a.len() as f64 + 1.0 / b.len() as f64);
        let size = mean(b) - mean(a);
        let p = t_two_sided(size / error.sqrt().max(1e-300), freedom) * comparisons;
        let half = t_quantile(1.0 - ALPHA / 2.0 / comparisons, freedom) * error.sqrt();
        excluded = excluded.max(100.0 * (size + half).exp_m1());
        if p <= ALPHA {
            let all = ratio_of_means(&times_of(&pair[..1]), &times_of(&pair[1..]));
            let ci95 = [size - half, size + half].map(f64::exp);
            let ratio = all.map(|all| Estimate { mean: size.exp(), ci95, ..all });
            changes.extend(change(&pair[..1], &pair[1..], ratio, p));
        }
    }
    if changes.is_empty() {
        return Found { excluded_pct: Some(excluded), ..Found::new(RangeVerdict::NoChange) };
    }
    Found { changes, ..Found::new(RangeVerdict::Changed) }
}

/// The changes that the steps are, each where it was placed; all where they were found if none was.
fn many<'l>(
    levels: &'l [Level<'l>],
    steps: &[LevelChange],
    placement: Option<&Placement>,
    sized: impl Fn(&Step<'_>) -> Option<Sized>,
) -> Found {
    if steps.is_empty() {
        return Found { excluded_pct: excluded(levels), ..Found::new(RangeVerdict::NoChange) };
    }
    let found = steps.iter().map(|step| Placed { at: step.at, within: [step.at; 2] });
    let own = |(k, p)| placement.and_then(|own| own.placed.get(k)).copied().unwrap_or(p);
    let placed: Vec<Placed> = found.enumerate().map(own).collect();
    let stretches = placement.map_or(&[][..], |own| &own.stretches);
    let between_them = between_levels(levels, &placed);
    let mut changes = Vec::new();
    let mut seen_once = Vec::new();
    for (k, ((step, own), found)) in between_them.iter().zip(&placed).zip(steps).enumerate() {
        let is_of = |s: &&Stretch| s.shape != Shape::StepChange && s.holds(k);
        if let Some(stretch) = stretches.iter().find(is_of) {
            let [from, to] = stretch.steps;
            let (Some(of), Some(found)) = (between_them.get(from..to), steps.get(from..to)) else {
                continue;
            };
            let fresh = if of.len() == 1 { sized(step) } else { None };
            if let Some(fresh) = fresh.filter(|fresh| !fresh.shows(rise(step))) {
                seen_once.extend(change(step.before, step.after, None, 1.0).map(|c| fresh.of(c)));
                continue;
            }
            let all = (k == from).then(|| together(levels, stretch, (of, found), fresh)).flatten();
            let (shown, open): (Vec<_>, Vec<_>) = all.into_iter().partition(has_a_sign);
            changes.extend(shown);
            seen_once.extend(open);
            continue;
        }
        let index = |at: usize| levels.get(at).map(|level| level.commit.index);
        let place = index(own.within[0]).zip(index(own.within[1])).map(|(a, b)| [a, b]);
        let ratio = between(step.before, step.after);
        let Some(change) = change(step.before, step.after, ratio, found.p_value) else { continue };
        let change = Change { place, ..change };
        match sized(step) {
            Some(fresh) if fresh.shows(rise(step)) => changes.push(fresh.of(change)),
            Some(fresh) => seen_once.push(fresh.of(change)),
            None => changes.push(change),
        }
    }
    let verdict = match changes.is_empty() {
        true => RangeVerdict::Undecided,
        false => RangeVerdict::Changed,
    };
    let excluded_pct = excluded(levels).filter(|_| changes.is_empty());
    Found { changes, seen_once, excluded_pct, ..Found::new(verdict) }
}

/// True where the interval of a change says whether it is slower or faster.
fn has_a_sign(change: &Change) -> bool {
    change.ratio.as_ref().is_some_and(|ratio| ratio.leaves_out(1.0))
}

/// What the runs that found a step say of it.
fn rise(step: &Step<'_>) -> f64 {
    let centres = |side: &[Level<'_>]| mean(&side.iter().map(|l| l.centre).collect::<Vec<_>>());
    centres(step.after) - centres(step.before)
}

/// By how much, %, a range in which nothing was found may have got slower: the typical boot of the last commit, or
/// the mean from any commit on, in which its rare slow boots are.
fn excluded(levels: &[Level<'_>]) -> Option<f64> {
    let centres: Vec<f64> = levels.iter().map(|l| l.centre).collect();
    let own = |level: &Level<'_>| mean(&level.runs.iter().map(|(_, y)| *y).collect::<Vec<_>>());
    let means: Vec<f64> = levels.iter().map(own).collect();
    let (n, sd) = (means.len() as f64, vmeter_stats::sample::sd(&means));
    let at = |cut: usize| {
        let (before, after) = means.split_at(cut);
        let both = 1.0 / before.len() as f64 + 1.0 / after.len() as f64;
        let most = mean(after) - mean(before) + t_quantile(0.975, n - 1.0) * sd * both.sqrt();
        100.0 * most.exp_m1()
    };
    let most = (1..means.len()).map(at).fold(0.0, f64::max);
    Some(at_the_end(&centres)?.max(most))
}

fn is_creep(stretch: &Stretch) -> bool {
    stretch.shape == Shape::Creep
        || stretch.shape == Shape::Open && stretch.steps[1] - stretch.steps[0] > 1
}

/// What a stretch that is not told as steps comes to: its last commit over its first, as a creep, or with an
/// interval that holds whether it is one or the steps `of` that were found.
fn together(
    levels: &[Level<'_>],
    stretch: &Stretch,
    (of, found): (&[Step<'_>], &[LevelChange]),
    fresh: Option<Sized>,
) -> Option<Change> {
    let [begin, end] = stretch.commits;
    let own = levels.get(begin..end)?;
    let (first, last) = (own.first()?, own.last()?);
    let (before, after) = (of.first()?.before, of.last()?.after);
    let (rise, half) = stretch.rise;
    let creep = [rise - half, rise, rise + half].map(f64::exp);
    let all = ratio_of_means(&times_of(before), &times_of(after))?;
    let ratio = if stretch.shape == Shape::Creep {
        Estimate { mean: creep[1], ci95: [creep[0], creep[2]], ..all }
    } else {
        let steps = fresh.map(|s| s.ratio).or_else(|| between(before, after)).unwrap_or(all);
        let ci95 = [creep[0].min(steps.ci95[0]), creep[2].max(steps.ci95[1])];
        Estimate { mean: (creep[1] * steps.mean).sqrt(), ci95, ..all }
    };
    let p_value = found.iter().map(|step| step.p_value).fold(1.0, f64::min);
    Some(Change {
        shape: match stretch.shape {
            Shape::Creep => ChangeShape::Creep,
            Shape::StepChange | Shape::Open => ChangeShape::Undecided,
        },
        commits: (first.commit.index + 1..=last.commit.index).collect(),
        before: first.commit.index,
        verdict: if ratio.mean > 1.0 { Verdict::Slower } else { Verdict::Faster },
        jump_s: mean(&times_of(own.get(..1)?)) * (ratio.mean - 1.0),
        ratio: Some(ratio),
        p_value: Some(p_value),
        probability: None,
        sizing: None,
        mean: None,
        place: None,
        slow: None,
    })
}

/// The ratio of two levels by their commits' centres; none where these are too few to show
/// their scatter.
fn between(before: &[Level<'_>], after: &[Level<'_>]) -> Option<Estimate> {
    let centres = |side: &[Level<'_>]| side.iter().map(|l| l.centre).collect::<Vec<f64>>();
    let (a, b) = (centres(before), centres(after));
    let step = step::Step::of_centres(&a, &b)?;
    let all = ratio_of_means(&times_of(before), &times_of(after))?;
    Some(Estimate { mean: step.ratio(), ci95: step.ci95(), ..all })
}

/// By how much, %, the last commit alone may be slower than the others and still look as it
/// does (97.5 %): a change that came with it has only its own runs to show it.
fn at_the_end(centres: &[f64]) -> Option<f64> {
    let (last, others) = centres.split_last()?;
    let n = others.len() as f64;
    let sd = vmeter_stats::sample::sd(centres).max(neighbour_sd(centres));
    let half = t_quantile(0.975, n) * sd * (1.0 + 1.0 / n).sqrt();
    Some((100.0 * (last - mean(others) + half).exp_m1()).clamp(0.0, f64::INFINITY))
}
