//! One QEMU: started, spoken to, looked into, and never left behind.

use crate::error::MigrateError;
use crate::side::Side;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;
use vmeter_base::owner::Owner;
use vmeter_machine::qmp::{self, Qmp, QmpError};

/// How long a monitor may take to answer. While QEMU switches over it answers nobody.
const ANSWER: Duration = Duration::from_secs(30);
/// Most of a QEMU's stderr that is shown.
const STDERR: u64 = 2000;

/// A running QEMU. Killed when dropped; it dies with vmeter's thread that started it, too.
pub struct Vm {
    /// Which it is.
    pub side: Side,
    /// Its monitor.
    pub qmp: Qmp,
    child: Child,
    pidfd: OwnedFd,
    stderr: File,
    ended: Option<ExitStatus>,
}

impl Vm {
    /// Starts `argv` with a monitor and our end of its standard input and output, which is
    /// where its serial port is.
    ///
    /// # Errors
    /// When it cannot be started, or ends before its monitor answers: with what it said.
    pub fn start(
        side: Side,
        argv: &[OsString],
        pin: &[usize],
    ) -> Result<(Self, UnixStream), MigrateError> {
        let io = MigrateError::io;
        let (monitor, theirs) = qmp::pair().map_err(io("making a monitor"))?;
        let (serial, port) = UnixStream::pair().map_err(io("making a serial port"))?;
        let port = OwnedFd::from(port);
        let second = port.try_clone().map_err(io("making a serial port"))?;
        let mut stderr = tempfile::tempfile().map_err(io("making a temporary file"))?;
        let program = argv.first().ok_or_else(|| MigrateError::Host("no program".into()))?;
        let mut command = Command::new(program);
        command
            .args(&argv[1..])
            .args(qmp::arguments(theirs.as_raw_fd()))
            .stdin(Stdio::from(port))
            .stdout(Stdio::from(second))
            .stderr(stderr.try_clone().map_err(io("making a temporary file"))?);
        vmeter_base::marked::mark(&mut command, &Owner::this());
        become_vmm(&mut command, theirs.as_raw_fd(), pin)?;
        let mut child = command.spawn().map_err(io("starting QEMU"))?;
        // Its ends are its alone, so that an end of file says that it is gone.
        drop((theirs, command));
        let pidfd = match pidfd(&child) {
            Ok(pidfd) => pidfd,
            Err(error) => {
                end(&mut child);
                return Err(io("watching QEMU")(error));
            }
        };
        match Qmp::greet(monitor, ANSWER) {
            Ok(qmp) => Ok((Self { side, qmp, child, pidfd, stderr, ended: None }, serial)),
            Err(error) => {
                let status = end(&mut child);
                let said = said(&mut stderr);
                Err(if said.is_empty() {
                    MigrateError::Qmp { side, error }
                } else {
                    MigrateError::Ended { side, status: text(status), stderr: said }
                })
            }
        }
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Readable once the process has ended.
    pub fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    /// Waits until its monitor has news, it ends, one of `others` is readable, or the time is over.
    pub fn wait_for_news(&self, others: &[&OwnedFd], most: Duration) {
        let mut polled =
            vec![PollFd::new(&self.qmp, PollFlags::IN), PollFd::new(&self.pidfd, PollFlags::IN)];
        polled.extend(others.iter().map(|fd| PollFd::new(*fd, PollFlags::IN)));
        let seconds = i64::try_from(most.as_secs()).unwrap_or(i64::MAX);
        let timeout = Timespec { tv_sec: seconds, tv_nsec: i64::from(most.subsec_nanos()) };
        // An interrupted wait is only a shorter one.
        let _ = poll(&mut polled, Some(&timeout));
    }

    /// How it ended, in words, if it has.
    pub fn ended(&mut self) -> Option<String> {
        self.status().map(|status| text(Some(status)))
    }

    /// True if a signal ended it.
    pub fn was_killed(&mut self) -> bool {
        self.status().is_some_and(|status| status.signal().is_some())
    }

    fn status(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended
    }

    /// The end of what it printed on its standard error, after `: `; empty if nothing.
    pub fn said(&mut self) -> String {
        said(&mut self.stderr)
    }

    /// Executes a command of its monitor.
    ///
    /// # Errors
    /// When it is refused, or QEMU is gone: then with what QEMU said last.
    pub fn execute<C: vmeter_machine::qmp::Command>(
        &mut self,
        command: &C,
    ) -> Result<C::Ok, MigrateError> {
        let result = self.qmp.execute(command);
        result.map_err(|error| self.explained(error))
    }

    pub(crate) fn explained(&mut self, error: QmpError) -> MigrateError {
        let gone = matches!(error, QmpError::Io { .. });
        match self.ended().filter(|_| gone) {
            Some(status) => MigrateError::Ended { side: self.side, status, stderr: self.said() },
            None => MigrateError::Qmp { side: self.side, error },
        }
    }

    /// Kills it (SIGKILL) and waits for its end.
    pub fn kill(&mut self) {
        if self.ended.is_none() {
            self.ended = end(&mut self.child);
        }
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.kill();
    }
}

fn end(child: &mut Child) -> Option<ExitStatus> {
    // Fails only where it has ended already.
    let _ = child.kill();
    child.wait().ok()
}

fn text(status: Option<ExitStatus>) -> String {
    status.map_or_else(|| "status unknown".into(), |status| status.to_string())
}

fn said(stderr: &mut File) -> String {
    let length = stderr.seek(SeekFrom::End(0)).unwrap_or(0);
    let mut bytes = Vec::new();
    let from = SeekFrom::Start(length.saturating_sub(STDERR));
    if stderr.seek(from).is_ok() {
        // What cannot be read is not shown.
        let _ = stderr.take(STDERR).read_to_end(&mut bytes);
    }
    let text = String::from_utf8_lossy(&bytes);
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match text.trim() {
        "" => String::new(),
        text => format!(": {text}"),
    }
}

fn pidfd(child: &Child) -> io::Result<OwnedFd> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

/// What the child does between fork and exec: a session of its own, so that a Ctrl-C
/// reaches vmeter alone; its end with vmeter's; its monitor; its CPUs.
fn become_vmm(command: &mut Command, monitor: i32, pin: &[usize]) -> Result<(), MigrateError> {
    let parent = std::process::id();
    let mut set: Option<libc::cpu_set_t> = None;
    for cpu in pin {
        if *cpu >= libc::CPU_SETSIZE as usize {
            return Err(MigrateError::Usage(format!("--pin: no CPU has the number {cpu}")));
        }
        // SAFETY: all-zero is an empty cpu_set_t.
        let set = set.get_or_insert_with(|| unsafe { std::mem::zeroed() });
        // SAFETY: the number is below CPU_SETSIZE.
        unsafe { libc::CPU_SET(*cpu, set) };
    }
    let prepare = move || {
        let done = |result: libc::c_int| match result {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        };
        // SAFETY: async-signal-safe calls on plain values that the closure owns.
        unsafe {
            done(libc::setsid())?;
            done(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
            if u32::try_from(libc::getppid()) != Ok(parent) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            if let Some(set) = &set {
                done(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set))?;
            }
            done(libc::fcntl(monitor, libc::F_SETFD, 0))
        }
    };
    // SAFETY: the closure allocates nothing and takes no lock.
    unsafe { command.pre_exec(prepare) };
    Ok(())
}
