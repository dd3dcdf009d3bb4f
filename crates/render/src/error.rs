//! What can go wrong when a result is written.

use std::error::Error;
use std::io;
use std::path::PathBuf;

/// An export that did not come about.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A file cannot be written.
    #[error("cannot write {}: {source}; choose a path in a writable folder, or `-` for standard output", path.display())]
    Unwritable {
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The result has nothing that this output shows.
    #[error("the {output} output shows timelines, and `vmeter {command}` has none; export json or csv instead")]
    NoTimeline {
        /// The output.
        output: &'static str,
        /// The command whose result it is.
        command: String,
    },
    /// The stream broke while it was written.
    #[error("cannot write the {output} output: {source}")]
    Stream {
        /// The output.
        output: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl ReportError {
    /// Names the output in an error of its stream.
    pub fn stream(output: &'static str) -> impl FnOnce(io::Error) -> ReportError {
        move |source| ReportError::Stream { output, source }
    }

    /// True if the reader went away (`vmeter … | head`): no reason to complain.
    pub fn is_broken_pipe(&self) -> bool {
        // What writes CSV wraps the error of the stream.
        let mut cause: Option<&dyn Error> = Some(self);
        while let Some(error) = cause {
            let io = error.downcast_ref::<io::Error>();
            if io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
                return true;
            }
            cause = error.source();
        }
        false
    }
}
