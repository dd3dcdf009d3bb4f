//! The `vmeter` command: arguments to `vmeter-lab`, results to `vmeter-render`, and
//! nothing else.

/// As `std::eprint!`, but does not panic if the reader has closed the pipe (`2>&1 | head -1`).
macro_rules! eprint {
    ($($what:tt)*) => {{
        use std::io::Write as _;
        let _ = write!(std::io::stderr(), $($what)*);
    }};
}

/// As [`eprint`], with a newline at the end.
macro_rules! eprintln {
    ($($what:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($what)*);
    }};
}

mod args;
mod commands;
mod files;
mod help;
mod options;
mod output;
mod progress;
mod status;

use args::{Cli, Generate};
use clap::{CommandFactory, FromArgMatches};
use status::Status;
use std::process::ExitCode;
use vmeter_session::failure::class;
use vmeter_session::{cache_dir, state_dir};

fn main() -> ExitCode {
    vmeter_machine::launch::shim::stand_in();
    let places = || {
        let state = state_dir().map(|state| [state.join("runs"), state]);
        cache_dir().into_iter().chain(state.into_iter().flatten()).collect()
    };
    if vmeter_guard::guard::has_served(places) {
        return ExitCode::SUCCESS;
    }
    let status = with_enough_stack(vmeter);
    vmeter_guard::guard::dismiss();
    status
}

/// If `ulimit -s` allows a smaller stack than this, vmeter works in a thread with a larger stack. A
/// stack overflow would end vmeter without a message.
const STACK: u64 = 4 << 20;

fn with_enough_stack(work: fn() -> ExitCode) -> ExitCode {
    let limit = vmeter_session::limits::stack();
    if limit.is_none_or(|limit| limit >= STACK) {
        return work();
    }
    let thread = std::thread::Builder::new().stack_size(2 * STACK as usize).spawn(work);
    match thread.map(std::thread::JoinHandle::join) {
        Ok(Ok(status)) => status,
        Ok(Err(panic)) => std::panic::resume_unwind(panic),
        Err(error) => {
            eprintln!(
                "vmeter: the stack allowed by `ulimit -s` is too small, and a larger stack cannot \
                    be allocated: {error}"
            );
            ExitCode::from(3)
        }
    }
}

fn vmeter() -> ExitCode {
    let mut known = help::with_screens(Cli::command());
    known.build();
    let matches = known.get_matches_mut();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    // Without it, `ulimit -f` kills as ever.
    let _ = vmeter_session::limits::report_large_files();
    init_tracing(cli.output.verbose, cli.output.quiet);
    if let Some(what) = cli.generate {
        return generate(what);
    }
    let Some(command) = cli.command else {
        // As if `vmeter --help` had been typed, on the stream of errors.
        eprint!("{}", known.render_help());
        return ExitCode::from(2);
    };
    match files::check(&known, &matches).and_then(|()| command.run(&cli.output)) {
        Ok(Status::Good) => ExitCode::SUCCESS,
        Ok(Status::Bad) => ExitCode::from(1),
        Ok(Status::Inconclusive) => ExitCode::from(4),
        Err(error) => {
            let text = said(&error);
            for (i, line) in text.lines().enumerate() {
                let line = vmeter_render::text::neutralise(line);
                eprintln!("{}{line}", if i == 0 { "vmeter: " } else { "" });
            }
            ExitCode::from(class(&error).status())
        }
    }
}

/// An error and its causes. The text names no cause twice.
fn said(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| {
        match (text.is_empty(), text.contains(&cause)) {
            (true, _) => cause,
            (false, true) => text,
            (false, false) => format!("{text}: {cause}"),
        }
    })
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
    use std::io::Write;
    let mut command = help::with_screens(Cli::command());
    let mut page = Vec::new();
    let shell = match what {
        Generate::Man => None,
        Generate::CompleteBash => Some(Shell::Bash),
        Generate::CompleteZsh => Some(Shell::Zsh),
        Generate::CompleteFish => Some(Shell::Fish),
    };
    let generated = match shell {
        Some(shell) => {
            generate(shell, &mut command, "vmeter", &mut page);
            Ok(())
        }
        None => man(command, &mut page),
    };
    match generated.and_then(|()| std::io::stdout().write_all(&page)) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("vmeter: cannot write to standard output: {error}");
            ExitCode::from(3)
        }
        _ => ExitCode::SUCCESS,
    }
}

/// One page: the command, then each subcommand's options.
fn man(mut command: clap::Command, page: &mut Vec<u8>) -> std::io::Result<()> {
    use std::io::Write;
    command.build();
    clap_mangen::Man::new(command.clone()).render(page)?;
    for sub in command.get_subcommands() {
        let name = sub.get_name().to_uppercase();
        writeln!(page, ".SH \"VMETER {name}\"")?;
        let man = clap_mangen::Man::new(sub.clone());
        man.render_synopsis_section(page)?;
        man.render_description_section(page)?;
        man.render_options_section(page)?;
    }
    Ok(())
}
