//! `vmeter merge DIR… --save DIR`.

use crate::output;
use crate::output::Output;
use crate::Status;
use clap::Args;
use std::path::PathBuf;
use vmeter_lab::merge::{merge, MergeOptions};
use vmeter_session::Views;

/// `vmeter merge`.
#[derive(Debug, Args)]
pub struct Merge {
    /// Folders of the shards, as `--shard I/N --save DIR` of a sweep or range made them.
    #[arg(required = true, value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
    /// Folder to save the whole in (default: a fresh one under $XDG_STATE_HOME/vmeter/runs).
    #[arg(long, value_name = "DIR")]
    pub save: Option<PathBuf>,
    /// Merge hosts that differ in CPU model, kernel or VMM; each host's factor is taken out.
    #[arg(long)]
    pub mixed_hosts: bool,
}

/// Merges, shows and exports the whole.
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
