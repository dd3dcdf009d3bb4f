//! Asking a program something: run it, bounded in time and output.

use crate::launch::{self, End, Exit, LaunchError, Mode, NoHooks, Options, Stopper};
use crate::plan::LaunchPlan;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::time::Duration;

/// More than any answer that is asked for.
const MAX_OUTPUT: u64 = 4 << 20;

/// Runs a program to its end and returns what it printed. One that has not ended
/// within `limit` is killed: a wrapper that ignores its arguments boots a machine.
///
/// # Errors
/// When it cannot be started.
pub fn output(argv: Vec<OsString>, limit: Duration) -> Result<(Exit, String), LaunchError> {
    let prepare = |error| LaunchError::Prepare { error };
    let (read, write) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|e| prepare(e.into()))?;
    let plan = LaunchPlan { argv, stdout: Some(write), ..LaunchPlan::default() };
    let options = Options {
        mode: Mode::Plain,
        ends_all: true,
        timeout: Some(limit),
        grace: Duration::ZERO,
        ..Options::default()
    };
    let stopper = Stopper::new().map_err(prepare)?;
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error still counts.
        let _ = std::fs::File::from(read).take(MAX_OUTPUT).read_to_end(&mut bytes);
        bytes
    });
    let exit = launch::run(plan, &options, &stopper, &mut NoHooks)?;
    let bytes = reader.join().unwrap_or_default();
    Ok((exit, String::from_utf8_lossy(&bytes).into_owned()))
}

/// First line of what a program prints with its version's option, if it ends in time.
pub fn version_line(program: &OsStr, option: &str, limit: Duration) -> Option<String> {
    let (exit, text) = output(vec![program.to_owned(), option.into()], limit).ok()?;
    (exit.end == End::ByItself).then(|| text.lines().next().map(str::to_owned)).flatten()
}
