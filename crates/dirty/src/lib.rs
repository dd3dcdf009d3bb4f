//! What each way of harvesting dirty pages costs, slot by slot.
//!
//! A real guest (a few bytes of code in /dev/kvm, no kernel) writes to pages whose list is
//! known; a tracker tells which they were; a thread marks them in a bitmap of each
//! strategy of `vmeter-dirty-switch`; and each bitmap is harvested, timed by the time stamp
//! counter, while the guest's vCPU runs. Guests of all trackers share their memory and take
//! turns in random order within each pass, next to one that nobody tracks: what the guest
//! loses to write faults is the difference. Every page carries the number of the run that
//! wrote to it last, so that every bit can be checked.
//!
//! A run of a session is one pass of one guest. The plan says which guest, which pages and
//! in which order they are harvested, so that a process that goes on with a session, with
//! guests of its own, does what the one before would have done.
//!
//! x86-64 Linux only, as the guest is.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod advice;
mod analysis;
mod bitmaps;
mod check;
mod clock;
mod config;
mod counts;
mod error;
mod experiment;
mod fits;
mod frames;
mod guest;
mod harness;
mod layout;
mod memory;
mod placement;
mod plan;
pub mod report;
pub mod result;
mod run;
mod source;
mod station;
pub mod summary;
#[cfg(test)]
mod tests;
mod together;
mod workload;

pub use config::CliOptions;
pub use error::DirtyError;
pub use experiment::{measure, DirtyOptions, Kind};
pub use layout::{Layout, SlotPlan, PAGE};
pub use source::TrackerKind;
pub use vmeter_dirty_switch::StrategyKind;
pub use workload::{Kind as WorkloadKind, Page, Workload};

/// The publication's guest writes to a buffer of 1 GB.
pub const PUBLISHED_BUFFER: u64 = 1 << 30;
