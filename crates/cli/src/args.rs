//! The command line, as docs/INTERFACE.md fixes it. Parsing touches nothing outside.

use crate::commands::{
    appliance, bench, boot, diff, dirty, doctor, explain, findings, irq, kernel, look, memory,
    merge, migrate, range, report, runs, shim, show, sweep, trace, tune,
};
use crate::output::Output;
use clap::{Parser, Subcommand, ValueEnum};

/// Where a virtual machine's milliseconds go, and what would get them back.
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

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Boot a machine several times and account for every millisecond.
    Boot(boot::Boot),
    /// Time whole boots with nothing attached, and compare machines.
    Bench(bench::Bench),
    /// Show how each phase grows with a setting, and where it jumps.
    Sweep(sweep::Sweep),
    /// Find which commit of a git range made it slower.
    Range(range::Range),
    /// Measure the known causes of a slow boot.
    Findings(findings::Findings),
    /// Find the fastest equivalent of a machine, and prove it.
    Tune(tune::Tune),
    /// Compare two saved runs.
    Diff(diff::Diff),
    /// Join the shards of a sweep or a range.
    Merge(merge::Merge),
    /// List, compare, remove and export saved runs.
    #[command(subcommand)]
    Runs(runs::Runs),
    /// Read the boot of a running VM from its RAM, and follow its log.
    Look(look::Look),
    /// Record each VM that libvirt or a script starts, without root.
    #[command(subcommand, long_about = shim::ABOUT)]
    Shim(shim::Shim),
    /// Show a saved run again.
    Show(show::Show),
    /// Write a saved run as HTML, JSON, CSV, Markdown or Perfetto.
    Report(report::Report),
    /// Show what memory the guest and the VMM use.
    Memory(memory::Memory),
    /// Measure what each way of harvesting dirty pages costs.
    Dirty(dirty::Dirty),
    /// Measure live migrations and their downtime by dirty rate.
    Migrate(migrate::Migrate),
    /// Measure what setting up MSI-X vectors costs.
    Irq(irq::Irq),
    /// Say why it is slow: a chain of causes from traces.
    Explain(explain::Explain),
    /// Record, count, print and convert traces.
    #[command(subcommand)]
    Trace(trace::Trace),
    /// Fetch, list and build kernels.
    #[command(subcommand)]
    Kernel(kernel::Kernel),
    /// Build the initramfs that vmeter boots.
    #[command(subcommand)]
    Appliance(appliance::Appliance),
    /// Say what this host can measure, and how to fix the rest.
    Doctor(doctor::Doctor),
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
