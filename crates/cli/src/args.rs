//! The command line, as INTERFACE fixes it. Parsing touches nothing outside.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use vmeter_model::run::WatchLevel;
use vmeter_model::MachineSpec;

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
    Boot(Boot),
    /// Time whole boots with nothing attached; compare machines.
    Bench(Bench),
    /// How each phase grows with a setting, and where it jumps.
    Sweep(Sweep),
    /// Which commit of a git range made it slower.
    Range(crate::commands::range::Range),
    /// What changed between two saved runs, and is it real?
    Diff(Diff),
    /// Put the shards of a sweep together into one session.
    Merge(crate::commands::merge::Merge),
    /// Saved runs: list them, remove them, export them to other tools.
    #[command(subcommand)]
    Runs(crate::commands::runs::Runs),
    /// Show a saved run again.
    Show(Show),
    /// Write a saved run as a report (HTML by its name, or another format).
    Report(Report),
    /// What each way of harvesting dirty pages costs, slot by slot.
    Dirty(crate::commands::dirty::Dirty),
    /// How long a live migration takes, and its downtime, at a given dirty rate.
    Migrate(crate::commands::migrate::Migrate),
    /// What MSI-X vectors cost to set up: per vector, per device, in one commit.
    Irq(crate::commands::irq::Irq),
    /// Why it is slow: a chain of causes from traces, each link with its evidence.
    Explain(crate::commands::explain::Explain),
    /// Record, read, count and convert traces of hosts, guests and device models.
    #[command(subcommand)]
    Trace(crate::commands::trace::Trace),
    /// Fetch and list the kernels that are booted.
    #[command(subcommand)]
    Kernel(Kernel),
    /// Build the initramfs that is booted.
    #[command(subcommand)]
    Appliance(Appliance),
    /// What this host can measure, and what would mend what it can't.
    Doctor(Doctor),
}

/// Options of every command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output options")]
pub struct Output {
    /// Write the result as JSON (`-` for standard output).
    #[arg(long, global = true, value_name = "FILE")]
    pub export_json: Option<PathBuf>,
    /// Write the result as CSV.
    #[arg(long, global = true, value_name = "FILE")]
    pub export_csv: Option<PathBuf>,
    /// Write the result as Markdown.
    #[arg(long, global = true, value_name = "FILE")]
    pub export_markdown: Option<PathBuf>,
    /// Write the timeline as a Perfetto trace, for ui.perfetto.dev.
    #[arg(long, global = true, value_name = "FILE")]
    pub export_perfetto: Option<PathBuf>,
    /// Colours on a terminal.
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub color: Color,
    /// No progress, no warnings.
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// More: what was run and why (twice: debugging).
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// When to colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, unless `NO_COLOR` is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// How a machine is described, the same everywhere.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Machine options")]
pub struct Machine {
    /// qemu, mock, or the path of a VMM that takes QEMU's options.
    #[arg(long, value_name = "VMM")]
    pub vmm: Option<String>,
    /// auto (probed), kvm, tcg, or icount (deterministic virtual time).
    #[arg(long)]
    pub accel: Option<String>,
    /// q35, pc, microvm, or pvh (q35 entering an uncompressed kernel directly).
    #[arg(long)]
    pub machine: Option<String>,
    /// seabios, qboot, or a firmware file.
    #[arg(long)]
    pub firmware: Option<String>,
    /// Kernel image (default: the newest that `vmeter kernel fetch` has cached).
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
    /// Initial RAM disk (default: the appliance named by --init).
    #[arg(long, value_name = "FILE")]
    pub initrd: Option<PathBuf>,
    /// Added to the kernel command line; may be repeated.
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true)]
    pub append: Vec<String>,
    /// vCPUs.
    #[arg(long, value_name = "N")]
    pub smp: Option<u32>,
    /// Memory, MiB.
    #[arg(long, value_name = "MIB")]
    pub memory: Option<u32>,
    /// Empty PCIe root ports.
    #[arg(long, value_name = "N")]
    pub pcie_root_ports: Option<u32>,
    /// Appliance: minimal (vmeter's own init) or udev (the distribution's).
    #[arg(long)]
    pub init: Option<String>,
    /// Root: initramfs, dax (virtio-pmem) or virtio-blk.
    #[arg(long)]
    pub root: Option<String>,
    /// Where the measurement ends: poweroff, userspace, or line:REGEX.
    #[arg(long)]
    pub until: Option<String>,
    /// Give up on a boot after this many seconds.
    #[arg(long, value_name = "S")]
    pub timeout: Option<u32>,
    /// Run the command line after `--` exactly as given; add nothing.
    #[arg(long)]
    pub no_inject: bool,
}

impl Machine {
    /// The specification this asks for, `command` being what came after `--`.
    pub fn spec(self, command: Vec<String>) -> MachineSpec {
        MachineSpec {
            vmm: self.vmm,
            accel: self.accel,
            machine: self.machine,
            firmware: self.firmware,
            kernel: self.kernel,
            initrd: self.initrd,
            append: self.append,
            smp: self.smp,
            memory_mib: self.memory,
            pcie_root_ports: self.pcie_root_ports,
            init: self.init,
            root: self.root,
            until: self.until,
            timeout_s: self.timeout,
            command,
            no_inject: self.no_inject,
        }
    }
}

/// How runs are repeated, the same everywhere.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Run options")]
pub struct Runs {
    /// Boots before the measured ones, of each machine, that no figure includes.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub warmup: u32,
    /// Measured boots of each machine (default: 5, for bench 10; with --overhead pairs at most, 40).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub runs: Option<u32>,
    /// Seed of the random order in which machines take turns.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Folder to save the runs in (default: a fresh one under $XDG_STATE_HOME/vmeter/runs).
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    pub save: Option<PathBuf>,
    /// Go on with a saved session: finished runs are not repeated.
    #[arg(long, value_name = "DIR")]
    pub resume: Option<PathBuf>,
    /// CPUs the VMM may run on, e.g. 0,2-3.
    #[arg(long, value_name = "CPUS")]
    pub pin: Option<String>,
    /// Command to run (by sh) before every boot, e.g. to drop caches.
    #[arg(long, value_name = "CMD")]
    pub prepare: Option<String>,
}

/// How closely to watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Watch {
    /// The whole timeline with every initcall, at next to no cost.
    Light,
    /// With instruction counts, by a TCG plugin.
    Full,
    /// Nothing attached.
    None,
}

impl From<Watch> for WatchLevel {
    fn from(watch: Watch) -> Self {
        match watch {
            Watch::Light => WatchLevel::Light,
            Watch::Full => WatchLevel::Full,
            Watch::None => WatchLevel::None,
        }
    }
}

/// `vmeter boot`.
#[derive(Debug, Args)]
pub struct Boot {
    /// The machine.
    #[command(flatten)]
    pub machine: Machine,
    /// How often.
    #[command(flatten)]
    pub runs: Runs,
    /// How closely to watch.
    #[arg(long, value_name = "LEVEL", default_value = "light")]
    pub watch: Watch,
    /// Measure what watching costs: watched and unwatched boots take turns.
    #[arg(long)]
    pub overhead: bool,
    /// How it is shown.
    #[command(flatten)]
    pub views: Views,
    /// Exit with status 1 if the boot is slower than the saved session by more than PCT percent.
    #[arg(long, value_name = "PCT", requires = "baseline")]
    pub fail_if_slower: Option<f64>,
    /// Saved session to compare with.
    #[arg(long, value_name = "DIR")]
    pub baseline: Option<PathBuf>,
    /// A VMM command line of your own, run as given.
    #[arg(last = true, value_name = "VMM ARGS")]
    pub command: Vec<String>,
}

/// Views of a boot besides the summary.
#[derive(Debug, Clone, Args)]
pub struct Views {
    /// List all activities, longest first.
    #[arg(long)]
    pub blame: bool,
    /// Show the chain of what the end of the boot waited for.
    #[arg(long)]
    pub critical_chain: bool,
    /// Show the tree of spans.
    #[arg(long)]
    pub tree: bool,
}

/// `vmeter bench`.
#[derive(Debug, Args)]
pub struct Bench {
    /// The machine, the baseline of the comparison.
    #[command(flatten)]
    pub machine: Machine,
    /// How often.
    #[command(flatten)]
    pub runs: Runs,
    /// Another machine: the baseline with these options changed, e.g. --vs '--machine pc'.
    #[arg(long, value_name = "SPEC", allow_hyphen_values = true)]
    pub vs: Vec<String>,
    /// A VMM command line of your own, run as given.
    #[arg(last = true, value_name = "VMM ARGS")]
    pub command: Vec<String>,
}

/// `vmeter sweep`.
#[derive(Debug, Args)]
pub struct Sweep {
    /// Vary an option of the machine, or a {NAME} placeholder, over a list: smp=1,2,4.
    #[arg(short = 'L', long = "list", value_name = "NAME=A,B,…")]
    pub list: Vec<String>,
    /// Vary it over a range, both ends included: pcie-root-ports=0..6, memory=256..1024:256.
    #[arg(short = 'P', long = "range", value_name = "NAME=A..B[:STEP]")]
    pub range: Vec<String>,
    /// On how many hosts.
    #[command(flatten)]
    pub many: crate::many::Many,
    /// The machine that is varied; {NAME} in its texts stands for a parameter's value.
    #[command(flatten)]
    pub machine: Machine,
    /// How often.
    #[command(flatten)]
    pub runs: Runs,
    /// How closely to watch.
    #[arg(long, value_name = "LEVEL", default_value = "light")]
    pub watch: Watch,
    /// A VMM command line of your own, run as given but for {NAME} placeholders.
    #[arg(last = true, value_name = "VMM ARGS")]
    pub command: Vec<String>,
}

/// `vmeter diff`.
#[derive(Debug, Args)]
pub struct Diff {
    /// Before: folder of a saved session, FOLDER#LABEL for one machine of several, or the
    /// folder of a single run.
    pub a: String,
    /// After.
    pub b: String,
    /// Exit with status 1 if B is slower beyond noise and by more than PCT percent.
    #[arg(long, value_name = "PCT")]
    pub fail_if_slower: Option<f64>,
}

/// `vmeter show`.
#[derive(Debug, Args)]
pub struct Show {
    /// Folder of a saved session, or its name in `vmeter runs list` (default: the latest).
    pub run: Option<PathBuf>,
    /// How it is shown.
    #[command(flatten)]
    pub views: Views,
}

/// `vmeter report`.
#[derive(Debug, Args)]
pub struct Report {
    /// Folder of a saved session, or its name in `vmeter runs list`.
    pub run: PathBuf,
    /// File to write; its ending picks the format (.html, .json, .csv, .md, .pftrace).
    #[arg(short, long, value_name = "FILE")]
    pub output_file: PathBuf,
}

/// `vmeter kernel`.
#[derive(Debug, Subcommand)]
pub enum Kernel {
    /// Download a Debian kernel package and unpack it into the cache.
    Fetch {
        /// Package name, or a .deb file.
        #[arg(default_value = "linux-image-cloud-amd64")]
        package: String,
    },
    /// List the cached kernels.
    List,
}

/// `vmeter appliance`.
#[derive(Debug, Subcommand)]
pub enum Appliance {
    /// Write an initramfs; the same input gives the same bytes.
    Build {
        /// minimal or udev.
        #[arg(long, default_value = "minimal")]
        init: String,
        /// Modules to load, with what they depend on.
        #[arg(long, value_name = "NAME", value_delimiter = ',')]
        modules: Vec<String>,
        /// Kernel version whose modules to take (default: the newest cached).
        #[arg(long, value_name = "VERSION")]
        kernel: Option<String>,
        /// A file to put into the guest, e.g. --file /etc/motd=motd.txt; may be repeated.
        #[arg(long = "file", value_name = "GUEST=HOST")]
        files: Vec<String>,
        /// File to write (default: the cache).
        #[arg(short, long = "out", value_name = "FILE")]
        out: Option<PathBuf>,
    },
}

/// `vmeter doctor`.
#[derive(Debug, Args)]
pub struct Doctor {}

/// A machine given as one string: `--vs '--machine pc --smp 2'`.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Variant {
    #[command(flatten)]
    machine: Machine,
    /// Label in the table.
    #[arg(long)]
    label: Option<String>,
    /// The baseline's own command line replaced.
    #[arg(last = true)]
    command: Vec<String>,
}

/// Reads a `--vs` SPEC as changes to `base`: (label, machine).
///
/// # Errors
/// What is wrong with it, in words.
pub fn variant(base: &MachineSpec, spec: &str) -> anyhow::Result<(String, MachineSpec)> {
    let words = shell_words::split(spec).map_err(|e| {
        anyhow::anyhow!("--vs {spec:?}: {e}; expected machine options, e.g. --vs '--machine pc'")
    })?;
    let parsed = Variant::try_parse_from(&words).map_err(|e| {
        let text = e.to_string();
        let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        anyhow::anyhow!(
            "--vs {spec:?}: {first}; expected machine options, e.g. --vs '--machine pc'"
        )
    })?;
    let label = parsed.label.unwrap_or_else(|| spec.to_owned());
    let change = parsed.machine.spec(parsed.command);
    Ok((label, overlay(base.clone(), change)))
}

fn overlay(base: MachineSpec, change: MachineSpec) -> MachineSpec {
    let mut append = base.append;
    append.extend(change.append);
    MachineSpec {
        vmm: change.vmm.or(base.vmm),
        accel: change.accel.or(base.accel),
        machine: change.machine.or(base.machine),
        firmware: change.firmware.or(base.firmware),
        kernel: change.kernel.or(base.kernel),
        initrd: change.initrd.or(base.initrd),
        append,
        smp: change.smp.or(base.smp),
        memory_mib: change.memory_mib.or(base.memory_mib),
        pcie_root_ports: change.pcie_root_ports.or(base.pcie_root_ports),
        init: change.init.or(base.init),
        root: change.root.or(base.root),
        until: change.until.or(base.until),
        timeout_s: change.timeout_s.or(base.timeout_s),
        command: if change.command.is_empty() { base.command } else { change.command },
        no_inject: change.no_inject || base.no_inject,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_variant_changes_only_what_it_names() {
        let base = MachineSpec {
            machine: Some("q35".into()),
            append: vec!["quiet".into()],
            ..MachineSpec::default()
        };
        let (label, machine) =
            variant(&base, "--firmware qboot --machine pvh --append tsc=reliable").unwrap();
        assert_eq!(label, "--firmware qboot --machine pvh --append tsc=reliable");
        assert_eq!(machine.machine.as_deref(), Some("pvh"));
        assert_eq!(machine.firmware.as_deref(), Some("qboot"));
        assert_eq!(machine.append, ["quiet", "tsc=reliable"]);
        let error = variant(&base, "--machin pc").unwrap_err().to_string();
        assert!(error.contains("--machin"), "{error}");
    }
}
