//! `vmeter dirty`.

use crate::options::Runs;
use crate::output;
use crate::output::Output;
use crate::progress::Bar;
use crate::Status;
use anyhow::Context;
use clap::Args;
use std::path::PathBuf;
use std::str::FromStr;
use vmeter_dirty::{DirtyError, Given, Layout, StrategyKind, TrackerKind, WorkloadKind};
use vmeter_session::failure::usage;
use vmeter_session::{Interrupt, RunOptions, Views, Watch};

/// `vmeter dirty`.
#[derive(Debug, Args)]
#[command(mut_arg("warmup", |arg| arg.help(WARMUP)), mut_arg("runs", |arg| arg.help(RUNS)))]
#[command(mut_arg("pin", |arg| arg.help(PIN)), mut_arg("prepare", |arg| arg.help(PREPARE)))]
pub struct Dirty {
    /// What the guest does: gui (a screen that is redrawn), migration (a loop that writes
    /// for ever), idle, random, sequential (default: migration).
    #[arg(long, value_name = "NAME")]
    workload: Option<String>,
    /// Who tells which pages were written, or all: kvm-legacy, kvm-manual-protect,
    /// kvm-initially-set, kvm-ring, pagemap-scan, mprotect (default: all that this host has).
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    tracker: Vec<String>,
    /// How bitmaps are harvested, or all: get_org, get_opt, switch_opt (default: all).
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
    /// The buffer, MiB (default: 256; the publication's has 1024).
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
    /// Do not measure other numbers of dirty pages for the crossover points.
    #[arg(long)]
    no_fit: bool,
    /// How often.
    #[command(flatten)]
    runs: Runs,
}

const WARMUP: &str = "Passes of each tracker before the measured ones, that no figure includes \
                      (default: 0)";
const RUNS: &str = "Passes of each tracker (default: 5, for migration 3, as published); beside \
                    --resume, more than before add passes";
const PIN: &str = "CPUs of the harvester, e.g. 1; the guests have the others (default: the first)";
const PREPARE: &str = "Command to run (by sh) before each pass of each tracker";

/// Names to what they name, each once; `all` is all, and no names are no choice.
fn chosen<T: Copy + PartialEq>(
    names: &[String],
    all: &[T],
    parse: impl Fn(&str) -> Result<T, DirtyError>,
) -> Result<Option<Vec<T>>, DirtyError> {
    if names.is_empty() {
        return Ok(None);
    }
    if names.iter().any(|name| name == "all") {
        return Ok(Some(all.to_vec()));
    }
    let mut found = Vec::new();
    for name in names {
        let one = parse(name)?;
        if !found.contains(&one) {
            found.push(one);
        }
    }
    Ok(Some(found))
}

fn strategy(name: &str) -> Result<StrategyKind, DirtyError> {
    let found = StrategyKind::ALL.into_iter().find(|kind| kind.name() == name);
    let known = || StrategyKind::ALL.map(StrategyKind::name).join(", ");
    found.ok_or_else(|| DirtyError::Unknown { what: "strategy", name: name.into(), known: known() })
}

impl Dirty {
    fn given(&self) -> anyhow::Result<Given> {
        let layout = self.slots.as_deref().map(|path| {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))
                .map_err(|error| usage(format!("{error:#}")))?;
            Layout::parse(&text, &path.display().to_string()).map_err(DirtyError::classified)
        });
        let workload = self.workload.as_deref().map(WorkloadKind::from_str).transpose();
        let trackers = chosen(&self.tracker, &TrackerKind::ALL, TrackerKind::from_str);
        let strategies = chosen(&self.strategy, &StrategyKind::ALL, strategy);
        Ok(Given {
            workload: workload.map_err(DirtyError::classified)?,
            slots: layout.transpose()?,
            tracker: trackers.map_err(DirtyError::classified)?,
            strategy: strategies.map_err(DirtyError::classified)?,
            warmup: self.runs.warmup,
            dirty: self.dirty,
            buffer: self.buffer,
            memory: self.memory,
            hz: self.hz,
            ring: self.ring,
            ring_entries: self.ring_entries,
            no_verify: self.no_verify,
            no_fit: self.no_fit,
        })
    }
}

/// Measures, shows and exports.
///
/// # Errors
/// A question that makes no sense, and what this host can't do.
pub fn run(arguments: Dirty, out: &Output) -> anyhow::Result<Status> {
    output::check(out)?;
    let given = arguments.given()?;
    let passes = arguments.passes;
    let runs = arguments.runs.options();
    let runs = RunOptions { runs: runs.runs.or(passes), ..runs };
    let interrupt = Interrupt::install()?;
    let mut bar = Bar::new(out.quiet);
    let result = vmeter_dirty::measure(&given, &runs, &mut Watch::new(&mut bar, &interrupt))?;
    output::done(&result, &Views::default(), out)
}
