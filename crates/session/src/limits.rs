//! Limits of the process that would end it without a word.

use std::sync::atomic::AtomicBool;
use std::sync::Arc;

/// Makes a file that grows beyond `ulimit -f` an error of its writer (EFBIG) instead of the end
/// of the process: what is half written is removed, and said. Programs that are executed have
/// the signal's default again.
///
/// # Errors
/// When the handler cannot be installed.
pub fn report_large_files() -> std::io::Result<()> {
    // The handler is all: nobody looks at the flag.
    let seen = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, seen).map(drop)
}

/// Bytes that the first thread's stack may grow to; none: as far as there is room.
pub fn stack() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Stack).current
}
