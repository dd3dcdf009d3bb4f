// SPDX-License-Identifier: Apache-2.0 OR MIT

#![doc = include_str!("../README.md")]

mod page_set;
mod page_size;
mod runs;
mod summary;
mod vm_memory;

/// The atomics, in one place: `tests/loom_summary.rs` compiles the bitmap against loom's instead.
mod sync {
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
}

pub use page_set::{OtherPages, PageSet};
pub use page_size::host_page_size;
pub use runs::Runs;
pub use summary::SummaryBitmap;

/// The code of docs/ADOPTING.md, compiled against what it names.
#[cfg(doctest)]
#[doc = include_str!("../docs/ADOPTING.md")]
struct Adopting;
