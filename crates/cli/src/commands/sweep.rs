//! `vmeter sweep`.

use crate::args::{Output, Sweep};
use crate::commands::boot::{print, run_options};
use crate::output;
use crate::progress::Bar;
use crate::Answer;
use clap::{Args, ValueEnum};
use vmeter_lab::failure::usage;
use vmeter_lab::interrupt::Interrupt;
use vmeter_lab::slurm::{self, SlurmOptions};
use vmeter_lab::start::RunOptions;
use vmeter_lab::sweep::parameters::Parameter;
use vmeter_lab::sweep::{sweep, SweepOptions};
use vmeter_model::run::Outcome;
use vmeter_model::shard::{Shard, MAX_SHARDS};
use vmeter_model::sweep::SweepResult;
use vmeter_report::SweepReport;

/// How a sweep is spread over hosts.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Many machines")]
pub struct Many {
    /// Carry out only part I of N, counted from 1; the same command line with the other parts
    /// on other hosts, and vmeter merge, make the whole.
    #[arg(long, value_name = "I/N", conflicts_with = "on")]
    pub shard: Option<Shard>,
    /// Carry it out as a job array of a scheduler, follow it, and merge.
    #[arg(long, value_name = "SCHEDULER")]
    pub on: Option<Scheduler>,
    /// Tasks of the array, each on a node of its own.
    #[arg(long, value_name = "N", requires = "on",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SHARDS)))]
    pub shards: Option<u32>,
    /// Partition to submit to (default: the cluster's).
    #[arg(long, value_name = "NAME", requires = "on")]
    pub partition: Option<String>,
    /// An option for sbatch, e.g. --sbatch=--time=30; may be repeated.
    #[arg(long, value_name = "OPTION", requires = "on", allow_hyphen_values = true)]
    pub sbatch: Vec<String>,
    /// Merge hosts that differ in CPU model, kernel or VMM; each host's factor is taken out.
    #[arg(long)]
    pub mixed_hosts: bool,
}

/// Schedulers that a sweep can be given to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scheduler {
    /// A Slurm cluster, by sbatch.
    Slurm,
}

/// Measures every point in turn, shows and exports how the costs grow.
///
/// # Errors
/// As [`vmeter_lab::sweep::sweep`]; an export that cannot be written.
pub fn run(arguments: Sweep, out: &Output) -> anyhow::Result<Answer> {
    output::check(out)?;
    let lists = arguments.list.iter().map(|text| Parameter::list(text));
    let ranges = arguments.range.iter().map(|text| Parameter::range(text));
    let options = SweepOptions {
        parameters: lists.chain(ranges).collect::<anyhow::Result<_>>()?,
        spec: arguments.machine.spec(arguments.command),
        watch: arguments.watch.into(),
        runs: RunOptions { shard: arguments.many.shard, ..run_options(arguments.runs) },
    };
    let interrupt = Interrupt::install()?;
    let result = measure(&options, arguments.many, &mut Bar::new(out.quiet), &interrupt)?;
    let report = SweepReport::new(&result);
    print(&report, out)?;
    output::export(out, &report)?;
    Ok(answer(&result))
}

fn measure(
    options: &SweepOptions,
    many: Many,
    bar: &mut Bar,
    interrupt: &Interrupt,
) -> anyhow::Result<SweepResult> {
    let merged = match (&options.runs.resume, many.on) {
        (Some(dir), _) if slurm::is_underway(dir) => {
            slurm::resume(dir, many.mixed_hosts, bar, interrupt)?
        }
        (None, Some(Scheduler::Slurm)) => {
            let shards = many.shards.ok_or_else(|| {
                usage("--on slurm: into how many tasks? --shards N, at most as many as there are nodes to use")
            })?;
            let Many { partition, sbatch, mixed_hosts, .. } = many;
            let cluster = SlurmOptions { shards, partition, sbatch, mixed_hosts };
            slurm::sweep(options, &cluster, bar, interrupt)?
        }
        _ => return sweep(options, bar, interrupt),
    };
    merged.result()
}

/// Bad if a run did not reach its end.
pub fn answer(result: &SweepResult) -> Answer {
    let runs = result.points.iter().flat_map(|point| &point.runs);
    let failed = runs.into_iter().any(|run| run.outcome != Outcome::Done);
    if failed {
        Answer::Bad
    } else {
        Answer::Good
    }
}
