//! Following a VMM from its exec to its end: one poll loop.
//!
//! The loop waits for whichever comes first: a change of the child's state (reported
//! by the [reaper](super::reaper)), a request to stop, the deadline, or output on
//! stderr. Every ptrace request is made here, on the thread that attached.

mod leave;
mod who;

use super::daemon_clients::{Asks, DaemonClient};
use super::ends::{changed, gone_is_fine, is_stopped, kill_group};
use super::family::{has_machine, number, Family};
use super::image::{self, Breakpoint};
use super::own::{Leader, Own};
use super::ptrace;
use super::reaper::Changes;
use super::signals::SignalBudget;
use super::stopper::Stopper;
use super::threads;
use super::tracee::Tracee;
use super::types::{now_ns, End, Hooks, LaunchError, Left, Mode, Options, Reason, Status};
use super::wait::wait4;
use rustix::event::{poll, PollFd, PollFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::{waitid, Pid, Signal, WaitId, WaitIdOptions};
use rustix::time::{
    timerfd_create, timerfd_settime, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags,
    Timespec,
};
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::Duration;
use vmeter_base::process::Stat;
use vmeter_model::run::Usage;
use vmeter_model::{Moment, Ns};

/// How much of stderr is kept.
const STDERR_TAIL: usize = 64 * 1024;
/// How long a stop may take to arrive before the VMM is killed without it.
const STOP_WITHIN: Duration = Duration::from_secs(2);

/// How often those that left the process group are looked after: nothing tells of their stops.
const STRANGERS_EVERY: Duration = Duration::from_millis(20);

/// How often it is looked whether the VMM ended and nobody said so.
const MISSED_EVERY: Duration = Duration::from_secs(2);

/// Time between SIGTERM and SIGKILL at most when the user waits for the end.
const HASTE: Duration = Duration::from_millis(300);

/// How long nobody may have said so: whoever is to may not get a CPU.
const MISSED_NS: Ns = 10_000_000_000;
const END_MISSED: &str = "the kernel reported the VMM's end too late, so the time of its end is \
    not known";

/// How far the end of a run has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// A stop was asked for, to look at consistent memory.
    Interrupting,
    /// SIGTERM was sent.
    Terminating,
    /// SIGKILL was sent.
    Killing,
}

/// What is known of the image that [`Options::follow`] names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Followed {
    /// It was not executed yet: what runs is a wrapper, or nothing is followed.
    Sought,
    /// It runs.
    Found,
    /// It ended before the wrapper that started it.
    Gone,
    /// So did this one, without a sign of a guest: another may come.
    Doubted,
}

/// The state of one run.
pub struct Supervisor<'a> {
    pub pid: Pid,
    /// The process that is looked into: the launched one, or the child in which a
    /// wrapper executed the VMM.
    vmm: Pid,
    pub own: Own,
    leader: Leader,
    /// What is to end with a run that is ended early.
    doomed: Vec<Pid>,
    /// What the launch has as standard output, as `/proc/PID/fd` names it.
    pub stdout: Option<PathBuf>,
    pub traced: bool,
    pub changes: &'a Changes,
    pub next: Sender<()>,
    pub options: &'a Options,
    pub stopper: &'a Stopper,
    pub hooks: &'a mut dyn Hooks,
    stderr: Option<OwnedFd>,
    timer: OwnedFd,
    phase: Phase,
    followed: Followed,
    /// True once the VMM was looked into, which is done once.
    looked: bool,
    /// True while a signal of job control stops the VMM, which then hears no SIGTERM.
    group_stopped: bool,
    reaped: Option<(Ns, Status, Usage)>,
    /// Its end, if that came where a stop was to be collected.
    collected: Option<(Ns, i32, Usage)>,
    /// Since when it was seen to have ended, and nobody had said so.
    missed: Option<Ns>,
    breakpoints: Vec<Breakpoint>,
    family: Family,
    patience: SignalBudget,
    asks: Asks,
    pub seen: Seen,
}

/// What was seen of a run, in absolute times.
#[derive(Debug, Default)]
pub struct Seen {
    pub execs: u32,
    pub stops: u32,
    pub moments: Vec<(Ns, Moment)>,
    pub held: Vec<(Ns, Ns)>,
    /// Of these, the one in which its memory was read.
    pub looked: Option<(Ns, Ns)>,
    pub peak_rss_bytes: Option<u64>,
    /// User and system time of a VMM that a launcher started, s.
    pub vmm_cpu_s: Option<(f64, f64)>,
    pub image: Option<PathBuf>,
    pub end: Option<(Reason, Ns)>,
    pub stderr: Vec<u8>,
    pub left_behind: Vec<String>,
    pub ended: Vec<String>,
    pub runs_on: Vec<Left>,
    pub has_vmm: bool,
    pub asked: Option<DaemonClient>,
    pub told_by: Option<String>,
    pub vmm: Option<String>,
    pub vmm_argv: Vec<OsString>,
    pub others: Vec<String>,
    pub others_print: bool,
    pub probes: u32,
    pub was_stopped: bool,
    pub let_go: bool,
}

impl<'a> Supervisor<'a> {
    pub fn new(
        (pid, own): (Pid, Own),
        changes: &'a Changes,
        next: Sender<()>,
        options: &'a Options,
        stopper: &'a Stopper,
        hooks: &'a mut dyn Hooks,
        stderr: OwnedFd,
    ) -> Result<Self, LaunchError> {
        let prepare = |error: rustix::io::Errno| LaunchError::Prepare { error: error.into() };
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).map_err(prepare)?;
        rustix::io::ioctl_fionbio(&stderr, true).map_err(prepare)?;
        Ok(Self {
            pid,
            vmm: pid,
            own,
            leader: Leader::Runs,
            doomed: Vec::new(),
            stdout: None,
            traced: false,
            changes,
            next,
            options,
            stopper,
            hooks,
            stderr: Some(stderr),
            timer,
            phase: Phase::Running,
            followed: Followed::Sought,
            looked: false,
            group_stopped: false,
            reaped: None,
            collected: None,
            missed: None,
            breakpoints: Vec::new(),
            family: Family::default(),
            patience: SignalBudget::default(),
            asks: Asks::default(),
            seen: Seen::default(),
        })
    }

    /// Runs to the end of the VMM: when it ended, how, and what it used.
    pub fn run(&mut self) -> Result<(Ns, Status, Usage), LaunchError> {
        let failed = |error| LaunchError::Follow { error };
        if let Some(timeout) = self.options.timeout {
            self.arm(timeout).map_err(failed)?;
        }
        loop {
            let ready = self.wait().map_err(failed)?;
            if ready.stderr {
                self.drain_stderr();
            }
            if ready.changed {
                self.changes.take();
                if self.changes.ended.load(Ordering::Acquire) {
                    return self.finish().map_err(failed);
                }
                let at = self.changes.at.load(Ordering::Relaxed);
                self.stopped(self.changes.pid(), at).map_err(failed)?;
                if self.collected.is_some() {
                    return self.finish().map_err(failed);
                }
                let _ = self.next.send(());
            } else if ready.nothing && self.is_missed() {
                return Err(failed(io::Error::other(END_MISSED)));
            }
            if self.seeks() && self.asks.is_due(now_ns()) {
                self.look_around(&[]);
            }
            if self.family.has_processes() {
                for pid in self.family.strangers(self.pid) {
                    self.stopped(pid, now_ns()).map_err(failed)?;
                    self.spare_daemon(pid);
                }
            }
            if ready.request {
                if let Some((reason, at)) = self.stopper.requested() {
                    self.stop(reason, at).map_err(failed)?;
                }
            }
            if ready.deadline {
                self.deadline().map_err(failed)?;
            }
        }
    }

    fn wait(&mut self) -> io::Result<Ready> {
        let sought = self.seeks().then(|| self.asks.next(now_ns()));
        let mut fds = vec![
            PollFd::new(&self.changes.fd, PollFlags::IN),
            PollFd::new(&self.timer, PollFlags::IN),
        ];
        let asks = self.seen.end.is_none();
        let stop_fd = self.stopper.fd();
        if asks {
            fds.push(PollFd::new(&stop_fd, PollFlags::IN));
        }
        if let Some(stderr) = &self.stderr {
            fds.push(PollFd::new(stderr, PollFlags::IN));
        }
        let strangers = self.family.has_processes();
        let often = if strangers { STRANGERS_EVERY } else { MISSED_EVERY };
        let often = sought.map_or(often, |sought| sought.min(often));
        let often = Timespec {
            tv_sec: i64::try_from(often.as_secs()).unwrap_or(0),
            tv_nsec: i64::from(often.subsec_nanos()),
        };
        let ready = match poll(&mut fds, Some(&often)) {
            Err(rustix::io::Errno::INTR) => return Ok(Ready::default()),
            r => r?,
        };
        let is = |n: usize| fds.get(n).is_some_and(|f| !f.revents().is_empty());
        let deadline = is(1) && rustix::io::read(&self.timer, &mut [0u8; 8]).is_ok();
        Ok(Ready {
            nothing: ready == 0,
            changed: is(0),
            deadline,
            request: asks && is(2),
            stderr: self.stderr.is_some() && is(2 + usize::from(asks)),
        })
    }

    /// True if the VMM ended a while ago and the thread that waits for it did not say so: when,
    /// nobody knows.
    fn is_missed(&mut self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let gone = !matches!(waitid(WaitId::Pid(self.pid), options), Ok(None));
        let mut said = [PollFd::new(&self.changes.fd, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let unsaid = gone && poll(&mut said, Some(&at_once)) == Ok(0);
        let now = now_ns();
        self.missed = unsaid.then_some(self.missed.unwrap_or(now));
        self.missed.is_some_and(|since| now - since >= MISSED_NS)
    }

    fn arm(&self, after: Duration) -> io::Result<()> {
        let after = after.max(Duration::from_nanos(1));
        let it_value = Timespec {
            tv_sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(after.subsec_nanos()),
        };
        let once = Itimerspec { it_interval: Timespec::default(), it_value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }

    fn drain_stderr(&mut self) {
        let Some(stderr) = &self.stderr else { return };
        let mut buffer = [0u8; 8192];
        loop {
            match rustix::io::read(stderr.as_fd(), &mut buffer) {
                Ok(n) if n > 0 => {
                    self.hooks.on_stderr(now_ns(), &buffer[..n]);
                    let tail = &mut self.seen.stderr;
                    tail.extend_from_slice(&buffer[..n]);
                    if tail.len() > 2 * STDERR_TAIL {
                        tail.drain(..tail.len() - STDERR_TAIL);
                    }
                }
                Err(rustix::io::Errno::AGAIN) => return,
                Err(rustix::io::Errno::INTR) => {}
                Ok(_) | Err(_) => {
                    self.stderr = None;
                    return;
                }
            }
        }
    }

    fn deadline(&mut self) -> io::Result<()> {
        match self.phase {
            Phase::Running => self.stop(Reason::TimedOut, now_ns()),
            Phase::Interrupting | Phase::Terminating => self.kill(),
            Phase::Killing => Ok(()),
        }
    }

    /// Begins the end: a look at the stopped VMM where possible, then its death.
    fn stop(&mut self, reason: Reason, at: Ns) -> io::Result<()> {
        if self.seen.end.is_some() {
            return Ok(());
        }
        let kept = reason != Reason::Interrupted;
        if reason == Reason::ReadyPoint {
            self.leader = Leader::Ready;
        }
        // While the launched process runs, what it waits for is known as its own.
        self.doomed = self.own.all(self.pid, self.leader);
        if reason != Reason::ReadyPoint {
            self.seen.ended = self.of_other_sessions();
        }
        self.seen.end = Some((reason, at));
        self.seen.was_stopped = self.group_stopped || is_stopped(self.vmm);
        let looks = self.options.mode == Mode::Traced && self.traced;
        if kept && looks && self.seen.execs > 0 && !self.looked {
            if let Some(vmm) = self.family.with_machine() {
                self.adopt(vmm);
            }
            self.phase = Phase::Interrupting;
            // A main thread that is gone already cannot be stopped; the deadline
            // then ends the VMM all the same.
            let _ = ptrace::interrupt(self.vmm);
            return self.arm(STOP_WITHIN);
        }
        self.terminate()
    }

    fn terminate(&mut self) -> io::Result<()> {
        if self.options.grace.is_zero() || self.seen.execs == 0 && self.traced {
            return self.kill();
        }
        self.phase = Phase::Terminating;
        self.killed();
        self.signal(Signal::TERM);
        if self.group_stopped {
            self.signal(Signal::CONT);
        }
        self.arm(if self.is_kept() { self.options.grace } else { self.options.grace.min(HASTE) })
    }

    /// False once the user wants it to end: what it leaves is of no interest any more.
    fn is_kept(&self) -> bool {
        !matches!(&self.seen.end, Some((Reason::Interrupted, _)))
    }

    fn kill(&mut self) -> io::Result<()> {
        if self.phase != Phase::Terminating {
            self.killed();
        }
        self.phase = Phase::Killing;
        kill_group(self.pid);
        self.signal(Signal::KILL);
        self.arm(STOP_WITHIN)
    }

    /// Notes the first signal that is to end the VMM.
    fn killed(&mut self) {
        self.seen.moments.push((now_ns(), Moment::VmmKilled));
    }

    /// The VMM is ours and not reaped, so its number cannot mean another process. A daemon is
    /// sent none.
    fn signal(&self, signal: Signal) {
        let own = self.vmm == self.pid || self.doomed.contains(&self.vmm);
        if own || self.own.has(self.vmm, self.pid, self.leader) {
            let _ = rustix::process::kill_process(self.vmm, signal);
        }
    }

    /// A tracee is in some stop: find out which, react, resume. A child of a wrapper
    /// may also have ended, or been inherited; a thread may have ended.
    fn stopped(&mut self, pid: Pid, at: Ns) -> io::Result<()> {
        let Some((status, usage)) = changed(pid)? else { return Ok(()) };
        if !libc::WIFSTOPPED(status) {
            if pid == self.pid {
                // Killed since its stop was announced.
                self.collected = Some((now_ns(), status, usage));
            } else {
                self.gone(pid, at);
            }
            return Ok(());
        }
        self.seen.stops += 1;
        let ours = pid == self.vmm;
        let process = if pid == self.pid { pid } else { self.family.member(pid).process };
        let tracee = Tracee { pid: number(process), stopped_ns: at };
        let signal = libc::WSTOPSIG(status);
        let mut deliver = 0;
        let (looked, event) = (self.looked, ptrace::event(status));
        match event {
            libc::PTRACE_EVENT_EXEC => self.on_exec(pid, &tracee)?,
            libc::PTRACE_EVENT_EXIT => self.on_exit(pid, process, &tracee),
            libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => {
                // Nobody would tell of its first stop, had it left the process group.
                if let Some(new) = ptrace::started(pid) {
                    self.family.member(new);
                }
                if event != libc::PTRACE_EVENT_CLONE {
                    self.asks.forget(pid);
                }
            }
            libc::PTRACE_EVENT_STOP if ours && self.phase == Phase::Interrupting => {
                let others = threads::stop_others(pid);
                self.look(&tracee);
                threads::release(others);
                self.terminate()?;
            }
            libc::PTRACE_EVENT_STOP if signal == libc::SIGTRAP && self.family.is_spared(pid) => {
                gone_is_fine(ptrace::spare(pid))?;
            }
            libc::PTRACE_EVENT_STOP if signal != libc::SIGTRAP => {
                self.group_stopped |= ours;
                return gone_is_fine(ptrace::listen(pid));
            }
            0 if signal == libc::SIGTRAP && self.at_breakpoint(pid, &tracee)? => {}
            0 if pid != process && self.patience.is_over(at) => {
                self.seen.let_go = true;
                // The end of a vCPU will not be seen.
                self.seen.has_vmm |= process == self.vmm && has_machine(process);
                self.family.remove(pid);
                return gone_is_fine(ptrace::detach(pid, signal));
            }
            0 => {
                deliver = signal;
                self.note_sender(pid, signal);
            }
            _ => {}
        }
        self.group_stopped &= !ours;
        let resumed = now_ns();
        if event == libc::PTRACE_EVENT_EXEC && self.is_to_go(pid) {
            // What was to be seen of it was seen.
            self.family.remove(pid);
            gone_is_fine(ptrace::spare(pid).and_then(|()| ptrace::detach(pid, 0)))?;
        } else {
            gone_is_fine(ptrace::resume(pid, deliver))?;
        }
        // Another thread of it goes on meanwhile, unless its guest is over; who executes has none.
        let alone = event == libc::PTRACE_EVENT_EXEC;
        if ours || pid == self.pid || alone || looked != self.looked {
            self.seen.held.push((at, resumed));
        }
        if looked != self.looked {
            self.seen.looked = Some((at, resumed));
        }
        Ok(())
    }

    fn look(&mut self, tracee: &Tracee) {
        if !self.looked && self.seen.execs > 0 && self.is_kept() {
            self.looked = true;
            self.note_cpu(tracee);
            self.seen.peak_rss_bytes = tracee.peak_rss_bytes();
            self.hooks.on_exiting(tracee);
        }
    }

    /// Notes what a VMM has run that a launcher started: what the launcher is charged with has that only
    /// if it waits for its VMM.
    fn note_cpu(&mut self, tracee: &Tracee) {
        if number(self.pid) == tracee.pid {
            return;
        }
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let ran = Stat::of(tracee.pid).map(|stat| stat.ran);
        self.seen.vmm_cpu_s =
            ran.map(|(user, system)| (user as f64 / ticks, system as f64 / ticks));
    }

    /// Where a process or thread will be stopped, which is not to be any more.
    fn breakpoints_of(&mut self, pid: Pid) -> Vec<Breakpoint> {
        let own = if pid == self.vmm { std::mem::take(&mut self.breakpoints) } else { Vec::new() };
        own.into_iter().chain(std::mem::take(&mut self.family.member(pid).breakpoints)).collect()
    }

    #[cfg(target_arch = "x86_64")]
    fn at_breakpoint(&mut self, pid: Pid, tracee: &Tracee) -> io::Result<bool> {
        let (breakpoints, moments) = if pid == self.vmm {
            (&mut self.breakpoints, &mut self.seen.moments)
        } else {
            let member = self.family.member(pid);
            (&mut member.breakpoints, &mut member.moments)
        };
        if breakpoints.is_empty() {
            return Ok(false);
        }
        let address = ptrace::instruction_pointer(pid)?.wrapping_sub(1);
        let Some(at) = breakpoints.iter().position(|b| b.address == address) else {
            return Ok(false);
        };
        let breakpoint = breakpoints.swap_remove(at);
        image::clear_breakpoint(tracee, &breakpoint)?;
        ptrace::set_instruction_pointer(pid, address)?;
        moments.push((tracee.stopped_ns, breakpoint.moment));
        Ok(true)
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn at_breakpoint(&mut self, _: Pid, _: &Tracee) -> io::Result<bool> {
        Ok(false)
    }

    /// The end as the result has it.
    pub fn end(&self) -> End {
        match &self.seen.end {
            None => End::ByItself,
            Some((reason, at_ns)) => End::Stopped { reason: reason.clone(), at_ns: *at_ns },
        }
    }
}

#[derive(Debug, Default)]
struct Ready {
    nothing: bool,
    changed: bool,
    deadline: bool,
    request: bool,
    stderr: bool,
}
