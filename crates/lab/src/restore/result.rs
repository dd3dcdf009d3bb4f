//! What the saved restores come to.

use super::config::{Config, BOOT, CACHE, METHOD};
use super::image::Cache;
use super::make::Made;
use super::pages::{of_runs, Pages};
use super::prefetch::{gains, of_another, Gain};
use super::proof::{self, judge, Proof};
use crate::bench::sampled;
use crate::blocks::blocks;
use crate::boot::overhead;
use crate::boot::result::of_machine;
use crate::compare::{against_the_first, Compared};
use crate::prepare;
use anyhow::Result;
use vmeter_model::result::{BootResult, Comparison, Envelope, Overhead};
use vmeter_model::run::{Outcome, RunRecord, SessionMachine, WatchLevel};
use vmeter_record::sources::snapshot_files;
use vmeter_session::{envelope, SavedRun, Session};
use vmeter_stats::Rule;

/// The result of `vmeter restore`.
#[derive(Debug, Clone, PartialEq)]
pub struct RestoreResult {
    /// What every export has.
    pub envelope: Envelope,
    /// The machines that are restored.
    pub machines: Vec<Restored>,
    /// The same machine booted to the same point.
    pub boot: Option<BootResult>,
    /// Each of the machines against the boot.
    pub comparisons: Vec<Comparison>,
    /// What loading pages first gained.
    pub prefetch: Vec<Gain>,
    /// What watching costs, where it was measured.
    pub overhead: Option<Overhead>,
    /// For the user.
    pub warnings: Vec<String>,
    /// What could be done next.
    pub hints: Vec<String>,
    /// The session's folder.
    pub saved_in: String,
}

/// One way to restore.
#[derive(Debug, Clone, PartialEq)]
pub struct Restored {
    /// The way's word; none for the user's own commands.
    pub method: Option<String>,
    /// True if its snapshot was not in the page cache.
    pub cold: bool,
    /// Its snapshot.
    pub made: Option<Made>,
    /// Share of the snapshot that was in the page cache before each run.
    pub resident: Vec<f64>,
    /// By what the guest of each run is known to be restored.
    pub proofs: Vec<Proof>,
    /// What its guests had mapped at their first answer.
    pub pages: Pages,
    /// Its runs.
    pub runs: BootResult,
}

impl Restored {
    /// Its label.
    pub fn label(&self) -> &str {
        &self.runs.machine.label
    }
}

/// The result of a saved session.
///
/// # Errors
/// When the session's folder cannot be read, or holds no finished run.
pub fn result(session: &Session) -> Result<RestoreResult> {
    let config: Config = session.asked()?;
    let (mut finished, mut warnings) = session.finished()?;
    if finished.is_empty() {
        return Err(session.no_runs(&warnings));
    }
    warnings.extend(crate::missing::warning(session, &finished));
    let (mut machines, mut boot) = (Vec::new(), None);
    let all = finished.clone();
    if config.overhead {
        finished.retain(|(_, run)| run.watch != WatchLevel::None);
    }
    for described in &session.record.machines {
        let Some(runs) = of_machine(session, described, &finished) else { continue };
        match described.label == BOOT {
            true => boot = Some(runs),
            false => machines.push(restored(described, &config, &finished, runs)),
        }
    }
    if machines.is_empty() {
        return Err(session.no_runs(&warnings));
    }
    let Compared { comparisons, refused, warnings: left_out } = compared(session, &finished);
    warnings.extend(left_out);
    let refused = refused.into_iter();
    warnings.extend(refused.map(|n| format!("{} is not compared with {}: {}", n.b, n.a, n.why)));
    warnings.extend(config.skipped.iter().cloned());
    warnings.extend(of_another(&config));
    for machine in &machines {
        warnings.extend(remarks(machine));
    }
    let saved_in = session.dir.display().to_string();
    let hints =
        vec![format!("vmeter report {} -o restore.html", vmeter_base::shell::quote(&saved_in))];
    let envelope = envelope::envelope(&session.record);
    let prefetch = gains(session, &config, &finished);
    let pairs = config.repeats.runs;
    let overhead = config.overhead.then(|| overhead::of(session, &all, pairs)).flatten();
    Ok(RestoreResult {
        envelope,
        machines,
        boot,
        comparisons,
        prefetch,
        overhead,
        warnings,
        hints,
        saved_in,
    })
}

fn restored(
    described: &SessionMachine,
    config: &Config,
    finished: &[SavedRun],
    runs: BootResult,
) -> Restored {
    let parameter = |name: &str| {
        let found = described.parameters.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.clone())
    };
    let method = parameter(METHOD);
    let own = |made: &&Made| made.method == method.as_deref().unwrap_or_default();
    let made: Vec<&Made> = config.made.iter().filter(own).collect();
    let drawn: Vec<String> = made.iter().filter_map(|made| made.nonce.clone()).collect();
    let pattern = prepare::until(&described.spec).ok().and_then(|until| until.pattern());
    let done = |(_, run): &&SavedRun| {
        run.label == described.label && !run.warmup && run.outcome == Outcome::Done
    };
    let done: Vec<&SavedRun> = finished.iter().filter(done).collect();
    let proofs = done
        .iter()
        .map(|(dir, run)| judge(dir, run, pattern.as_ref(), &drawn).unwrap_or(Proof::None));
    Restored {
        cold: parameter(CACHE).as_deref() == Some(vmeter_base::words::Word::word(Cache::Cold)),
        made: made.last().map(|made| (*made).clone()),
        resident: done.iter().filter_map(|(_, run)| resident(run)).collect(),
        proofs: proofs.collect(),
        pages: of_runs(&done),
        runs,
        method,
    }
}

/// Share of a run's snapshot that was in the page cache before it.
fn resident(run: &RunRecord) -> Option<f64> {
    let files = snapshot_files::known(run).files;
    let all: u64 = files.iter().map(|file| file.bytes).sum();
    let there = files.iter().map(|file| file.resident_bytes).sum::<Option<u64>>()?;
    (all > 0).then(|| there as f64 / all as f64)
}

fn compared(session: &Session, finished: &[SavedRun]) -> Compared {
    let records: Vec<RunRecord> = finished.iter().map(|(_, run)| run.clone()).collect();
    let blocks = blocks(&session.record.plan);
    let labels = || session.record.machines.iter().map(|machine| machine.label.as_str());
    if !labels().any(|label| label == BOOT) {
        return Compared::default();
    }
    let order = [BOOT].into_iter().chain(labels().filter(|label| *label != BOOT));
    let sampled: Vec<_> = order.map(|label| sampled(label, &records, &blocks)).collect();
    against_the_first(&sampled, Rule::default())
}

/// What is to be said of one way to restore.
fn remarks(machine: &Restored) -> Vec<String> {
    let label = machine.label();
    let mut said = machine.runs.warnings.clone();
    let unproven = machine.proofs.iter().filter(|proof| **proof == Proof::None).count();
    if unproven > 0 {
        let pattern = prepare::until(&machine.runs.machine.spec).ok().and_then(|u| u.pattern());
        let why = match pattern.is_some_and(|pattern| proof::asks(&pattern)) {
            true => "the command of --create printed no line with the nonce that --ready asks for",
            false => {
                "to prove that it was restored, a guest can print a random number that it draws \
                    at boot: --ready 'line:… (?<nonce>…)'"
            }
        };
        said.push(format!(
            "{label}: in {unproven} of {} runs the guest may have booted instead of being \
             restored: {why}",
            machine.proofs.len()
        ));
    }
    if let Some(why) = machine.pages.unknown_waits.as_ref().filter(|_| machine.pages.runs > 0) {
        said.push(format!(
            "{label}: vmeter does not know how long the guest waited for its \
            pages: {why}"
        ));
    }
    let unnamed = machine.made.as_ref().and_then(|made| made.unnamed.as_deref());
    if let Some(why) = unnamed.filter(|_| machine.pages.runs > 0) {
        said.push(format!(
            "{label}: vmeter does not know the owners of the snapshot's pages: {why}"
        ));
    }
    let mut texts: Vec<String> = machine
        .runs
        .runs
        .iter()
        .flat_map(|run| run.record.warnings.iter().chain(&run.timeline.warnings))
        .map(|text| format!("{label}: {text}"))
        .collect();
    texts.sort();
    texts.dedup();
    // Stretches differ from run to run; what is said of the first holds for all.
    const MOST: usize = 3;
    said.extend(texts.into_iter().take(MOST));
    said
}
