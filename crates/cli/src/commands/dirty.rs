//! `vmeter dirty`.

use crate::output;
use crate::output::Output;
use crate::Status;
use anyhow::Context;
use clap::Args;
use std::path::PathBuf;
use std::str::FromStr;
use vmeter_dirty::{DirtyError, Kind, Layout, Options, StrategyKind, TrackerKind};
use vmeter_report::DirtyReport;
use vmeter_session::envelope::envelope_now;
use vmeter_session::failure::{failure, host, usage, Class};
use vmeter_session::Interrupt;

/// `vmeter dirty`.
#[derive(Debug, Args)]
pub struct Dirty {
    /// What the guest does: gui (a screen that is redrawn), migration (a loop that writes
    /// for ever), idle, random, sequential.
    #[arg(long, value_name = "NAME", default_value = "migration")]
    workload: String,
    /// Who tells which pages were written, or all: kvm-legacy, kvm-manual-protect,
    /// kvm-initially-set, kvm-ring, pagemap-scan, mprotect (default: all that this host has).
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    tracker: Vec<String>,
    /// How bitmaps are harvested, or all: get_org, get_opt, switch_opt (default: all).
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    strategy: Vec<String>,
    /// Passes (default: 5, for migration 3, as published).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    passes: Option<u32>,
    /// The guest's slots, as JSON: [{"slot": 0, "bytes": "640K"}, …]; "buffer": true where
    /// the workload writes.
    #[arg(long, value_name = "FILE")]
    slots: Option<PathBuf>,
    /// Share of the buffer that random and sequential write in each pass, percent.
    #[arg(long, value_name = "PCT", default_value_t = 50.0)]
    dirty: f64,
    /// The buffer, MiB (default: 256; the publication's has 1024).
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    buffer: Option<u64>,
    /// Memory that all slots may take, MiB; large slots are scaled (default: half of what is
    /// available).
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    memory: Option<u64>,
    /// Frames a second of gui.
    #[arg(long, value_name = "N", default_value_t = 60)]
    hz: u32,
    /// Privilege level of the guest's code: 3, or 0 where KVM runs that natively.
    #[arg(long, value_name = "N", default_value_t = 3)]
    ring: u8,
    /// Entries of the dirty ring.
    #[arg(long, value_name = "N", default_value_t = 65_536)]
    ring_entries: usize,
    /// Check every bit against what the guest wrote (the default).
    #[arg(long, overrides_with = "no_verify")]
    verify: bool,
    /// Do not check.
    #[arg(long)]
    no_verify: bool,
    /// Do not measure other numbers of dirty pages for the crossover points.
    #[arg(long)]
    no_fit: bool,
    /// Seed of pages, and of the orders in which trackers, slots and strategies take turns.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// Names to what they name, each once; none or `all` is all.
fn chosen<T: Copy + PartialEq>(
    names: &[String],
    all: &[T],
    parse: impl Fn(&str) -> Result<T, DirtyError>,
) -> anyhow::Result<Vec<T>> {
    if names.is_empty() || names.iter().any(|name| name == "all") {
        return Ok(all.to_vec());
    }
    let mut found = Vec::new();
    for name in names {
        let one = parse(name).map_err(usage)?;
        if !found.contains(&one) {
            found.push(one);
        }
    }
    Ok(found)
}

fn strategy(name: &str) -> Result<StrategyKind, DirtyError> {
    let found = StrategyKind::ALL.into_iter().find(|kind| kind.name() == name);
    let known = || StrategyKind::ALL.map(StrategyKind::name).join(", ");
    found.ok_or_else(|| DirtyError::Unknown { what: "strategy", name: name.into(), known: known() })
}

impl Dirty {
    fn options(&self) -> anyhow::Result<Options> {
        let layout = self.slots.as_deref().map(|path| {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))
                .map_err(|error| usage(format!("{error:#}")))?;
            Layout::parse(&text, &path.display().to_string()).map_err(usage)
        });
        if !(0.0..=100.0).contains(&self.dirty) {
            return Err(usage("--dirty is a percentage, 0 to 100"));
        }
        Ok(Options {
            workload: Kind::from_str(&self.workload).map_err(usage)?,
            layout: layout.transpose()?,
            trackers: chosen(&self.tracker, &TrackerKind::ALL, TrackerKind::from_str)?,
            strategies: chosen(&self.strategy, &StrategyKind::ALL, strategy)?,
            passes: self.passes,
            seed: self.seed,
            verify: !self.no_verify,
            share: self.dirty / 100.0,
            buffer: self.buffer.map(|mib| mib << 20),
            memory: self.memory.map(|mib| mib << 20),
            hz: self.hz,
            ring: self.ring,
            ring_entries: self.ring_entries,
            fit: !self.no_fit,
        })
    }
}

fn classified(error: DirtyError) -> anyhow::Error {
    match &error {
        DirtyError::Interrupted => failure(Class::Interrupted, error),
        _ if error.is_hosts() => host(error),
        _ => usage(error),
    }
}

/// Measures, shows and exports.
///
/// # Errors
/// A question that makes no sense, and what this host can't do.
pub fn run(arguments: &Dirty, out: &Output) -> anyhow::Result<Status> {
    output::check(out)?;
    let options = arguments.options()?;
    let interrupt = Interrupt::install()?;
    let bar = if out.quiet {
        indicatif::ProgressBar::hidden()
    } else {
        indicatif::ProgressBar::new_spinner()
    };
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    let started = envelope_now("dirty");
    let result = vmeter_dirty::run(&options, &mut |news: &str| {
        bar.set_message(news.to_owned());
        !interrupt.is_raised()
    });
    bar.finish_and_clear();
    let mut result = result.map_err(classified)?;
    result.envelope = started;
    let report = DirtyReport::new(&result);
    output::print(&report, out)?;
    output::export(out, &report)?;
    Ok(if result.mismatches.is_empty() { Status::Good } else { Status::Bad })
}
