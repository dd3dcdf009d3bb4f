//! `vmeter boot`.

use crate::options::{word, Machine, Runs, Views};
use crate::output;
use crate::output::Output;
use crate::progress::Bar;
use crate::Status;
use clap::Args;
use std::path::PathBuf;
use vmeter_lab::boot::{boot, BootOptions};
use vmeter_lab::Shown;
use vmeter_model::run::WatchLevel;
use vmeter_session::failure::usage;
use vmeter_session::{Interrupt, Watch};

/// `vmeter boot`.
#[derive(Debug, Args)]
pub struct Boot {
    /// The machine.
    #[command(flatten)]
    pub machine: Machine,
    /// How often.
    #[command(flatten)]
    pub runs: Runs,
    /// How closely to watch (default: light).
    #[arg(long, value_name = "LEVEL", value_parser = word::<WatchLevel>())]
    pub watch: Option<WatchLevel>,
    /// Measure what watching costs: watched and unwatched boots take turns.
    #[arg(long)]
    pub overhead: bool,
    /// How it is shown.
    #[command(flatten)]
    pub views: Views,
    /// Exit with status 1 if the boot is slower than the saved session by more than PCT percent.
    #[arg(long, value_name = "PCT", requires = "baseline", value_parser = crate::options::percent)]
    pub fail_if_slower: Option<f64>,
    /// Saved session to compare with.
    #[arg(long, value_name = "DIR")]
    pub baseline: Option<PathBuf>,
    /// A VMM command line of your own, run as given.
    #[arg(last = true, value_name = "VMM ARGS")]
    pub command: Vec<String>,
}

/// Boots, shows, exports.
///
/// # Errors
/// As [`vmeter_lab::boot::boot`]; an export that cannot be written.
pub fn run(arguments: Boot, out: &Output) -> anyhow::Result<Status> {
    output::check(out)?;
    if arguments.overhead && matches!(arguments.watch, Some(WatchLevel::None)) {
        return Err(usage("--overhead compares with --watch none: --watch light or full"));
    }
    let options = BootOptions {
        spec: arguments.machine.spec(arguments.command),
        watch: arguments.watch,
        overhead: arguments.overhead,
        runs: arguments.runs.options(),
    };
    if let Some(baseline) = &arguments.baseline {
        vmeter_lab::boot::regression::check(baseline)?;
    }
    let interrupt = Interrupt::install()?;
    let mut bar = Bar::new(out.quiet);
    let mut result = boot(&options, &mut Watch::new(&mut bar, &interrupt))?;
    let slower = match (&arguments.baseline, arguments.fail_if_slower) {
        (Some(baseline), limit) => {
            let verdict = vmeter_lab::boot::regression::against(baseline, &result, limit)?;
            result.warnings.push(verdict.text);
            verdict.failed
        }
        (None, _) => false,
    };
    let status = output::done(&Shown(result), &arguments.views.into(), out)?;
    Ok(if slower { Status::Bad } else { status })
}
