//! `vmeter boot`.

use crate::args::{Boot, Output, Views};
use crate::output;
use crate::progress::Bar;
use crate::Answer;
use vmeter_lab::boot::{boot, BootOptions};
use vmeter_lab::interrupt::Interrupt;
use vmeter_lab::start::RunOptions;
use vmeter_model::result::BootResult;
use vmeter_model::run::Outcome;
use vmeter_report::outputs::terminal::Terminal;
use vmeter_report::{BootReport, BootView, Output as _, Screen, TreeView};

/// Boots, shows, exports.
///
/// # Errors
/// As [`vmeter_lab::boot::boot`]; an export that cannot be written.
pub fn run(arguments: Boot, out: &Output) -> anyhow::Result<Answer> {
    output::check(out)?;
    let options = BootOptions {
        spec: arguments.machine.spec(arguments.command),
        watch: arguments.watch.into(),
        overhead: arguments.overhead,
        runs: run_options(arguments.runs),
    };
    let interrupt = Interrupt::install()?;
    let mut result = boot(&options, &mut Bar::new(out.quiet), &interrupt)?;
    let slower = match (&arguments.baseline, arguments.fail_if_slower) {
        (Some(baseline), limit) => {
            let verdict = vmeter_lab::regression::against(baseline, &result, limit)?;
            result.warnings.push(verdict.text);
            verdict.failed
        }
        (None, _) => false,
    };
    show(&result, &arguments.views, out)?;
    let failed = result.runs.iter().any(|run| run.record.outcome != Outcome::Done);
    Ok(if failed || slower { Answer::Bad } else { Answer::Good })
}

/// The run options of the command line.
pub fn run_options(runs: crate::args::Runs) -> RunOptions {
    RunOptions {
        warmup: runs.warmup,
        runs: runs.runs,
        seed: runs.seed,
        save: runs.save,
        resume: runs.resume,
        pin: runs.pin,
        prepare: runs.prepare,
        shard: None,
        argv: std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect(),
    }
}

/// Prints a boot's result, unless an export has standard output, and exports it.
///
/// # Errors
/// When either cannot be written.
pub fn show(result: &BootResult, views: &Views, out: &Output) -> anyhow::Result<()> {
    let view = BootView {
        blame: views.blame,
        critical_chain: views.critical_chain,
        tree: views.tree.then_some(TreeView { run: None, min_duration: 500_000 }),
        ..BootView::default()
    };
    let report = BootReport { result, view };
    print(&report, out)?;
    output::export(out, &report)
}

/// Prints any report to the terminal, unless an export has standard output.
///
/// # Errors
/// When standard output cannot be written; a closed pipe is no error.
pub fn print(report: &dyn vmeter_report::Report, out: &Output) -> anyhow::Result<()> {
    if output::stdout_is_taken(out) {
        return Ok(());
    }
    let terminal = Terminal { screen: Screen::detect(output::color(out.color)) };
    match terminal.write(report, &mut std::io::stdout().lock()) {
        Err(error) if error.is_broken_pipe() => Ok(()),
        other => Ok(other?),
    }
}
