//! What a VMM writes into a pipe that it was handed, kept in the run's folder.

use crate::recorder::{self, Recorder, SourceError};
use crate::stamped::{self, Dropped, Input, Stamper, Tap, Totals};
use rustix::event::Timespec;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use vmeter_model::run::SourceRecord;
use vmeter_model::Ns;

/// A pipe and the file that what arrives on it is stamped into.
pub(crate) struct Piped {
    path: PathBuf,
    stamper: Option<Stamper>,
    read: Option<Totals>,
}

impl Piped {
    /// Into this file of a run's folder; nothing is made yet.
    pub fn to(dir: &Path, file: &str) -> Self {
        Piped { path: dir.join(file), stamper: None, read: None }
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

    /// As [`Self::begin`], for a VMM that opens the pipe by a path, which is made.
    ///
    /// # Errors
    /// As there.
    pub fn begin_at(&mut self, pipe: &Path, pace: Option<Timespec>) -> Result<(), SourceError> {
        let io = |error: std::io::Error| SourceError::Io { path: pipe.to_owned(), error };
        rustix::fs::mkfifoat(
            rustix::fs::CWD,
            pipe,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        )
        .map_err(|error| io(error.into()))?;
        // Open for writing as well, so that it does not end before the VMM has opened it.
        let both = std::fs::File::options().read(true).write(true).open(pipe).map_err(io)?;
        self.stamper = Some(Stamper::paced(both.into(), &self.path, None, pace).map_err(io)?);
        Ok(())
    }

    /// Where else than on the pipe bytes can be given to it, once it began.
    pub fn input(&self) -> Option<Input> {
        self.stamper.as_ref().map(Stamper::input)
    }

    /// Reads what is still in the pipe, and no more after it.
    ///
    /// # Errors
    /// When reading or writing failed meanwhile.
    pub fn end(&mut self) -> Result<(), SourceError> {
        if let Some(stamper) = self.stamper.take() {
            let io = |error| SourceError::Io { path: self.path.clone(), error };
            self.read = Some(stamper.finish().map_err(io)?);
        }
        Ok(())
    }

    /// What arrived; nothing if it was never begun.
    ///
    /// # Errors
    /// As [`Self::end`].
    pub fn finish(mut self) -> Result<Option<Totals>, SourceError> {
        self.end()?;
        Ok(self.read)
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
