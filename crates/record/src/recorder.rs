//! What a recorder is: one kind of recording, made live and read again later.

use crate::end::EndEvidence;
use crate::stamped::Input;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use vmeter_machine::launch::Tracee;
use vmeter_machine::plan::LaunchPlan;
use vmeter_machine::snapshots::Request;
use vmeter_machine::vmm::Abilities;
use vmeter_model::run::{SourceRecord, WatchLevel};
use vmeter_model::{Accel, Event, MachineSpec, Ns, RunRecord};

/// Why a source could not be recorded or decoded. Never fatal to a run: it
/// becomes a warning, and the timeline is coarser without that source.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// A file could not be read or written.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What happened.
        error: std::io::Error,
    },
    /// What was expected, what was found, what to do.
    #[error("{0}")]
    Other(String),
}

/// What a VMM restores that is started to go on with a guest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Its files.
    pub files: Vec<ImageFile>,
    /// Commands in JSON that the VMM's monitor is told before anything else.
    pub commands: Vec<String>,
    /// What the VMM is requested by its API, once that is there.
    pub requests: Vec<Request>,
    /// The RAM's file, if vmeter is to serve its pages.
    pub served: Option<PathBuf>,
    /// A file that says whose its pages are.
    pub owners: Option<PathBuf>,
    /// True if it matters for how long the VMM's threads wait for a CPU.
    pub waits: bool,
    /// True if the VMM may map its files, so that it matters for how long it waits for their pages.
    pub mapped: bool,
    /// What of it was loaded into the page cache before the run, if anything was.
    pub loaded: Option<Loaded>,
}

/// Pages that were loaded before a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loaded {
    /// How much, bytes.
    pub bytes: u64,
    /// How long it took, ns.
    pub took_ns: Ns,
}

/// A file of a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageFile {
    /// Where it is.
    pub path: PathBuf,
    /// How much of it is in the page cache right before the run, bytes, if that is known.
    pub resident_bytes: Option<u64>,
}

/// What is known of the run that a recorder is about to take part in.
pub struct Context<'a> {
    /// What the VMM restores; none if its guest is booted, or if nobody knows.
    pub snapshot: Option<&'a Snapshot>,
    /// The machine as asked for.
    pub spec: &'a MachineSpec,
    /// How it is watched.
    pub watch: WatchLevel,
    /// The run's folder: raw files go here.
    pub dir: &'a Path,
    /// vmeter's cache folder.
    pub cache: &'a Path,
    /// The kernel image, when it is known.
    pub kernel: Option<&'a Path>,
    /// The accelerator in use; none if unknown.
    pub accel: Option<Accel>,
    /// What the VMM can be asked.
    pub vmm: Abilities,
    /// True if the VMM runs already, and is looked into while it does.
    pub running: bool,
    /// True when the guest's init is vmeter's own.
    pub own_init: bool,
    /// True if the VMM's memory is looked at when the run ends.
    pub memory: bool,
    /// The ready point, where the console says it.
    pub ready: Option<std::sync::Arc<crate::ready::ConsoleWatch>>,
    /// What else to look for on the console while it runs: a panic.
    pub watches: Vec<std::sync::Arc<crate::ready::ConsoleWatch>>,
}

impl Context<'_> {
    /// What a VMM can be asked, of which it is known here that it restores a snapshot.
    pub fn abilities(&self, vmm: Abilities) -> Abilities {
        let restored = vmm.restored.or(self.snapshot.map(|_| "a snapshot"));
        let firmware_log = vmm.firmware_log && restored.is_none();
        Abilities { restored, firmware_log, ..vmm }
    }
}

/// A kind of recording: how it is made, and how it is read again.
pub trait Recorder: Sync + 'static {
    /// What reading needs to know besides the files, as
    /// [`SourceRecord::parameters`] keeps it.
    type Parameters: Serialize + DeserializeOwned;

    /// What its files hold, read once for everybody who asks for it.
    type Raw: 'static;

    /// Name, as in [`SourceRecord::name`].
    const NAME: &'static str;

    /// The live half, if this recorder applies to the run; `None` if it does not.
    fn live(&self, context: &Context<'_>) -> Option<Box<dyn Live>>;

    /// Reads what was saved in a run's folder.
    fn read(
        &self,
        dir: &Path,
        source: &SourceRecord,
        parameters: Self::Parameters,
    ) -> Result<Self::Raw, SourceError>;

    /// Makes events of it on the run's clock (0 = exec).
    fn decode(
        &self,
        raw: &Self::Raw,
        source: &SourceRecord,
        saved: &Saved<'_>,
    ) -> Result<Vec<Event>, SourceError>;

    /// At the end of a run that this was recorded in: adds to the run's record what only
    /// this knows.
    fn refine_run(&self, dir: &Path, run: &mut RunRecord) {
        let _ = (dir, run);
    }

    /// When all recordings are decoded: adds to their events what only this knows.
    fn refine_events(&self, saved: &Saved<'_>, events: &mut [Event]) {
        let _ = (saved, events);
    }

    /// Adds what its files say of the run's end.
    fn clues(&self, raw: &Self::Raw, clues: &mut EndEvidence) {
        let _ = (raw, clues);
    }
}

/// Any [`Recorder`], as the registry has it.
pub trait AnyRecorder: Sync {
    /// As [`Recorder::NAME`].
    fn name(&self) -> &'static str;
    /// As [`Recorder::live`].
    fn live(&self, context: &Context<'_>) -> Option<Box<dyn Live>>;
    /// Reads and decodes one source of the run.
    fn decode(&self, source: usize, saved: &Saved<'_>) -> Result<Vec<Event>, SourceError>;
    /// As [`Recorder::refine_run`].
    fn refine_run(&self, dir: &Path, run: &mut RunRecord);
    /// As [`Recorder::refine_events`].
    fn refine_events(&self, saved: &Saved<'_>, events: &mut [Event]);
    /// As [`Recorder::clues`]; none where its files can't be read.
    fn clues(&self, saved: &Saved<'_>, clues: &mut EndEvidence);
}

impl<R: Recorder> AnyRecorder for R {
    fn name(&self) -> &'static str {
        R::NAME
    }

    fn live(&self, context: &Context<'_>) -> Option<Box<dyn Live>> {
        Recorder::live(self, context)
    }

    fn decode(&self, source: usize, saved: &Saved<'_>) -> Result<Vec<Event>, SourceError> {
        let Some(record) = saved.run.sources.get(source) else { return Ok(Vec::new()) };
        Recorder::decode(self, &*saved.read(self, source)?, record, saved)
    }

    fn refine_run(&self, dir: &Path, run: &mut RunRecord) {
        Recorder::refine_run(self, dir, run);
    }

    fn refine_events(&self, saved: &Saved<'_>, events: &mut [Event]) {
        Recorder::refine_events(self, saved, events);
    }

    fn clues(&self, saved: &Saved<'_>, clues: &mut EndEvidence) {
        if let Ok(Some(raw)) = saved.raw(self) {
            Recorder::clues(self, &raw, clues);
        }
    }
}

/// Nothing to know besides the files.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct NoParameters {}

/// What was read already of each source, or why it could not be.
type Known = BTreeMap<usize, Result<Rc<dyn Any>, String>>;

/// A saved run. The files of a recording are read when somebody first asks for them, and
/// once: the guest's trace places its log and its virtual time as well.
pub struct Saved<'a> {
    /// The run's folder.
    pub dir: &'a Path,
    /// Its record.
    pub run: &'a RunRecord,
    known: RefCell<Known>,
}

impl<'a> Saved<'a> {
    /// A run and its folder; nothing is read yet.
    pub fn new(dir: &'a Path, run: &'a RunRecord) -> Self {
        Saved { dir, run, known: RefCell::default() }
    }

    /// What a recorder's files hold, if it took part in the run.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn raw<R: Recorder>(&self, recorder: &R) -> Result<Option<Rc<R::Raw>>, SourceError> {
        match self.run.sources.iter().position(|source| source.name == R::NAME) {
            Some(source) => self.read(recorder, source).map(Some),
            None => Ok(None),
        }
    }

    fn read<R: Recorder>(&self, recorder: &R, source: usize) -> Result<Rc<R::Raw>, SourceError> {
        let known = self.known.borrow().get(&source).cloned();
        let known = known.unwrap_or_else(|| {
            let record = &self.run.sources[source];
            let read = parameters::<R>(record)
                .and_then(|parameters| recorder.read(self.dir, record, parameters))
                .map(|raw| Rc::new(raw) as Rc<dyn Any>)
                .map_err(|error| error.to_string());
            self.known.borrow_mut().insert(source, read.clone());
            read
        });
        let raw = known.map_err(SourceError::Other)?;
        raw.downcast().map_err(|_| {
            SourceError::Other(format!("source {}: two recorders have this name", R::NAME))
        })
    }
}

fn parameters<R: Recorder>(source: &SourceRecord) -> Result<R::Parameters, SourceError> {
    let map = source.parameters.clone().into_iter().collect();
    serde_json::from_value(Value::Object(map)).map_err(|error| {
        SourceError::Other(format!("run.json: parameters of {}: {error}", R::NAME))
    })
}

/// The record of what a recorder saved.
pub fn record<R: Recorder>(
    files: &[&str],
    clock: impl Into<String>,
    error_ns: Ns,
    parameters: &R::Parameters,
) -> SourceRecord {
    // A parameter that is no JSON value would be a mistake in this program.
    let parameters = match serde_json::to_value(parameters) {
        Ok(Value::Object(map)) => map.into_iter().collect(),
        _ => BTreeMap::new(),
    };
    SourceRecord {
        name: R::NAME.into(),
        files: files.iter().map(|file| (*file).to_owned()).collect(),
        clock: clock.into(),
        error_ns,
        parameters,
    }
}

/// A recorder attached to one run. Methods are called in this order.
pub trait Live {
    /// Before the launch: add arguments, kernel parameters, descriptors.
    fn prepare(&mut self, plan: &mut LaunchPlan) -> Result<(), SourceError> {
        let _ = plan;
        Ok(())
    }

    /// The VMM is stopped right after its `execve`.
    fn exec(&mut self, tracee: &Tracee) -> Result<(), SourceError> {
        let _ = tracee;
        Ok(())
    }

    /// The VMM is stopped at its exit (or about to be killed); its memory is
    /// still there. Copy what is needed and return soon: the guest is over, but
    /// this time is part of the VMM's life and is reported as vmeter's own.
    fn exiting(&mut self, tracee: &Tracee) -> Result<(), SourceError> {
        let _ = tracee;
        Ok(())
    }

    /// True if a sign of a guest was seen so far.
    fn has_seen_guest(&self) -> bool {
        false
    }

    /// Where lines of the console that come by other ways than its pipe are to go.
    fn input(&self) -> Option<Input> {
        None
    }

    /// Another VMM prints to the console's pipe from now on; `apart` says that this one's lines
    /// come by another way.
    fn shared(&mut self, apart: bool) {
        let _ = apart;
    }

    /// The VMM has ended, and its run is about to be judged: read what is left of what it wrote.
    fn ended(&mut self) -> Result<(), SourceError> {
        Ok(())
    }

    /// Why the VMM failed, if what it printed says that it was for what this recorder added.
    fn blamed(&self, stderr: &str) -> Option<String> {
        let _ = stderr;
        None
    }

    /// The run is over: write what is left and say what was saved. `exec_ns` is
    /// `CLOCK_MONOTONIC` at the exec.
    fn finish(self: Box<Self>, exec_ns: Ns) -> Result<Option<SourceRecord>, SourceError>;
}

/// Attached sources, by name.
pub(crate) type Lives = Vec<(&'static str, Box<dyn Live>)>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::console::Console;

    fn run(sources: Vec<SourceRecord>) -> RunRecord {
        RunRecord { sources, ..RunRecord::default() }
    }

    #[test]
    fn a_file_is_read_once_and_parameters_are_those_of_its_recorder() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("console.chunks");
        std::fs::write(&file, b"vmeter-chunks 1\n5 6\nhello\n\n").expect("written");
        let mut source = record::<Console>(&["console.chunks"], "c", 1, &Default::default());
        assert!(source.parameters.is_empty(), "{source:?}");
        source.parameters.insert("of_a_later_version".into(), Value::from(1));
        let of_run = run(vec![source.clone()]);
        let saved = Saved::new(dir.path(), &of_run);
        let first = saved.raw(&Console).expect("read").expect("there");
        std::fs::remove_file(file).expect("removed");
        let again = saved.raw(&Console).expect("known").expect("there");
        assert!(Rc::ptr_eq(&first, &again));
        let mut clues = EndEvidence::default();
        AnyRecorder::clues(&Console, &saved, &mut clues);
        assert_eq!(clues.console, ["hello"]);
        assert!(Saved::new(dir.path(), &of_run).raw(&Console).is_err(), "the file is gone");
        source.parameters.insert("dropped_bytes".into(), Value::from("many"));
        let of_run = run(vec![source]);
        let error = Saved::new(dir.path(), &of_run).raw(&Console).expect_err("no number");
        assert!(error.to_string().contains("parameters of console"), "{error}");
    }
}
