//! What a source is.

use std::path::{Path, PathBuf};
use vmeter_machine::launch::Tracee;
use vmeter_machine::plan::LaunchPlan;
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

/// What is known of the run that a source is about to record.
pub struct Context<'a> {
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
    /// True when the guest's init is vmeter's own.
    pub own_init: bool,
    /// The ready point, where the console says it.
    pub ready: Option<std::sync::Arc<crate::ready::ConsoleWatch>>,
    /// What else to look for on the console while it runs: a panic.
    pub watches: Vec<std::sync::Arc<crate::ready::ConsoleWatch>>,
}

/// A kind of recording, by name.
pub trait Source: Sync {
    /// Name, as in [`SourceRecord::name`].
    fn name(&self) -> &'static str;

    /// The live half, if this source applies to the run; `None` if it does not.
    fn live(&self, context: &Context<'_>) -> Option<Box<dyn Live>>;

    /// Turns what was saved into events on the run's clock (0 = exec).
    fn decode(
        &self,
        dir: &Path,
        run: &RunRecord,
        source: &SourceRecord,
    ) -> Result<Vec<Event>, SourceError>;
}

/// A source attached to one run. Methods are called in this order.
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

    /// The run is over: write what is left and say what was saved. `exec_ns` is
    /// `CLOCK_MONOTONIC` at the exec.
    fn finish(self: Box<Self>, exec_ns: Ns) -> Result<Option<SourceRecord>, SourceError>;
}
