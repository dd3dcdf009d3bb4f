//! Launching a VMM suspended, following it to its end, and looking into it.

use std::io;
use vmeter_model::Ns;

/// One mapping of a process, from `/proc/PID/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// End, exclusive.
    pub end: u64,
    /// Permissions, e.g. `rw-s`.
    pub permissions: String,
    /// Path or pseudo-name, empty for anonymous memory.
    pub path: String,
}

/// A VMM that is stopped: its memory can be read.
#[derive(Debug)]
pub struct Tracee {
    /// Process id.
    pub pid: i32,
    /// `CLOCK_MONOTONIC` of the stop, ns.
    pub stopped_ns: Ns,
}

impl Tracee {
    /// Reads the process's memory at `address` with `process_vm_readv`.
    ///
    /// # Errors
    /// Any error of the system call; a short read is an `UnexpectedEof`.
    pub fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        let _ = (address, buffer);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The process's mappings.
    ///
    /// # Errors
    /// When `/proc/PID/maps` cannot be read.
    pub fn mappings(&self) -> io::Result<Vec<Mapping>> {
        Ok(Vec::new())
    }
}
