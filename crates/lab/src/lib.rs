//! Experiments, and the folders that their runs are saved in.
//!
//! An experiment plans runs, has each recorded and saved, and only then
//! analyses them, from the files, by the path that a saved session takes.

pub mod analysis;
pub mod at_once;
mod autocorrelation;
pub mod bench;
mod blocks;
pub mod boot;
pub mod booter;
mod boots;
mod colours;
mod compare;
pub mod counting;
pub mod diet;
pub mod diff;
pub mod doctor;
mod ends;
pub mod figures;
pub mod findings;
pub mod gate;
mod host_factors;
mod hosts_report;
mod json_common;
pub mod kinds;
pub mod look;
mod looks;
mod measured;
pub mod memory;
pub mod merge;
mod missing;
pub mod next;
mod phrases;
pub mod prepare;
pub mod range;
pub mod restore;
mod session_variance;
pub mod shim;
mod shown;
pub mod slurm;
pub mod sweep;
pub mod trend;
pub mod tune;
mod verdict;

pub use shown::Shown;
