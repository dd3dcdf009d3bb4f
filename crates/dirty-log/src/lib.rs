// SPDX-License-Identifier: Apache-2.0 OR MIT

#![doc = include_str!("../README.md")]

mod bits;
mod fence;
mod harvest;
mod hazard;
mod memory_log;
mod names;
mod page_set;
mod runs;
mod slot;
mod strategy;
mod summary;
mod sync;
#[cfg(all(feature = "trackers", target_os = "linux"))]
pub mod trackers;
#[cfg(feature = "vm-memory")]
mod vm_memory;
mod writer;

pub use fence::{fences, use_full_fences, Fences, FencesInUse};
pub use harvest::Harvest;
pub use memory_log::{MemoryLog, MemorySlot, SlotError};
pub use page_set::{OtherPages, PageSet};
pub use slot::{BadPageSize, Slot};
pub use strategy::{
    harvest_all, DirtyBitmap, DirtyLog, GetOpt, GetOrg, Strategy, StrategyKind, SwitchOpt,
};
pub use summary::SummaryBitmap;
pub use writer::{register_thread, rest};

/// The code of docs/ADOPTING.md, compiled against what it names.
#[cfg(all(doctest, feature = "vm-memory"))]
#[doc = include_str!("../docs/ADOPTING.md")]
struct Adopting;
