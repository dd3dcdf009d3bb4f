// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The double-buffered dirty bitmap that `vmeter dirty` measures, in the three strategies of the
//! published measurement. A VMM that wants a dirty bitmap uses `dirty-log`'s `SummaryBitmap`;
//! `docs/DIRTY.md` says what the switch wins and loses beside it.
//!
//! ```
//! use vmeter_dirty_switch::DirtyBitmap;
//!
//! let log: DirtyBitmap = DirtyBitmap::new(1 << 30, 4096)?;
//! std::thread::scope(|scope| {
//!     scope.spawn(|| log.mark(17));
//!     scope.spawn(|| log.mark_bytes(0x5_0ff0, 32));
//! });
//! let dirty = log.harvest();
//! assert_eq!(dirty.pages().collect::<Vec<_>>(), [17, 80, 81]);
//! drop(dirty);
//! assert!(log.harvest().is_clean());
//! # Ok::<(), vmeter_dirty_switch::BadPageSize>(())
//! ```
//!
#![doc = include_str!("../README.md")]

mod bits;
mod fence;
mod harvest;
mod hazard;
mod last;
mod memory_log;
mod shape;
mod slot;
mod strategy;
mod sync;
mod vm_memory;
mod words;
mod writer;

pub use fence::{fences, use_full_fences, Fences, FencesInUse};
pub use harvest::Harvest;
pub use memory_log::{MemoryLog, MemorySlot, SlotError};
pub use slot::{BadPageSize, Slot};
pub use strategy::{
    harvest_all, DirtyBitmap, DirtyLog, GetOpt, GetOrg, Strategy, StrategyKind, SwitchOpt,
};
pub use writer::{register_thread, rest};
