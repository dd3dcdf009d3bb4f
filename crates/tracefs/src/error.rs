//! What can go wrong, and the command that mends it.

use std::io;
use std::path::{Path, PathBuf};
use vmeter_base::shell;

/// Why nothing is recorded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No tracefs is mounted.
    #[error(
        "no tracefs is mounted here; mount it: `sudo mount -t tracefs tracefs \
         /sys/kernel/tracing`"
    )]
    NotMounted,
    /// This user may not use it.
    #[error("this user may not use {path}: tracefs belongs to root, so run `{command}`")]
    NotPermitted {
        /// What was refused.
        path: PathBuf,
        /// The present command line, with sudo.
        command: String,
    },
    /// The kernel has no instances.
    #[error("{path} does not exist: this kernel's tracing has no instances (CONFIG_TRACING)")]
    NoInstances {
        /// The folder looked for.
        path: PathBuf,
    },
    /// Processes are to be recorded by numbers that are not the host's.
    #[error(
        "vmeter runs in its own PID namespace (a container), but the kernel's trace has the \
         host's PIDs: run vmeter on the host, or in a container with the host's PIDs \
         (--pid=host, hostPID: true)"
    )]
    OtherProcesses,
    /// None of the events asked for exists.
    #[error("this kernel has none of the events {events}; {hint}")]
    NoEvents {
        /// Events asked for.
        events: String,
        /// What would make them appear.
        hint: &'static str,
    },
    /// Any other file error.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The reader's thread could not be started, or panicked.
    #[error("the thread that reads the trace {0}")]
    Thread(String),
}

impl Error {
    /// True if another user could record.
    pub fn is_permission(&self) -> bool {
        matches!(self, Error::NotPermitted { .. })
    }

    /// An error of the file system at `path`.
    pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
        move |error| match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Error::NotPermitted { path: path.to_owned(), command: with_sudo() }
            }
            _ => Error::Io { path: path.to_owned(), error },
        }
    }
}

/// This process's command line, quoted for a shell, under sudo.
fn with_sudo() -> String {
    format!("sudo {}", shell::join(vmeter_base::argv()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_command_that_mends_it() {
        let refused = io::Error::from(io::ErrorKind::PermissionDenied);
        let error = Error::at(Path::new("/sys/kernel/tracing/instances"))(refused);
        assert!(error.is_permission());
        let text = error.to_string();
        assert!(text.contains("`sudo ") && text.contains("instances"), "{text}");
        assert!(!Error::at(Path::new("x"))(io::ErrorKind::NotFound.into()).is_permission());
    }
}
