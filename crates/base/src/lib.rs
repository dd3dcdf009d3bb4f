//! Small things that many crates need and that must be the same everywhere: times and
//! estimates, files that are replaced whole, what an untrusted file may cost, lists of CPUs, shell quoting, a hash that never
//! changes. This crate uses no other of the project.

pub mod bounds;
pub mod clock;
pub mod cpus;
pub mod envelope;
pub mod estimate;
pub mod files;
pub mod fnv;
pub mod marked;
pub mod owner;
pub mod process;
pub mod scratch;
pub mod sheet;
pub mod shell;
pub mod time;
pub mod words;

pub use cpus::CpuList;
pub use envelope::Envelope;
pub use estimate::Estimate;
pub use time::{seconds, Ns};

/// This process's command line. Bytes that are not UTF-8 become U+FFFD: it is for a record
/// or a message, not to be executed.
pub fn argv() -> Vec<String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect()
}
