//! What is booted: VMM back ends, their capabilities, launching them suspended.

pub mod accel;
pub mod argv;
pub mod backend;
pub mod backends;
pub mod capabilities;
pub mod files;
pub mod launch;
pub mod output;
pub mod page_cache;
pub mod page_faults;
pub mod page_handler;
pub mod plan;
pub mod qmp;
pub mod snapshots;
pub mod vmm;
