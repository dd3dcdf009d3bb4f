//! Failures of vmeter's own in a run: a disk that is full, a recording that was not written, a
//! VMM that could not load what vmeter added. Such a run says nothing of the machine: it is
//! not saved, and carried out again by `--resume`.

use crate::recorder::{Lives, SourceError};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use vmeter_machine::launch::{End, Exit, LaunchError};

/// What must still fit on the disk when a run is over: `run.json` and what VMMs buffer. Where
/// it does not, what they wrote may have been cut.
const ROOM: usize = 64 << 10;
/// What a process says of a disk that is full.
const FULL: [&str; 2] = ["No space left on device", "Disk quota exceeded"];

/// The first one of a run, if there is one.
pub(crate) struct OwnFailures<'a> {
    /// The run's folder.
    dir: &'a Path,
    first: Option<String>,
}

impl<'a> OwnFailures<'a> {
    pub fn new(dir: &'a Path) -> Self {
        OwnFailures { dir, first: None }
    }

    /// Takes an error of a source into account, if it is one of vmeter's own. A source that
    /// this host does not have is none.
    pub fn note(&mut self, error: &SourceError) {
        match error {
            SourceError::Io { path, error: cause } => {
                if path.starts_with(self.dir) || is_shortage(cause) {
                    self.add(error.to_string());
                }
            }
            SourceError::Other(_) => {}
        }
    }

    /// Looks at how the VMM ended, and whether what was recorded had room.
    pub fn ended(&mut self, exit: &Exit, lives: &Lives) {
        if matches!(exit.end, End::ByItself) && !exit.status.success() {
            let full = |line: &&str| FULL.iter().any(|words| line.contains(words));
            let said = exit.stderr_tail.lines().find(full).map(str::to_owned);
            let blamed = || lives.iter().find_map(|(_, live)| live.blamed(&exit.stderr_tail));
            if let Some(line) = said.or_else(blamed) {
                self.add(format!("the VMM said {:?}", line.trim()));
            }
        }
        if let Err(error) = room(self.dir) {
            self.add(format!("{}: {error}", self.dir.display()));
        }
    }

    fn add(&mut self, what: String) {
        self.first.get_or_insert(what);
    }

    /// # Errors
    /// The first failure.
    pub fn check(&mut self) -> Result<(), LaunchError> {
        match self.first.take() {
            Some(what) => Err(LaunchError::Unrecorded { what }),
            None => Ok(()),
        }
    }
}

/// What this host has no more of.
fn is_shortage(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull
            | ErrorKind::QuotaExceeded
            | ErrorKind::FileTooLarge
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::WriteZero
            | ErrorKind::OutOfMemory
    )
}

/// An error if the disk has no room for what is yet to be written.
fn room(dir: &Path) -> io::Result<()> {
    let path = dir.join(".vmeter-room.partial");
    let written = fs::write(&path, vec![0; ROOM]);
    let _ = fs::remove_file(&path);
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_is_not_there_is_no_failure_of_vmeters() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let note = |path: &Path, kind: ErrorKind| {
            let mut own = OwnFailures::new(dir);
            own.note(&SourceError::Io { path: path.to_owned(), error: kind.into() });
            own.note(&SourceError::Other("no such tracer".into()));
            own.check().is_err()
        };
        assert!(note(&dir.join("console.chunks"), ErrorKind::Other));
        assert!(note(Path::new("/cache/plugin.so"), ErrorKind::StorageFull));
        assert!(!note(Path::new("/sys/kernel/tracing"), ErrorKind::PermissionDenied));
        assert!(!note(Path::new("/sys/kernel/tracing"), ErrorKind::NotFound));
        room(dir).unwrap();
        assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
        assert!(room(&dir.join("none")).is_err());
    }
}
