//! `vmeter look`.

use crate::options::Views;
use crate::output::{self, Output};
use crate::status::Status;
use anyhow::Result;
use clap::Args;
use std::path::PathBuf;
use vmeter_lab::look::{follow, has_kernel, look, until_of, vmm_of};
use vmeter_session::failure::usage;
use vmeter_session::{Interrupt, RunOptions, Watch};

/// `vmeter look`.
#[derive(Debug, Args)]
pub struct Look {
    /// The VMM's pid, or libvirt:NAME for a libvirt domain.
    #[arg(value_name = "PID|libvirt:NAME")]
    pub target: String,
    /// After the report, print each new line of the guest's log, and each program that the guest
    /// executes (if the guest's kernel traces executions). Ends at Ctrl-C, when the VM ends, or at
    /// --until. vmeter reads the guest every 100 ms.
    #[arg(long)]
    pub follow: bool,
    /// Event that ends the boot: userspace, systemd-ready, or line:REGEX (a line of the guest's log
    /// matches). Default: the line in which the guest reports that it is up, or the last line
    /// before 10 s of silence. With --follow, vmeter waits for this event.
    #[arg(long)]
    pub until: Option<String>,
    /// Folder to save the run in (default: a fresh one under $XDG_STATE_HOME/vmeter/runs).
    #[arg(long, value_name = "DIR")]
    pub save: Option<PathBuf>,
    /// How it is shown.
    #[command(flatten)]
    pub views: Views,
}

/// Reads the boot of a running VM, shows and exports it; with `--follow`, prints the guest's log.
///
/// # Errors
/// No such VM, or one that can't be read; an export that cannot be written.
pub fn run(arguments: Look, out: &Output) -> Result<Status> {
    output::check(out)?;
    if arguments.follow && output::stdout_is_taken(out) {
        return Err(usage(
            "--follow prints to standard output, so an export cannot go there: \
            export to a file",
        ));
    }
    let until = arguments.until.as_deref().map(until_of).transpose()?;
    let vmm = vmm_of(&arguments.target)?;
    let interrupt = Interrupt::install()?;
    let looked = |interrupt: &Interrupt| {
        let mut bar = crate::progress::Bar::new(out.quiet);
        let mut watch = Watch::new(&mut bar, interrupt);
        let options = RunOptions {
            save: arguments.save.clone(),
            argv: vmeter_base::argv(),
            ..RunOptions::default()
        };
        let answer = look(&vmm, until.as_ref(), &options, &mut watch)?;
        output::done(answer.as_ref(), &arguments.views.into(), out)
    };
    if !arguments.follow {
        return looked(&interrupt);
    }
    let followed = || -> Result<()> {
        let cost = follow(&vmm, until.as_ref(), &interrupt, &mut output::line)?;
        if !out.quiet {
            eprintln!("{cost}");
        }
        Ok(())
    };
    if until.is_some() {
        followed()?;
        return looked(&interrupt);
    }
    // Of one that has only begun, all is to come.
    let status = if has_kernel(&vmm)? { looked(&interrupt)? } else { Status::Good };
    followed()?;
    Ok(status)
}
