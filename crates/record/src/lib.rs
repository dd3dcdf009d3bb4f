//! How a boot is watched.
//!
//! One source a file in [`sources`]; each has a live half, which adds to the
//! VMM's command line, attaches while the VMM is suspended, and saves what it
//! sees raw; and a decoder, which turns the saved files into events. Live and
//! saved runs meet at the decoder.

pub mod clock;
pub mod decode;
pub mod end;
pub mod guest_clock;
mod guest_line;
pub mod guest_ram;
mod loader_file;
pub mod look;
mod looking;
mod no_boot;
mod not_recorded;
pub mod owners;
mod piped;
pub mod ready;
pub mod recorder;
pub mod run;
pub mod sources;
pub mod stamped;
mod vmeter_errors;
mod wrapped;
