//! `vmeter merge DIR… --save DIR`.

use crate::output;
use crate::output::Output;
use crate::status::Status;
use clap::Args;
use std::path::PathBuf;
use vmeter_lab::merge::{merge, MergeOptions};
use vmeter_session::Views;

/// `vmeter merge`.
#[derive(Debug, Args)]
pub struct Merge {
    /// Folders that `vmeter sweep` or `vmeter range` saved with --shard I/N --save DIR.
    #[arg(required = true, value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
    /// Folder to save the merged session in (default: a new folder under
    /// $XDG_STATE_HOME/vmeter/runs).
    #[arg(long, value_name = "DIR")]
    pub save: Option<PathBuf>,
    /// Merge runs of hosts that differ in CPU model, kernel or VMM. For each host, vmeter estimates
    /// a factor, which says how slow the host is, and divides the host's times by this factor.
    #[arg(long)]
    pub mixed_hosts: bool,
}

/// Merges the shards, shows and exports the merged session.
///
/// # Errors
/// As [`vmeter_lab::merge::merge`]; an export that cannot be written.
pub fn run(arguments: Merge, out: &Output) -> anyhow::Result<Status> {
    output::check_timeless(out, "merge")?;
    let Merge { dirs, save, mixed_hosts } = arguments;
    let merged = merge(&MergeOptions { dirs, save, mixed_hosts })?;
    let status = output::done(merged.answer()?.as_ref(), &Views::default(), out)?;
    Ok(if merged.missing.is_empty() { status } else { Status::Bad })
}
