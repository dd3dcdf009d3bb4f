//! What a head says of the pages.

use super::sections::Packing;

/// How a trace.dat begins.
pub const MAGIC: &[u8] = b"\x17\x08\x44tracing";

/// No event type has this index.
pub const NO_KIND: u32 = u32::MAX;

/// Where one CPU's pages are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuData {
    /// CPU number.
    pub cpu: u32,
    /// Offset in the file.
    pub offset: u64,
    /// Bytes in the file.
    pub size: u64,
    /// How its chunks are packed.
    pub packing: Packing,
}

/// One ring buffer (trace instance).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Buffer {
    /// Name; empty for the top instance.
    pub name: String,
    /// Clock, if the buffer says.
    pub clock: String,
    /// Bytes of a page.
    pub page_size: u32,
    /// CPUs.
    pub cpus: Vec<CpuData>,
}

/// Layout of a ring buffer page's head, from `events/header_page`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageHead {
    /// Offset of the `commit` word.
    pub commit: u32,
    /// Its size: the kernel's `long`.
    pub commit_size: u32,
    /// Offset of the first event.
    pub data: u32,
}

impl Default for PageHead {
    fn default() -> PageHead {
        PageHead { commit: 8, commit_size: 8, data: 16 }
    }
}
