//! What can go wrong with the index.

use std::io;
use std::path::PathBuf;
use vmeter_session::folder::LockError;

/// Why a question about saved runs has no answer.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// A folder or file.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// What was tried, e.g. `cannot read`.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// No session has this name.
    #[error("{0:?} names no saved session: `vmeter runs list` shows the names")]
    Unknown(String),
    /// Several have names that begin so.
    #[error(
        "{given:?} is the beginning of the names of {count} sessions, e.g. {first:?}: give \
        more characters of the name"
    )]
    Ambiguous {
        /// What was given.
        given: String,
        /// How many.
        count: usize,
        /// One of them.
        first: String,
    },
    /// A vmeter is at work in the session, or its folder cannot be locked.
    #[error(transparent)]
    Busy(#[from] LockError),
    /// A link to a session, which is not followed.
    #[error("{} is a symbolic link to {}: to remove that folder, give its own name", .0.display(), .1.display())]
    Link(PathBuf, PathBuf),
    /// A session's checkout, say, has something in it that no build made.
    #[error("{}: nothing was removed, because the folder contains files that vmeter and its \
        builds did not make: {}. Move these files away, or remove them too with --force", .0.display(), .1)]
    Doubt(PathBuf, String),
    /// A folder that is about to be removed is not a session.
    #[error("{}: vmeter removed nothing, because this folder has no session.json of vmeter: give \
        the folder of a session", .0.display())]
    NoSession(PathBuf),
    /// Neither a date nor a length of time.
    #[error(
        "{0:?}: expected a date such as 2026-05-01 or 2026-05-01T12:00:00Z, or a time before \
        now such as 30d or 12h"
    )]
    Time(String),
}

impl IndexError {
    pub(crate) fn io(
        what: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| IndexError::Io { what, path, source }
    }
}
