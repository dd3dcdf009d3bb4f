//! `vmeter sweep`.

use crate::args::{Output, Sweep};
use crate::commands::boot::{print, run_options};
use crate::output;
use crate::progress::Bar;
use crate::Answer;
use vmeter_lab::interrupt::Interrupt;
use vmeter_lab::sweep::parameters::Parameter;
use vmeter_lab::sweep::{sweep, SweepOptions};
use vmeter_model::run::Outcome;
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
        runs: run_options(arguments.runs),
    };
    let interrupt = Interrupt::install()?;
    let result = sweep(&options, &mut Bar::new(out.quiet), &interrupt)?;
    let report = SweepReport::new(&result);
    print(&report, out)?;
    output::export(out, &report)?;
    let runs = result.points.iter().flat_map(|point| &point.runs);
    let failed = runs.into_iter().any(|run| run.outcome != Outcome::Done);
    Ok(if failed { Answer::Bad } else { Answer::Good })
}
