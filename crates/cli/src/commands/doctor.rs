//! `vmeter doctor`.

use crate::output;
use crate::output::Output;
use crate::Status;
use clap::Args;
use vmeter_lab::doctor::DoctorReport;
use vmeter_model::result::CheckStatus;

/// `vmeter doctor`.
#[derive(Debug, Args)]
pub struct Doctor {}

/// Looks at this host.
///
/// # Errors
/// An export that cannot be written.
pub fn run(out: &Output) -> anyhow::Result<Status> {
    output::check(out)?;
    let argv = vmeter_base::argv();
    let result = vmeter_lab::doctor::examine(argv);
    let report = DoctorReport { result: &result, verbose: out.verbose > 0 };
    output::print(&report, out)?;
    output::export(out, &report)?;
    let needed = ["QEMU", "firmware", "kernels"];
    let lacks = |name: &str| {
        result.checks.iter().any(|c| c.name == name && c.status == CheckStatus::Missing)
    };
    Ok(if needed.into_iter().any(lacks) { Status::Bad } else { Status::Good })
}
