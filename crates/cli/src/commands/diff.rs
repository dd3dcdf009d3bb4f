//! `vmeter diff A B`.

use crate::output;
use crate::output::Output;
use crate::Status;
use clap::Args;
use vmeter_lab::diff::report::DiffReport;
use vmeter_model::DiffVerdict;

/// `vmeter diff`.
#[derive(Debug, Args)]
pub struct Diff {
    /// Before: folder of a saved session, FOLDER#LABEL for one machine of several, or the
    /// folder of a single run.
    pub a: String,
    /// After.
    pub b: String,
    /// Exit with status 1 if B is slower beyond noise and by more than PCT percent.
    #[arg(long, value_name = "PCT", value_parser = crate::options::percent)]
    pub fail_if_slower: Option<f64>,
}

/// Compares two saved machines, shows and exports what differs.
///
/// # Errors
/// As [`vmeter_lab::diff::saved::diff`]; an export that cannot be written.
pub fn run(arguments: &Diff, out: &Output) -> anyhow::Result<Status> {
    output::check_timeless(out, "diff")?;
    let argv = vmeter_base::argv();
    let result = vmeter_lab::diff::saved::diff(&arguments.a, &arguments.b, argv)?;
    let report = DiffReport::new(&result);
    output::print(&report, out)?;
    output::export(out, &report)?;
    let allowed = arguments.fail_if_slower.map(|percent| 1.0 + percent / 100.0);
    let slower = result.ratio.filter(|_| result.verdict == DiffVerdict::Slower);
    let failed = slower.zip(allowed).is_some_and(|(ratio, allowed)| ratio.mean > allowed);
    // Runs that never got to their end say nothing of how fast it is.
    let reached = result.a.reached && result.b.reached;
    let known = reached && result.verdict != DiffVerdict::EndsNotKnown;
    let failed = failed || allowed.is_some() && !known;
    Ok(if failed { Status::Bad } else { Status::Good })
}
