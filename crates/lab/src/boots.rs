//! Runs that are boots: what the executor of sessions needs to know of them.

use crate::phrases::{ended_text, last_words, was_killed};
use crate::sweep::parameters::filled;
use anyhow::Result;
use vmeter_model::run::{Outcome, PlannedRun, RunRecord, SessionMachine, WatchLevel};
use vmeter_model::time::seconds;
use vmeter_record::end::LEFT;
use vmeter_session::{RunRequest, Runner};

/// One boot to carry out.
pub type BootRequest<'a> = RunRequest<'a, PlannedRun>;

/// How a boot is carried out: by the real recorder, or by a stand-in in tests.
pub trait Booter {
    /// Boots the request's machine once, recording into its folder.
    ///
    /// # Errors
    /// When the VMM could not even be started; what went wrong later is the
    /// record's outcome.
    fn boot(&self, request: &BootRequest<'_>) -> Result<RunRecord>;

    /// False where it is somebody else's VM that is booted, which runs on.
    fn can_repeat(&self) -> bool {
        true
    }
}

impl<B: Booter + ?Sized> Booter for &B {
    fn boot(&self, request: &BootRequest<'_>) -> Result<RunRecord> {
        (**self).boot(request)
    }

    fn can_repeat(&self) -> bool {
        (**self).can_repeat()
    }
}

/// Boots, as the runs of a session.
#[derive(Debug)]
pub struct Boots<B>(pub B);

impl<B: Booter> Runner<PlannedRun> for Boots<B> {
    type Run = RunRecord;

    fn run(&mut self, request: &BootRequest<'_>) -> Result<RunRecord> {
        self.0.boot(request)
    }

    fn can_repeat(&self) -> bool {
        self.0.can_repeat()
    }

    fn prepare_command(&self, command: &str, machine: &SessionMachine) -> String {
        filled(command, &machine.parameters)
    }

    fn summary(&self, run: &RunRecord) -> String {
        summary_of(run)
    }

    fn fatal_reason(&self, run: &RunRecord) -> Option<String> {
        fatal_reason(run)
    }

    fn add_note(&self, run: &mut RunRecord, remark: &str) {
        run.warnings.push(remark.to_owned());
    }

    fn was_interrupted(&self, run: &RunRecord) -> bool {
        run.outcome == Outcome::Interrupted
    }

    fn ended_with(&self, run: &RunRecord) -> Option<String> {
        run.end.as_ref()?.evidence.split_once(LEFT).map(|(_, left)| left.to_owned())
    }
}

/// How closely a plan's boots are watched: those that are watched most.
pub(crate) fn watched(plan: &[PlannedRun]) -> Option<WatchLevel> {
    let has = |level: &WatchLevel| plan.iter().any(|planned| planned.watch == *level);
    [WatchLevel::Full, WatchLevel::Light, WatchLevel::None].into_iter().find(has)
}

/// What is said of a boot that has just been saved.
pub(crate) fn summary_of(run: &RunRecord) -> String {
    format!("{:.3} s", seconds(run.total_ns))
}

/// Why going on would only repeat a failure, if so.
pub(crate) fn fatal_reason(record: &RunRecord) -> Option<String> {
    let what = match &record.outcome {
        Outcome::Interrupted => return None,
        Outcome::VmmFailed { status, stderr }
            if !stderr.trim().is_empty() && !was_killed(status) =>
        {
            format!("the VMM failed ({status}): {}", last_words(stderr, record.index))
        }
        other => ended_text(other, record.end.as_ref())?,
    };
    Some(format!(
        "run {} of {:?}: {what}; vmeter skips the remaining runs with this label",
        record.index, record.label
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::path::Path;
    use vmeter_model::run::SessionRecord;
    use vmeter_model::SCHEMA;
    use vmeter_session::failure::class;
    use vmeter_session::failure::Class;
    use vmeter_session::{execute, Interrupt, Progress, Session, Watch};

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
                total_ns: 1_000_000,
                outcome,
                ..RunRecord::default()
            })
        }
    }

    #[derive(Default)]
    struct Silent(Vec<String>);

    impl Progress for Silent {
        fn begin(&mut self, _: &str, _: usize, _: usize) {}
        fn run(&mut self, _: &str, _: &str) {}
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

    fn executed(session: &Session, booter: &dyn Booter, progress: &mut Silent) -> Result<()> {
        let interrupt = Interrupt::default();
        execute(session, &mut Boots(booter), &mut Watch::new(progress, &interrupt))
    }

    #[test]
    fn interrupted_in_the_third_of_five_two_are_saved_and_not_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let session = session(folder.path());
        let fake = Fake { interrupt_in: Some(2), ..Fake::default() };
        let mut progress = Silent::default();
        let error = executed(&session, &fake, &mut progress).unwrap_err();
        assert_eq!(class(&error), Class::Interrupted);
        assert!(error.to_string().contains("2 finished runs are saved"), "{error}");

        let again = Fake::default();
        executed(&session, &again, &mut progress).unwrap();
        assert_eq!(*again.booted.borrow(), [2, 3, 4]);
        assert_eq!(session.finished().unwrap().0.len(), 5);
    }

    #[test]
    fn a_guest_that_panics_is_saved_and_ends_the_session() {
        let folder = tempfile::tempdir().unwrap();
        let session = session(folder.path());
        let fake = Fake { panic_in: Some(1), ..Fake::default() };
        let mut progress = Silent::default();
        executed(&session, &fake, &mut progress).unwrap();
        assert_eq!(session.finished().unwrap().0.len(), 2);
        assert!(progress.0[0].contains("Kernel panic"), "{:?}", progress.0);
    }

    #[test]
    fn a_failed_preparation_ends_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut session = session(folder.path());
        session.record.prepare = Some("exit 7".into());
        let mut progress = Silent::default();
        let error = executed(&session, &Fake::default(), &mut progress).unwrap_err();
        assert!(error.to_string().contains("exit 7"), "{error}");
    }
}
