//! Live migration between two QEMUs on one host: how long it takes, how long the guest
//! stands still, whether it ends at all, and whether the guest is the same afterwards.
//!
//! Everything is real but the guest: two QEMUs, a socket between them, QEMU's own
//! migration driven over QMP. The guest ([`guest`]) dirties pages at a set rate and says
//! every millisecond that it lives; both sides are heard on one clock ([`heart`]), so the
//! downtime is seen from inside and not only as QEMU reports it.

mod beat;
pub mod commands;
mod config;
mod data;
mod error;
mod experiment;
mod figures;
mod finish;
pub mod guest;
mod heart;
mod machines;
pub mod parameters;
mod plan;
mod predict;
mod process;
mod report;
mod result;
mod run;
mod side;
mod summary;
mod verify;
mod vm;

pub use config::MigrateOptions;
pub use data::{
    Limits, Measured, MigrateOutcome, MigrateRound, MigrateSample, MigrateVerification, Migration,
};
pub use error::MigrateError;
pub use experiment::{migrate, Kind};
pub use process::Process;
pub use report::MigrateReport;
pub use result::{
    MigratePoint, MigratePrediction, MigrateResult, MigrateRun, MigrateSetup, MigrateWorkload,
};
pub use side::Side;
pub use vm::Vm;
