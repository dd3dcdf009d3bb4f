//! Writing an output where the user wants it.
//!
//! A file is written beside its target and renamed over it, so a reader sees
//! the old one or the whole new one. Whether a path can be written is checked
//! before the first boot: runs are dear, and a typo must not cost them.

use crate::{by_name, Report, ReportError, OUTPUTS};
use rustix::fs::Access;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

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

/// Writes `report` to `target` by the output called `kind` (a name in [`OUTPUTS`]).
///
/// # Errors
/// When there is no such output, the target cannot be written, or the result has
/// nothing for it ([`ReportError::NoTimeline`]). A file is then left as it was.
pub fn export(kind: &str, target: &Target, report: &dyn Report) -> Result<(), ReportError> {
    let output = by_name(kind).ok_or_else(|| ReportError::UnknownOutput {
        name: kind.to_owned(),
        known: OUTPUTS.iter().map(|o| o.name()).collect::<Vec<_>>().join(", "),
    })?;
    match target {
        Target::Stdout => {
            let mut out = BufWriter::new(io::stdout().lock());
            output.write(report, &mut out)?;
            out.flush().map_err(ReportError::stream(output.name()))
        }
        Target::File(path) => write_atomically(path, |out| output.write(report, out)),
    }
}

/// Writes a file by way of a temporary one in the same folder.
///
/// A symbolic link is followed, so it stays one. What is not a regular file
/// (a FIFO, `/dev/null`) is opened and written as it is.
///
/// # Errors
/// [`ReportError::Unwritable`], or what `write` returned.
pub fn write_atomically(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> Result<(), ReportError>,
) -> Result<(), ReportError> {
    let unwritable = |source| ReportError::Unwritable { path: path.to_owned(), source };
    if is_special(path) {
        let file = OpenOptions::new().write(true).open(path).map_err(unwritable)?;
        let mut out = BufWriter::new(file);
        write(&mut out)?;
        return out.flush().map_err(unwritable);
    }
    let place = resolve(path);
    let file = temporary_beside(&place).map_err(unwritable)?;
    let mut out = BufWriter::new(file);
    write(&mut out)?;
    let file = out.into_inner().map_err(|e| unwritable(e.into_error()))?;
    file.as_file().sync_all().map_err(unwritable)?;
    file.persist(&place).map_err(|e| unwritable(e.error))?;
    Ok(())
}

/// Checks that [`export`] could write to `target`, without leaving a trace.
///
/// # Errors
/// [`ReportError::Unwritable`] with the reason.
pub fn check_writable(target: &Target) -> Result<(), ReportError> {
    let Target::File(path) = target else { return Ok(()) };
    let unwritable = |source| ReportError::Unwritable { path: path.clone(), source };
    if path.is_dir() {
        return Err(unwritable(io::ErrorKind::IsADirectory.into()));
    }
    if is_special(path) {
        return rustix::fs::access(path, Access::WRITE_OK).map_err(|e| unwritable(e.into()));
    }
    temporary_beside(&resolve(path)).map(drop).map_err(unwritable)
}

fn is_special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

fn resolve(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// A temporary file in the folder of `path`, with the permissions of a new file.
fn temporary_beside(path: &Path) -> io::Result<NamedTempFile<File>> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    tempfile::Builder::new()
        .prefix(".vmeter-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)
        .map_err(|e| io::Error::new(e.kind(), strip_path(&e)))
}

/// The reason alone: `tempfile` appends the temporary path, which the user never named.
fn strip_path(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" at path ").next().unwrap_or(&text).to_owned()
}
