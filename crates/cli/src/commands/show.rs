//! `vmeter show`: a saved session again, by the path of a live one.

use crate::commands::boot;
use crate::commands::runs::folder_of;
use crate::options::Views;
use crate::output;
use crate::output::Output;
use crate::Answer;
use clap::Args;
use std::path::PathBuf;
use vmeter_lab::failure::usage;
use vmeter_lab::session::Session;
use vmeter_lab::{analysis, bench, range, sweep};
use vmeter_report::{BenchReport, MigrateReport, RangeReport, SweepReport};

/// `vmeter show`.
#[derive(Debug, Args)]
pub struct Show {
    /// Folder of a saved session, or its name in `vmeter runs list` (default: the latest).
    pub run: Option<PathBuf>,
    /// How it is shown.
    #[command(flatten)]
    pub views: Views,
}

/// Analyses and shows a session.
///
/// # Errors
/// A folder that holds none, or none that can be read.
pub fn run(arguments: &Show, out: &Output) -> anyhow::Result<Answer> {
    output::check(out)?;
    let folder = arguments.run.as_deref().map(folder_of);
    if let Some(folder) = folder.as_deref().filter(|folder| vmeter_migrate::is_saved(folder)) {
        let result = vmeter_migrate::result(folder).map_err(usage)?;
        let report = MigrateReport::new(&result);
        output::print(&report, out)?;
        output::export(out, &report)?;
        return Ok(Answer::Good);
    }
    let session = match &folder {
        Some(folder) => Session::open(folder).map_err(|e| usage(format!("{e:#}")))?,
        None => Session::latest()?,
    };
    match session.record.command.as_str() {
        "bench" => {
            let result = bench::result(&session)?;
            let report = BenchReport::new(&result);
            output::print(&report, out)?;
            output::export(out, &report)?;
        }
        "sweep" => {
            let result = sweep::result(&session)?;
            let report = SweepReport::new(&result);
            output::print(&report, out)?;
            output::export(out, &report)?;
        }
        "range" => {
            let result = range::result(&session)?;
            let report = RangeReport::new(&result);
            output::print(&report, out)?;
            output::export(out, &report)?;
        }
        _ => {
            let result = analysis::load_boot(&session).map_err(|e| usage(format!("{e:#}")))?;
            boot::show(&result, &arguments.views, out)?;
        }
    }
    Ok(Answer::Good)
}
