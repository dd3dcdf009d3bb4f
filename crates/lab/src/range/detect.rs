//! `range --detect PCT`: as many runs of each commit as a change of that size needs.
//!
//! It is planned for a step that a quarter of the commits have, and is found in four of five ranges.
//! What is planned by is how runs and builds scatter, about the levels that there are: never whether
//! these differ, so that nothing is found more often for it.

use super::added::Added;
use super::config::DEFAULT_RUNS;
use super::level::{Level, ALPHA};
use vmeter_model::range::RangeRecord;
use vmeter_model::run::SessionRecord;
use vmeter_session::failure::usage;
use vmeter_stats::decide::POWER;
use vmeter_stats::localisation::Spread;
use vmeter_stats::segments::{detectable_step, LevelChange, FEWEST};
use vmeter_stats::Rule;

/// Runs of a commit at most.
pub(super) const MOST: u32 = 200;
/// What builds are taken to differ by in a search, %, and how sure of it a change must be.
const BUILDS_PCT: f64 = 1.0;
const SURE: f64 = 1.88;

/// What a change of the size asked for needs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Needs {
    /// So many runs of each commit.
    Runs(u32),
    /// What builds differ by hides it from any number of runs: the smallest that is not hidden, %.
    OtherBuilds(f64),
}

/// Refuses what no number of runs can do, before anything is built.
///
/// # Errors
/// Class usage, in words.
pub(super) fn check(record: &RangeRecord, is_shard: bool) -> anyhow::Result<()> {
    let Some(asked) = record.detect else { return Ok(()) };
    if is_shard {
        return Err(usage(
            "--detect decides after the first runs how many more to make, but all shards need the \
                same plan: measure on one host without --shard, or give all shards --runs N \
                instead of --detect",
        ));
    }
    let least = 100.0 * SURE * (2.0 / f64::from(record.builds.max(1))).sqrt() * BUILDS_PCT / 100.0;
    let counted = record.machine.accel.is_some_and(|accel| accel.name() == "icount");
    if record.bisect && !counted && asked < least {
        return Err(usage(format!(
            "--detect {asked} with --bisect: two builds of one commit may differ by {BUILDS_PCT} \
                % because of their code layout, so vmeter cannot attribute a change of less than \
                {least:.1} % to a commit. To average this difference out, give --builds N \
                (--builds 4 lowers the limit to {:.1} %); to reduce this difference, give \
                --accel icount; to measure all commits, leave --bisect out",
            SURE * (2.0f64 / 4.0).sqrt() * BUILDS_PCT
        )));
    }
    Ok(())
}

/// Runs of each commit: those that were asked for, or that the change to be found needs.
pub(super) fn runs_each(record: &RangeRecord, session: &SessionRecord) -> u32 {
    let runs = Added::of(session).runs.unwrap_or(0).max(record.runs);
    runs.div_ceil(record.builds.max(1))
}

/// What the change of `asked` % needs, by levels and the steps between them.
pub(super) fn needs(asked: f64, levels: &[Level<'_>], steps: &[LevelChange]) -> Option<Needs> {
    let effect = (asked / 100.0).ln_1p();
    if levels.len() < FEWEST {
        let rule = Rule { comparisons: levels.len().saturating_sub(1).max(1), ..Rule::default() };
        let pairs = levels.windows(2).filter_map(|pair| {
            let (pairs, _) = crate::blocks::pairs(&pair[0].by_block, &pair[1].by_block);
            rule.planned_pairs(&pairs, asked / 100.0)
        });
        return pairs.max().map(|n| Needs::Runs(u32::try_from(n).unwrap_or(u32::MAX)));
    }
    let runs: Vec<Vec<f64>> = levels.iter().map(|level| level.logs.clone()).collect();
    let spread = Spread::of(&runs, &steps.iter().map(|step| step.at).collect::<Vec<_>>());
    let least = detectable_step(levels.len(), ALPHA, POWER)?;
    let allowed = (effect / least).powi(2) - spread.build;
    if allowed <= spread.run / f64::from(MOST) {
        let floor = least * (spread.build + spread.run / f64::from(MOST)).sqrt();
        return Some(Needs::OtherBuilds(100.0 * floor.exp_m1()));
    }
    let wanted = (spread.run / allowed).ceil().max(f64::from(DEFAULT_RUNS));
    Some(Needs::Runs((wanted as u32).min(MOST)))
}

/// The step, %, that a quarter of the commits have and that is found in four of five ranges, or more, of
/// as many commits and runs. Of a range in which nothing was found: all are taken to be of one level.
pub(super) fn detectable_pct(levels: &[Level<'_>]) -> Option<f64> {
    detectable(&levels.iter().map(|level| level.logs.clone()).collect::<Vec<_>>())
}

fn detectable(runs: &[Vec<f64>]) -> Option<f64> {
    let spread = Spread::of(runs, &[]);
    let each =
        vmeter_stats::mean(&runs.iter().map(|own| 1.0 / own.len() as f64).collect::<Vec<_>>());
    let least = detectable_step(runs.len(), ALPHA, POWER)?;
    let step = least * (spread.build + spread.run * each).sqrt();
    Some(100.0 * step.exp_m1()).filter(|pct| pct.is_finite())
}

/// What is to be said of a range that was asked to find `asked` %.
pub(super) fn remark(asked: f64, needs: Needs, have: u32) -> String {
    match needs {
        Needs::Runs(runs) if runs <= have => format!(
            "vmeter finds, with 80 % power, a step of {asked} % that affects the last quarter of \
                the commits ({have} runs of each commit)"
        ),
        Needs::Runs(runs) if have >= MOST => {
            let times = (f64::from(runs) / f64::from(have)).sqrt();
            let seen = 100.0 * ((asked / 100.0).ln_1p() * times).exp_m1();
            format!(
                "to find a step of {asked} %, vmeter needs {runs} runs of each commit, but \
                    --detect makes at most {MOST}. The {have} runs so far can detect a \
                    step of {seen:.1} % (power 80 %)"
            )
        }
        Needs::Runs(runs) => format!(
            "a step of {asked} % needs {runs} runs of each commit, and only {have} exist: make \
                more with `vmeter range --resume`"
        ),
        Needs::OtherBuilds(floor) => format!(
            "vmeter cannot find a step of {asked} %, even with the most runs that --detect makes. \
                With that many runs, vmeter can find a step of {floor:.1} % or more with 80 % \
                power. The usual cause is that the noise between commits is too large. --builds N \
                averages out the noise of code layout"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_stats::rng::Rng;
    use vmeter_stats::segments::{in_blocks, level_changes_of_runs};

    /// A range that showed nothing said "0.1 % more would have shown", by what it happened to see.
    #[test]
    fn what_is_called_detectable_is_found_in_four_of_five_or_more_and_is_no_matter_of_what_was_seen(
    ) {
        let (commits, runs, sd) = (16, 5, 0.02);
        let mut rng = Rng::new(15);
        let mut figures = Vec::new();
        let mut found = 0;
        let trials: u32 = 100;
        for seed in 0..trials {
            let calm: Vec<Vec<f64>> =
                (0..commits).map(|_| (0..runs).map(|_| sd * rng.normal()).collect()).collect();
            let figure = detectable(&calm).expect("a figure");
            figures.push(figure);
            let step = (figure / 100.0).ln_1p();
            let quarter =
                (0..commits).map(|at| if at >= commits - commits / 4 { step } else { 0.0 });
            let mut planted = || -> Vec<Vec<f64>> {
                let own = |level: f64| (0..runs).map(|_| level + sd * rng.normal()).collect();
                quarter.clone().map(own).collect::<Vec<_>>()
            };
            let steps = level_changes_of_runs(&in_blocks(&planted()), ALPHA, seed.into());
            found += u32::from(!steps.is_empty());
        }
        let least = figures.iter().copied().fold(f64::INFINITY, f64::min);
        let most = figures.iter().copied().fold(0.0, f64::max);
        println!("{least:.2} to {most:.2} %, found in {found} of {trials}");
        assert!(least > 1.0 && most < 2.5 * least, "{least} to {most}");
        assert!((75..=97).contains(&found), "{found} of {trials}");
    }
}
