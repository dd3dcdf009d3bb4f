//! The command line, as docs/INTERFACE.md fixes it. Parsing touches nothing outside.

use crate::commands::Command;
use crate::output::Output;
use clap::{Parser, ValueEnum};

/// Show where a virtual machine's boot time goes, and how to shorten it.
#[derive(Debug, Parser)]
#[command(name = "vmeter", version, max_term_width = 80, disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Print a man page or a shell completion script, and exit.
    #[arg(long, value_name = "WHAT", exclusive = true)]
    pub generate: Option<Generate>,

    /// Options that every command takes.
    #[command(flatten)]
    pub output: Output,
}

/// What `--generate` can print.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Generate {
    /// The man page, in roff.
    Man,
    /// Completion for bash.
    CompleteBash,
    /// Completion for zsh.
    CompleteZsh,
    /// Completion for fish.
    CompleteFish,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
