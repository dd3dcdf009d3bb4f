//! What setting up MSI-X vectors costs.
//!
//! A VM without devices is enough to measure what the routes cost: vectors are routes and
//! irqfds in KVM, whatever raises them ([`measure`]). Strategies of `msi-routes` take turns
//! in random order on VMs of their own; nothing but the enabling itself is timed. What is
//! said of them is checked: every vector is raised, and looked for in the local APICs.
//!
//! Three questions follow the table: how the cost grows with the number of vectors (a fit
//! with its evidence, up to the host's limit of routes), where the time inside a commit goes
//! (a trace of the scheduler, the workqueues and the ioctls), and what real devices add
//! ([`vfio`]).
//!
//! All of it is runs of one session: what was asked and found of the host (`asked`), the runs
//! in their order (`plan`), a thread that carries them out (`committer`, by `bench` or
//! `vfio`), what each leaves on disk (`data`), and what follows from that (`analysis`).

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod analysis;
mod anatomy;
mod apparatus;
mod bench;
mod committer;
mod config;
mod data;
mod error;
mod experiment;
mod fit;
mod guest;
mod load;
mod placement;
mod plan;
mod pressure;
pub mod report;
pub mod result;
mod strategy;
mod together;
mod totals;
pub mod vfio;

pub use config::{Config, FitRange, Options};
pub use error::IrqError;
pub use experiment::{measure, IrqOptions, Kind};
pub use msi_routes::{Strategy, UnknownStrategy};
pub use strategy::IrqStrategy;
