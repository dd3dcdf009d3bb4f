//! Carrying out a session's plan, run by run, each saved before the next begins.

use crate::failure::{failure, Class};
use crate::interrupt::Interrupt;
use crate::session::Session;
use anyhow::{bail, Context, Result};
use std::collections::BTreeSet;
use std::path::Path;
use vmeter_model::run::{Outcome, PlannedRun, RunRecord, SessionMachine};
use vmeter_model::time::seconds;

/// How a run is carried out: by the real recorder, or by a stand-in in tests.
pub trait Booter {
    /// Boots `machine` once, recording into `dir`.
    ///
    /// # Errors
    /// When the VMM could not even be started; what went wrong later is the
    /// record's outcome.
    fn boot(&self, request: &BootRequest<'_>) -> Result<RunRecord>;
}

/// One run to carry out.
#[derive(Clone, Copy)]
pub struct BootRequest<'a> {
    /// Empty folder to record into.
    pub dir: &'a Path,
    /// Number of the run.
    pub index: u32,
    /// The machine.
    pub machine: &'a SessionMachine,
    /// How it is watched, and whether it is a warm-up.
    pub planned: PlannedRun,
    /// The session's seed, for machines that vary by one.
    pub seed: u64,
    /// Ends the run early.
    pub interrupt: &'a Interrupt,
}

/// Who is told how far it is.
pub trait Progress {
    /// Work begins: `runs` in all, of which `finished` are there already.
    fn begin(&mut self, label: &str, runs: usize, finished: usize);
    /// A run has been saved.
    fn run(&mut self, news: &RunNews<'_>);
    /// What is being done now, where that is no run.
    fn note(&mut self, message: &str) {
        let _ = message;
    }
    /// Something the user should know now.
    fn warn(&mut self, message: &str);
    /// All is done.
    fn end(&mut self);
}

/// What is said of a run that has just been saved.
pub struct RunNews<'a> {
    /// Label of its machine.
    pub label: &'a str,
    /// Its length, s.
    pub total_s: f64,
    /// How it ended.
    pub outcome: &'a Outcome,
}

/// Carries out what is left of the session's plan. A run that is on disk is
/// never repeated. A machine that fails is not run again, the others go on.
/// Ends early, with an error, when interrupted.
///
/// # Errors
/// An interruption (class `Interrupted`, finished runs are saved), a VMM that
/// cannot be started, a `--prepare` that fails, a disk that is full.
pub fn execute(
    session: &Session,
    booter: &dyn Booter,
    prepare: Option<&str>,
    progress: &mut dyn Progress,
    interrupt: &Interrupt,
) -> Result<()> {
    let (finished, warnings) = session.finished()?;
    let finished: BTreeSet<u32> = finished.iter().map(|(_, record)| record.index).collect();
    for warning in &warnings {
        progress.warn(&format!("{warning}: this run is repeated"));
    }
    let plan = &session.record.plan;
    let own = session.record.shard.as_ref().map(|s| s.runs.iter().copied().collect());
    let own: Option<BTreeSet<u32>> = own;
    let all = own.as_ref().map_or(plan.len(), BTreeSet::len);
    progress.begin(&session.record.command, all, finished.len());
    let mut given_up = BTreeSet::new();
    for (index, planned) in plan.iter().enumerate() {
        let index = u32::try_from(index).context("too many runs")?;
        let others = own.as_ref().is_some_and(|own| !own.contains(&index));
        if others || finished.contains(&index) || given_up.contains(&planned.machine) {
            continue;
        }
        let result = one_run(session, booter, prepare, index, *planned, interrupt);
        let record = result.inspect_err(|_| progress.end())?;
        let label = &record.label;
        let total_s = seconds(record.total_ns);
        progress.run(&RunNews { label, total_s, outcome: &record.outcome });
        if let Some(why) = hopeless(&record) {
            progress.warn(&why);
            given_up.insert(planned.machine);
        }
    }
    progress.end();
    Ok(())
}

pub(crate) fn one_run(
    session: &Session,
    booter: &dyn Booter,
    prepare: Option<&str>,
    index: u32,
    planned: PlannedRun,
    interrupt: &Interrupt,
) -> Result<RunRecord> {
    let machine =
        session.record.machines.get(planned.machine).with_context(|| {
            format!("session.json: run {index} names machine {}", planned.machine)
        })?;
    let stop_here = |session: &Session| {
        session.discard_run(index);
        let saved = session.finished().map_or(0, |(runs, _)| runs.len());
        failure(
            Class::Interrupted,
            format!(
                "interrupted in run {index}; {saved} finished runs are saved: go on with --resume {}",
                session.dir.display()
            ),
        )
    };
    if interrupt.is_raised() {
        return Err(stop_here(session));
    }
    if let Some(command) = prepare {
        run_prepare(command)?;
    }
    let dir = session.begin_run(index)?;
    let request =
        BootRequest { dir: &dir, index, machine, planned, seed: session.record.seed, interrupt };
    let record = booter.boot(&request).inspect_err(|_| session.discard_run(index))?;
    if record.outcome == Outcome::Interrupted || interrupt.is_raised() {
        return Err(stop_here(session));
    }
    session.commit_run(&record)?;
    Ok(record)
}

/// The user's own command line, so the user's own shell syntax.
pub(crate) fn run_prepare(command: &str) -> Result<()> {
    let status = std::process::Command::new("sh")
        .args(["-c", command])
        .stdout(std::process::Stdio::null())
        .status()
        .context("cannot run sh for --prepare")?;
    if !status.success() {
        bail!("--prepare {command:?} ended with {status}: nothing is measured after a failed preparation");
    }
    Ok(())
}

/// Why going on would only repeat a failure, if so.
pub(crate) fn hopeless(record: &RunRecord) -> Option<String> {
    let what = match &record.outcome {
        Outcome::Done | Outcome::Interrupted => return None,
        Outcome::Panicked { line } => format!("the guest panicked: {line}"),
        Outcome::NotReady => "the VMM ended before the --until point was reached".into(),
        Outcome::VmmFailed { status, stderr } => match stderr.trim() {
            "" => format!("the VMM failed ({status})"),
            said => format!("the VMM failed ({status}): {said}"),
        },
        Outcome::TimedOut { last } => format!("timed out; the last thing seen: {last}"),
    };
    Some(format!("run {} of {:?}: {what}; it is not run again", record.index, record.label))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::class;
    use std::cell::RefCell;
    use vmeter_model::run::{SessionRecord, Usage, WatchLevel};
    use vmeter_model::SCHEMA;

    #[derive(Default)]
    struct Fake {
        booted: RefCell<Vec<u32>>,
        interrupt_in: Option<u32>,
        panic_in: Option<u32>,
    }

    impl Booter for Fake {
        fn boot(&self, request: &BootRequest<'_>) -> Result<RunRecord> {
            self.booted.borrow_mut().push(request.index);
            if self.interrupt_in == Some(request.index) {
                request.interrupt.raise();
            }
            let outcome = match self.panic_in {
                Some(index) if index == request.index => {
                    Outcome::Panicked { line: "Kernel panic - not syncing".into() }
                }
                _ => Outcome::Done,
            };
            Ok(RunRecord {
                schema: SCHEMA.into(),
                index: request.index,
                label: request.machine.label.clone(),
                warmup: request.planned.warmup,
                watch: request.planned.watch,
                argv: vec![],
                injected: vec![],
                exec_ns: 0,
                total_ns: 1_000_000,
                clocks: vec![],
                outcome,
                usage: Usage::default(),
                steal_s: 0.0,
                moments: vec![],
                sources: vec![],
                icount: false,
                warnings: vec![],
            })
        }
    }

    #[derive(Default)]
    struct Silent(Vec<String>);

    impl Progress for Silent {
        fn begin(&mut self, _: &str, _: usize, _: usize) {}
        fn run(&mut self, _: &RunNews<'_>) {}
        fn warn(&mut self, message: &str) {
            self.0.push(message.to_owned());
        }
        fn end(&mut self) {}
    }

    fn session(dir: &Path) -> Session {
        let planned = PlannedRun { machine: 0, warmup: false, watch: WatchLevel::Light };
        let record = SessionRecord {
            schema: SCHEMA.into(),
            machines: vec![SessionMachine::default()],
            plan: vec![planned; 5],
            ..SessionRecord::default()
        };
        Session::create(Some(dir), record).unwrap()
    }

    #[test]
    fn interrupted_in_the_third_of_five_two_are_saved_and_not_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let session = session(folder.path());
        let fake = Fake { interrupt_in: Some(2), ..Fake::default() };
        let mut progress = Silent::default();
        let error =
            execute(&session, &fake, None, &mut progress, &Interrupt::default()).unwrap_err();
        assert_eq!(class(&error), Class::Interrupted);
        assert!(error.to_string().contains("2 finished runs are saved"), "{error}");

        let again = Fake::default();
        execute(&session, &again, None, &mut progress, &Interrupt::default()).unwrap();
        assert_eq!(*again.booted.borrow(), [2, 3, 4]);
        assert_eq!(session.finished().unwrap().0.len(), 5);
    }

    #[test]
    fn a_guest_that_panics_is_saved_and_ends_the_session() {
        let folder = tempfile::tempdir().unwrap();
        let session = session(folder.path());
        let fake = Fake { panic_in: Some(1), ..Fake::default() };
        let mut progress = Silent::default();
        execute(&session, &fake, None, &mut progress, &Interrupt::default()).unwrap();
        assert_eq!(session.finished().unwrap().0.len(), 2);
        assert!(progress.0[0].contains("Kernel panic"), "{:?}", progress.0);
    }

    #[test]
    fn a_failed_preparation_ends_it() {
        let folder = tempfile::tempdir().unwrap();
        let session = session(folder.path());
        let mut progress = Silent::default();
        let error = execute(
            &session,
            &Fake::default(),
            Some("exit 7"),
            &mut progress,
            &Interrupt::default(),
        )
        .unwrap_err();
        assert!(error.to_string().contains("exit 7"), "{error}");
    }
}
