//! The kernel's trace, out of guest RAM.
//!
//! With `trace_event=…` on its command line a kernel traces from the middle of
//! `start_kernel` on, into per-CPU rings of pages. [`FtraceDump::take`] walks
//! from `global_trace` to those pages and copies them raw, with the event
//! numbers and field places that this kernel has; [`FtraceDump::decode`] turns
//! that into typed events, from the saved file alone.

mod decode;
mod probes;
mod take;

use crate::btf::Field;
use crate::error::{Error, Result};
use crate::functions::FunctionTable;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

pub use decode::{Decoded, FtraceEvent, FtraceKind};
pub use probes::boot_probes;

/// What the dump's description says it is.
const KIND: &str = "guest-ftrace/1";

/// The trace as it was in RAM.
#[derive(Debug, Clone)]
pub struct FtraceDump {
    header: Header,
    raw: Vec<u8>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Header {
    kind: String,
    kernel: String,
    /// Name of the trace clock, e.g. `x86-tsc`.
    clock: String,
    kaslr_offset: u64,
    /// `trace_entry.type` and `trace_entry.pid`.
    entry_type: Field,
    entry_pid: Field,
    /// By name; `trace_marker` is the event of `/sys/kernel/tracing/trace_marker`.
    events: BTreeMap<String, EventFormat>,
    cpus: Vec<CpuRing>,
    /// Modules that were loaded at the end, by the address of their init function.
    modules: BTreeMap<u64, String>,
    /// Names of the functions that events point to, by run-time address.
    #[serde(default)]
    functions: BTreeMap<u64, String>,
}

/// An event's number and fields, as this boot had them.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct EventFormat {
    id: u64,
    fields: BTreeMap<String, Field>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct CpuRing {
    cpu: u32,
    /// Events recorded and still there, as the kernel counts.
    entries: u64,
    /// Events overwritten by later ones.
    overrun: u64,
    /// Events that did not get in.
    dropped: u64,
    /// Pages that the guest overwrote while they were copied, and those before them.
    #[serde(default, skip_serializing_if = "crate::printk::is_zero")]
    torn: u64,
    /// Offset and length of each page's copy, oldest first.
    pages: Vec<(u64, u64)>,
}

impl FtraceDump {
    /// Names the functions that its events point to, so that decoding needs no
    /// kernel image.
    pub fn name_functions(&mut self, functions: &FunctionTable) {
        let mut names = BTreeMap::new();
        for event in self.decode().events {
            let Some(address) = event.kind.function_address() else { continue };
            let linked = address.wrapping_sub(self.header.kaslr_offset);
            // An initcall is entered at its start; what lies past the kernel's last function
            // is a module's.
            if let Some((name, 0)) = functions.lookup(linked) {
                names.insert(address, name.to_owned());
            }
        }
        self.header.functions = names;
    }

    /// Name of the trace clock, e.g. `x86-tsc`, as in the guest's `trace_clock` file.
    pub fn clock(&self) -> &str {
        &self.header.clock
    }

    /// How many pages were dropped because the guest wrote while they were copied.
    pub fn torn(&self) -> u64 {
        self.header.cpus.iter().map(|ring| ring.torn).fold(0, u64::saturating_add)
    }

    /// Saves it.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, path: &Path) -> Result<()> {
        crate::dump::write(path, &self.header, &self.raw)
    }

    /// It as bytes, as [`FtraceDump::write`] saves it.
    ///
    /// # Errors
    /// [`Error::Malformed`] when its description can't be written.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        crate::dump::to_bytes(&self.header, &self.raw)
    }

    /// Reads a saved one.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Malformed`] when the file is no dump of this kind.
    pub fn read(path: &Path) -> Result<Self> {
        Self::checked(crate::dump::read(path)?)
    }

    /// As [`FtraceDump::read`], from bytes.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn from_bytes(data: &[u8]) -> Result<Self> {
        Self::checked(crate::dump::from_bytes(data)?)
    }

    fn checked((header, raw): (Header, Vec<u8>)) -> Result<Self> {
        if header.kind != KIND {
            let reason = format!("expected kind {KIND:?}, found {:?}", header.kind);
            return Err(Error::malformed("ftrace dump", reason));
        }
        Ok(FtraceDump { header, raw })
    }
}
