//! Writes every output of a synthetic boot and bench into a folder, to be looked at.
//!
//! `cargo run -p vmeter-report --example sample FOLDER`

#[path = "../tests/report/fixture.rs"]
mod fixture;

use std::path::Path;
use vmeter_render::{export, ColorChoice, Output, Report, ReportError, Screen, Target, OUTPUTS};
use vmeter_report::{BenchReport, BootReport, BootView, TreeView};

fn write_all(folder: &Path, name: &str, report: &dyn Report) -> Result<(), ReportError> {
    for output in OUTPUTS {
        let path = folder.join(format!("{name}.{}", output.extensions()[0]));
        match export(output.name(), &Target::File(path), report) {
            Err(error @ ReportError::NoTimeline { .. }) => eprintln!("{error}"),
            other => other?,
        }
    }
    Ok(())
}

fn main() -> Result<(), ReportError> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    let boot = fixture::boot(10, true);
    let bench = fixture::bench();
    let failed = fixture::failed_boot();
    let tree = Some(TreeView { run: None, min_duration: 10_000_000 });
    let view = BootView { critical_chain: true, blame: true, tree, ..BootView::default() };
    write_all(folder.as_ref(), "boot", &BootReport::new(&boot))?;
    write_all(folder.as_ref(), "views", &BootReport { result: &boot, view })?;
    write_all(folder.as_ref(), "bench", &BenchReport::new(&bench))?;
    write_all(folder.as_ref(), "failed", &BootReport::new(&failed))?;
    let screen = Screen::detect(ColorChoice::Auto);
    let terminal = vmeter_render::outputs::terminal::Terminal { screen };
    terminal.write(&BootReport::new(&boot), &mut std::io::stdout().lock())
}
