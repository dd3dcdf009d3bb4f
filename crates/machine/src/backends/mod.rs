//! The VMM back ends, one file each, registered in [`crate::backend::all`].

pub mod cloud_hypervisor;
pub mod command;
mod direct;
pub mod firecracker;
pub mod mock;
pub mod qemu;
