//! `vmeter doctor`.

use crate::options::drawn_seed;
use crate::output;
use crate::output::Output;
use crate::progress::Bar;
use crate::status::Status;
use clap::Args;
use vmeter_lab::bench::{bench, BenchOptions};
use vmeter_lab::doctor::{aa, DoctorReport};
use vmeter_lab::Shown;
use vmeter_model::result::CheckStatus;
use vmeter_model::MachineSpec;
use vmeter_session::{Interrupt, RunOptions, Views, Watch};

/// `vmeter doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Remove processes, tracefs instances and temporary folders that a killed vmeter left behind.
    /// --clean keeps everything that belongs to a vmeter that still runs.
    #[arg(long)]
    pub clean: bool,
    /// Compare one machine with itself. This shows how often vmeter gives a false verdict on this
    /// host, and the smallest difference that vmeter can detect here.
    #[arg(long, conflicts_with = "clean")]
    pub aa: bool,
    /// With --aa: runs of each of the two equal machines (default: 20).
    #[arg(long, value_name = "N", requires = "aa",
          value_parser = clap::value_parser!(u32).range(6..=100_000))]
    pub runs: Option<u32>,
    /// With --aa: the VMM to boot with (default: qemu).
    #[arg(long, value_name = "VMM", requires = "aa")]
    pub vmm: Option<String>,
}

/// Runs of each of two equal machines.
const AA_RUNS: u32 = 20;

/// A machine against itself.
fn against_itself(arguments: Doctor, out: &Output) -> anyhow::Result<Status> {
    let spec = MachineSpec { vmm: arguments.vmm, ..MachineSpec::default() };
    let machines = ["one", "the same"].map(|label| (label.to_owned(), spec.clone()));
    let runs = RunOptions {
        runs: Some(arguments.runs.unwrap_or(AA_RUNS)),
        drawn: Some(drawn_seed()?),
        argv: vmeter_base::argv(),
        ..RunOptions::default()
    };
    let interrupt = Interrupt::install()?;
    let mut bar = Bar::new(out.quiet);
    let options =
        BenchOptions { machines: machines.into(), detect: None, concurrency: Vec::new(), runs };
    let (_, mut result) = bench(&options, &mut Watch::new(&mut bar, &interrupt))?;
    result.hints.clear();
    result.said.extend(aa::says(&result));
    output::done(&Shown(result), &Views::default(), out)
}

/// Looks at this host.
///
/// # Errors
/// An export that cannot be written.
pub fn run(arguments: Doctor, out: &Output) -> anyhow::Result<Status> {
    output::check_timeless(out, "doctor")?;
    if arguments.aa {
        return against_itself(arguments, out);
    }
    let argv = vmeter_base::argv();
    let result = vmeter_lab::doctor::examine(argv, arguments.clean)?;
    let report = DoctorReport { result: &result, verbose: out.verbose > 0 };
    output::print(&report, out)?;
    output::export(out, &report)?;
    let mut checks = result.checks.iter();
    let lacks = checks.any(|c| c.name.is_needed() && c.status == CheckStatus::Missing);
    Ok(if lacks { Status::Bad } else { Status::Good })
}
