//! Tiny guests in `/dev/kvm`: does it run guest instructions, and how fast.
//!
//! The node alone says little. On some hosts (software KVMs such as PVM, hosts
//! whose own hypervisor hides VMX/SVM) every ioctl works, but kernel-mode guest
//! code is interpreted at about a million instructions a second: a guest that
//! boots in a second elsewhere looks hung. [`probe`] therefore runs a few
//! thousand instructions in ring 0 and in ring 3 and times them.
//!
//! The guest it runs is a library of its own ([`Vm`], [`Vcpu`], [`code`]): any
//! number of memory slots and vCPUs, no firmware, no kernel. The experiments on
//! dirty-page logging, interrupt routes and I/O exits are built from it. Its
//! ring-3 mode needs nothing but what runs natively on VMX, SVM and PVM alike.
//!
//! x86-64 only: the guest is 64-bit x86 code.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod capabilities;
pub mod code;
mod cpu;
mod error;
mod kick;
mod memory;
mod open;
mod probe;
mod vcpu;
mod vm;

pub use capabilities::Capability;
pub use cpu::Ring;
pub use error::{ProbeError, VmError};
pub use kick::Kicker;
pub use kvm_bindings;
pub use kvm_ioctls::{self, VcpuExit, VmFd};
pub use memory::{Backing, GuestSlot, SlotSpec};
pub use probe::{probe, probe_node, Probe, Quality, NATIVE_INSNS_PER_S};
pub use vcpu::{Stop, Vcpu};
pub use vm::{Irqchip, Vm, VmBuilder};
