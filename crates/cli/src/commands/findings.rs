//! `vmeter findings`.

use crate::options::{Machine, Runs};
use crate::output;
use crate::output::Output;
use crate::progress::Bar;
use crate::status::Status;
use clap::Args;
use vmeter_lab::findings::{findings, list, FindingsOptions};
use vmeter_lab::Shown;
use vmeter_session::{Interrupt, Views, Watch};

/// `vmeter findings`.
#[derive(Debug, Args)]
pub struct Findings {
    /// Identifiers of the causes to measure; --list prints them (default: all causes).
    #[arg(value_name = "ID")]
    pub ids: Vec<String>,
    /// List the known causes, and exit.
    #[arg(long)]
    pub list: bool,
    /// Skip each machine's extra boot in virtual time.
    #[arg(long)]
    pub no_icount: bool,
    /// Explain each result in words.
    #[arg(long)]
    pub long: bool,
    /// The machine.
    #[command(flatten)]
    pub machine: Machine,
    /// Number of runs (default: 10 of each machine).
    #[command(flatten)]
    pub runs: Runs,
    /// Command line of your own VMM. vmeter checks which of the causes your machine has, and
    /// measures these causes and their remedies.
    #[arg(last = true, value_name = "VMM ARGS")]
    pub command: Vec<String>,
}

/// Measures the findings, shows and exports the results.
///
/// # Errors
/// As [`vmeter_lab::findings::findings`]; an export that cannot be written.
pub fn run(arguments: Findings, out: &Output) -> anyhow::Result<Status> {
    output::check_timeless(out, "findings")?;
    if arguments.list {
        for (id, title, what) in list() {
            output::line(&format!("{id:<24} {title}: {what}"))?;
        }
        return Ok(Status::Good);
    }
    let options = FindingsOptions {
        ids: arguments.ids,
        spec: arguments.machine.spec(arguments.command),
        no_icount: arguments.no_icount,
        runs: arguments.runs.options()?,
    };
    let interrupt = Interrupt::install()?;
    let mut bar = Bar::new(out.quiet);
    let result = findings(&options, &mut Watch::new(&mut bar, &interrupt))?;
    let views = Views { long: arguments.long, ..Views::default() };
    output::done(&Shown(result), &views, out)
}
