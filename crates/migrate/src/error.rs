//! What can go wrong.

use crate::side::Side;
use std::io;
use vmeter_machine::backend::MachineError;
use vmeter_machine::qmp::QmpError;
use vmeter_session::failure::{failure, Class};

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// The question makes no sense.
    #[error("{0}")]
    Usage(String),
    /// The machine cannot be made.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// This host can't.
    #[error("{0}")]
    Host(String),
    /// A file, pipe or process.
    #[error("{what}: {error}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// What happened.
        error: io::Error,
    },
    /// A VM ended when it should not have.
    #[error("the {side}'s QEMU ended ({status}){stderr}")]
    Ended {
        /// Which.
        side: Side,
        /// How.
        status: String,
        /// What it printed, with a separator; may be empty.
        stderr: String,
    },
    /// A monitor refused or did not answer.
    #[error("the {side}'s {error}")]
    Qmp {
        /// Which.
        side: Side,
        /// What.
        error: QmpError,
    },
    /// The guest is not heard.
    #[error(
        "the guest {what} within {seconds} s; does the guest own the first serial port \
        (0x3f8), and is --memory large enough?"
    )]
    Silent {
        /// What it did not do.
        what: &'static str,
        /// How long it was waited for.
        seconds: u64,
    },
    /// The user interrupted it.
    #[error("interrupted")]
    Interrupted,
}

impl MigrateError {
    /// The same in the classes that exit codes tell apart.
    pub fn classified(self) -> anyhow::Error {
        let class = match &self {
            Self::Usage(_) | Self::Machine(_) => Class::Usage,
            Self::Interrupted => Class::Interrupted,
            Self::Host(_)
            | Self::Io { .. }
            | Self::Ended { .. }
            | Self::Qmp { .. }
            | Self::Silent { .. } => Class::Host,
        };
        failure(class, self)
    }

    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io { what, error }
    }
}
