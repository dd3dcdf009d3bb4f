//! The guest that is measured: kernels, modules, initramfs, root images.
//!
//! To time a boot to its last millisecond, everything in the guest has to be known
//! and the same every time. So vmeter brings its own: an init without a C library,
//! archives that are the same bytes for the same input, and kernels taken from
//! packages with their provenance. Nothing is installed and nothing runs as root.
//!
//! ```no_run
//! use vmeter_appliance::{build, kernel, ApplianceSpec};
//! let kernel = kernel::fetch(&kernel::FetchOptions::default(), &mut |step| eprintln!("{step}"))?;
//! let guest = build(&ApplianceSpec::udev(kernel.modules()))?;
//! println!("{} {}", guest.path.display(), guest.sha256);
//! # Ok::<(), vmeter_appliance::Error>(())
//! ```

mod appliance;
pub mod cache;
mod cache_root;
mod command;
mod cpio;
mod elf;
mod error;
mod inputs;
pub mod kernel;
pub mod kernel_build;
mod libraries;
mod modules;
mod nvdimm_image;
mod packages;
pub mod root_image;
mod tree;
mod udev;

pub use appliance::{
    build, build_in, build_to, modules_for_root, Appliance, ApplianceSpec, Compression, Content,
    ExtraFile, Flavour, BLACKLIST, UDEV_MODULES,
};
pub use elf::debugged_modules;
pub use error::{Error, Result};
pub use modules::ModulesFrom;
pub use tree::SizeReport;

/// The guest's init: a static x86-64 program without a C library (`guest/init`).
pub const INIT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/vmeter-init"));
