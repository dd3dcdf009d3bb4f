//! Launching a VMM suspended, following it to its end, and looking into it.
//!
//! Time 0 of a run is `CLOCK_MONOTONIC` read in the child immediately before its
//! `execve`. In `traced` mode the main thread, and only that, is ptraced: it stops
//! once after the exec, once at the image's ELF entry (the dynamic linker is
//! done), once at `main` where the symbol table has it, and once at its exit,
//! when guest RAM is still mapped and can be read. Between these four stops it
//! runs untouched, and the VMM's other threads are never stopped, except once,
//! when a run is ended early at its ready point. Of a VMM that may free its guest's
//! memory before its end ([`Options::frees_ram`]) threads are traced too: each stops
//! when it begins and when it ends, and whenever a signal reaches it.
//!
//! The VMM does not outlive vmeter: it has `PR_SET_PDEATHSIG` and, where traced,
//! `PTRACE_O_EXITKILL`. It leads a session of its own, so a Ctrl-C on the
//! terminal reaches vmeter alone, which then ends the run in order. What became a daemon, and
//! what a launcher left that exited with 0, is not vmeter's, and runs on (the module `own`).

mod arguments;
mod child;
mod daemon_clients;
mod ends;
mod family;
mod held;
mod image;
pub mod kvm;
pub mod next;
mod own;
mod ptrace;
mod reaper;
pub mod shim;
mod signals;
mod stopper;
mod supervise;
mod threads;
mod tracee;
mod types;
mod wait;

pub use child::find_program;
pub use daemon_clients::DaemonClient;
pub use held::Held;
pub use stopper::Stopper;
pub use tracee::{Mapping, Tracee};
pub use types::{
    now_ns, End, Exit, Hooks, LaunchError, Left, Mode, NoHooks, Options, Ptrace, Reason, Status,
    Vmm,
};

use crate::plan::LaunchPlan;
use child::{Handshake, Prepared};
use reaper::Changes;
use rustix::process::Pid;
use std::io;
use std::sync::atomic::Ordering;
use supervise::Supervisor;
use types::printable;
use vmeter_model::run::Usage;
use vmeter_model::{Moment, Ns};

/// Runs a VMM from its exec to its end. Blocks; the calling thread does the
/// tracing, and `stopper` ends the run from any other.
///
/// # Errors
/// When it could not be started ([`LaunchError::Start`] and those before), or not
/// be followed. In no case is a process left behind.
pub fn run(
    plan: LaunchPlan,
    options: &Options,
    stopper: &Stopper,
    hooks: &mut dyn Hooks,
) -> Result<Exit, LaunchError> {
    let prepare = |error: io::Error| LaunchError::Prepare { error };
    let (stderr, stderr_child) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|e| prepare(e.into()))?;
    let own = own::Own::new(options.ends_all);
    let (prepared, handshake) = Prepared::new(plan, stderr_child, &options.pin, &own)?;
    let program = prepared.program.clone();
    let stdout = prepared.stdout();
    if options.mode == Mode::Traced {
        image::prepare(&program);
    }
    let changes = Changes::new().map_err(prepare)?;
    let (next, wait_for_next) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let changes = &changes;
        let reaper = std::thread::Builder::new()
            .name("vmm-reaper".into())
            .spawn_scoped(scope, move || reaper::run(prepared, changes, &wait_for_next))
            .map_err(prepare)?;
        let started = Started::wait(handshake)?;
        let Some((pid, go)) = started else {
            drop(next);
            let cloned = reaper.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
            return Err(start_error(&program, changes, cloned.err()));
        };
        let mut supervisor =
            Supervisor::new((pid, own), changes, next, options, stopper, hooks, stderr)?;
        let ptrace = attach(pid, options.mode);
        supervisor.traced = ptrace == Ptrace::Used;
        supervisor.stdout = stdout;
        go.send()?;
        let ended = supervisor.run()?;
        if changes.report.errno.load(Ordering::Acquire) != 0 {
            return Err(start_error(&program, changes, None));
        }
        Ok(result(&mut supervisor, changes, ended, ptrace))
    })
}

fn attach(pid: Pid, mode: Mode) -> Ptrace {
    if mode == Mode::Plain {
        return Ptrace::NotWanted;
    }
    match ptrace::seize(pid) {
        Ok(()) => Ptrace::Used,
        Err(error) => Ptrace::Refused(format!(
            "ptrace is not permitted here ({error}), so vmeter does not watch the VMM from \
             outside; check seccomp (a container needs --cap-add=SYS_PTRACE) and \
             /proc/sys/kernel/yama/ptrace_scope (must be 0 or 1)"
        )),
    }
}

/// The child's process id, and the pipe that lets it execute.
struct Started {
    go: rustix::fd::OwnedFd,
}

impl Started {
    /// Waits for the child's hello; none if it failed before.
    fn wait(handshake: Handshake) -> Result<Option<(Pid, Self)>, LaunchError> {
        let mut pid = [0u8; 4];
        let mut hello = std::fs::File::from(handshake.hello);
        match io::Read::read_exact(&mut hello, &mut pid) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(LaunchError::Prepare { error }),
        }
        let pid = Pid::from_raw(i32::from_ne_bytes(pid));
        Ok(pid.map(|pid| (pid, Self { go: handshake.go })))
    }

    fn send(self) -> Result<(), LaunchError> {
        let mut go = std::fs::File::from(self.go);
        io::Write::write_all(&mut go, &[1]).map_err(|error| LaunchError::Follow { error })
    }
}

fn start_error(
    program: &std::path::Path,
    changes: &Changes,
    cloned: Option<io::Error>,
) -> LaunchError {
    let report = &changes.report;
    let errno = report.errno.load(Ordering::Acquire);
    let stage = usize::try_from(report.stage.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
    let stage = child::STAGES.get(stage).copied().unwrap_or("the child");
    let (stage, error) = match cloned {
        Some(error) => ("clone", error),
        None if errno == 0 => ("the child", io::ErrorKind::BrokenPipe.into()),
        None => (stage, io::Error::from_raw_os_error(errno)),
    };
    let hint = match error.raw_os_error() {
        Some(libc::ENOENT) if stage == "execve" => {
            "; the file is there, so its interpreter is missing (the program that its #! line \
                names, or its ELF loader)"
        }
        Some(libc::ENOEXEC) => "; neither an ELF file for this host nor a script with a #! line",
        _ => "",
    };
    LaunchError::Start { program: program.display().to_string(), stage, error, hint }
}

fn result(
    supervisor: &mut Supervisor<'_>,
    changes: &Changes,
    (at, status, mut usage): (Ns, Status, Usage),
    ptrace: Ptrace,
) -> Exit {
    let exec_ns = changes.report.exec_ns.load(Ordering::Acquire);
    let end = supervisor.end();
    let seen = std::mem::take(&mut supervisor.seen);
    let mut moments = seen.moments;
    moments.push((at, Moment::VmmExit));
    let look = seen.looked.unwrap_or((at, at));
    let on_run = |t: Ns| without(look, t) - exec_ns;
    for (t, _) in &mut moments {
        *t = on_run(*t);
    }
    moments.sort_by_key(|(t, _)| *t);
    let total_ns = match &end {
        End::Stopped { reason: Reason::ReadyPoint, at_ns } => on_run(*at_ns),
        _ => on_run(at),
    };
    if let Some(peak) = seen.peak_rss_bytes {
        usage.max_rss_bytes = peak;
    }
    Exit {
        exec_ns,
        total_ns: total_ns.max(0),
        moments,
        status,
        usage,
        end,
        stderr_tail: printable(&seen.stderr),
        ptrace,
        image: seen.image,
        stops: seen.stops,
        let_go: seen.let_go,
        left_behind: seen.left_behind,
        ended: seen.ended,
        runs_on: seen.runs_on,
        has_vmm: seen.has_vmm,
        asked: seen.asked,
        told_by: seen.told_by,
        vmm: seen.vmm,
        vmm_argv: seen.vmm_argv,
        others: seen.others,
        others_print: seen.others_print,
        probes: seen.probes,
        was_stopped: seen.was_stopped,
        held: seen.held.iter().map(|(a, b)| (on_run(*a), on_run(*b))).collect(),
        looked_ns: look.1 - look.0,
    }
}

/// A moment on a clock that stood still while vmeter looked into a VMM whose guest was done.
fn without((begin, end): (Ns, Ns), at: Ns) -> Ns {
    if at <= begin {
        at
    } else {
        begin.max(at.saturating_sub(end.saturating_sub(begin)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_of_a_run_stands_still_while_it_is_looked_into() {
        let times = [50, 100, 130, 180, 200].map(|at| without((100, 180), at));
        assert_eq!(times, [50, 100, 100, 100, 120]);
        assert_eq!(without((100, 100), 130), 130, "it was not looked into");
    }
}
