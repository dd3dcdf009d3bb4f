//! The `vmeter` command: arguments to `vmeter-lab`, results to `vmeter-report`, and
//! nothing else.

mod args;
mod commands;
mod options;
mod output;
mod progress;

use args::{Cli, Command, Generate};
use clap::{CommandFactory, Parser};
use output::Output;
use std::process::ExitCode;
use vmeter_lab::failure::class;

/// How a command that did its work ended.
pub enum Answer {
    /// Exit status 0.
    Good,
    /// Done, and the answer is bad: exit status 1.
    Bad,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    init_tracing(cli.output.verbose, cli.output.quiet);
    if let Some(what) = cli.generate {
        return generate(what);
    }
    let Some(command) = cli.command else {
        // As if `vmeter --help` had been typed, on the stream of errors.
        eprint!("{}", Cli::command().render_help());
        return ExitCode::from(2);
    };
    match run(command, &cli.output) {
        Ok(Answer::Good) => ExitCode::SUCCESS,
        Ok(Answer::Bad) => ExitCode::from(1),
        Err(error) => {
            let text = format!("{error:#}");
            eprintln!("vmeter: {}", vmeter_report::text::neutralise(&text));
            ExitCode::from(class(&error).status())
        }
    }
}

fn run(command: Command, output: &Output) -> anyhow::Result<Answer> {
    match command {
        Command::Boot(arguments) => commands::boot::run(arguments, output),
        Command::Bench(arguments) => commands::bench::run(arguments, output),
        Command::Sweep(arguments) => commands::sweep::run(arguments, output),
        Command::Range(arguments) => commands::range::run(arguments, output),
        Command::Diff(arguments) => commands::diff::run(&arguments, output),
        Command::Merge(arguments) => commands::merge::run(arguments, output),
        Command::Runs(arguments) => commands::runs::run(arguments, output),
        Command::Show(arguments) => commands::show::run(&arguments, output),
        Command::Report(arguments) => commands::report::run(&arguments),
        Command::Dirty(arguments) => commands::dirty::run(&arguments, output),
        Command::Migrate(arguments) => commands::migrate::run(arguments, output),
        Command::Irq(arguments) => commands::irq::run(&arguments, output),
        Command::Explain(arguments) => commands::explain::run(arguments, output),
        Command::Trace(arguments) => commands::trace::run(arguments, output),
        Command::Kernel(arguments) => commands::kernel::run(arguments, output),
        Command::Appliance(arguments) => commands::appliance::run(arguments, output),
        Command::Doctor(_) => commands::doctor::run(output),
    }
}

fn init_tracing(verbose: u8, quiet: bool) {
    let level = match (quiet, verbose) {
        (true, _) => "error",
        (false, 0) => "warn",
        (false, 1) => "info",
        (false, _) => "debug",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_env("VMETER_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .without_time()
        .with_target(false)
        .init();
}

fn generate(what: Generate) -> ExitCode {
    use clap_complete::{generate, Shell};
    let mut command = Cli::command();
    let mut out = std::io::stdout();
    let shell = match what {
        Generate::Man => return man(command),
        Generate::CompleteBash => Shell::Bash,
        Generate::CompleteZsh => Shell::Zsh,
        Generate::CompleteFish => Shell::Fish,
    };
    generate(shell, &mut command, "vmeter", &mut out);
    ExitCode::SUCCESS
}

/// One page: the command, then each subcommand's options.
fn man(mut command: clap::Command) -> ExitCode {
    use std::io::Write;
    command.build();
    let mut page = Vec::new();
    let written = clap_mangen::Man::new(command.clone()).render(&mut page).and_then(|()| {
        for sub in command.get_subcommands() {
            let name = sub.get_name().to_uppercase();
            writeln!(page, ".SH \"VMETER {name}\"")?;
            let man = clap_mangen::Man::new(sub.clone());
            man.render_synopsis_section(&mut page)?;
            man.render_description_section(&mut page)?;
            man.render_options_section(&mut page)?;
        }
        std::io::stdout().write_all(&page)
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vmeter: cannot print the man page: {error}");
            ExitCode::from(3)
        }
    }
}
