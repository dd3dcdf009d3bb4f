//! Carrying out a session's plan, run by run, each saved before the next begins.

use crate::failure::{failure, usage, Class};
use crate::interrupt::Interrupt;
use crate::progress::Watch;
use crate::store::{RunFile, Session};
use anyhow::{bail, Context, Result};
use std::collections::BTreeSet;
use std::path::Path;
use vmeter_model::run::{Planned, RunHead, SessionMachine};

/// One run to carry out.
#[derive(Clone, Copy)]
pub struct RunRequest<'a, P> {
    /// Empty folder to record into.
    pub dir: &'a Path,
    /// Number of the run.
    pub index: u32,
    /// The machine.
    pub machine: &'a SessionMachine,
    /// What the plan says of it.
    pub planned: &'a P,
    /// The session's seed, for what varies by one.
    pub seed: u64,
    /// Ends the run early.
    pub interrupt: &'a Interrupt,
}

/// What an experiment does for one planned run.
pub trait Runner<P> {
    /// What is saved of it.
    type Run: RunFile;

    /// Carries out one run, recording into the request's folder.
    ///
    /// # Errors
    /// When there is nothing to save; what went wrong in what is measured is part of the run.
    fn run(&mut self, request: &RunRequest<'_, P>) -> Result<Self::Run>;

    /// What the user is told of a run that has just been saved.
    fn said(&self, run: &Self::Run) -> String;

    /// Why going on with this run's machine would only repeat a failure, if so.
    fn hopeless(&self, run: &Self::Run) -> Option<String> {
        let _ = run;
        None
    }

    /// True for a run that ended because the user wanted it to, and is not kept.
    fn was_interrupted(&self, run: &Self::Run) -> bool {
        let _ = run;
        false
    }
}

/// Carries out what is left of the session's plan. A run that is on disk is
/// never repeated. A machine that fails is not run again, the others go on.
/// Ends early, with an error, when interrupted.
///
/// # Errors
/// An interruption (class `Interrupted`, finished runs are saved), a run that cannot be
/// begun, a `--prepare` that fails, a disk that is full.
pub fn execute<P: Planned, R: Runner<P>>(
    session: &Session<P>,
    runner: &mut R,
    prepare: Option<&str>,
    watch: &mut Watch<'_>,
) -> Result<()> {
    let (finished, warnings) = session.finished_as::<RunHead>()?;
    let finished: BTreeSet<u32> = finished.iter().map(|(_, head)| head.index).collect();
    for warning in &warnings {
        watch.progress.warn(&format!("{warning}: this run is repeated"));
    }
    let plan = &session.record.plan;
    let own: Option<BTreeSet<u32>> =
        session.record.shard.as_ref().map(|s| s.runs.iter().copied().collect());
    let all = own.as_ref().map_or(plan.len(), BTreeSet::len);
    watch.progress.begin(&session.record.command, all, finished.len());
    let mut given_up = BTreeSet::new();
    for (index, planned) in plan.iter().enumerate() {
        let index = u32::try_from(index).context("too many runs")?;
        let others = own.as_ref().is_some_and(|own| !own.contains(&index));
        if others || finished.contains(&index) || given_up.contains(&planned.machine()) {
            continue;
        }
        let result = one_run(session, runner, prepare, index, planned, watch.interrupt);
        let run = result.inspect_err(|_| watch.progress.end())?;
        let label = session.record.machines.get(planned.machine()).map_or("", |m| &m.label);
        watch.progress.run(label, &runner.said(&run));
        if let Some(why) = runner.hopeless(&run) {
            watch.progress.warn(&why);
            given_up.insert(planned.machine());
        }
    }
    watch.progress.end();
    Ok(())
}

/// Carries out one run and saves it.
///
/// # Errors
/// As [`execute`].
pub fn one_run<P: Planned, R: Runner<P>>(
    session: &Session<P>,
    runner: &mut R,
    prepare: Option<&str>,
    index: u32,
    planned: &P,
    interrupt: &Interrupt,
) -> Result<R::Run> {
    let machine = session.record.machines.get(planned.machine()).ok_or_else(|| {
        usage(format!("session.json: run {index} names machine {}", planned.machine()))
    })?;
    if interrupt.is_raised() {
        return Err(stopped(session, index));
    }
    if let Some(command) = prepare {
        run_prepare(command)?;
    }
    let dir = session.begin_run(index)?;
    let seed = session.record.seed;
    let request = RunRequest { dir: &dir, index, machine, planned, seed, interrupt };
    let run = match runner.run(&request) {
        Ok(run) if !runner.was_interrupted(&run) && !interrupt.is_raised() => run,
        // What goes wrong once the user wants it to end is no news.
        _ if interrupt.is_raised() => return Err(stopped(session, index)),
        Ok(_) => return Err(stopped(session, index)),
        Err(error) => {
            session.discard_run(index);
            return Err(error);
        }
    };
    session.commit_run(&run)?;
    Ok(run)
}

fn stopped<P: Planned>(session: &Session<P>, index: u32) -> anyhow::Error {
    session.discard_run(index);
    let saved = session.finished_as::<RunHead>().map_or(0, |(runs, _)| runs.len());
    failure(
        Class::Interrupted,
        format!(
            "interrupted in run {index}; {saved} finished runs are saved: go on with --resume {}",
            session.dir.display()
        ),
    )
}

/// Runs the command of `--prepare`: the user's own command line, in the user's own shell
/// syntax.
///
/// # Errors
/// A command that fails.
pub fn run_prepare(command: &str) -> Result<()> {
    let status = std::process::Command::new("sh")
        .args(["-c", command])
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .status()
        .context("cannot run sh for --prepare")?;
    if !status.success() {
        bail!("--prepare {command:?} ended with {status}: nothing is measured after a failed preparation");
    }
    Ok(())
}
