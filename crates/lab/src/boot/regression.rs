//! Slower than last time? A saved session is the baseline: its machine booted again beside
//! this one, or, where that is impossible, the runs that it has.

use super::config::{BootOptions, KIND};
use crate::compare::needed_runs;
use crate::ends::Ends;
use crate::gate::{Gate, Limit};
use crate::session_variance;
use anyhow::Result;
use std::path::Path;
use vmeter_model::result::BootResult;
use vmeter_model::run::{Outcome, RunRecord};
use vmeter_model::time::seconds;
use vmeter_model::{Accel, AskedAccel};
use vmeter_session::failure::usage;
use vmeter_session::{AnySession, Session};

/// Refuses a baseline that there is nothing to compare with, before anything is booted.
///
/// # Errors
/// Class usage: no session of boots, or none of them done.
pub fn check(baseline: &Path) -> Result<()> {
    let session = opened(baseline)?;
    let own = session.record.machines.first().map(|machine| machine.label.as_str());
    let (finished, _) = session.finished()?;
    let counts = |run: &RunRecord| {
        !run.warmup && run.outcome == Outcome::Done && Some(run.label.as_str()) == own
    };
    if !finished.iter().any(|(_, run)| counts(run)) {
        return Err(usage(format!(
            "--baseline {}: no run of this saved session reached its end, so there is nothing to \
                compare with",
            baseline.display()
        )));
    }
    Ok(())
}

/// Refuses a gate that these runs could not decide, before anything is booted.
///
/// # Errors
/// Class usage: with how many they could.
pub fn check_runs(runs: Option<u32>) -> Result<()> {
    let needed = needed_runs(2);
    match runs {
        Some(runs) if (runs as usize) < needed => Err(usage(format!(
            "--fail-if-slower cannot distinguish a slower machine from noise with --runs {runs}: \
                use --runs {needed} or more"
        ))),
        _ => Ok(()),
    }
}

/// What is said before the first boot of runs beside a baseline with which nothing can be decided.
pub fn too_few(options: &BootOptions) -> Option<String> {
    let exact = options.spec.accel == Some(AskedAccel::Only(Accel::Icount));
    let asked = options.runs.runs.filter(|_| options.runs.resume.is_none() && !exact);
    crate::compare::too_few(asked? as usize, 2)
}

pub(super) fn opened(baseline: &Path) -> Result<Session> {
    let kind = AnySession::open(baseline)?.record.command;
    if kind != KIND {
        return Err(usage(format!(
            "--baseline {}: this session has the kind {kind:?}; expected a session of vmeter {}",
            baseline.display(),
            KIND
        )));
    }
    Session::open(baseline)
}

/// Rules on a boot with a baseline, and adds to what is found what saved sessions say of it.
///
/// # Errors
/// When `baseline` holds no session with runs.
pub fn judge(
    baseline: &Path,
    result: &mut BootResult,
    limit: Option<Limit>,
) -> Result<Option<Gate>> {
    let gate = limit.unwrap_or(Limit { percent: 0.0, inconclusive: None });
    let compared = match (&result.comparison, &result.not_compared) {
        (Some(comparison), _) => gate.of_comparison(comparison),
        (None, Some(why)) => gate.nothing(why),
        (None, None) => saved(baseline, result, &gate)?,
    };
    Ok(limit.map(|_| compared))
}

/// Compares with the runs that the baseline has. How much two sessions of one machine differ
/// on this host is taken from those that are saved.
fn saved(baseline: &Path, result: &mut BootResult, limit: &Limit) -> Result<Gate> {
    let session = opened(baseline)?;
    let old = super::result::result(&session).map_err(|e| usage(format!("{e:#}")))?;
    let ends = |result: &BootResult| Ends::of_records(result.runs.iter().map(|run| &run.record));
    let (name, before, now) = (baseline.display().to_string(), ends(&old), ends(result));
    if let Some(why) = Ends::differ((&name, &before), ("this boot", &now)) {
        result.warnings.push(format!("not compared with {name}: {why}"));
        return Ok(limit.nothing(&format!("with {name}, {why}")));
    }
    let exact = |r: &BootResult| !r.runs.is_empty() && r.runs.iter().all(|r| r.record.icount);
    let between = session_variance::between(&session, Path::new(&result.saved_in));
    let (a, b) = (totals(&old), totals(result));
    let sides = session_variance::Sides { a: &a, b: &b, exact: exact(&old) && exact(result) };
    let differ = session_variance::provenance(
        &old.envelope,
        &old.machine,
        &result.envelope,
        &result.machine,
    );
    let found = session_variance::compare(&sides, between);
    let gate = match (differ, &found) {
        (Some(differ), _) => limit.unknowable(&format!(
            "{name} was measured {differ}: this alone may explain the difference in boot time"
        )),
        (None, Err(why)) => limit.unknowable(why),
        (None, Ok(found)) => {
            let instead = "to decide, vmeter would have to boot the baseline's machine in turn \
                with this machine, which it cannot do";
            limit.rule_sessions("this boot", found, instead)
        }
    };
    let words = found.map_or_else(|why| format!("not decided: {why}"), |found| found.words());
    result.said.push(format!("against {name}: {words}"));
    Ok(gate)
}

fn totals(result: &BootResult) -> Vec<f64> {
    let done = result.runs.iter().filter(|r| r.record.outcome == Outcome::Done);
    done.map(|r| seconds(r.timeline.total)).collect()
}
