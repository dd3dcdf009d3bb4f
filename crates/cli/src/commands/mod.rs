//! The commands: one file each, and an entry in the list of [`Command`] in the order of the help.

use crate::output::Output;
use crate::status::Status;
use clap::Subcommand;

pub mod appliance;
pub mod bench;
pub mod boot;
pub mod diff;
pub mod dirty;
pub mod doctor;
pub mod explain;
pub mod findings;
pub mod irq;
pub mod kernel;
pub mod look;
pub mod memory;
pub mod merge;
pub mod migrate;
pub mod range;
pub mod report;
pub mod restore;
pub mod runs;
pub mod shim;
pub mod show;
pub mod sweep;
pub mod trace;
pub mod tune;

/// Makes the enum of commands, each `Variant(module::Arguments)`, and runs `module::run`.
macro_rules! commands {
    ($($(#[$meta:meta])* $variant:ident($module:ident::$arguments:ident),)*) => {
        /// The commands.
        #[derive(Debug, Subcommand)]
        pub enum Command {
            $($(#[$meta])* $variant($module::$arguments),)*
        }

        impl Command {
            /// Carries the command out.
            ///
            /// # Errors
            /// As the command's own `run`.
            pub fn run(self, out: &Output) -> anyhow::Result<Status> {
                match self {
                    $(Command::$variant(arguments) => $module::run(arguments, out),)*
                }
            }
        }
    };
}

commands! {
    /// Boot a machine several times and show where the time goes.
    Boot(boot::Boot),
    /// Time whole boots without recording them, and compare machines.
    Bench(bench::Bench),
    /// Show how the time of each boot phase grows with a machine setting.
    Sweep(sweep::Sweep),
    /// Find which commit in a git range made a boot or a program slower.
    Range(range::Range),
    /// Measure the known causes of a slow boot.
    Findings(findings::Findings),
    /// Find changes that make a machine boot faster, and prove the gain.
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
    /// Without root, record each VM that libvirt or a script starts.
    #[command(subcommand, long_about = shim::ABOUT)]
    Shim(shim::Shim),
    /// Show a saved run again.
    Show(show::Show),
    /// Write a saved run as HTML, JSON, CSV, Markdown or Perfetto.
    Report(report::Report),
    /// Measure what takes the time when a VM is restored from a snapshot.
    Restore(restore::Restore),
    /// Measure how much memory the guest and the VMM use.
    Memory(memory::Memory),
    /// Compare the cost of methods that track a guest's dirty pages.
    Dirty(dirty::Dirty),
    /// Measure the duration and the downtime of live migrations.
    Migrate(migrate::Migrate),
    /// Measure the cost of setting up MSI-X interrupt vectors.
    Irq(irq::Irq),
    /// Explain from traces why a program or a VM is slow.
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
    /// Show what this host can measure, and how to enable the rest.
    Doctor(doctor::Doctor),
}
