//! Traces of a host, a guest, a hypervisor or a device model, read fast.
//!
//! ```no_run
//! use vmeter_trace::{open, stat::Stats, Input};
//! # fn main() -> Result<(), vmeter_trace::Error> {
//! let mut reader = open(Input::open("trace.dat".as_ref())?)?;
//! let mut stats = Stats::new(reader.info());
//! while let Some(event) = reader.next_event() {
//!     stats.add(&event);
//! }
//! let report = stats.finish(reader.as_ref(), None);
//! # drop(report);
//! # Ok(())
//! # }
//! ```
//!
//! Stages: [`Input`] gives bytes (plain, compressed, piped), a [`TraceFormat`]
//! turns them into [`Event`]s that borrow from its buffers, [`ops`] says what
//! the events mean (a port was read, a vCPU left the guest), and [`walk`] keeps the
//! state of threads and CPUs by them and tells its visitors of spans, requests, calls and
//! wake-ups. [`stat`], which counts and times these, is one; explanations, the alignment of
//! clocks and exports are others.

mod error;
pub mod event;
pub mod format;
mod formats;
pub mod hash;
mod input;
pub mod names;
pub mod ops;
pub mod peers;
pub mod print;
pub mod select;
pub mod stat;
mod symbols;
mod text;
pub mod walk;
pub mod write;

pub use error::Error;
pub use event::{Body, Context, Event, EventType, NO_CPU};
pub use format::{open, Clock, EventReader, Losses, Tick, TraceFormat, TraceInfo, FORMATS};
pub use input::{Input, Lines, RandomAccess};
pub use symbols::Symbols;
