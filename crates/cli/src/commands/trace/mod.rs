//! `vmeter trace …`.

mod copy;
mod record;
mod select;
mod stat;

pub use record::{process, seconds, Process};
pub use stat::hertz;

use crate::output::Output;
use crate::status::Status;
use clap::Subcommand;

/// What to do with traces.
#[derive(Debug, Subcommand)]
pub enum Trace {
    /// Record the host kernel's tracepoints for a VMM, to a trace.dat.
    Record(record::Record),
    /// Count VM exits, accesses to I/O ports, system calls and interrupts, and measure their
    /// durations; --vs compares traces.
    Stat(stat::Stat),
    /// Print events as text, chosen by name, CPU, thread and time.
    Report(copy::Report),
    /// Write a trace for Perfetto, or as JSON lines, CSV or text.
    Convert(copy::Convert),
}

/// Runs a command on traces.
///
/// # Errors
/// If a file is not a trace, and every error of the command that runs.
pub fn run(arguments: Trace, out: &Output) -> anyhow::Result<Status> {
    match arguments {
        Trace::Record(arguments) => record::run(arguments, out),
        Trace::Stat(arguments) => stat::run(arguments, out),
        Trace::Report(arguments) => copy::report(&arguments, out),
        Trace::Convert(arguments) => copy::convert(&arguments, out),
    }
}
