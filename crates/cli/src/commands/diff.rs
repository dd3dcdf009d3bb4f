//! `vmeter diff A B`.

use crate::options::{ruled, FailIfSlower};
use crate::output;
use crate::output::Output;
use crate::status::Status;
use clap::Args;
use std::ffi::OsString;
use vmeter_lab::diff::report::DiffReport;

/// `vmeter diff`.
#[derive(Debug, Args)]
pub struct Diff {
    /// The baseline: folder of a saved session, FOLDER#LABEL for one machine of several, or the
    /// folder of a single run.
    pub a: OsString,
    /// After.
    pub b: OsString,
    /// Print how many runs are needed to detect a difference of PCT percent, and exit. To make
    /// these runs, use `vmeter boot --baseline DIR --detect PCT`.
    #[arg(long, value_name = "PCT", value_parser = crate::options::positive)]
    pub detect: Option<f64>,
    /// When B is too slow.
    #[command(flatten)]
    pub gate: FailIfSlower,
}

/// Compares two saved machines, shows and exports what differs.
///
/// # Errors
/// As [`vmeter_lab::diff::saved::diff`]; an export that cannot be written.
pub fn run(arguments: Diff, out: &Output) -> anyhow::Result<Status> {
    output::check_timeless(out, "diff")?;
    let Diff { a, b, detect, gate } = arguments;
    let argv = vmeter_base::argv();
    if let Some(pct) = detect {
        return Err(vmeter_lab::diff::saved::as_many_as_there_are(&a, &b, pct)?);
    }
    let (result, gate) = vmeter_lab::diff::saved::gated(&a, &b, argv, gate.limit())?;
    let report = DiffReport::new(&result);
    output::print(&report, out)?;
    output::export(out, &report)?;
    Ok(ruled(Status::Good, gate.as_slice()))
}
