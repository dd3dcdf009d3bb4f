//! `vmeter boot`.

use crate::options::{ruled, word, FailIfSlower, Machine, Runs, SavedGate, Views};
use crate::output;
use crate::output::Output;
use crate::progress::Bar;
use crate::status::Status;
use clap::Args;
use std::path::PathBuf;
use vmeter_lab::boot::{boot, regression, BootOptions};
use vmeter_lab::next::{next as follow_next, NextOptions};
use vmeter_lab::Shown;
use vmeter_model::run::WatchLevel;
use vmeter_model::{Accel, AskedAccel, MachineSpec};
use vmeter_session::failure::usage;
use vmeter_session::{Interrupt, RunOptions, Watch};

/// `vmeter boot`.
#[derive(Debug, Args)]
pub struct Boot {
    /// The machine.
    #[command(flatten)]
    pub machine: Machine,
    /// How often.
    #[command(flatten)]
    pub runs: Runs,
    /// How much of each boot to record (default: light).
    #[arg(long, value_name = "LEVEL", value_parser = word::<WatchLevel>())]
    pub watch: Option<WatchLevel>,
    /// Measure how much --watch slows the boot, by alternating boots with and without it.
    #[arg(long)]
    pub overhead: bool,
    /// How it is shown.
    #[command(flatten)]
    pub views: Views,
    /// When this machine counts as too slow, compared with --baseline.
    #[command(flatten)]
    pub gate: FailIfSlower,
    /// Compare with a saved session. If possible, vmeter boots the saved machine again,
    /// between the boots of the new machine (default: no comparison).
    #[arg(long, value_name = "DIR")]
    pub baseline: Option<PathBuf>,
    /// Run often enough to detect a difference of PCT percent from --baseline. vmeter computes the
    /// number of runs from the noise of the first runs, but makes at most --runs runs. Without
    /// --detect, vmeter makes exactly --runs runs.
    #[arg(long, value_name = "PCT", value_parser = crate::options::positive, conflicts_with = "overhead")]
    pub detect: Option<f64>,
    /// Start N VMs at once, and repeat that --runs times. With N,M,… vmeter does this for each
    /// number, in random order. The report shows p50, p90 and p99 of the boot times. It also
    /// shows the mean tear-down time, and what the slowest VMs waited for (default: one VM at a
    /// time).
    #[arg(long, value_name = "N[,M…]", value_delimiter = ',', conflicts_with_all = ["overhead", "baseline", "detect", "fail_if_slower"])]
    pub concurrency: Vec<u32>,
    /// Record the next VM that another program (libvirt, a daemon) starts, from the VMM's exec
    /// until the guest is up. With --runs N, vmeter records N such VMs, one after the other. If you
    /// give a command after `--`, vmeter runs it once for each of these VMs; the command must start
    /// the VM. vmeter leaves the VM running.
    #[arg(long, conflicts_with_all = ["overhead", "baseline", "detect", "watch", "fail_if_slower", "resume", "pin", "trust", "concurrency"])]
    pub next: bool,
    /// With --next: executable file of the VMM; may be repeated (default: all VMMs in $PATH).
    #[arg(long, value_name = "FILE", requires = "next")]
    pub emulator: Vec<PathBuf>,
    /// With --next: record only a VMM whose command line matches REGEX (default: any VMM).
    #[arg(long = "match", value_name = "REGEX", requires = "next")]
    pub matching: Option<String>,
    /// With --next: wait at most S seconds for the VMM to start (default: until Ctrl-C).
    #[arg(long, value_name = "S", requires = "next", value_parser = crate::options::positive)]
    pub within: Option<f64>,
    /// Command line of your own VMM, which vmeter runs instead of its own machine.
    #[arg(last = true, value_name = "VMM ARGS")]
    pub command: Vec<String>,
}

/// Boots, shows, exports.
///
/// # Errors
/// As [`vmeter_lab::boot::boot`]; an export that cannot be written.
pub fn run(arguments: Boot, out: &Output) -> anyhow::Result<Status> {
    output::check(out)?;
    if arguments.next {
        return next(arguments, out);
    }
    if arguments.overhead && matches!(arguments.watch, Some(WatchLevel::None)) {
        return Err(usage(
            "--overhead measures the cost of --watch light or --watch full, so \
            --watch none is not allowed",
        ));
    }
    let options = BootOptions {
        spec: arguments.machine.spec(arguments.command),
        watch: arguments.watch,
        overhead: arguments.overhead,
        baseline: arguments.baseline.clone(),
        detect: arguments.detect,
        concurrency: arguments.concurrency,
        runs: RunOptions {
            gate: arguments.gate.kept(arguments.baseline.as_deref()),
            ..arguments.runs.options()?
        },
    };
    let begun = SavedGate::of(options.runs.resume.as_deref());
    let limit = begun.limit(arguments.gate);
    let baseline = arguments.baseline.or_else(|| begun.baseline());
    if limit.is_some() && baseline.is_none() {
        return Err(usage(
            "--fail-if-slower needs a baseline: add --baseline DIR, where DIR is a \
            saved session",
        ));
    }
    if limit.is_some() && options.spec.accel != Some(AskedAccel::Only(Accel::Icount)) {
        regression::check_runs(options.runs.runs)?;
    }
    if let Some(baseline) = &baseline {
        regression::check(baseline)?;
    }
    let interrupt = Interrupt::install()?;
    let mut bar = Bar::new(out.quiet);
    let mut watch = Watch::new(&mut bar, &interrupt);
    if let Some(few) = baseline.as_ref().and_then(|_| regression::too_few(&options)) {
        watch.progress.warn(&few);
    }
    let (spread, mut result) = boot(&options, &mut watch)?;
    let gate = match &baseline {
        Some(baseline) => regression::judge(baseline, &mut result, limit)?,
        None => None,
    };
    let answer = spread.shown(Shown(result));
    let status = output::done(answer.as_ref(), &arguments.views.into(), out)?;
    Ok(ruled(status, gate.as_slice()))
}

/// Follows VMs that another program starts.
fn next(arguments: Boot, out: &Output) -> anyhow::Result<Status> {
    let spec = arguments.machine.spec(Vec::new());
    let MachineSpec { until, timeout_s, .. } = spec.clone();
    let known = MachineSpec { until: until.clone(), timeout_s, ..MachineSpec::default() };
    if spec != known {
        return Err(usage(
            "--next accepts only two machine options, --until and --timeout, because another \
                program configures the VM",
        ));
    }
    let interrupt = Interrupt::install()?;
    let mut bar = Bar::new(out.quiet);
    let mut watch = Watch::new(&mut bar, &interrupt);
    let options = NextOptions {
        emulators: arguments.emulator,
        matching: arguments.matching,
        within_s: arguments.within,
        command: arguments.command,
        until,
        timeout_s,
        runs: arguments.runs.options()?,
    };
    let answer = follow_next(&options, &mut watch)?;
    output::done(answer.as_ref(), &arguments.views.into(), out)
}
