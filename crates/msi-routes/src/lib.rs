// SPDX-License-Identifier: Apache-2.0 OR MIT

#![doc = include_str!("../README.md")]

mod ahead;
mod batch;
mod commit;
mod demote;
mod error;
mod fixed;
mod foreign;
mod isolate;
mod kernel;
#[cfg(feature = "measure")]
pub mod measure;
mod message;
mod msi;
mod msix;
mod on_panic;
mod ops;
mod pin;
mod plan;
mod pool;
mod promote;
mod report;
mod route;
mod router;
mod shared;
mod source;
#[cfg(feature = "measure")]
mod strategy;
mod table;
mod vector;

pub use batch::{Batch, Nested};
pub use error::{RouteError, StateError};
pub use foreign::{Errno, EventFd, Routing};
pub use kernel::Kernel;
pub use message::{FixedRoute, MsiMessage};
pub use msi::{Msi, MsiState};
pub use msix::{Msix, MsixState, MAX_VECTORS};
pub use pin::PinIrqfd;
pub use report::{CommitError, Counts, Failure, Report, Step};
pub use route::{Phase, Route};
pub use router::Router;
pub use source::{Gate, Source};
#[cfg(feature = "measure")]
pub use strategy::{enable, prepare, DeviceCost, EnableError, Enabled, Strategy, UnknownStrategy};

/// The code of docs/ADOPTING.md, compiled against what it names.
#[cfg(doctest)]
#[doc = include_str!("../docs/ADOPTING.md")]
struct Adopting;
