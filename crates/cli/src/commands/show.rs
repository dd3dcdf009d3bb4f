//! `vmeter show`: a saved session again, by the path of a live one.

use crate::commands::runs::folder_of;
use crate::options::Views;
use crate::output;
use crate::output::Output;
use crate::status::Status;
use clap::Args;
use std::path::PathBuf;
use vmeter_lab::kinds;

/// `vmeter show`.
#[derive(Debug, Args)]
pub struct Show {
    /// Folder of a saved session, or its name in `vmeter runs list` (default: the latest).
    pub run: Option<PathBuf>,
    /// Mark the moment of the first console line that REGEX matches; may be repeated.
    #[arg(long, value_name = "NAME=REGEX")]
    pub mark: Vec<String>,
    /// How it is shown.
    #[command(flatten)]
    pub views: Views,
}

/// Analyses and shows a session.
///
/// # Errors
/// A folder without a session, or with a session that vmeter cannot read.
pub fn run(arguments: Show, out: &Output) -> anyhow::Result<Status> {
    output::check(out)?;
    let Show { run, mark, views } = arguments;
    let folder = match run {
        Some(run) => folder_of(&run),
        None => vmeter_session::latest()?,
    };
    output::show(kinds::marked(&folder, &mark)?.as_ref(), &views.into(), out)?;
    Ok(Status::Good)
}
