//! Tests of real guests, VMMs and KVM, in one binary: each file of it is a module.

mod common;
#[path = "common/repository.rs"]
mod repository;
#[path = "common/sources.rs"]
mod sources;

#[path = "account.rs"]
mod account;
#[path = "dirty.rs"]
mod dirty;
#[path = "ends/main.rs"]
mod ends;
#[path = "guest_ram.rs"]
mod guest_ram;
#[path = "guests.rs"]
mod guests;
#[path = "icount.rs"]
mod icount;
#[path = "irq.rs"]
mod irq;
#[path = "kernel_build.rs"]
mod kernel_build;
#[path = "kvm_trace.rs"]
mod kvm_trace;
#[path = "migrate.rs"]
mod migrate;
#[path = "not_linux.rs"]
mod not_linux;
#[path = "other_vmms.rs"]
mod other_vmms;
#[path = "planted.rs"]
mod planted;
#[path = "restore.rs"]
mod restore;
#[path = "truth.rs"]
mod truth;
#[path = "user_space.rs"]
mod user_space;
#[path = "withheld.rs"]
mod withheld;

/// What compares times of runs has a lab that is alone.
const BOOTS_ALONE: bool = false;
