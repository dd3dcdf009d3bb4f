//! `vmeter irq`.

use crate::output;
use crate::output::Output;
use crate::progress;
use crate::Status;
use clap::{Args, ValueEnum};
use std::str::FromStr;
use vmeter_base::CpuList;
use vmeter_irq::vfio::{Address, VfioOptions, VfioStrategy};
use vmeter_irq::{FitRange, IrqError, Options, Strategy, Watcher};
use vmeter_model::irq::IrqResult;
use vmeter_report::IrqReport;
use vmeter_session::envelope::envelope_now;
use vmeter_session::failure::{failure, host, usage, Class};
use vmeter_session::Interrupt;

/// `vmeter irq`.
#[derive(Debug, Args)]
pub struct Irq {
    /// Virtual functions (devices).
    #[arg(long, value_name = "N", default_value_t = 8, conflicts_with = "vfio")]
    vfs: usize,
    /// MSI-X vectors of each (default: 65; of real devices, all that they have).
    #[arg(long, value_name = "N")]
    vectors: Option<usize>,
    /// vCPUs that the vectors are spread over.
    #[arg(long, value_name = "N", default_value_t = 8)]
    vcpus: usize,
    /// Threads that keep CPUs busy meanwhile.
    #[arg(long, value_name = "N", default_value_t = 0,
          value_parser = at_most(1024))]
    busy_cpus: usize,
    /// vCPUs that run guest code meanwhile.
    #[arg(long, value_name = "N", default_value_t = 0)]
    running_vcpus: usize,
    /// Strategies to compare, or all: per_vector, per_device, per_vm, reserved,
    /// reserved_per_vm; with --vfio growing, adding, at_once, vm_per_vector, vm_per_device,
    /// vm_per_vm (default: per_vector,per_device,per_vm,reserved; with --vfio all).
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    strategy: Vec<String>,
    /// Measured runs of each strategy (default: 10; with --vfio 3).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    runs: Option<u32>,
    /// Runs of each strategy before them.
    #[arg(long, value_name = "N", default_value_t = 1)]
    warmup: u32,
    /// Seed of the random order in which strategies take turns.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// CPUs of the committing thread, e.g. 1,4-7 (default: all but the boot CPU, on which
    /// the grace period's callback runs).
    #[arg(long, value_name = "CPUS")]
    pin: Option<CpuList>,
    /// How far the growth with the number of vectors is measured.
    #[arg(long, value_name = "RANGE", default_value = "limit", conflicts_with = "vfio")]
    fit: Fit,
    /// Do not trace where the time of a commit goes.
    #[arg(long, conflicts_with = "vfio")]
    no_trace: bool,
    /// Real devices, bound to vfio-pci, instead of a VM without any.
    #[arg(long, value_name = "BDF", num_args = 1.., value_delimiter = ',')]
    vfio: Vec<String>,
}

/// What `--fit` can be.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Fit {
    /// Up to --vfs, and once more at this host's limit of routes.
    Limit,
    /// Up to --vfs.
    Vfs,
    /// Not at all.
    None,
}

/// A number up to `most`.
fn at_most(most: u64) -> impl clap::builder::TypedValueParser<Value = usize> {
    use clap::builder::TypedValueParser;
    clap::value_parser!(u64).range(0..=most).map(|n| n as usize)
}

/// Strategies by name; `all` is all of them.
fn strategies<S: FromStr + Copy>(
    names: &[String],
    all: &[S],
    default: &[S],
) -> anyhow::Result<Vec<S>>
where
    S::Err: std::fmt::Display,
{
    if names.is_empty() {
        return Ok(default.to_vec());
    }
    if names.iter().any(|name| name == "all") {
        return Ok(all.to_vec());
    }
    let mut names = names.to_vec();
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    names.iter().map(|name| name.parse().map_err(|e: S::Err| usage(e))).collect()
}

/// Says what is going on, on a terminal, and hears Ctrl-C.
struct News {
    bar: indicatif::ProgressBar,
    interrupt: Interrupt,
}

impl News {
    fn new(quiet: bool, interrupt: Interrupt) -> Self {
        News { bar: progress::bar(quiet, "{prefix} {wide_bar} {pos}/{len}  {msg}"), interrupt }
    }
}

impl Watcher for News {
    fn stage(&mut self, name: &str, runs: usize) {
        self.bar.set_prefix(name.to_owned());
        self.bar.set_length(runs as u64);
        self.bar.set_position(0);
    }

    fn run(&mut self, news: &str) {
        self.bar.set_message(news.to_owned());
        self.bar.inc(1);
    }

    fn is_interrupted(&self) -> bool {
        self.interrupt.is_raised()
    }
}

fn classified(error: IrqError) -> anyhow::Error {
    match &error {
        IrqError::Usage(_) | IrqError::TooMany { .. } => usage(error),
        IrqError::Vfio(vfio) if vfio.is_usage() => usage(error),
        IrqError::Interrupted => failure(Class::Interrupted, error),
        _ => host(error),
    }
}

/// Measures, shows and exports.
///
/// # Errors
/// A question that makes no sense, and what this host can't do.
pub fn run(arguments: &Irq, out: &Output) -> anyhow::Result<Status> {
    output::check(out)?;
    let interrupt = Interrupt::install()?;
    let mut news = News::new(out.quiet, interrupt);
    let result = match arguments.vfio.is_empty() {
        true => without_devices(arguments, &mut news),
        false => with_devices(arguments, &mut news),
    };
    news.bar.finish_and_clear();
    let result = result?;
    let report = IrqReport::new(&result);
    output::print(&report, out)?;
    output::export(out, &report)?;
    let complete = |d: &vmeter_model::irq::IrqDelivery| d.arrived == d.raised && d.stray == 0;
    let lost = result.totals.iter().filter_map(|t| t.delivery).any(|d| !complete(&d));
    Ok(if lost { Status::Bad } else { Status::Good })
}

fn without_devices(arguments: &Irq, news: &mut News) -> anyhow::Result<IrqResult> {
    let options = Options {
        vfs: arguments.vfs,
        vectors: arguments.vectors.unwrap_or(65),
        vcpus: arguments.vcpus,
        busy_cpus: arguments.busy_cpus,
        running_vcpus: arguments.running_vcpus,
        strategies: strategies(&arguments.strategy, &Strategy::ALL, &Strategy::ALL[..4])?,
        runs: arguments.runs.unwrap_or(10) as usize,
        warmup: arguments.warmup as usize,
        seed: arguments.seed,
        fit: match arguments.fit {
            Fit::Limit => FitRange::Limit,
            Fit::Vfs => FitRange::Vfs,
            Fit::None => FitRange::None,
        },
        trace: !arguments.no_trace,
        pin: arguments.pin.clone(),
    };
    vmeter_irq::measure(&options, envelope_now("irq"), news).map_err(classified)
}

fn with_devices(arguments: &Irq, news: &mut News) -> anyhow::Result<IrqResult> {
    let devices = arguments.vfio.iter().map(|text| Address::parse(text));
    let devices = devices.collect::<Result<Vec<_>, _>>().map_err(usage)?;
    let options = VfioOptions {
        devices,
        vectors: arguments.vectors,
        vcpus: arguments.vcpus,
        busy_cpus: arguments.busy_cpus,
        running_vcpus: arguments.running_vcpus,
        strategies: strategies(&arguments.strategy, &VfioStrategy::ALL, &[])?,
        runs: arguments.runs.unwrap_or(3) as usize,
        warmup: arguments.warmup as usize,
        seed: arguments.seed,
        pin: arguments.pin.clone(),
    };
    vmeter_irq::vfio::measure(&options, envelope_now("irq"), news).map_err(classified)
}
