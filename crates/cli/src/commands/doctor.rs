//! `vmeter doctor`.

use crate::output;
use crate::output::Output;
use crate::Status;
use clap::Args;
use vmeter_lab::doctor::DoctorReport;
use vmeter_model::result::CheckStatus;

/// `vmeter doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// End and remove what vmeters that were killed have left: processes, tracefs instances,
    /// temporary folders. What a living vmeter owns is never touched.
    #[arg(long)]
    pub clean: bool,
}

/// Looks at this host.
///
/// # Errors
/// An export that cannot be written.
pub fn run(arguments: &Doctor, out: &Output) -> anyhow::Result<Status> {
    output::check_timeless(out, "doctor")?;
    let argv = vmeter_base::argv();
    let result = vmeter_lab::doctor::examine(argv, arguments.clean)?;
    let report = DoctorReport { result: &result, verbose: out.verbose > 0 };
    output::print(&report, out)?;
    output::export(out, &report)?;
    let mut checks = result.checks.iter();
    let lacks = checks.any(|c| c.name.is_needed() && c.status == CheckStatus::Missing);
    Ok(if lacks { Status::Bad } else { Status::Good })
}
