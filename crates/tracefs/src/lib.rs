//! Recording a host's tracepoints through a tracefs instance of one's own.
//!
//! The top-level trace belongs to whoever uses the machine: its events, filters
//! and clock are left alone. An instance has all of these for itself (the
//! kernel's Documentation/trace/ftrace.rst, "Instances"), and vanishes with one
//! `rmdir`. Here one is made, filled, and saved as a `trace.dat` that vmeter,
//! trace-cmd and KernelShark read:
//!
//! ```no_run
//! use vmeter_tracefs::{Plan, Tracefs};
//! let tracefs = Tracefs::find()?;
//! let plan = Plan::new(&["kvm:kvm_exit", "kvm:kvm_pio"]).of_own_children();
//! let instance = tracefs.record(&plan)?;
//! // … start what is to be traced, wait for its end …
//! instance.stop()?.save("trace.dat".as_ref())?;
//! # Ok::<(), vmeter_tracefs::Error>(())
//! ```
//!
//! No instance is left behind: it is removed on drop, also when the process
//! calls `exit` in another thread ([`Instance`]); one whose owner was killed is
//! removed by the next [`Tracefs::record`] ([`Tracefs::sweep`]). Only tracepoints
//! are needed: no function tracer, and no writing outside the instance but for a [`Probe`],
//! which is one line of the host's list of kprobes as long as it is there.

mod error;
mod instance;
mod kprobe_events;
mod made;
mod mount;
mod probe;
mod reader;
mod trace_dat;

pub use error::Error;
pub use instance::{Instance, Plan};
pub use mount::Tracefs;
pub use probe::Probe;
pub use trace_dat::Recorded;
