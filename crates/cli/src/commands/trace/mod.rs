//! `vmeter trace …`.

mod stat;

use crate::args::Output;
use crate::Answer;
use clap::Subcommand;

/// What to do with traces.
#[derive(Debug, Subcommand)]
pub enum Trace {
    /// Counts and times per port, exit, system call, interrupt, …; --vs compares two.
    Stat(stat::Stat),
}

/// Runs a command on traces.
///
/// # Errors
/// A file that is no trace; what the command itself meets.
pub fn run(arguments: Trace, out: &Output) -> anyhow::Result<Answer> {
    match arguments {
        Trace::Stat(arguments) => stat::run(arguments, out),
    }
}
