//! `vmeter merge DIR… --save DIR`.

use crate::args::Output;
use crate::commands::boot::print;
use crate::commands::sweep::answer;
use crate::output;
use crate::Answer;
use clap::Args;
use std::path::PathBuf;
use vmeter_lab::merge::{merge, MergeOptions};
use vmeter_report::SweepReport;

/// `vmeter merge`.
#[derive(Debug, Args)]
pub struct Merge {
    /// Folders of the shards, as `vmeter sweep --shard I/N --save DIR` made them.
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
pub fn run(arguments: Merge, out: &Output) -> anyhow::Result<Answer> {
    output::check(out)?;
    let Merge { dirs, save, mixed_hosts } = arguments;
    let merged = merge(&MergeOptions { dirs, save, mixed_hosts })?;
    let result = merged.result()?;
    let report = SweepReport::new(&result);
    print(&report, out)?;
    output::export(out, &report)?;
    Ok(if merged.missing.is_empty() { answer(&result) } else { Answer::Bad })
}
