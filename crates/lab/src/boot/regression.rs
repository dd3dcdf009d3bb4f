//! Slower than last time? A saved session is the baseline, a test the judge.

use crate::ends::Ends;
use anyhow::Result;
use std::path::Path;
use vmeter_model::result::BootResult;
use vmeter_model::run::{Outcome, RunRecord};
use vmeter_model::time::seconds;
use vmeter_session::failure::usage;
use vmeter_session::{AnySession, Session};
use vmeter_stats::{compare, compare::Options, Verdict};

/// What the comparison says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// In words.
    pub text: String,
    /// True if the limit was given and is exceeded.
    pub failed: bool,
}

/// Refuses a baseline that there is nothing to compare with, before anything is booted.
///
/// # Errors
/// Class usage: no session of boots, or none of them done.
pub fn check(baseline: &Path) -> Result<()> {
    let (finished, _) = opened(baseline)?.finished()?;
    let counts = |run: &RunRecord| !run.warmup && run.outcome == Outcome::Done;
    if !finished.iter().any(|(_, run)| counts(run)) {
        return Err(usage(format!(
            "--baseline {}: none of its runs reached its end, so there is nothing to compare with",
            baseline.display()
        )));
    }
    Ok(())
}

fn opened(baseline: &Path) -> Result<Session> {
    let kind = AnySession::open(baseline)?.record.command;
    if kind != super::KIND {
        return Err(usage(format!(
            "--baseline {}: a session of kind {kind:?}; expected one of vmeter {}",
            baseline.display(),
            super::KIND
        )));
    }
    Session::open(baseline)
}

/// Compares totals with those of the session in `baseline`. It fails if it is slower
/// by more than `limit` percent: the difference is significant, and so is its exceeding
/// the limit (the interval of the ratio lies above it).
///
/// # Errors
/// When `baseline` holds no session with runs.
pub fn against(baseline: &Path, result: &BootResult, limit: Option<f64>) -> Result<Judgement> {
    let old = super::result(&opened(baseline)?).map_err(|e| usage(format!("{e:#}")))?;
    let ends = |result: &BootResult| Ends::of_records(result.runs.iter().map(|run| &run.record));
    let (name, before, now) = (baseline.display().to_string(), ends(&old), ends(result));
    if let Some(why) = Ends::differ((&name, &before), ("this boot", &now)) {
        // What is not compared is not known to be as fast.
        let text = format!("not compared with {name}: {why}");
        return Ok(Judgement { text, failed: limit.is_some() });
    }
    let compared = compare(&totals(&old), &totals(result), &Options::default());
    let Some(compared) = compared else {
        return Err(usage(format!("{}: no run to compare with", baseline.display())));
    };
    let percent = |ratio: f64| 100.0 * (ratio - 1.0);
    let [low, high] = compared.ratio.ci95;
    let text = format!(
        "against {}: {} ({:+.1} %, 95 % interval {:+.1} to {:+.1} %, p = {:.3})",
        baseline.display(),
        compared.verdict,
        percent(compared.ratio.mean),
        percent(low),
        percent(high),
        compared.p_value.p
    );
    let slower = compared.verdict == Verdict::Slower;
    let failed = limit.is_some_and(|limit| slower && percent(low) > limit);
    Ok(Judgement { text, failed })
}

fn totals(result: &BootResult) -> Vec<f64> {
    let done = result.runs.iter().filter(|r| r.record.outcome == Outcome::Done);
    done.map(|r| seconds(r.timeline.total)).collect()
}
