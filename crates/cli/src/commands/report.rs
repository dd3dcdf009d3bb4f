//! `vmeter report RUN -o FILE`.

use crate::commands::runs::folder_of;
use crate::output::{self, Output};
use crate::status::Status;
use clap::Args;
use std::path::PathBuf;
use vmeter_lab::kinds;
use vmeter_render::{ReportError, Target, OUTPUTS};
use vmeter_session::failure::usage;
use vmeter_session::Views;

/// `vmeter report`.
#[derive(Debug, Args)]
pub struct Report {
    /// Folder of a saved session, or its name in `vmeter runs list`.
    pub run: PathBuf,
    /// File to write; its ending picks the format (.html, .json, .csv, .md, .pftrace).
    #[arg(short, long, value_name = "FILE")]
    pub output_file: PathBuf,
}

/// Writes a saved session in the format that the file's ending names.
///
/// # Errors
/// An unknown ending, a folder that holds no session, a file that cannot be written.
pub fn run(arguments: Report, _: &Output) -> anyhow::Result<Status> {
    let Report { run, output_file: path } = arguments;
    let format = vmeter_render::by_extension(&path).ok_or_else(|| {
        let known: Vec<&str> = OUTPUTS.iter().flat_map(|o| o.extensions()).copied().collect();
        usage(format!(
            "{}: no format has this file extension; known extensions: .{}",
            path.display(),
            known.join(", .")
        ))
    })?;
    let target = Target::File(path);
    output::check_target(&target)?;
    let answer = kinds::answer(&folder_of(&run))?;
    let exported =
        vmeter_render::export(format, &target, answer.report(&Views::default()).as_ref());
    exported.map_err(|error| match error {
        ReportError::NoTimeline { .. } => usage(error),
        other => other.into(),
    })?;
    Ok(Status::Good)
}
