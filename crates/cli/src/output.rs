//! Where results go: standard output, and the exports that were asked for.

use crate::status::Status;
use clap::{value_parser, Arg, ArgMatches, Args, Command, FromArgMatches, ValueEnum};
use std::fmt;
use std::path::PathBuf;
use vmeter_render::outputs::terminal::Terminal;
use vmeter_render::{Output as _, Report, ReportError, Screen, Target, OUTPUTS};
use vmeter_session::failure::usage;
use vmeter_session::{Answer, Views};

/// Options of every command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output options")]
pub struct Output {
    /// `--export-NAME FILE` of every output.
    #[command(flatten)]
    pub exports: Exports,
    /// When to print colours.
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub color: Color,
    /// Do not print progress. Of the warnings, print only those about failures.
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Also print what vmeter runs and why; given twice, print debug messages.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// When to colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// Colours if the output is a terminal and `NO_COLOR` is not set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// The exports that the user asked for. Each output adds its own option, so no output lacks one.
#[derive(Clone, Default)]
pub struct Exports(Vec<(&'static dyn vmeter_render::Output, Target)>);

impl Exports {
    /// True if the user asked for an export whose output has one of these names.
    pub fn any_of(&self, names: &[&str]) -> bool {
        self.0.iter().any(|(output, _)| names.contains(&output.name()))
    }

    fn option(output: &dyn vmeter_render::Output) -> String {
        format!("export-{}", output.name())
    }

    fn taken_from(matches: &ArgMatches) -> Self {
        let target = |path: &PathBuf| match path.to_str() {
            Some(text) => Target::parse(text),
            None => Target::File(path.clone()),
        };
        let asked = OUTPUTS.iter().filter_map(|output| {
            let path = matches.get_one::<PathBuf>(&Self::option(*output))?;
            Some((*output, target(path)))
        });
        Exports(asked.collect())
    }
}

impl fmt::Debug for Exports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter().map(|(output, to)| (output.name(), to))).finish()
    }
}

impl Args for Exports {
    fn augment_args(command: Command) -> Command {
        OUTPUTS.iter().fold(command, |command, output| {
            let name = Self::option(*output);
            let help = format!("Write {} (`-` for standard output)", output.about());
            let option = Arg::new(name.clone()).long(name).value_name("FILE").help(help);
            command.arg(option.global(true).value_parser(value_parser!(PathBuf)))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Exports {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self::taken_from(matches))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::taken_from(matches);
        Ok(())
    }
}

/// Refuses, before anything is run, an export that could not be written.
///
/// # Errors
/// An export that cannot be written, with its path and the reason; two exports to standard output.
pub fn check(output: &Output) -> anyhow::Result<()> {
    let exports = &output.exports.0;
    if exports.iter().filter(|(_, target)| *target == Target::Stdout).count() > 1 {
        return Err(usage("only one export can go to standard output (-)"));
    }
    for (_, target) in exports {
        check_target(target)?;
    }
    Ok(())
}

/// As [`check`], for a command whose results have no timeline.
///
/// # Errors
/// As [`check`]; an export that needs a timeline.
pub fn check_timeless(output: &Output, command: &str) -> anyhow::Result<()> {
    if let Some((to, _)) = output.exports.0.iter().find(|(to, _)| to.needs_timeline()) {
        let (output, command) = (to.name(), command.to_owned());
        return Err(usage(ReportError::NoTimeline { output, command }));
    }
    check(output)
}

/// Refuses a file that cannot be written.
///
/// # Errors
/// A usage error.
pub fn check_target(target: &Target) -> anyhow::Result<()> {
    vmeter_render::check_writable(target).map_err(usage)
}

/// True if an export goes to standard output. vmeter must then print nothing else there.
pub fn stdout_is_taken(output: &Output) -> bool {
    output.exports.0.iter().any(|(_, target)| *target == Target::Stdout)
}

/// Writes the exports.
///
/// # Errors
/// If an export cannot be written. The exports before it have then been written.
pub fn export(output: &Output, report: &dyn Report) -> anyhow::Result<()> {
    for (to, target) in &output.exports.0 {
        match vmeter_render::export(*to, target, report) {
            Err(error) if error.is_broken_pipe() => {}
            Err(error @ ReportError::NoTimeline { .. }) => return Err(usage(error)),
            other => other?,
        }
    }
    Ok(())
}

/// The same choice as a `ColorChoice` of `vmeter_render`.
fn color(color: Color) -> vmeter_render::ColorChoice {
    match color {
        Color::Auto => vmeter_render::ColorChoice::Auto,
        Color::Always => vmeter_render::ColorChoice::Always,
        Color::Never => vmeter_render::ColorChoice::Never,
    }
}

/// Prints any report to the terminal, unless an export goes to standard output.
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
    let shows_timelines = out.exports.0.iter().any(|(to, _)| to.needs_timeline());
    if shows_timelines && report.timelines().is_empty() {
        check_timeless(out, &report.envelope().command)?;
    }
    print(report.as_ref(), out)?;
    export(out, report.as_ref())
}

/// As [`show`], and returns the exit status of the command that measured the result.
///
/// # Errors
/// As [`show`].
pub fn done(answer: &dyn Answer, views: &Views, out: &Output) -> anyhow::Result<Status> {
    show(answer, views, out)?;
    let Some(why) = answer.failure() else { return Ok(Status::Good) };
    eprintln!("vmeter: exit status 1: {}", vmeter_render::text::neutralise(&why));
    Ok(Status::Bad)
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
