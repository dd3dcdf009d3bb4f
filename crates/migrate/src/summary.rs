//! From runs to points: medians, what was predicted, and why not.

use crate::config::Config;
use crate::data::{Limits, MigrateOutcome, Migration, SavedMigration};
use crate::parameters::{Point, DEFAULT_MEMORY_MIB};
use crate::plan::PlannedMigration;
use crate::predict::{predict, remedy, Known};
use crate::result::{MigratePoint, MigratePrediction, MigrateResult, MigrateRun, MigrateSetup};
use crate::side::Side;
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};
use vmeter_model::result::Envelope;
use vmeter_model::run::SessionRecord;
use vmeter_model::Estimate;
use vmeter_session::failure::host;
use vmeter_session::Session;
use vmeter_stats::{estimate, median};

/// A bandwidth measured below this share of its limit is what counts.
const LIMITED: f64 = 0.9;

/// What a session comes to, from what is on disk.
///
/// # Errors
/// Class usage: a folder that cannot be read, or holds no finished run. Class host: QEMU
/// refused every migration, in its own words.
pub fn result(session: &Session<PlannedMigration>) -> Result<MigrateResult> {
    let (finished, mut warnings) = session.finished_as::<SavedMigration>()?;
    let asked: Config = session.asked()?;
    let saved: Vec<SavedMigration> = finished.into_iter().map(|(_, run)| run).collect();
    if saved.is_empty() {
        return Err(session.no_runs(&warnings));
    }
    if saved.iter().all(|run| run.data.migration.was_refused()) {
        let reason = saved.first().map_or("", |run| &run.data.migration.reason);
        return Err(host(reason));
    }
    warnings.extend(unfinished(session, &saved));
    let mut result = MigrateResult {
        envelope: envelope(&session.record),
        setup: setup(&session.record, &asked),
        points: Vec::new(),
        runs: Vec::new(),
        warnings,
        hints: Vec::new(),
        saved_in: session.dir.display().to_string(),
    };
    let mut places = BTreeMap::new();
    for (at, machine) in session.record.machines.iter().enumerate() {
        let planned = |run: &&SavedMigration| run.head.label == machine.label;
        let own: Vec<&SavedMigration> = saved.iter().filter(planned).collect();
        let Some(last) = own.last() else { continue };
        let of = |warmup| own.iter().filter(move |run| run.head.warmup == warmup);
        let measured = if of(false).next().is_some() { of(false) } else { of(true) };
        let measured: Vec<&Migration> = measured.map(|run| &run.data.migration).collect();
        let settings = Point::of(machine)?;
        let point = point(&settings, &measured, last.data.limits, asked.kill);
        warn(&mut result.warnings, &settings, &point, &measured);
        places.insert(at, result.points.len());
        result.points.push(point);
    }
    for run in saved {
        let planned = session.record.plan.get(run.head.index as usize);
        let place = planned.and_then(|planned| Some((planned, *places.get(&planned.machine)?)));
        let Some((planned, point)) = place else { continue };
        let (block, warmup, seen) = (planned.block, run.head.warmup, run.data.migration);
        result.runs.push(MigrateRun { point, block, warmup, seen });
    }
    hint(&mut result, asked.kill);
    Ok(result)
}

/// How much of the plan is missing, if any of it is. A point that QEMU refused is not run
/// again, and its runs are not missed.
fn unfinished(session: &Session<PlannedMigration>, saved: &[SavedMigration]) -> Option<String> {
    let SessionRecord { machines, plan, .. } = &session.record;
    let refused: BTreeSet<&str> = saved
        .iter()
        .filter(|run| run.data.migration.was_refused())
        .map(|run| run.head.label.as_str())
        .collect();
    let there: BTreeSet<usize> = saved.iter().map(|run| run.head.index as usize).collect();
    let missed = |(index, planned): &(usize, &PlannedMigration)| {
        let machine = machines.get(planned.machine);
        !there.contains(index) && !machine.is_some_and(|m| refused.contains(m.label.as_str()))
    };
    let missing = plan.iter().enumerate().filter(missed).count();
    (missing > 0).then(|| {
        let (done, all) = (saved.len(), saved.len() + missing);
        let dir = vmeter_base::shell::path(&session.dir);
        format!("{done} of {all} migrations are done: vmeter migrate --resume {dir} makes the rest")
    })
}

fn envelope(record: &SessionRecord<PlannedMigration>) -> Envelope {
    let mut envelope = vmeter_session::envelope::envelope(record);
    for machine in &record.machines {
        envelope.provenance.extend(machine.provenance.clone());
    }
    if let Some(kernel) = record.host.get("kernel").and_then(|kernel| kernel.as_str()) {
        envelope.provenance.insert("kernel".into(), kernel.into());
    }
    envelope
}

fn setup(record: &SessionRecord<PlannedMigration>, asked: &Config) -> MigrateSetup {
    let machine = record.machines.first();
    let memory_mib = machine.and_then(|m| m.spec.memory_mib).unwrap_or(DEFAULT_MEMORY_MIB);
    MigrateSetup {
        argv: machine.map(|machine| machine.argv.clone()).unwrap_or_default(),
        chosen: machine.map(|machine| machine.chosen.clone()).unwrap_or_default(),
        memory_bytes: u64::from(memory_mib) << 20,
        runs: asked.runs as usize,
        warmup: asked.warmup as usize,
        seed: record.seed,
        heartbeat_s: 1e-3,
        killed: asked.kill,
    }
}

/// Settings are checked before anything runs, so that this default is never seen.
fn known(settings: &Point, runs: &[&Migration], limits: Limits) -> (Known, String) {
    let rates = samples(runs, |run| {
        (run.dirty_pages_per_s_before > 0.0 || settings.knobs.dirty_bytes_per_s == 0.0)
            .then_some(run.dirty_pages_per_s_before)
    });
    let mut workload = settings.knobs.workload().unwrap_or_default();
    workload.dirty_bytes_per_s = median(&rates) * crate::guest::PAGE as f64;
    let seen = samples(runs, |run| {
        let first = run.rounds.first()?;
        (first.length_s > 0.0 && run.rounds.len() > 1)
            .then(|| first.transferred_bytes as f64 / first.length_s)
    });
    let seen = median(&seen);
    let unlimited = limits.bandwidth <= 0.0 || limits.bandwidth > 1e15;
    let (bandwidth, from) = match unlimited || seen > 0.0 && seen < limits.bandwidth * LIMITED {
        false => (limits.bandwidth, "the limit set"),
        true if unlimited => (seen, "measured in the first round; the bandwidth had no limit"),
        true => (seen, "measured in the first round; it is below the bandwidth limit that was set"),
    };
    let known = Known {
        workload,
        bandwidth,
        limit_s: limits.downtime_s,
        auto_converge: settings.knobs.auto_converge,
        postcopy: settings.knobs.postcopy,
        xbzrle: settings.knobs.xbzrle,
    };
    (known, from.to_owned())
}

fn samples(runs: &[&Migration], value: impl Fn(&Migration) -> Option<f64>) -> Vec<f64> {
    runs.iter().filter_map(|run| value(run)).collect()
}

fn some_estimate(samples: &[f64]) -> Option<Estimate> {
    (!samples.is_empty()).then(|| estimate(samples))
}

fn point(
    settings: &Point,
    runs: &[&Migration],
    limits: Limits,
    kill: Option<Side>,
) -> MigratePoint {
    let (known, bandwidth_from) = known(settings, runs, limits);
    let predicted = predict(&known);
    let outcomes = outcomes(runs);
    let converged = outcomes.iter().all(|(outcome, _)| *outcome == MigrateOutcome::Completed);
    let verifications: Vec<bool> =
        runs.iter().filter_map(|run| Some(run.verification.as_ref()?.equal)).collect();
    let verified = (!verifications.is_empty()).then(|| verifications.iter().all(|equal| *equal));
    let right = (kill.is_none()).then(|| right(runs, predicted.converges)).flatten();
    let total = samples(runs, |run| Some(run.total_s));
    let downtime = samples(runs, |run| run.downtime_s);
    let gap = samples(runs, |run| run.guest_gap_s);
    let some_median = |samples: &[f64]| some_estimate(samples).map(|e| e.median);
    let of = |value: &dyn Fn(&Migration) -> f64| median(&samples(runs, |run| Some(value(run))));
    MigratePoint {
        parameters: settings.parameters.clone(),
        total_s: median(&total),
        downtime_s: some_median(&downtime),
        guest_gap_s: some_median(&gap),
        guest_clock_gap_s: some_median(&samples(runs, |run| run.guest_clock_gap_s)),
        rounds: of(&|run| run.rounds.len() as f64).round() as u64,
        dirty_pages_per_s: of(&|run| run.dirty_pages_per_s),
        transferred_bytes: of(&|run| run.transferred_bytes as f64) as u64,
        bandwidth_bytes_per_s: of(&|run| run.bandwidth_bytes_per_s),
        converged,
        verified,
        reason: reason(runs, &known, &predicted.because),
        prediction: MigratePrediction {
            converges: predicted.converges,
            rounds: predicted.rounds,
            total_s: predicted.total_s,
            downtime_s: predicted.downtime_s,
            dirty_bytes_per_s: known.workload.dirty_bytes_per_s,
            bandwidth_bytes_per_s: known.bandwidth,
            bandwidth_from,
            because: predicted.because,
            right,
        },
        outcomes,
        total: estimate(&total),
        downtime: some_estimate(&downtime),
        guest_gap: some_estimate(&gap),
        workload: known.workload,
    }
}

fn outcomes(runs: &[&Migration]) -> Vec<(MigrateOutcome, usize)> {
    let mut counted: Vec<(MigrateOutcome, usize)> = Vec::new();
    for run in runs {
        match counted.iter_mut().find(|(outcome, _)| *outcome == run.outcome) {
            Some((_, count)) => *count += 1,
            None => counted.push((run.outcome, 1)),
        }
    }
    counted.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counted
}

/// Whether all runs that say did as predicted.
fn right(runs: &[&Migration], converges: bool) -> Option<bool> {
    let says = |run: &&&Migration| {
        matches!(run.outcome, MigrateOutcome::Completed | MigrateOutcome::NotConverged)
    };
    let mut told = runs.iter().filter(says).peekable();
    told.peek()?;
    Some(told.all(|run| (run.outcome == MigrateOutcome::Completed) == converges))
}

/// Why a point does not converge, in numbers, and what would help.
fn reason(runs: &[&Migration], known: &Known, because: &str) -> String {
    let Some(run) = runs.iter().find(|run| run.outcome != MigrateOutcome::Completed) else {
        return runs
            .iter()
            .find(|run| !run.reason.is_empty())
            .map_or_else(String::new, |run| run.reason.clone());
    };
    match run.outcome {
        MigrateOutcome::NotConverged if !predict(known).converges => {
            format!("It does not converge: {because}. {}", remedy(known))
        }
        MigrateOutcome::NotConverged => {
            let left = run
                .rounds
                .last()
                .map_or(0.0, |round| round.pages as f64 * crate::guest::PAGE as f64);
            format!(
                "It did not converge, although vmeter predicted that it would ({because}): {}. \
                    The last round began with {:.0} MB to send; the throughput was {:.0} MB/s. \
                    {}",
                run.reason,
                left / 1e6,
                run.bandwidth_bytes_per_s / 1e6,
                remedy(known)
            )
        }
        _ => run.reason.clone(),
    }
}

fn warn(warnings: &mut Vec<String>, settings: &Point, point: &MigratePoint, runs: &[&Migration]) {
    let label = settings.label();
    if let Some(run) = runs.iter().find(|run| run.verification.as_ref().is_some_and(|v| !v.equal)) {
        let differing = run.verification.as_ref().map_or(0, |v| v.differing_pages);
        let first = run.verification.as_ref().and_then(|v| v.first_difference).unwrap_or(0);
        warnings.push(format!(
            "{label}: the guest's memory differs after migration in {differing} pages, the first at {first:#x}"
        ));
    }
    if point.prediction.right == Some(false) {
        let expected = if point.prediction.converges { "would" } else { "would not" };
        warnings.push(format!(
            "{label}: vmeter predicted that the migration {expected} converge ({}), but the \
                opposite happened",
            point.prediction.because
        ));
    }
    let asked = settings.knobs.dirty_bytes_per_s;
    let dirtied = point.prediction.dirty_bytes_per_s;
    if asked > 0.0 && dirtied < asked * LIMITED {
        warnings.push(format!(
            "{label}: the guest dirtied {:.0} MB/s before it was migrated, not the {:.0} asked for: the host is busy or slow",
            dirtied / 1e6,
            asked / 1e6
        ));
    }
}

/// A command that would show the remedy at work.
fn hint(result: &mut MigrateResult, kill: Option<Side>) {
    let lost = |point: &&MigratePoint| {
        point.outcomes.iter().any(|(outcome, _)| *outcome == MigrateOutcome::NotConverged)
    };
    let Some(point) = result.points.iter().find(lost).filter(|_| kill.is_none()) else { return };
    let rate = point.parameters.iter().find(|(name, _)| name == "dirty-rate");
    let rate = rate.map_or("0", |(_, rate)| rate);
    let command =
        format!("vmeter migrate --dirty-rate {rate} -L auto-converge=off,on -L postcopy=off,on");
    result.hints.push(command);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Measured;
    use vmeter_model::run::{DataRun, RunHead, SessionMachine};
    use vmeter_model::{MachineSpec, SCHEMA};

    fn asked() -> Config {
        Config {
            spec: MachineSpec::default(),
            fixed: Vec::new(),
            varied: vec![("dirty-rate".into(), vec!["0".into(), "5".into()])],
            kill: None,
            runs: 1,
            warmup: 0,
        }
    }

    fn session(dir: &std::path::Path) -> Session<PlannedMigration> {
        let machine = |rate: &str| SessionMachine {
            label: format!("dirty-rate={rate}"),
            parameters: vec![("dirty-rate".into(), rate.into())],
            ..SessionMachine::default()
        };
        let record = SessionRecord {
            schema: SCHEMA.into(),
            command: "migrate".into(),
            machines: vec![machine("0"), machine("5")],
            plan: [0, 1]
                .map(|machine| PlannedMigration { machine, warmup: false, block: 0 })
                .to_vec(),
            asked: serde_json::to_value(asked()).unwrap(),
            ..SessionRecord::default()
        };
        Session::create(Some(dir), record).unwrap()
    }

    fn finish(
        session: &Session<PlannedMigration>,
        index: u32,
        rate: &str,
        outcome: MigrateOutcome,
    ) {
        let head = RunHead {
            schema: SCHEMA.into(),
            index,
            label: format!("dirty-rate={rate}"),
            ..RunHead::default()
        };
        let migration = Migration::empty(outcome, "QEMU has no such capability".into());
        let data = Measured { migration, limits: Limits::default() };
        session.begin_run(index).unwrap();
        session.commit_run(&DataRun { head, data }).unwrap();
    }

    #[test]
    fn what_is_there_of_an_interrupted_session_is_numbered_anew() {
        let folder = tempfile::tempdir().unwrap();
        let session = session(folder.path());
        assert!(result(&session).unwrap_err().to_string().contains("no run was finished"));
        finish(&session, 1, "5", MigrateOutcome::Completed);
        let found = result(&session).unwrap();
        assert_eq!((found.points.len(), found.runs.len()), (1, 1));
        assert_eq!((found.runs[0].point, &found.points[0].parameters[0].1[..]), (0, "5"));
        assert!(
            found.warnings[0].starts_with("1 of 2 migrations are done"),
            "{:?}",
            found.warnings
        );
    }

    #[test]
    fn what_qemu_refuses_is_not_missed_and_alone_is_the_hosts_fault() {
        use vmeter_session::failure::{class, Class};
        let folder = tempfile::tempdir().unwrap();
        let session = session(folder.path());
        finish(&session, 0, "0", MigrateOutcome::Failed);
        let error = result(&session).unwrap_err();
        assert_eq!((class(&error), error.to_string().contains("capability")), (Class::Host, true));
        finish(&session, 1, "5", MigrateOutcome::Completed);
        let found = result(&session).unwrap();
        assert_eq!((found.points.len(), found.points[0].converged), (2, false));
        assert!(!found.warnings.iter().any(|text| text.contains("are done")));
    }
}
