//! Carrying out a session's plan, run by run, each saved before the next begins.

use crate::failure::{failure, host, usage, Class};
use crate::interrupt::Interrupt;
use crate::progress::Watch;
use crate::run_file::RunFile;
use crate::saved_in::saved_in;
use crate::store::Session;
use crate::subcommand;
use crate::suspension::Absence;
use anyhow::{bail, Context, Result};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;
use std::time::SystemTime;
use vmeter_model::run::{Outcome, Planned, RunHead, SessionMachine};
use vmeter_model::time::{ClockReading, Ns};
use vmeter_model::SCHEMA;

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

impl<P: Planned> RunRequest<'_, P> {
    /// What is said of the run once it is done: it began at `begin` and took `total_ns`.
    pub fn head(&self, begin: ClockReading, total_ns: Ns) -> RunHead {
        RunHead {
            schema: SCHEMA.into(),
            index: self.index,
            label: self.machine.label.clone(),
            warmup: self.planned.warmup(),
            exec_ns: begin.monotonic_ns,
            total_ns,
            clocks: vec![begin],
            outcome: Outcome::Done,
        }
    }
}

/// How often a run is begun again because vmeter did not run all the while.
const REPEATS: u32 = 3;

/// What an experiment does for one planned run.
pub trait Runner<P> {
    /// What is saved of it.
    type Run: RunFile;

    /// Carries out one run, recording into the request's folder.
    ///
    /// # Errors
    /// When there is nothing to save; what went wrong in what is measured is part of the run.
    fn run(&mut self, request: &RunRequest<'_, P>) -> Result<Self::Run>;

    /// The command of `--prepare` before a run of `machine`.
    fn prepare_command(&self, command: &str, machine: &SessionMachine) -> String {
        let _ = machine;
        command.to_owned()
    }

    /// What the user is told of a run that has just been saved.
    fn summary(&self, run: &Self::Run) -> String;

    /// Why going on with this run's machine would only repeat a failure, if so.
    fn fatal_reason(&self, run: &Self::Run) -> Option<String> {
        let _ = run;
        None
    }

    /// Keeps a remark with a run, in words for the user.
    fn add_note(&self, run: &mut Self::Run, remark: &str) {
        let _ = (run, remark);
    }

    /// True for a run that ended because the user wanted it to, and is not kept.
    fn was_interrupted(&self, run: &Self::Run) -> bool {
        let _ = run;
        false
    }

    /// False where a run that vmeter was stopped in can't be made again: what it measured goes on.
    fn can_repeat(&self) -> bool {
        true
    }

    /// What ended with a run that was interrupted, if that is not what anybody would expect.
    fn ended_with(&self, run: &Self::Run) -> Option<String> {
        let _ = run;
        None
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
    watch: &mut Watch<'_>,
) -> Result<()> {
    let (finished, warnings) = session.finished_as::<R::Run>()?;
    let finished: BTreeSet<u32> = finished.iter().map(|(_, run)| run.index()).collect();
    for warning in &warnings {
        watch.progress.warn(&format!("{warning}: vmeter repeats this run"));
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
        let result = one_run(session, runner, index, planned, watch);
        let run = result.inspect_err(|error| {
            watch.progress.end();
            session.withdraw(error);
        })?;
        let label = session.record.machines.get(planned.machine()).map_or("", |m| &m.label);
        watch.progress.run(label, &runner.summary(&run));
        if let Some(why) = runner.fatal_reason(&run) {
            watch.progress.warn(&why);
            given_up.insert(planned.machine());
        }
    }
    watch.progress.end();
    Ok(())
}

/// Carries out one run and saves it. One in which vmeter itself was stopped (Ctrl-Z, SIGSTOP)
/// is not kept: it is made again, which is said and noted with the run.
///
/// # Errors
/// As [`execute`]; class host if vmeter was stopped each time.
pub fn one_run<P: Planned, R: Runner<P>>(
    session: &Session<P>,
    runner: &mut R,
    index: u32,
    planned: &P,
    watch: &mut Watch<'_>,
) -> Result<R::Run> {
    for repeat in 0..=REPEATS {
        let (absence, begin) = (Absence::watch(), SystemTime::now());
        let run = attempt(session, runner, index, planned, watch.interrupt);
        let away = absence.end();
        if let Some(left) = subcommand::take_left() {
            watch.progress.warn(&left);
        }
        let mut run = run?;
        if away > 0 && !runner.can_repeat() {
            runner.add_note(
                &mut run,
                &format!(
                    "vmeter itself was stopped for {:.1} s of the run, so the samples of that \
                     time are missing",
                    away as f64 / 1e9
                ),
            );
        }
        if away == 0 || !runner.can_repeat() {
            if repeat > 0 {
                runner.add_note(
                    &mut run,
                    &format!(
                        "{AGAIN}, because vmeter was suspended during {repeat} attempts at \
                        this run"
                    ),
                );
            }
            session.commit_run(&run)?;
            session.forget_written(begin)?;
            return Ok(run);
        }
        session.discard_run(index);
        watch.progress.warn(&format!(
            "run {index}: vmeter itself was stopped for {:.1} s during this run, so the times \
             are wrong; vmeter repeats the run",
            away as f64 / 1e9
        ));
    }
    Err(host(format!(
        "run {index}: something suspended vmeter (Ctrl-Z, SIGSTOP, a frozen cgroup) in each \
            of {} tries. The earlier runs are saved: continue with --resume {}, and do not suspend \
            vmeter",
        REPEATS + 1,
        session.dir.display()
    )))
}

/// How the remark begins on a run that is not the first try.
const AGAIN: &str = "made again";

/// Carries out one run and leaves it to be saved.
fn attempt<P: Planned, R: Runner<P>>(
    session: &Session<P>,
    runner: &mut R,
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
    if let Some(command) = &session.record.prepare {
        let prepared = run_prepare(&runner.prepare_command(command, machine), interrupt);
        if interrupt.is_raised() {
            return Err(stopped(session, index));
        }
        prepared?;
    }
    let dir = session.begin_run(index)?;
    let seed = session.record.seed;
    let request = RunRequest { dir: &dir, index, machine, planned, seed, interrupt };
    match runner.run(&request) {
        Ok(run) if !runner.was_interrupted(&run) && !interrupt.is_raised() => Ok(run),
        Ok(run) => {
            let error = stopped(session, index);
            Err(match runner.ended_with(&run) {
                Some(ended) => failure(Class::Interrupted, format!("{error}; {ended}")),
                None => error,
            })
        }
        // What goes wrong once the user wants it to end is no news.
        Err(_) if interrupt.is_raised() => Err(stopped(session, index)),
        Err(error) => {
            session.discard_run(index);
            session.check_there()?;
            Err(error)
        }
    }
}

fn stopped<P: Planned>(session: &Session<P>, index: u32) -> anyhow::Error {
    session.discard_run(index);
    let saved = saved_in(&session.dir);
    failure(Class::Interrupted, format!("interrupted in run {index}; {saved}"))
}

/// Runs the command of `--prepare`: the user's own command line, in the user's own shell
/// syntax.
///
/// # Errors
/// A command that fails; an interruption.
pub fn run_prepare(command: &str, interrupt: &Interrupt) -> Result<()> {
    let mut sh = std::process::Command::new("sh");
    sh.args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::null());
    let status = subcommand::run(&mut sh, interrupt).context("cannot run sh for --prepare")?;
    let Some(status) = status else {
        return Err(failure(Class::Interrupted, "interrupted in --prepare"));
    };
    if !status.success() {
        bail!("--prepare {command:?} ended with {status}: nothing is measured after a failed preparation");
    }
    Ok(())
}
