//! One VMM's process: started with our end of its console, looked at, and never left behind.

use crate::error::MigrateError;
use rustix::process::{kill_process_group, Pid, PidfdFlags, Signal};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use vmeter_base::owner::Owner;

/// Most of a VMM's stderr that is shown.
const STDERR: u64 = 2000;

/// A running VMM. Killed when dropped; it dies with vmeter's thread that started it, too.
pub struct Process {
    child: Child,
    pidfd: OwnedFd,
    stderr: File,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts `argv`, which inherits the descriptor `kept`, with our end of its standard input and output.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(
        argv: &[OsString],
        pin: &[usize],
        kept: Option<BorrowedFd<'_>>,
    ) -> Result<(Self, UnixStream), MigrateError> {
        let io = MigrateError::io;
        let (serial, port) = UnixStream::pair().map_err(io("making a serial port"))?;
        let port = OwnedFd::from(port);
        let second = port.try_clone().map_err(io("making a serial port"))?;
        let stderr = tempfile::tempfile().map_err(io("making a temporary file"))?;
        let program = argv.first().ok_or_else(|| MigrateError::Host("no program".into()))?;
        let mut command = Command::new(program);
        command
            .args(&argv[1..])
            .stdin(Stdio::from(port))
            .stdout(Stdio::from(second))
            .stderr(stderr.try_clone().map_err(io("making a temporary file"))?);
        vmeter_base::marked::mark(&mut command, &Owner::this());
        become_vmm(&mut command, kept.map(|fd| fd.as_raw_fd()), pin)?;
        let mut child = command.spawn().map_err(io("starting the VMM"))?;
        match pidfd(&child) {
            Ok(pidfd) => Ok((Self { child, pidfd, stderr, ended: None }, serial)),
            Err(error) => {
                end(&mut child);
                Err(io("watching the VMM")(error))
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

    /// How it ended, in words, if it has.
    pub fn ended(&mut self) -> Option<String> {
        self.status().map(|status| status.to_string())
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

    /// Kills it (SIGKILL) and waits for its end: how it ended, in words.
    pub fn kill(&mut self) -> String {
        if self.ended.is_none() {
            self.ended = end(&mut self.child);
        }
        self.ended.map_or_else(|| "status unknown".into(), |status| status.to_string())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn end(child: &mut Child) -> Option<ExitStatus> {
    // It is a session of its own: what a wrapper has started goes with it.
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let _ = group.map(|group| kill_process_group(group, Signal::KILL));
    // Fails only where it has ended already.
    let _ = child.kill();
    child.wait().ok()
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
/// reaches vmeter alone; its end with vmeter's; a descriptor; its CPUs.
fn become_vmm(command: &mut Command, kept: Option<i32>, pin: &[usize]) -> Result<(), MigrateError> {
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
            kept.map_or(Ok(()), |fd| done(libc::fcntl(fd, libc::F_SETFD, 0)))
        }
    };
    // SAFETY: the closure allocates nothing and takes no lock.
    unsafe { command.pre_exec(prepare) };
    Ok(())
}
