//! `vmeter bench`.

use crate::args::{variant, Bench, Output};
use crate::commands::boot::{print, run_options};
use crate::output;
use crate::progress::Bar;
use crate::Answer;
use vmeter_lab::bench::bench;
use vmeter_lab::failure::usage;
use vmeter_lab::interrupt::Interrupt;
use vmeter_report::BenchReport;

/// Times machines in turn, shows and exports the comparison.
///
/// # Errors
/// As [`vmeter_lab::bench::bench`]; an export that cannot be written.
pub fn run(arguments: Bench, out: &Output) -> anyhow::Result<Answer> {
    output::check(out)?;
    let base = arguments.machine.spec(arguments.command);
    let mut machines = vec![("baseline".to_owned(), base.clone())];
    for spec in &arguments.vs {
        machines.push(variant(&base, spec).map_err(usage)?);
    }
    let interrupt = Interrupt::install()?;
    let runs = run_options(arguments.runs);
    let result = bench(&machines, &runs, &mut Bar::new(out.quiet), &interrupt)?;
    let report = BenchReport::new(&result);
    print(&report, out)?;
    output::export(out, &report)?;
    let failed = result.machines.iter().any(|m| !m.failures.is_empty());
    Ok(if failed { Answer::Bad } else { Answer::Good })
}
