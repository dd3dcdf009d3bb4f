//! Tests of what acts on the host as a whole: daemons, launchers, tracefs, processes that are left, in one binary: each file of it is a module.

mod common;
#[path = "common/repository.rs"]
mod repository;
#[path = "common/sources.rs"]
mod sources;

#[path = "explain_live.rs"]
mod explain_live;
#[path = "launchers.rs"]
mod launchers;
#[path = "leavings.rs"]
mod leavings;
#[path = "look.rs"]
mod look;
#[path = "next.rs"]
mod next;
#[path = "shim.rs"]
mod shim;
#[path = "signals.rs"]
mod signals;
#[path = "slurm.rs"]
mod slurm;

/// Boots are timed here, so each has the host for itself.
const BOOTS_ALONE: bool = true;
