//! `vmeter dirty`.

use crate::options::{listed, word, Runs};
use crate::output;
use crate::output::Output;
use crate::progress::Bar;
use crate::status::Status;
use anyhow::Context;
use clap::Args;
use std::path::PathBuf;
use vmeter_base::files::read_text_limited;
use vmeter_dirty::{
    measure, CliOptions, DirtyError, DirtyOptions, Layout, StrategyKind, TrackerKind, WorkloadKind,
};
use vmeter_session::failure::usage;
use vmeter_session::{Interrupt, RunOptions, Views, Watch};

/// `vmeter dirty`.
#[derive(Debug, Args)]
#[command(mut_arg("warmup", |arg| arg.help(WARMUP)), mut_arg("runs", |arg| arg.help(RUNS)))]
#[command(mut_arg("pin", |arg| arg.help(PIN)), mut_arg("prepare", |arg| arg.help(PREPARE)))]
pub struct Dirty {
    /// What the guest does (default: migration).
    #[arg(long, value_name = "NAME", value_parser = word::<WorkloadKind>())]
    workload: Option<WorkloadKind>,
    /// Dirty-tracking mechanisms to compare: kvm-legacy, kvm-manual-protect, kvm-initially-set,
    /// kvm-ring, pagemap-scan, mprotect, or all (default: all that this host has).
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    tracker: Vec<String>,
    /// Strategies to compare, or all (default: all). A strategy is a way to read and clear the
    /// dirty bitmap: get_org (original harvest loop), get_opt (optimised harvest loop), switch_opt
    /// (swap of bitmaps without a copy).
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    strategy: Vec<String>,
    /// The same as --runs.
    #[arg(long, value_name = "N", conflicts_with = "runs",
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    passes: Option<u32>,
    /// JSON file with the memory slots of the guest (default: the workload's own slots):
    /// [{"slot": 0, "bytes": "640K"}, …]. "buffer": true marks the slot that the workload writes
    /// to.
    #[arg(long, value_name = "FILE")]
    slots: Option<PathBuf>,
    /// With the workloads `random` and `sequential`: percentage of the buffer that the guest writes
    /// in one pass (default: 50).
    #[arg(long, value_name = "PCT")]
    dirty: Option<f64>,
    /// Size of the buffer that the workload writes, MiB (default: 256; the published measurement
    /// that docs/DIRTY.md cites used 1024).
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    buffer: Option<u64>,
    /// Limit of the total size of all slots, MiB (default: half of the available memory). vmeter
    /// shrinks large slots until all slots fit into this limit.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    memory: Option<u64>,
    /// Frames per second of the workload gui (default: 60).
    #[arg(long, value_name = "N")]
    hz: Option<u32>,
    /// Privilege level of the guest's code, 3 or 0 (default: 3). The host's KVM must run code of
    /// the chosen level natively.
    #[arg(long, value_name = "N")]
    ring: Option<u8>,
    /// Entries of the dirty ring (default: 65536).
    #[arg(long, value_name = "N")]
    ring_entries: Option<usize>,
    /// Compare every bit of the dirty bitmap with the pages that the guest wrote (this is the
    /// default).
    #[arg(long, overrides_with = "no_verify")]
    verify: bool,
    /// Do not compare the dirty bitmap with the pages that the guest wrote.
    #[arg(long)]
    no_verify: bool,
    /// Skip the extra runs, which vary the number of dirty pages. Without these runs, vmeter cannot
    /// compute at how many dirty pages another tracker becomes the fastest.
    #[arg(long)]
    no_fit: bool,
    /// Also measure N VMs at once, for each number N in LIST (e.g. 1,8,32), and show p50 and p99 of the
    /// times to query a tracker and to harvest (default: none).
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    vms: Vec<usize>,
    /// How often.
    #[command(flatten)]
    runs: Runs,
}

/// Largest --slots file that vmeter reads, bytes.
const MAX_SLOTS_FILE: u64 = 1 << 20;
const WARMUP: &str = "Warm-up passes of each tracker, excluded from all statistics (default: 0)";
const RUNS: &str = "Passes of each tracker (default: 3 for the workload `migration`, as in the \
    published measurement that docs/DIRTY.md cites, and 5 for the others). With --resume, a larger \
    number adds passes";
const PIN: &str =
    "Numbers of the CPUs for the thread that harvests dirty pages, e.g. 1 or 0,2-3 (default: the \
        first CPU). The guests run on the remaining CPUs. In the passes of --vms, all threads \
        share all CPUs of the host";
const PREPARE: &str = "Shell command to run before each pass of each tracker";

impl Dirty {
    fn given(&self) -> anyhow::Result<CliOptions> {
        let layout = self.slots.as_deref().map(|path| {
            let text = read_text_limited(path, MAX_SLOTS_FILE)
                .with_context(|| format!("cannot read {}", path.display()))
                .map_err(|error| usage(format!("{error:#}")))?;
            Layout::parse(&text, &path.display().to_string()).map_err(DirtyError::classified)
        });
        Ok(CliOptions {
            workload: self.workload,
            slots: layout.transpose()?,
            tracker: listed("--tracker", &self.tracker, TrackerKind::ALL)?,
            strategy: listed("--strategy", &self.strategy, &StrategyKind::ALL)?,
            warmup: self.runs.warmup,
            dirty: self.dirty,
            buffer: self.buffer,
            memory: self.memory,
            hz: self.hz,
            ring: self.ring,
            ring_entries: self.ring_entries,
            no_verify: self.no_verify,
            no_fit: self.no_fit,
            vms: self.vms.clone(),
        })
    }
}

/// Measures, shows and exports.
///
/// # Errors
/// Options that contradict each other or are out of range; what this host cannot run.
pub fn run(arguments: Dirty, out: &Output) -> anyhow::Result<Status> {
    output::check_timeless(out, "dirty")?;
    let given = arguments.given()?;
    let passes = arguments.passes;
    let runs = arguments.runs.options()?;
    let runs = RunOptions { runs: runs.runs.or(passes), ..runs };
    let options = DirtyOptions { given, runs };
    let interrupt = Interrupt::install()?;
    let mut bar = Bar::new(out.quiet);
    let result = measure(&options, &mut Watch::new(&mut bar, &interrupt))?;
    output::done(&result, &Views::default(), out)
}
