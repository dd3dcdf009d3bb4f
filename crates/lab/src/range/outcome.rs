//! From a range on disk to its answer.

use super::added::{Added, Part};
use super::config::DEFAULT_RUNS;
use super::decision;
use super::found::Found;
use super::levels::scanned;
use super::record::load;
use super::sizing;
use super::times::{commits, sample, times};
use crate::diff;
use anyhow::Result;
use std::collections::BTreeSet;
use vmeter_base::shell;
use vmeter_model::range::{Change, Effort, MeasuredCommit, RangeRecord, RangeResult};
use vmeter_model::run::{PlannedRun, RunRecord};
use vmeter_model::sweep::DiffResult;
use vmeter_model::Estimate;
use vmeter_model::{ChangeShape, RangeVerdict};
use vmeter_session::{envelope, SavedRun, Session};
use vmeter_stats::step::Step;
use vmeter_stats::{mean, ratio_of_means, Answer, Verdict};

/// The result of a saved range.
///
/// # Errors
/// When its folder cannot be read.
pub fn result(session: &Session) -> Result<RangeResult> {
    let record = load(&session.dir)?;
    let (finished, mut warnings) = session.finished()?;
    if finished.is_empty() && session.record.plan.iter().any(|planned| !planned.warmup) {
        return Err(session.no_runs(&warnings));
    }
    warnings.extend(session.record.notes.iter().cloned());
    let (times, factors) = times(&record, session, &finished);
    let (mut commits, built) = commits(&record, session, &finished, &times)?;
    warnings.extend(factors.warnings);
    warnings.extend(unfinished(session, &finished));
    let mut found = if record.bisect {
        let runs = finished.iter().map(|(_, run)| run);
        let (own, said) = decision::comparable(&session.record, runs);
        warnings.extend(said);
        let added = Added::of(&session.record);
        let runs = (finished.as_slice(), session.record.plan.as_slice());
        searched((&record, &added), &mut commits, runs, &own)
    } else {
        let exact = finished.iter().all(|(_, run)| run.icount);
        let needs = super::levels::needs((&record, session), (&commits, &finished), &times);
        let have = super::detect::runs_each(&record, &session.record) * record.builds.max(1);
        if let Some((asked, needs)) = record.detect.zip(needs).filter(|_| !exact) {
            warnings.push(super::detect::remark(asked, needs, have));
        }
        scanned((&record, session), (&commits, &finished), &times, exact)
    };
    found.changes.retain(|change| change.ratio.is_some());
    let explained = explained(&record, session, &finished, found.changes.first());
    let ends = found.ends.take();
    warnings.extend(remarks(&record, &commits));
    if built.repeated > 0 {
        warnings.push(format!(
            "for {} commits, another build gave the same files as the first build, so --builds \
                has no effect on them. A build command can read the number of the build from \
                VMETER_BUILD, and use this number to vary the link order or the padding",
            built.repeated
        ));
    }
    let measured: Vec<&MeasuredCommit> = with_samples(&commits).collect();
    let ends = match measured.as_slice() {
        [first, .., last] => {
            let all = ratio_of_means(&first.samples_s, &last.samples_s);
            match (record.bisect, ends) {
                (true, Some(apart)) => {
                    all.map(|all| Estimate { mean: apart.ratio(), ci95: apart.ci95(), ..all })
                }
                (true, None) => None,
                (false, _) => all,
            }
        }
        _ => None,
    };
    Ok(RangeResult {
        envelope: envelope::envelope(&session.record),
        hosts: factors.hosts,
        effort: effort(&record, session, &finished, built.builds),
        hints: hints(&record, session, &found),
        verdict: found.verdict,
        suspects: found.suspects,
        probability: found.probability,
        excluded_pct: found.excluded_pct,
        detectable_pct: found.detectable_pct,
        changes: found.changes,
        seen_once: found.seen_once,
        commits,
        ends,
        explained,
        warnings,
        saved_in: session.dir.display().to_string(),
        record,
    })
}

/// What differs inside of the runs across a change, by all runs of the builds on either side.
fn explained(
    record: &RangeRecord,
    session: &Session,
    finished: &[SavedRun],
    change: Option<&Change>,
) -> Option<DiffResult> {
    let side = |at: usize| {
        let label = record.commits.get(at)?.short();
        let side = diff::Side::of_machine(session, finished, label);
        (!side.runs.is_empty()).then_some(side)
    };
    let change = change?;
    let (a, b) = (side(change.before)?, side(*change.commits.last()?)?);
    Some(diff::compare_sides(&a, &b, session.record.seed))
}

fn with_samples(commits: &[MeasuredCommit]) -> impl Iterator<Item = &MeasuredCommit> {
    commits.iter().filter(|c| !c.samples_s.is_empty())
}

/// A shard is not the whole, and neither is a range whose runs are not all there.
fn unfinished(session: &Session, finished: &[SavedRun]) -> Option<String> {
    let own = session.record.shard.as_ref()?;
    let there = finished.iter().filter(|(_, run)| own.runs.contains(&run.index)).count();
    Some(format!(
        "this is shard {} of a range; {there} of the shard's {} runs are finished; join the \
            shards with `vmeter merge`",
        own.shard,
        own.runs.len()
    ))
}

/// The samples of the runs in `own` put into the search again, in their order.
fn searched(
    (record, added): (&RangeRecord, &Added),
    commits: &mut [MeasuredCommit],
    (runs, plan): (&[SavedRun], &[PlannedRun]),
    own: &BTreeSet<u32>,
) -> Found {
    let mut search = decision::fresh(record);
    let enters = |run: &RunRecord| !run.warmup && own.contains(&run.index);
    let entering = runs.iter().filter(|(_, run)| enters(run));
    let taken: decision::Taken = entering
        .filter_map(|(dir, run)| {
            let (commit, build) = record.of_label(&run.label)?;
            Some((run.index, (commit, build, sample(record, dir, run)?)))
        })
        .collect();
    for (commit, build, value) in decision::observations(added, &taken) {
        search.observe_build(commit, build, value);
    }
    for commit in commits.iter().filter(|c| c.failure.is_some()) {
        search.skip(commit.index);
    }
    let posterior = search.posterior();
    for (commit, probability) in commits.iter_mut().zip(posterior.commits) {
        commit.probability = Some(probability);
    }
    let sized = |guilty: &[usize]| {
        let exact = runs.iter().all(|(_, run)| run.icount);
        let build_sd = search.build_scatter();
        sizing::step(&sizing::of(added, &taken, guilty), plan, &taken, exact, build_sd)
    };
    let found = match search.finished() {
        Some(Answer::Changed { commits: guilty, posterior, .. }) => {
            let fresh = sized(&guilty);
            let all = change(commits, &guilty, posterior).into_iter();
            let is_shown = |c: &Change| fresh.is_none_or(|fresh| fresh.shows(c.jump_s));
            let (changes, seen_once): (Vec<Change>, Vec<Change>) = all.partition(is_shown);
            let sized = |change: Change| match &fresh {
                Some(fresh) => fresh.of(change),
                None => change,
            };
            let changes: Vec<Change> = changes.into_iter().map(sized).collect();
            let seen_once: Vec<Change> = seen_once.into_iter().map(sized).collect();
            let verdict = match seen_once.is_empty() {
                true => RangeVerdict::Changed,
                false => RangeVerdict::Undecided,
            };
            Found { changes, seen_once, probability: Some(posterior), ..Found::new(verdict) }
        }
        Some(Answer::NoChange { posterior }) => Found {
            probability: Some(posterior),
            excluded_pct: Some(100.0 * decision::rule(record).smallest),
            ..Found::new(RangeVerdict::NoChange)
        },
        Some(Answer::NotFound { posterior, excluded }) => Found {
            probability: Some(posterior),
            excluded_pct: Some(100.0 * excluded),
            ..Found::new(RangeVerdict::Undecided)
        },
        Some(Answer::Unfinished { commits, posterior }) => Found {
            suspects: commits,
            probability: Some(posterior),
            ..Found::new(RangeVerdict::Undecided)
        },
        Some(Answer::Impossible) => Found::new(RangeVerdict::NotMeasurable),
        None => Found::new(RangeVerdict::Undecided),
    };
    let ends = search.ends_apart().map(|(size, half)| Step { size, half });
    Found { ends, ..found }
}

/// The change of a search, by the runs that found it.
fn change(commits: &[MeasuredCommit], guilty: &[usize], probability: f64) -> Option<Change> {
    let (first, last) = (*guilty.first()?, *guilty.last()?);
    let (before, after): (Vec<&MeasuredCommit>, Vec<&MeasuredCommit>) = with_samples(commits)
        .filter(|c| c.index < first || c.index >= last)
        .partition(|c| c.index < first);
    let all = |side: &[&MeasuredCommit]| -> Vec<f64> {
        side.iter().flat_map(|c| c.samples_s.iter().copied()).collect()
    };
    let (a, b) = (all(&before), all(&after));
    let (ratio, jump_s) = (ratio_of_means(&a, &b)?, mean(&b) - mean(&a));
    Some(Change {
        shape: ChangeShape::Step,
        commits: guilty.to_vec(),
        before: before.last()?.index,
        verdict: if jump_s > 0.0 { Verdict::Slower } else { Verdict::Faster },
        ratio: Some(ratio),
        jump_s,
        p_value: None,
        probability: Some(probability),
        sizing: None,
        mean: None,
        place: None,
        slow: None,
    })
}

fn effort(record: &RangeRecord, session: &Session, finished: &[SavedRun], builds: usize) -> Effort {
    let added = Added::of(&session.record);
    let of = |part| finished.iter().filter(|(_, run)| added.part(run.index) == part).count();
    let n = record.commits.len();
    let runs = DEFAULT_RUNS.max(record.runs).div_ceil(record.builds.max(1));
    let each = (record.warmup + runs) as usize * record.builds.max(1) as usize;
    Effort {
        boots: finished.len(),
        placing: of(Part::Places),
        sizing: of(Part::Sizes),
        slow: of(Part::CountsSlow),
        builds,
        linear_boots: n * each,
        linear_builds: n * record.builds.max(1) as usize,
    }
}

fn remarks(record: &RangeRecord, commits: &[MeasuredCommit]) -> Vec<String> {
    let mut remarks = Vec::new();
    if record.merged > 0 {
        remarks.push(format!(
            "{} commits of merged branches are left out: vmeter follows first parents, and each \
                merge commit includes the changes of the branch that it merged",
            record.merged
        ));
    }
    let failed = commits.iter().filter(|c| c.failure.is_some()).count();
    if failed > 0 {
        remarks.push(format!("{failed} of {} commits cannot be measured", commits.len()));
    }
    remarks
}

fn hints(record: &RangeRecord, session: &Session, found: &Found) -> Vec<String> {
    let dir = session.dir.display();
    let mut hints = Vec::new();
    let named = |at: usize| record.commits.get(at).map(|c| c.short().to_owned());
    if let Some(change) = found.changes.first() {
        if let (Some(a), Some(b)) =
            (named(change.before), change.commits.last().and_then(|c| named(*c)))
        {
            let (a, b) = (format!("{dir}#{a}"), format!("{dir}#{b}"));
            let (a, b) = (shell::quote(&a), shell::quote(&b));
            let what = match record.run.is_some() {
                true => "how the times of the two commits differ",
                false => "the spans and times that differ",
            };
            hints.push(format!("vmeter diff {a} {b}  # {what}"));
            let between = (named(change.before), change.commits.last().and_then(|c| named(*c)));
            if let (Some(a), Some(b)) = between {
                let repo = shell::quote(&record.repo);
                hints.push(format!("git -C {repo} log -p {a}..{b}  # the commits of the change"));
            }
        }
    }
    let dir = shell::path(&session.dir);
    let not_found = found.verdict == RangeVerdict::Undecided && found.suspects.is_empty();
    let spent = session.record.plan.iter().filter(|run| !run.warmup).count() >= record.max_boots;
    if record.bisect && found.verdict == RangeVerdict::Undecided {
        let more =
            if spent { format!(" --max-boots {}", 2 * record.max_boots) } else { String::new() };
        let once = record.builds <= 1;
        if once {
            hints.push(
                "vmeter range … --bisect --builds 4  # averages out differences between \
                builds"
                    .into(),
            );
        }
        if !once || spent || !not_found {
            hints.push(format!("vmeter range --resume {dir}{more}  # go on"));
        }
    }
    let sized = |change: &Change| change.probability.is_none() || change.sizing.is_some();
    if !found.changes.iter().all(sized) {
        hints.push(format!("vmeter range --resume {dir}  # measures how large the change is"));
    }
    hints
}
