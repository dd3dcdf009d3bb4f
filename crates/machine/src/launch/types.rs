//! What a launch is told, and what comes back.

use super::daemon_clients::DaemonClient;
use super::tracee::Tracee;
use crate::vmm::Dialect;
use signal_hook::low_level::signal_name;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use vmeter_model::run::Usage;
use vmeter_model::{Moment, Ns};

/// Whether the VMM is looked at while it runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// Attach nothing: only start the VMM, wait for it, and read its rusage.
    Plain,
    /// Followed through its wrappers to the exec of a VMM that is known by its name, whose
    /// arguments are then seen ([`Hooks::on_vmm`]), and let go of there.
    Started,
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
    /// True for a VMM that may free its guest's RAM before its own end, and for one that
    /// nothing is known of: its threads are traced as well, and it is looked into when the
    /// first that ran a vCPU ends. Of a launcher that nothing is known of, children are
    /// followed: a VMM that is known by its name, or whoever holds a VM at its end, is the VMM.
    pub frees_ram: bool,
    /// True to end all that came of the launch when it is over: daemons too, and what a launcher
    /// left that exited with 0.
    pub ends_all: bool,
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
            frees_ram: false,
            ends_all: false,
            grace: Duration::from_secs(2),
        }
    }
}

/// A VMM that is stopped right after its exec, known by the name of its image.
#[derive(Debug)]
pub struct Vmm<'a> {
    /// The process.
    pub tracee: &'a Tracee,
    /// How it is spoken to.
    pub dialect: &'static dyn Dialect,
    /// What it is executed with.
    pub argv: Vec<OsString>,
    /// True if its standard output is what the launch was given as such.
    pub has_console: bool,
    /// False for one that will be let go of, which nothing is added to.
    pub is_own: bool,
}

impl Vmm<'_> {
    /// Gives it other arguments.
    ///
    /// # Errors
    /// As the launch found: not on this architecture, or no room for them.
    pub fn replace(&self, argv: &[OsString]) -> io::Result<()> {
        super::arguments::replace(self.tracee, argv)
    }
}

/// A process that outlived the launch, and that vmeter let go of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// Its number.
    pub pid: i32,
    /// What it is called.
    pub name: String,
    /// True for a VMM: known by its name, or with a VM of KVM's.
    pub is_vmm: bool,
}

/// What to do while the VMM is stopped, which it is not in plain mode, and with what it writes.
/// All default to nothing.
pub trait Hooks {
    /// The VMM is stopped right after an `execve`: nothing of the new image ran.
    /// Called again if that image was a wrapper which executes another one.
    fn on_exec(&mut self, tracee: &Tracee) {
        let _ = tracee;
    }

    /// A VMM that is known by its name is stopped right after its exec, of whatever mode but
    /// plain; before [`Hooks::on_exec`]. Called again if the one before turned out to be none.
    fn on_vmm(&mut self, vmm: &Vmm<'_>) {
        let _ = vmm;
    }

    /// Another VMM than the one that is followed is stopped right after its exec; `prints` says
    /// that its console goes where the launch's standard output does.
    fn on_other(&mut self, prints: bool) {
        let _ = prints;
    }

    /// True if a sign of a guest was seen so far. Asked when a VMM has ended and its launcher has
    /// not: without a sign it was asked something, and the launcher may start another.
    fn has_seen_guest(&mut self) -> bool {
        true
    }

    /// The VMM is at its end, by itself or because the run is ended early, or the first of
    /// its vCPUs is; its memory is all there. Called at most once.
    fn on_exiting(&mut self, tracee: &Tracee) {
        let _ = tracee;
    }

    /// The VMM wrote this to its standard error, of which little is kept. In plain mode too.
    fn on_stderr(&mut self, at: Ns, bytes: &[u8]) {
        let _ = (at, bytes);
    }

    /// The VMM has ended: all that it wrote is in its pipes, and has to be read before the run's
    /// end is judged, since its last line may be the ready point. In plain mode too.
    fn on_ended(&mut self) {}
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
    pub(super) fn from_wait(status: i32) -> Self {
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
                let name = signal_name(*signal).unwrap_or("another signal");
                write!(f, "killed by signal {signal} ({name})")?;
                if *core {
                    write!(f, ", core dumped")?;
                }
                Ok(())
            }
        }
    }
}

/// Why a run was ended before the VMM ended by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// The `--until` point was reached: the run is complete.
    ReadyPoint,
    /// The timeout passed.
    TimedOut,
    /// The user interrupted vmeter.
    Interrupted,
    /// Anything else, in words.
    Other(String),
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
    /// From time 0 to the end, ns: the VMM's process gone, or the ready point. The clock of
    /// this and of all that is "after exec" stood still for [`Exit::looked_ns`].
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
    /// Each stop: (begin, end), ns after exec. The VMM's main thread did not run then. The one
    /// in which it was looked into has no length here.
    pub held: Vec<(Ns, Ns)>,
    /// How long vmeter held the VMM to look into it once its guest was done, ns.
    pub looked_ns: Ns,
    /// True if its threads were sent so many signals that those were traced no longer: when its
    /// vCPUs ended was not seen.
    pub let_go: bool,
    /// Names of processes that outlived it and were vmeter's to end; they were ended.
    pub left_behind: Vec<String>,
    /// Names of VMMs in sessions of their own that were ended with a run that ended early.
    pub ended: Vec<String>,
    /// Those that were not, as after `-daemonize`: they run on.
    pub runs_on: Vec<Left>,
    /// True if a VMM ran: known by the name of its image, or with a VM of KVM's. A VMM that was
    /// asked something and booted nothing (`-version`, `-machine none`) is none.
    pub has_vmm: bool,
    /// Who asked a process outside of the launch for something, as a client of a daemon does; of a
    /// launch in which no VMM was seen.
    pub asked: Option<DaemonClient>,
    /// The process of the launch that sent the VMM the signal by which it ends (SIGTERM and its
    /// like), in words: how a launcher ends its VMM.
    pub told_by: Option<String>,
    /// Name and number of the VMM that was followed.
    pub vmm: Option<String>,
    /// The arguments of the VMM as it was executed, if it was not what was launched.
    pub vmm_argv: Vec<OsString>,
    /// Names of VMMs that ran besides the one that was followed.
    pub others: Vec<String>,
    /// True if one of these has the launch's standard output.
    pub others_print: bool,
    /// How many VMMs were only asked something (`-version`, `-machine none`).
    pub probes: u32,
    /// True if a signal of job control (SIGSTOP) had stopped it when it was ended early.
    pub was_stopped: bool,
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
    #[error("{program}: not found in PATH; {mend}")]
    NotInPath {
        /// As given.
        program: String,
        /// How it can be had.
        mend: &'static str,
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
    /// The command ended well, and was no VMM.
    #[error(
        "{command}: no VMM was seen among its processes in {seconds:.1} s, so nothing was \
         measured{asked}{left}. {mend}"
    )]
    NoVmm {
        /// What was launched.
        command: String,
        /// How long it ran.
        seconds: f64,
        /// Whom one of them asked, in words.
        asked: String,
        /// What runs on, in words.
        left: String,
        /// What to do.
        mend: &'static str,
    },
    /// The command traces what it starts, and vmeter traces it.
    #[error(
        "{command} uses ptrace(2) ({said}), but vmeter already traces this command to see which \
         programs the command starts. A process can have only one tracer. With --watch none \
         --no-inject, vmeter traces nothing, so {command} can use ptrace(2)"
    )]
    PtraceTaken {
        /// What was launched.
        command: String,
        /// What it said.
        said: String,
    },
    /// vmeter's own part of the run failed: what the VMM did in it says nothing of the VMM.
    #[error("vmeter could not record the run, so this run does not count. What failed: {what}")]
    Unrecorded {
        /// What failed, and what would mend it.
        what: String,
    },
    /// Following it failed; it was killed.
    #[error("vmeter lost control of the VMM, so vmeter killed the VMM: {error}")]
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

/// Text of untrusted bytes: control characters, escapes among them, become visible.
pub(super) fn printable(bytes: &[u8]) -> String {
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
