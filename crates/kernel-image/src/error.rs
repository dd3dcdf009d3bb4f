//! What can go wrong, and what to do about it.

use std::path::PathBuf;

/// Why an image, a guest's RAM or a dump could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read or written.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What happened.
        error: std::io::Error,
    },
    /// The file is not a kernel that this crate reads.
    #[error("{path} is not an x86-64 Linux kernel: {reason}")]
    NotAKernel {
        /// The file.
        path: PathBuf,
        /// What was found instead, and what to give.
        reason: String,
    },
    /// The kernel's compressed payload does not decompress.
    #[error("the kernel's {format} payload is damaged or unsupported: {reason}")]
    Payload {
        /// Compression format.
        format: &'static str,
        /// What the decoder said.
        reason: String,
    },
    /// It unpacks to, or claims, more than a file of its size may.
    #[error("{path}: vmeter refuses this kernel, because a limit is exceeded: {exceeded}")]
    TooMuch {
        /// The file.
        path: PathBuf,
        /// What there was too much of.
        exceeded: vmeter_base::bounds::Exceeded,
    },
    /// The kernel lacks something: a table, a symbol, a type.
    #[error("{what} is missing from the kernel image: {why}")]
    Missing {
        /// What was looked for.
        what: String,
        /// Which option of the kernel's build leaves it out, or what it breaks.
        why: String,
    },
    /// Guest RAM does not hold what the kernel image says it should.
    #[error("guest RAM: {0}")]
    Ram(String),
    /// Symbols that do not name what a kernel's log calls by its address.
    #[error("{0}")]
    OtherBuild(String),
    /// A dump or a table is malformed.
    #[error("malformed {what}: {reason}")]
    Malformed {
        /// What was being read.
        what: &'static str,
        /// Expected and found.
        reason: String,
    },
}

/// Result with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Error of an operation on a file.
    pub(crate) fn io(path: &std::path::Path, error: std::io::Error) -> Self {
        Error::Io { path: path.to_owned(), error }
    }

    /// Malformed input.
    pub(crate) fn malformed(what: &'static str, reason: impl Into<String>) -> Self {
        Error::Malformed { what, reason: reason.into() }
    }
}
