//! Layout of the file of stamps. The decoder includes this very file.
//!
//! Little-endian. Header, `HEADER` bytes, then a counter of executed
//! instructions a vCPU, each in its own cache line of [`LINE`] bytes, then
//! [`CAPACITY`] records:
//!
//! | offset | type | header |
//! |---|---|---|
//! | 0 | [u8; 8] | [`MAGIC`] |
//! | 8 | u32 | [`VERSION`] |
//! | 12 | u32 | flags: bit 0 instructions are counted |
//! | 16 | u32 | clock of the stamps: 1 is `CLOCK_MONOTONIC` |
//! | 20 | u32 | counters |
//! | 24 | u64 | ticks of the clock a second |
//! | 32 | u64 | offset of the records |
//! | 40 | u64 | room for this many records |
//! | 48 | u64 | records wanted: those above the room were lost |
//! | 56 | u64 | time the plugin was installed |
//! | 64 | u64 | time QEMU exited, 0 if it was killed or the plugin was reset |
//! | 72 | u64 | time the translation hook was taken away, 0 if never |
//! | 80 | u64 | blocks translated under the hook |
//! | 88 | u64 | KASLR slide, bytes |
//! | 96 | u64 | 1 when the slide is known |
//!
//! | offset | type | record of [`RECORD`] bytes |
//! |---|---|---|
//! | 0 | u64 | time; written last, 0 in an unfinished record |
//! | 8 | u64 | instructions executed by all vCPUs before it |
//! | 16 | u32 | id; with [`RETURNED`] set, the return from an initcall |
//! | 20 | u32 | vCPU |

/// First bytes of the file.
pub const MAGIC: [u8; 8] = *b"vmtrstmp";
/// Version of the format.
pub const VERSION: u32 = 1;
/// Size of the header, bytes.
pub const HEADER: usize = 128;
/// Distance of the counters, bytes.
pub const LINE: usize = 64;
/// Size of a record, bytes.
pub const RECORD: usize = 24;
/// Room for records.
pub const CAPACITY: usize = 1 << 15;
/// Most counters.
pub const MAX_VCPUS: u32 = 1024;
/// Set in the id of a stamp: not the function, but the return from an initcall.
pub const RETURNED: u32 = 1 << 31;

/// Offset in the header.
pub const FLAGS: usize = 12;
/// Offset in the header.
pub const CLOCK: usize = 16;
/// Offset in the header.
pub const COUNTERS: usize = 20;
/// Offset in the header.
pub const TICKS: usize = 24;
/// Offset in the header.
pub const RECORDS_AT: usize = 32;
/// Offset in the header.
pub const ROOM: usize = 40;
/// Offset in the header.
pub const WANTED: usize = 48;
/// Offset in the header.
pub const INSTALLED: usize = 56;
/// Offset in the header.
pub const ENDED: usize = 64;
/// Offset in the header.
pub const UNHOOKED: usize = 72;
/// Offset in the header.
pub const TRANSLATED: usize = 80;
/// Offset in the header.
pub const SLIDE: usize = 88;
/// Offset in the header.
pub const SLIDE_KNOWN: usize = 96;
/// The clock that is `CLOCK_MONOTONIC`.
pub const MONOTONIC: u32 = 1;
