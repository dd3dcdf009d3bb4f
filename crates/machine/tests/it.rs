//! Tests of machines described, in one binary: each file of it is a module.

#[path = "other_vmms.rs"]
mod other_vmms;
#[path = "qemu.rs"]
mod qemu;
