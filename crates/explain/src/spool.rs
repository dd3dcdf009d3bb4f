//! Standard input as a file: a trace is read twice, once for its clock.

use std::io;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;
use vmeter_trace::Error;

/// What standard input is called.
const STDIN: &str = "standard input";

/// Traces that can be read again.
pub struct Spool {
    /// Where they are.
    pub files: Vec<PathBuf>,
    /// What `-` gave; deleted with this.
    stdin: Option<NamedTempFile>,
}

impl Spool {
    /// Keeps what comes on standard input if `-` is among the files.
    ///
    /// # Errors
    /// [`Error::Read`] when it can't be read, or the temporary folder can't hold it.
    pub fn of(files: &[PathBuf]) -> Result<Spool, Error> {
        let is_stdin = |file: &Path| file.as_os_str() == "-";
        if !files.iter().any(|file| is_stdin(file)) {
            return Ok(Spool { files: files.to_vec(), stdin: None });
        }
        let keep = || -> io::Result<NamedTempFile> {
            let mut kept = NamedTempFile::new()?;
            io::copy(&mut io::stdin().lock(), &mut kept)?;
            Ok(kept)
        };
        let kept = keep().map_err(|source| Error::Read { name: STDIN.into(), source })?;
        let place = |file: &PathBuf| match is_stdin(file) {
            true => kept.path().to_owned(),
            false => file.clone(),
        };
        Ok(Spool { files: files.iter().map(place).collect(), stdin: Some(kept) })
    }

    /// What one of them is called.
    pub fn name(&self, file: &Path) -> String {
        match &self.stdin {
            Some(kept) if kept.path() == file => STDIN.into(),
            _ => file.display().to_string(),
        }
    }
}
