//! `vmeter sweep`.

use crate::args::{Output, Sweep};
use crate::commands::boot::{print, run_options};
use crate::many::Many;
use crate::output;
use crate::progress::Bar;
use crate::Answer;
use vmeter_lab::failure::usage;
use vmeter_lab::interrupt::Interrupt;
use vmeter_lab::merge::Whole;
use vmeter_lab::slurm;
use vmeter_lab::start::RunOptions;
use vmeter_lab::sweep::parameters::Parameter;
use vmeter_lab::sweep::{sweep, SweepOptions};
use vmeter_model::run::Outcome;
use vmeter_model::sweep::SweepResult;
use vmeter_report::SweepReport;

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
        (None, Some(_)) => slurm::sweep(options, &many.cluster()?, bar, interrupt)?,
        _ => return sweep(options, bar, interrupt),
    };
    match merged.result()? {
        Whole::Sweep(result) => Ok(result),
        Whole::Range(_) => Err(usage("these are the shards of a range: vmeter range --resume")),
    }
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
