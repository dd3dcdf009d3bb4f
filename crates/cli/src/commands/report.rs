//! `vmeter report RUN -o FILE`.

use crate::commands::runs::folder_of;
use crate::Answer;
use clap::Args;
use std::path::PathBuf;
use vmeter_lab::failure::usage;
use vmeter_lab::session::Session;
use vmeter_lab::{analysis, bench, range, sweep};
use vmeter_render::{Target, OUTPUTS};
use vmeter_report::{BenchReport, BootReport, RangeReport, SweepReport};

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
pub fn run(arguments: &Report) -> anyhow::Result<Answer> {
    let path = &arguments.output_file;
    let output = vmeter_render::by_extension(path).ok_or_else(|| {
        let known: Vec<&str> = OUTPUTS.iter().flat_map(|o| o.extensions()).copied().collect();
        usage(format!(
            "{}: its ending names no format; the endings are .{}",
            path.display(),
            known.join(", .")
        ))
    })?;
    let target = Target::File(path.clone());
    vmeter_render::check_writable(&target).map_err(usage)?;
    let session = Session::open(&folder_of(&arguments.run)).map_err(|e| usage(format!("{e:#}")))?;
    match session.record.command.as_str() {
        "bench" => {
            let result = bench::result(&session)?;
            vmeter_render::export(output.name(), &target, &BenchReport::new(&result))?;
        }
        "sweep" => {
            let result = sweep::result(&session)?;
            vmeter_render::export(output.name(), &target, &SweepReport::new(&result))?;
        }
        "range" => {
            let result = range::result(&session)?;
            vmeter_render::export(output.name(), &target, &RangeReport::new(&result))?;
        }
        _ => {
            let result = analysis::load_boot(&session).map_err(|e| usage(format!("{e:#}")))?;
            vmeter_render::export(output.name(), &target, &BootReport::new(&result))?;
        }
    }
    Ok(Answer::Good)
}
