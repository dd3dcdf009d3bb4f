//! The command line, as docs/INTERFACE.md fixes it. Parsing touches nothing outside.

use crate::commands::{
    appliance, bench, boot, diff, dirty, doctor, explain, findings, irq, kernel, look, memory,
    merge, migrate, range, report, runs, shim, show, sweep, trace,
};
use crate::output::Output;
use clap::{Parser, Subcommand, ValueEnum};

/// Where a virtual machine's milliseconds go, and what would get them back.
#[derive(Debug, Parser)]
#[command(name = "vmeter", version, max_term_width = 100, disable_help_subcommand = true)]
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
    /// Time whole boots with nothing attached; compare machines.
    Bench(bench::Bench),
    /// How each phase grows with a setting, and where it jumps.
    Sweep(sweep::Sweep),
    /// Which commit of a git range made it slower.
    Range(range::Range),
    /// Which known causes of a slow boot are here, and what each costs.
    Findings(findings::Findings),
    /// What changed between two saved runs, and is it real?
    Diff(diff::Diff),
    /// Put the shards of a sweep together into one session.
    Merge(merge::Merge),
    /// Saved runs: list them, remove them, export them to other tools.
    #[command(subcommand)]
    Runs(runs::Runs),
    /// How a VM that runs already has booted, told from its RAM, and what its log says now.
    Look(look::Look),
    /// How VMs booted that libvirt or another program started: each is recorded, without root.
    #[command(subcommand, long_about = shim::ABOUT)]
    Shim(shim::Shim),
    /// Show a saved run again.
    Show(show::Show),
    /// Write a saved run as a report (HTML by its name, or another format).
    Report(report::Report),
    /// What the guest uses inside, and the VMM outside.
    Memory(memory::Memory),
    /// What each way of harvesting dirty pages costs, slot by slot.
    Dirty(dirty::Dirty),
    /// How long a live migration takes, and its downtime, at a given dirty rate.
    Migrate(migrate::Migrate),
    /// What MSI-X vectors cost to set up: per vector, per device, in one commit.
    Irq(irq::Irq),
    /// Why it is slow: a chain of causes from traces, each link with its evidence.
    Explain(explain::Explain),
    /// Record, read, count and convert traces of hosts, guests and device models.
    #[command(subcommand)]
    Trace(trace::Trace),
    /// Fetch and list the kernels that are booted.
    #[command(subcommand)]
    Kernel(kernel::Kernel),
    /// Build the initramfs that is booted.
    #[command(subcommand)]
    Appliance(appliance::Appliance),
    /// What this host can measure, and what would mend what it can't.
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
