//! Tests of nested KVM, which takes long, in one binary: each file of it is a module.

mod common;

#[path = "nested_kvm.rs"]
mod nested_kvm;
#[path = "nested_vfio.rs"]
mod nested_vfio;
#[path = "nested_vmms/main.rs"]
mod nested_vmms;

/// Boots are timed here, so each has the host for itself.
const BOOTS_ALONE: bool = true;
