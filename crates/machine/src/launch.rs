//! Launching a VMM suspended, following it to its end, and looking into it.
//!
//! Time 0 of a run is `CLOCK_MONOTONIC` read in the child immediately before its
//! `execve`. In `traced` mode the main thread, and only that, is ptraced: it stops
//! once after the exec, once at the image's ELF entry (the dynamic linker is
//! done), once at `main` where the symbol table has it, and once at its exit,
//! when guest RAM is still mapped and can be read. Between these four stops it
//! runs untouched, and the VMM's other threads are never stopped, except once,
//! when a run is ended early at its ready point.
//!
//! The VMM never outlives vmeter: it has `PR_SET_PDEATHSIG` and, where traced,
//! `PTRACE_O_EXITKILL`. It leads a session of its own, so a Ctrl-C on the
//! terminal reaches vmeter alone, which then ends the run in order. What it leaves
//! running when it ends is ended as well ([`Exit::left_behind`]).

mod child;
mod held;
mod image;
mod orphans;
mod ptrace;
mod reaper;
mod stopper;
mod supervise;
mod threads;
mod tracee;
mod wait;

pub use child::find_program;
pub use held::Held;
pub use stopper::{Reason, Stopper};
pub use tracee::{Mapping, Tracee};

use crate::plan::LaunchPlan;
use child::{Handshake, Prepared};
use reaper::Changes;
use rustix::process::Pid;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;
use supervise::Supervisor;
use vmeter_model::run::Usage;
use vmeter_model::{Moment, Ns};

/// Whether the VMM is looked at while it runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// Nothing attached: spawn, wait, rusage.
    Plain,
    /// Stopped at its exec, entry, `main` and exit.
    #[default]
    Traced,
}

/// How to launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Whether the VMM is looked at.
    pub mode: Mode,
    /// End the run after this long, counted from the launch.
    pub timeout: Option<Duration>,
    /// Host CPUs that the VMM may use; empty for all.
    pub pin: Vec<usize>,
    /// Part of the file name of the VMM's image, e.g. `qemu-system`: a wrapper that does
    /// not execute it itself has its children followed until one does. Only in traced mode.
    pub follow: Option<String>,
    /// Time between SIGTERM and SIGKILL when a run is ended early; zero for SIGKILL at once.
    pub grace: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            timeout: None,
            pin: Vec::new(),
            follow: None,
            grace: Duration::from_secs(2),
        }
    }
}

/// What to do while the VMM is stopped. Both default to nothing, and neither is
/// called in plain mode.
pub trait Hooks {
    /// The VMM is stopped right after an `execve`: nothing of the new image ran.
    /// Called again if that image was a wrapper which executes another one.
    fn on_exec(&mut self, tracee: &Tracee) {
        let _ = tracee;
    }

    /// The VMM is at its end, by itself or because the run is ended early; its
    /// memory is all there. Called at most once.
    fn on_exiting(&mut self, tracee: &Tracee) {
        let _ = tracee;
    }
}

/// Hooks that do nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHooks;

impl Hooks for NoHooks {}

/// How the VMM's process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It exited with this status.
    Exited(i32),
    /// A signal killed it.
    Signalled {
        /// Signal number.
        signal: i32,
        /// True if it dumped core.
        core: bool,
    },
}

impl Status {
    fn from_wait(status: i32) -> Self {
        if libc::WIFSIGNALED(status) {
            Self::Signalled { signal: libc::WTERMSIG(status), core: libc::WCOREDUMP(status) }
        } else {
            Self::Exited(libc::WEXITSTATUS(status))
        }
    }

    /// True for exit status 0.
    pub fn success(self) -> bool {
        self == Self::Exited(0)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(status) => write!(f, "exit status {status}"),
            Self::Signalled { signal, core } => {
                let name = signal_name(*signal);
                write!(f, "killed by signal {signal} ({name})")?;
                if *core {
                    write!(f, ", core dumped")?;
                }
                Ok(())
            }
        }
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGSYS => "SIGSYS",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        _ => "another signal",
    }
}

/// Why a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The VMM ended by itself.
    ByItself,
    /// vmeter ended it.
    Stopped {
        /// Why.
        reason: Reason,
        /// When that was so, `CLOCK_MONOTONIC` ns.
        at_ns: Ns,
    },
}

/// Whether ptrace was used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ptrace {
    /// Used.
    Used,
    /// Plain mode.
    NotWanted,
    /// The host does not permit it; the run went on without. In words, with what would mend it.
    Refused(String),
}

/// One finished run of a VMM's process.
#[derive(Debug, Clone, PartialEq)]
pub struct Exit {
    /// `CLOCK_MONOTONIC` immediately before the VMM's `execve`, ns: time 0.
    pub exec_ns: Ns,
    /// From time 0 to the end, ns: the VMM's process gone, or the ready point.
    pub total_ns: Ns,
    /// What was seen of its process, ns after exec: the moments whose producer is
    /// [`Producer::Launcher`](vmeter_model::moment::Producer::Launcher).
    pub moments: Vec<(Ns, Moment)>,
    /// How the process ended.
    pub status: Status,
    /// What the kernel accounted to it. Its peak resident set is the image's own
    /// where the VMM was traced; else `ru_maxrss`, which is never less than the
    /// launcher's own resident set at the exec.
    pub usage: Usage,
    /// Why the run ended.
    pub end: End,
    /// The last of what it wrote to stderr (64 to 128 KiB at most), terminal escapes neutralised.
    pub stderr_tail: String,
    /// Whether ptrace was used.
    pub ptrace: Ptrace,
    /// The image that ran last, where traced. Not the VMM's if a wrapper runs the VMM
    /// as a child instead of executing it: nothing but the wrapper is then watched.
    pub image: Option<PathBuf>,
    /// How often the main thread was stopped.
    pub stops: u32,
    /// Each stop: (begin, end), ns after exec. The VMM's main thread did not run then.
    pub held: Vec<(Ns, Ns)>,
    /// Names of processes that outlived it, as after `-daemonize`; they were ended.
    pub left_behind: Vec<String>,
}

/// Why nothing was launched, or it could not be followed.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// No program.
    #[error("the VMM's command line is empty; give a program after `--`")]
    Empty,
    /// A path that does not exist.
    #[error("{program}: {error}; give the path of a VMM, or a name that is in PATH")]
    NotFound {
        /// As given.
        program: String,
        /// What the system said.
        error: io::Error,
    },
    /// A name that is not in `PATH`.
    #[error(
        "{program}: not found in PATH; install it (for QEMU on Debian: \
         apt-get install qemu-system-x86) or give its path with --vmm"
    )]
    NotInPath {
        /// As given.
        program: String,
    },
    /// Not an executable file.
    #[error("{program}: not an executable file; chmod +x it, or give another path with --vmm")]
    NotExecutable {
        /// As given.
        program: String,
    },
    /// A NUL byte in an argument.
    #[error("an argument holds a NUL byte, which no program can receive: {argument:?}")]
    Nul {
        /// The argument or environment entry.
        argument: String,
    },
    /// A CPU number out of range.
    #[error("CPU {cpu} of --pin is out of range; see /sys/devices/system/cpu/online")]
    Cpu {
        /// The number.
        cpu: usize,
    },
    /// Pipes, timers, threads.
    #[error("cannot prepare the launch: {error}")]
    Prepare {
        /// What failed.
        error: io::Error,
    },
    /// The child failed before the VMM ran.
    #[error("cannot start {program}: {stage}: {error}{hint}")]
    Start {
        /// The program.
        program: String,
        /// What failed.
        stage: &'static str,
        /// How.
        error: io::Error,
        /// What to do, or nothing.
        hint: &'static str,
    },
    /// Following it failed; it was killed.
    #[error("lost control of the VMM, so it was killed: {error}")]
    Follow {
        /// What failed.
        error: io::Error,
    },
}

/// `CLOCK_MONOTONIC`, ns.
pub fn now_ns() -> Ns {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec * 1_000_000_000 + t.tv_nsec
}

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
    let mark = orphans::Mark::new();
    let (prepared, handshake) = Prepared::new(plan, stderr_child, &options.pin, &mark)?;
    let program = prepared.program.clone();
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
            Supervisor::new((pid, mark), changes, next, options, stopper, hooks, stderr)?;
        let ptrace = attach(pid, options.mode);
        supervisor.traced = ptrace == Ptrace::Used;
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
            "ptrace is not permitted here ({error}): the VMM runs unwatched from outside; \
             check seccomp (a container needs --cap-add=SYS_PTRACE) and \
             /proc/sys/kernel/yama/ptrace_scope (0 or 1 is needed)"
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
            "; the file is there, so its interpreter is missing (the #! line or the ELF loader)"
        }
        Some(libc::ENOEXEC) => "; not an ELF file, and a script needs a #! line",
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
    for (t, _) in &mut moments {
        *t -= exec_ns;
    }
    let total_ns = match &end {
        End::Stopped { reason: Reason::ReadyPoint, at_ns } => at_ns - exec_ns,
        _ => at - exec_ns,
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
        left_behind: seen.left_behind,
        held: seen.held.iter().map(|(a, b)| (a - exec_ns, b - exec_ns)).collect(),
    }
}

/// Text of untrusted bytes: control characters, escapes among them, become visible.
fn printable(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for c in String::from_utf8_lossy(bytes).chars() {
        match c {
            '\n' | '\t' => text.push(c),
            '\r' => {}
            c if c.is_control() => text.extend(c.escape_default()),
            c => text.push(c),
        }
    }
    text
}
