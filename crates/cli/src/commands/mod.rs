//! The commands, one file each.

pub mod appliance;
pub mod bench;
pub mod boot;
pub mod diff;
pub mod dirty;
pub mod doctor;
pub mod explain;
pub mod findings;
pub mod irq;
pub mod kernel;
pub mod look;
pub mod memory;
pub mod merge;
pub mod migrate;
pub mod range;
pub mod report;
pub mod runs;
pub mod shim;
pub mod show;
pub mod sweep;
pub mod trace;
pub mod tune;
