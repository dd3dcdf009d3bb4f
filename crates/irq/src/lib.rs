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

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod anatomy;
mod bench;
mod error;
mod experiment;
mod fit;
mod guest;
mod options;
mod placement;
mod pressure;
mod summary;
pub mod vfio;

pub use bench::Watcher;
pub use error::IrqError;
pub use experiment::measure;
pub use msi_routes::{Strategy, UnknownStrategy};
pub use options::{FitRange, Options};
