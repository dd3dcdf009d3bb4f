//! Boots for real, through the recorder.

use crate::at_once::{is_spread, widened, Waves};
use crate::boots::{BootRequest, Booter, Boots};
use crate::prepare::Prepared;
use anyhow::{Context as _, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use vmeter_machine::backends::mock;
use vmeter_machine::backends::mock::scene::Scene;
use vmeter_machine::backends::mock::script::Script;
use vmeter_machine::launch::{LaunchError, Reason, Stopper};
use vmeter_model::run::{Outcome, SessionMachine, SessionRecord};
use vmeter_model::RunRecord;
use vmeter_record::recorder::Context;
use vmeter_record::run::Request;
use vmeter_record::sources::{firmware, guest_ftrace, guest_printk};
use vmeter_session::failure::{failure, host, usage, Class};
use vmeter_session::{cache_dir, pinned};

/// The recorder, with the machines of a session.
#[derive(Debug)]
pub struct Recorder {
    /// Machines, in the session's order.
    pub machines: Vec<Prepared>,
    /// vmeter's cache folder.
    pub cache: PathBuf,
    /// CPUs the VMM may use; empty for all.
    pub pin: Vec<usize>,
    /// Runs that are carried out together.
    pub(crate) waves: Waves,
}

/// Machines as a session saves them, and what boots them.
pub(crate) type Ready = (Vec<SessionMachine>, Boots<Recorder>);

impl Recorder {
    /// The recorder for machines that were prepared, on the CPUs of a list such as `0,2-3`.
    ///
    /// # Errors
    /// Class usage: a list that is not one.
    pub fn of(machines: Vec<Prepared>, pin: Option<&str>) -> Result<Self> {
        let (cache, pin) = (cache_dir()?, pinned(pin)?);
        Ok(Recorder { machines, cache, pin, waves: Waves::default() })
    }

    /// As [`Recorder::of`], on the CPUs of a session.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn ready(machines: Vec<Prepared>, record: &SessionRecord) -> Result<Ready> {
        let described = machines.iter().map(|one| one.session.clone()).collect();
        Ok((described, Boots(Recorder::of(machines, record.pin.as_deref())?)))
    }
}

impl Booter for Recorder {
    fn boot(&self, request: &BootRequest<'_>) -> Result<RunRecord> {
        match is_spread(request.machine) {
            true => self.waves.run(request, |request| self.one(request)),
            false => self.one(request),
        }
    }
}

impl Recorder {
    /// Plans each run as often as its machine runs at once.
    pub(crate) fn widen(&self, record: &mut SessionRecord) {
        record.plan = widened(std::mem::take(&mut record.plan), &record.machines);
        self.waves.follow(&record.plan, &record.machines);
    }

    /// One boot, whatever else is booted meanwhile.
    fn one(&self, request: &BootRequest<'_>) -> Result<RunRecord> {
        let prepared = self.machines.get(request.planned.machine).ok_or_else(|| {
            usage(format!(
                "session.json: run {} names a machine that this file does not describe",
                request.index
            ))
        })?;
        let machine = &prepared.machine;
        if let Some(script) = &machine.script {
            return play(script, prepared, request);
        }
        let key = machine.argv_text();
        let tried = known(&key);
        let bare = tried == Some(Tried::Refused);
        let first = self.once(prepared, request, bare);
        if bare || tried == Some(Tried::Works) || prepared.session.spec.no_inject {
            return Ok(first?.with_note(bare.then(|| AS_GIVEN.to_owned())));
        }
        let Some(why) = refused(&first, request) else {
            if first.as_ref().is_ok_and(|record| record.outcome == Outcome::Done) {
                know(key, Tried::Works);
            }
            return first;
        };
        empty(request.dir).context("cannot empty the run's directory to repeat the run")?;
        let again = self.once(prepared, request, true)?;
        if refused_as_given(&again) {
            // It fails by itself: what was added has no part in it.
            return Ok(again);
        }
        know(key, Tried::Refused);
        let said = format!("{AS_GIVEN}, because the VMM failed with the additions: {why}");
        Ok(again.with_note(Some(said)))
    }

    /// One boot; a `bare` one with nothing added. A command that traces what it starts (strace, gdb)
    /// is not traced itself.
    fn once(
        &self,
        prepared: &Prepared,
        request: &BootRequest<'_>,
        bare: bool,
    ) -> Result<RunRecord> {
        let argv = prepared.machine.argv_text();
        let tracers = || TRACERS.lock().unwrap_or_else(PoisonError::into_inner);
        let traces = tracers().contains(&argv);
        let record = match self.recorded(prepared, request, (bare, !traces)) {
            Err(LaunchError::PtraceTaken { .. }) => {
                empty(request.dir).context("cannot empty the run's directory to repeat the run")?;
                tracers().insert(argv);
                self.recorded(prepared, request, (bare, false))
            }
            first if traces => first,
            first => return first.map_err(classify),
        };
        let record = record.map_err(classify)?;
        Ok(record.with_note(Some(UNTRACED.to_owned())))
    }

    /// The same, as it went.
    fn recorded(
        &self,
        prepared: &Prepared,
        request: &BootRequest<'_>,
        (bare, traced): (bool, bool),
    ) -> Result<RunRecord, LaunchError> {
        let mut machine = prepared.machine.clone();
        let mut spec = prepared.session.spec.clone();
        if bare {
            (machine.may_inject, spec.no_inject) = (false, true);
            machine.console.clear();
        }
        let stopper = Stopper::new().map_err(|error| LaunchError::Prepare { error })?;
        let _during = request.interrupt.during({
            let stopper = stopper.clone();
            move || stopper.stop(Reason::Interrupted)
        });
        let context = Context {
            snapshot: prepared.snapshot.as_ref(),
            spec: &spec,
            watch: request.planned.watch,
            dir: request.dir,
            cache: &self.cache,
            kernel: machine.kernel.as_deref(),
            accel: machine.accel,
            vmm: machine.abilities(),
            running: false,
            own_init: machine.own_init,
            memory: prepared.memory,
            ready: None,
            watches: Vec::new(),
        };
        let probe_s = vmeter_session::host::probe_s();
        let (steal, pressure) =
            (vmeter_session::host::steal_s(), vmeter_session::host::cpu_pressure_s());
        let record = vmeter_record::run::run(
            Request {
                context,
                plan: machine.plan(),
                index: request.index,
                label: request.machine.label.clone(),
                warmup: request.planned.warmup,
                until: prepared.until.clone(),
                timeout: Some(prepared.timeout),
                pin: self.pin.clone(),
                traced,
            },
            &stopper,
        );
        let mut record = record?;
        record.steal_s = (vmeter_session::host::steal_s() - steal).max(0.0);
        let waited = vmeter_session::host::cpu_pressure_s().zip(pressure);
        record.cpu_pressure_s = waited.map(|(after, before)| (after - before).max(0.0));
        record.probe_s = Some(probe_s);
        Ok(record)
    }
}

/// Command lines of this process that trace what they start.
static TRACERS: Mutex<BTreeSet<Vec<String>>> = Mutex::new(BTreeSet::new());

/// Said of a run of one.
pub(crate) const UNTRACED: &str = "the command traces its VMM by ptrace(2), and a process can \
    have only one tracer, so vmeter does not trace the VMM. vmeter sees only the console, not \
    the VMM's start, its end or its guest's RAM, and counts times from the command's exec. A \
    traced VMM is slower";

/// Said of a run that was made with nothing added.
const AS_GIVEN: &str = "vmeter added nothing to the command line";

/// What is known of a command line in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tried {
    /// It works with what is added to it.
    Works,
    /// It works only as it is given.
    Refused,
}

static TRIED: Mutex<BTreeMap<Vec<String>, Tried>> = Mutex::new(BTreeMap::new());

fn known(argv: &[String]) -> Option<Tried> {
    TRIED.lock().unwrap_or_else(PoisonError::into_inner).get(argv).copied()
}

fn know(argv: Vec<String>, tried: Tried) {
    TRIED.lock().unwrap_or_else(PoisonError::into_inner).insert(argv, tried);
}

/// Why the VMM failed before anything of a guest was seen, if something was added to it.
fn refused(first: &Result<RunRecord>, request: &BootRequest<'_>) -> Option<String> {
    // A launcher whose VM runs on has refused nothing, and would start a second one.
    let tries = |record: &&RunRecord| !record.injected.is_empty() && !record.outlived;
    let record = first.as_ref().ok().filter(tries)?;
    let Outcome::VmmFailed { status, stderr } = &record.outcome else { return None };
    let guest = [firmware::NAME, guest_printk::NAME, guest_ftrace::NAME];
    let seen = record.sources.iter().any(|source| guest.contains(&source.name.as_str()));
    if seen || request.interrupt.is_raised() {
        return None;
    }
    Some(stderr.lines().rfind(|line| !line.trim().is_empty()).unwrap_or(status).to_owned())
}

fn refused_as_given(record: &RunRecord) -> bool {
    matches!(record.outcome, Outcome::VmmFailed { .. })
}

/// Removes what a run has written that is made again.
fn empty(dir: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        std::fs::remove_file(entry?.path())?;
    }
    Ok(())
}

trait Noted {
    fn with_note(self, note: Option<String>) -> Self;
}

impl Noted for RunRecord {
    fn with_note(mut self, note: Option<String>) -> Self {
        self.warnings.extend(note);
        self
    }
}

fn play(script: &Script, prepared: &Prepared, request: &BootRequest<'_>) -> Result<RunRecord> {
    let scene = Scene {
        spec: &prepared.session.spec,
        label: &request.machine.label,
        index: request.index,
        warmup: request.planned.warmup,
        watch: request.planned.watch,
        seed: request.seed,
    };
    mock::record(script, &scene, request.dir).context("cannot play the mock's script")
}

fn classify(error: LaunchError) -> anyhow::Error {
    match error {
        LaunchError::NoVmm { .. } | LaunchError::PtraceTaken { .. } => {
            failure(Class::Answer, error)
        }
        LaunchError::Prepare { .. }
        | LaunchError::Follow { .. }
        | LaunchError::Unrecorded { .. } => host(error),
        LaunchError::Start { error: ref cause, .. } if is_shortage(cause) => host(error),
        LaunchError::Start { .. }
        | LaunchError::Empty
        | LaunchError::NotFound { .. }
        | LaunchError::NotInPath { .. }
        | LaunchError::NotExecutable { .. }
        | LaunchError::Nul { .. }
        | LaunchError::Cpu { .. } => usage(error),
    }
}

/// True for what this host has no more of: processes, memory, descriptors.
fn is_shortage(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let shortages = [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::NOSPC];
    Errno::from_io_error(error).is_some_and(|error| shortages.contains(&error))
}
