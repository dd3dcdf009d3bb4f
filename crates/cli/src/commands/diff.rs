//! `vmeter diff A B`.

use crate::args::{Diff, Output};
use crate::commands::boot::print;
use crate::output;
use crate::Answer;
use vmeter_report::DiffReport;

/// Compares two saved machines, shows and exports what differs.
///
/// # Errors
/// As [`vmeter_lab::diff::diff`]; an export that cannot be written.
pub fn run(arguments: &Diff, out: &Output) -> anyhow::Result<Answer> {
    output::check(out)?;
    let argv = std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect();
    let result = vmeter_lab::diff::diff(&arguments.a, &arguments.b, argv)?;
    let report = DiffReport::new(&result);
    print(&report, out)?;
    output::export(out, &report)?;
    let allowed = arguments.fail_if_slower.map(|percent| 1.0 + percent / 100.0);
    let slower = result.ratio.filter(|_| result.verdict == "slower");
    let failed = slower.zip(allowed).is_some_and(|(ratio, allowed)| ratio.mean > allowed);
    Ok(if failed { Answer::Bad } else { Answer::Good })
}
