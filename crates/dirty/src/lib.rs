//! What each way of harvesting dirty pages costs, slot by slot.
//!
//! A real guest (a few bytes of code in /dev/kvm, no kernel) writes to pages whose list is
//! known; a tracker tells which they were; a thread marks them in a bitmap of each
//! strategy of the `dirty-log` crate; and each bitmap is harvested, timed by the time stamp
//! counter, while the guest's vCPU runs. Guests of all trackers share their memory and take
//! turns in random order within each pass, next to one that nobody tracks: what the guest
//! loses to write faults is the difference. Every page carries the number of the pass that
//! wrote to it last, so that every bit can be checked.
//!
//! x86-64 Linux only, as the guest is.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod advice;
mod bitmaps;
mod check;
mod clock;
mod counts;
mod error;
mod fits;
mod frames;
mod guest;
mod layout;
mod memory;
mod placement;
mod session;
mod source;
mod station;
pub mod summary;
#[cfg(test)]
mod tests;
mod workload;

pub use dirty_log::StrategyKind;
pub use error::DirtyError;
pub use layout::{Layout, SlotPlan, PAGE};
pub use session::{run, News, Options, PUBLISHED_BUFFER};
pub use source::TrackerKind;
pub use workload::{Kind, Page, Workload};
