//! Where results go: standard output, and the exports that were asked for.

use crate::args::{Color, Output};
use std::path::Path;
use vmeter_lab::failure::usage;
use vmeter_report::{Report, Target};

/// The exports asked for, by the name of the output.
fn exports(output: &Output) -> Vec<(&'static str, Target)> {
    let asked = [
        ("json", &output.export_json),
        ("csv", &output.export_csv),
        ("markdown", &output.export_markdown),
        ("perfetto", &output.export_perfetto),
    ];
    let target = |path: &Path| match path.to_str() {
        Some(text) => Target::parse(text),
        None => Target::File(path.to_owned()),
    };
    asked.into_iter().filter_map(|(name, path)| Some((name, target(path.as_deref()?)))).collect()
}

/// Refuses, before anything is run, an export that could not be written.
///
/// # Errors
/// The path and the reason; two exports for standard output.
pub fn check(output: &Output) -> anyhow::Result<()> {
    let exports = exports(output);
    if exports.iter().filter(|(_, target)| *target == Target::Stdout).count() > 1 {
        return Err(usage("only one export can go to standard output (-)"));
    }
    for (_, target) in &exports {
        vmeter_report::check_writable(target).map_err(usage)?;
    }
    Ok(())
}

/// True when an export takes standard output, so that nothing else may.
pub fn stdout_is_taken(output: &Output) -> bool {
    exports(output).iter().any(|(_, target)| *target == Target::Stdout)
}

/// Writes the exports.
///
/// # Errors
/// When one cannot be written; the others before it are.
pub fn export(output: &Output, report: &dyn Report) -> anyhow::Result<()> {
    for (name, target) in exports(output) {
        match vmeter_report::export(name, &target, report) {
            Err(error) if error.is_broken_pipe() => {}
            other => other?,
        }
    }
    Ok(())
}

/// The report's idea of when to colour.
pub fn color(color: Color) -> vmeter_report::ColorChoice {
    match color {
        Color::Auto => vmeter_report::ColorChoice::Auto,
        Color::Always => vmeter_report::ColorChoice::Always,
        Color::Never => vmeter_report::ColorChoice::Never,
    }
}
