//! The VMM back ends, one file each, registered in [`crate::backend::all`].

pub mod command;
pub mod mock;
pub mod qemu;
