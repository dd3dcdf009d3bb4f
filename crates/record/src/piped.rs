//! What a VMM writes into a pipe that it was handed, kept in the run's folder.

use crate::recorder::{self, Recorder, SourceError};
use crate::stamped::{self, Dropped, Stamper, Tap, Totals};
use rustix::event::Timespec;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use vmeter_model::run::SourceRecord;
use vmeter_model::Ns;

/// A pipe and the file that what arrives on it is stamped into.
pub(crate) struct Piped {
    path: PathBuf,
    stamper: Option<Stamper>,
}

impl Piped {
    /// Into this file of a run's folder; nothing is made yet.
    pub fn to(dir: &Path, file: &str) -> Self {
        Piped { path: dir.join(file), stamper: None }
    }

    /// Begins to stamp, and returns the end that the VMM writes to; `tap` and `pace` are those of
    /// [`Stamper::paced`].
    ///
    /// # Errors
    /// When the pipe, the file or the thread cannot be made.
    pub fn begin(
        &mut self,
        tap: Option<Tap>,
        pace: Option<Timespec>,
    ) -> Result<OwnedFd, SourceError> {
        let io = |error| SourceError::Io { path: self.path.clone(), error };
        let (read, write) = stamped::pipe().map_err(io)?;
        self.stamper = Some(Stamper::paced(read, &self.path, tap, pace).map_err(io)?);
        Ok(write)
    }

    /// What arrived; nothing if it was never begun.
    ///
    /// # Errors
    /// When reading or writing failed meanwhile.
    pub fn finish(self) -> Result<Option<Totals>, SourceError> {
        let Piped { path, stamper } = self;
        let totals = stamper.map(Stamper::finish).transpose();
        totals.map_err(|error| SourceError::Io { path, error })
    }

    /// As [`Self::finish`], as the source of a recorder that keeps this `file` alone; none if
    /// nothing arrived.
    ///
    /// # Errors
    /// As [`Self::finish`].
    pub fn source<R: Recorder<Parameters = Dropped>>(
        self,
        file: &str,
        clock: &str,
        error_ns: Ns,
    ) -> Result<Option<SourceRecord>, SourceError> {
        let totals = self.finish()?.filter(|totals| totals.bytes > 0);
        Ok(totals.map(|totals| recorder::record::<R>(&[file], clock, error_ns, &totals.into())))
    }
}
