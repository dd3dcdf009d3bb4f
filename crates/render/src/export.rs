//! Writing an output where the user wants it.
//!
//! A file is written beside its target and renamed over it, so a reader sees
//! the old one or the whole new one. Whether a path can be written is checked
//! before the first boot: runs are dear, and a typo must not cost them.

use crate::{Output, Report, ReportError};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use vmeter_base::files;

/// Where an output goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Standard output.
    Stdout,
    /// A file.
    File(PathBuf),
}

impl Target {
    /// `-` is standard output; everything else is a path.
    pub fn parse(text: &str) -> Self {
        match text {
            "-" => Target::Stdout,
            path => Target::File(path.into()),
        }
    }
}

/// Writes `report` to `target`.
///
/// # Errors
/// When the target cannot be written, or the result has nothing for this output
/// ([`ReportError::NoTimeline`]). A file is then left as it was.
pub fn export(
    output: &dyn Output,
    target: &Target,
    report: &dyn Report,
) -> Result<(), ReportError> {
    match target {
        Target::Stdout => {
            let mut out = BufWriter::new(io::stdout().lock());
            output.write(report, &mut out)?;
            out.flush().map_err(ReportError::stream(output.name()))
        }
        Target::File(path) => write_whole(path, |out| output.write(report, out)),
    }
}

/// Writes a file whole or not at all ([`vmeter_base::files::replace`]).
///
/// # Errors
/// [`ReportError::Unwritable`], or what `write` returned.
pub fn write_whole(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> Result<(), ReportError>,
) -> Result<(), ReportError> {
    let unwritable = |source| ReportError::Unwritable { path: path.to_owned(), source };
    files::replace(path, unwritable, write)
}

/// Checks that [`export`] could write to `target`, without leaving a trace.
///
/// # Errors
/// [`ReportError::Unwritable`] with the reason.
pub fn check_writable(target: &Target) -> Result<(), ReportError> {
    let Target::File(path) = target else { return Ok(()) };
    files::check_replaceable(path)
        .map_err(|source| ReportError::Unwritable { path: path.clone(), source })
}
