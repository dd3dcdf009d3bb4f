//! The VMM back ends, one file each, registered in [`crate::backend::all`].

pub mod cloud_hypervisor;
pub mod command;
pub mod crosvm;
mod direct;
pub mod firecracker;
pub mod kvmtool;
pub mod mock;
pub mod qemu;
