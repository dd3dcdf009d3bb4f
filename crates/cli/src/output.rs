//! Where results go: standard output, and the exports that were asked for.

use crate::Status;
use clap::{Args, ValueEnum};
use std::path::{Path, PathBuf};
use vmeter_render::outputs::terminal::Terminal;
use vmeter_render::{Output as _, Report, Screen, Target};
use vmeter_session::failure::usage;
use vmeter_session::{Answer, Views};

/// Options of every command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output options")]
pub struct Output {
    /// Write the result as JSON (`-` for standard output).
    #[arg(long, global = true, value_name = "FILE")]
    pub export_json: Option<PathBuf>,
    /// Write the result as CSV.
    #[arg(long, global = true, value_name = "FILE")]
    pub export_csv: Option<PathBuf>,
    /// Write the result as Markdown.
    #[arg(long, global = true, value_name = "FILE")]
    pub export_markdown: Option<PathBuf>,
    /// Write the timeline as a Perfetto trace, for ui.perfetto.dev.
    #[arg(long, global = true, value_name = "FILE")]
    pub export_perfetto: Option<PathBuf>,
    /// Colours on a terminal.
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub color: Color,
    /// No progress, and only warnings of what went wrong.
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// More: what was run and why (twice: debugging).
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// When to colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, unless `NO_COLOR` is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

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
        vmeter_render::check_writable(target).map_err(usage)?;
    }
    Ok(())
}

/// True when an export takes standard output, so that nothing else may.
fn stdout_is_taken(output: &Output) -> bool {
    exports(output).iter().any(|(_, target)| *target == Target::Stdout)
}

/// Writes the exports.
///
/// # Errors
/// When one cannot be written; the others before it are.
pub fn export(output: &Output, report: &dyn Report) -> anyhow::Result<()> {
    for (name, target) in exports(output) {
        match vmeter_render::export(name, &target, report) {
            Err(error) if error.is_broken_pipe() => {}
            other => other?,
        }
    }
    Ok(())
}

/// The report's idea of when to colour.
fn color(color: Color) -> vmeter_render::ColorChoice {
    match color {
        Color::Auto => vmeter_render::ColorChoice::Auto,
        Color::Always => vmeter_render::ColorChoice::Always,
        Color::Never => vmeter_render::ColorChoice::Never,
    }
}

/// Prints any report to the terminal, unless an export has standard output.
///
/// # Errors
/// When standard output cannot be written; a closed pipe is no error.
pub fn print(report: &dyn Report, out: &Output) -> anyhow::Result<()> {
    if stdout_is_taken(out) {
        return Ok(());
    }
    let terminal = Terminal { screen: Screen::detect(color(out.color)) };
    match terminal.write(report, &mut std::io::stdout().lock()) {
        Err(error) if error.is_broken_pipe() => Ok(()),
        other => Ok(other?),
    }
}

/// Prints a session's result and exports it.
///
/// # Errors
/// When either cannot be written.
pub fn show(answer: &dyn Answer, views: &Views, out: &Output) -> anyhow::Result<()> {
    let report = answer.report(views);
    print(report.as_ref(), out)?;
    export(out, report.as_ref())
}

/// As [`show`], with the status of the command that measured it.
///
/// # Errors
/// As [`show`].
pub fn done(answer: &dyn Answer, views: &Views, out: &Output) -> anyhow::Result<Status> {
    show(answer, views, out)?;
    Ok(if answer.is_bad() { Status::Bad } else { Status::Good })
}

/// Prints a line of a command that has no report.
///
/// # Errors
/// When standard output cannot be written; a closed pipe is no error.
pub fn line(text: &str) -> anyhow::Result<()> {
    use anyhow::Context;
    use std::io::Write;
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot write to standard output"),
    }
}
