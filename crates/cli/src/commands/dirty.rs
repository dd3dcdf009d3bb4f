//! `vmeter dirty`.

use crate::options::{listed, word, Runs};
use crate::output;
use crate::output::Output;
use crate::progress::Bar;
use crate::Status;
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
    /// Dirty-tracking mechanisms to compare, or all: kvm-legacy, kvm-manual-protect,
    /// kvm-initially-set, kvm-ring, pagemap-scan, mprotect (default: all that this host has).
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    tracker: Vec<String>,
    /// How to read and clear the dirty bitmap, or all: get_org (original), get_opt (optimised),
    /// switch_opt (swap buffers) (default: all).
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    strategy: Vec<String>,
    /// The same as --runs.
    #[arg(long, value_name = "N", conflicts_with = "runs",
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    passes: Option<u32>,
    /// The guest's slots, as JSON: [{"slot": 0, "bytes": "640K"}, …]; "buffer": true where
    /// the workload writes.
    #[arg(long, value_name = "FILE")]
    slots: Option<PathBuf>,
    /// Share of the buffer that random and sequential write in each pass, percent (default: 50).
    #[arg(long, value_name = "PCT")]
    dirty: Option<f64>,
    /// The buffer, MiB (default: 256; 1024 in the published measurement).
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    buffer: Option<u64>,
    /// Memory that all slots may take, MiB; large slots are scaled (default: half of what is
    /// available).
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    memory: Option<u64>,
    /// Frames a second of gui (default: 60).
    #[arg(long, value_name = "N")]
    hz: Option<u32>,
    /// Privilege level of the guest's code: 3, or 0 where KVM runs that natively (default: 3).
    #[arg(long, value_name = "N")]
    ring: Option<u8>,
    /// Entries of the dirty ring (default: 65536).
    #[arg(long, value_name = "N")]
    ring_entries: Option<usize>,
    /// Check every bit against what the guest wrote (the default).
    #[arg(long, overrides_with = "no_verify")]
    verify: bool,
    /// Do not check.
    #[arg(long)]
    no_verify: bool,
    /// Skip the runs with other numbers of dirty pages, which the crossover points need.
    #[arg(long)]
    no_fit: bool,
    /// Also measure N VMs at once, with p50 and p99 of their times: 1,8,32 (default: none).
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    vms: Vec<usize>,
    /// How often.
    #[command(flatten)]
    runs: Runs,
}

/// Largest file of slots that is read, bytes.
const MAX_SLOTS_FILE: u64 = 1 << 20;
const WARMUP: &str = "Warm-up passes of each tracker, excluded from all statistics (default: 0)";
const RUNS: &str = "Passes of each tracker (default: 5, for migration 3, as published). With \
                    --resume, a larger number adds passes";
const PIN: &str =
    "CPUs of the harvester, e.g. 1; the guests run on the others (default: the first)";
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
/// A question that makes no sense, and what this host can't do.
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
