//! What can go wrong when a trace is opened.
//!
//! Damage inside a trace is not an error: a reader yields what is whole and
//! says what is missing in [`crate::Losses`].

use std::path::PathBuf;

/// Why a trace could not be read at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be opened.
    #[error("cannot open the trace {}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Reading or decompressing failed before the first event.
    #[error("cannot read the trace {name}: {source}")]
    Read {
        /// The trace, as it was named to [`crate::Input`].
        name: String,
        /// What the system or the decompressor said.
        source: std::io::Error,
    },
    /// It unpacks to, claims or counts more than a file of its size may.
    #[error("cannot read the trace {name}: {exceeded}")]
    TooMuch {
        /// The trace.
        name: String,
        /// What there was too much of.
        exceeded: vmeter_base::bounds::Exceeded,
    },
    /// Nothing in it was understood.
    #[error(
        "{name} begins like a trace, but none of its {unreadable} lines or records could be \
         understood: is the file damaged, or is it only a part of another file?"
    )]
    Nothing {
        /// The trace.
        name: String,
        /// Lines or records.
        unreadable: u64,
    },
    /// No format recognises the content.
    #[error(
        "{name} is no trace that vmeter reads: it begins with {found}; expected one of {expected} \
         (plain, gz, zst or xz)"
    )]
    Unknown {
        /// The trace.
        name: String,
        /// Its first bytes, printable.
        found: String,
        /// Names of the formats.
        expected: String,
    },
    /// The format is recognised, but its header can't be used.
    #[error("{name} looks like {format}, but {problem}")]
    Header {
        /// The trace.
        name: String,
        /// The format's name.
        format: &'static str,
        /// What was expected, what was found, and what to do.
        problem: String,
    },
}
