//! Symbols and types out of a Linux kernel image, and its logs and traces out of a guest's RAM.
//!
//! A stock kernel already keeps a log (printk) and, when its command line asks,
//! a trace (ftrace) in its own memory. Read out of the guest's RAM at the end of
//! its life, both cost the guest no console and need no cooperation:
//!
//! 1. [`KernelImage`] unpacks the kernel file; [`Symbols`] and [`Btf`] say where
//!    its variables and their fields are; [`KernelInfo`] keeps what is needed
//!    of that in a cache, so that it is worked out once for a kernel.
//! 2. [`locate()`] finds guest RAM among a VMM's mappings, and the kernel in it,
//!    KASLR or not; [`Guest`] reads it by the kernel's virtual addresses. [`discover()`]
//!    finds one that no file was given of, by the tables that it holds for itself.
//!    Names that a kernel has not itself are those of its build ([`same_build`]).
//! 3. [`printk`] and [`ftrace`] copy the raw rings into self-describing dumps,
//!    and turn dumps into records and events later.
//!
//! Everything read from an image, from RAM or from a dump is untrusted: it can
//! produce errors, not panics, and every walk is bounded.

mod boot_params;
pub mod btf;
mod bytes;
pub mod cached_files;
pub mod clocks;
pub mod decompress;
pub mod discover;
mod dump;
mod error;
#[cfg(test)]
mod fake;
pub mod ftrace;
mod functions;
mod guest;
mod image;
mod info;
pub mod kallsyms;
pub mod locate;
pub mod page_owners;
pub mod printk;
pub mod ram;
pub mod same_build;
pub mod shape;
mod symbols;

pub use boot_params::BootParams;
pub use btf::Btf;
pub use discover::{discover, Discovered};
pub use error::{Error, Result};
pub use functions::FunctionTable;
pub use guest::{Guest, KernelPlace};
pub use image::{cut_short, KernelImage, Segment};
pub use info::KernelInfo;
pub use locate::{locate, Candidate, Located};
pub use page_owners::{page_owners, Owner};
pub use ram::{GuestRam, HostMemory, MappedRam, Region};
pub use same_build::BuildSymbols;
pub use symbols::{Symbol, Symbols};
