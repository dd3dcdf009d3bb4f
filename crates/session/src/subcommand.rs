//! Commands that vmeter runs beside what it measures: preparations, builds, git.

use crate::interrupt::{Interrupt, SOON};
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use rustix::fs::{memfd_create, MemfdFlags};
use rustix::process::{pidfd_open, Pid, PidfdFlags, Signal};
use std::fs::File;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use vmeter_base::marked;
use vmeter_base::owner::Owner;

/// Between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_millis(300);
/// How long those that were killed may take to be gone.
const GONE: Duration = Duration::from_millis(300);

/// Runs a command to its end. None if the user interrupted: it is gone then, with all that it
/// started.
///
/// # Errors
/// It can't be started, or not be waited for.
pub fn run(command: &mut Command, interrupt: &Interrupt) -> io::Result<Option<ExitStatus>> {
    let owner = Owner::this();
    marked::mark(command, &owner);
    let child = command.spawn()?;
    let mut running = Running { child, owner, ended: false };
    let status = running.wait(interrupt)?;
    if status.is_some() {
        let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
        left.extend(marked::running(&owner));
    }
    Ok(status)
}

/// What commands have left running since this was last asked, for a warning.
pub fn take_left() -> Option<String> {
    let left = std::mem::take(&mut *LEFT.lock().unwrap_or_else(PoisonError::into_inner));
    (!left.is_empty()).then(|| {
        format!(
            "a command of --prepare or --build left these processes running, and vmeter does not \
                end them: {}",
            left.join(", ")
        )
    })
}

static LEFT: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// As [`run`], with what it printed, of which little is expected: it is kept in memory, so that
/// a full disk's message is not lost to the full disk.
///
/// # Errors
/// As [`run`].
pub fn output(command: &mut Command, interrupt: &Interrupt) -> io::Result<Option<Output>> {
    let kept = || Ok::<_, io::Error>(File::from(memfd_create("printed", MemfdFlags::CLOEXEC)?));
    let (out, err) = (kept()?, kept()?);
    command.stdout(Stdio::from(out.try_clone()?)).stderr(Stdio::from(err.try_clone()?));
    let status = run(command, interrupt)?;
    let read = |mut file: File| {
        use std::io::{Read, Seek};
        let mut bytes = Vec::new();
        file.rewind()?;
        file.read_to_end(&mut bytes)?;
        Ok::<_, io::Error>(bytes)
    };
    let (stdout, stderr) = (read(out)?, read(err)?);
    Ok(status.map(|status| Output { status, stdout, stderr }))
}

struct Running {
    child: Child,
    owner: Owner,
    ended: bool,
}

impl Running {
    fn wait(&mut self, interrupt: &Interrupt) -> io::Result<Option<ExitStatus>> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let pidfd = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())?;
        let _during = interrupt.during({
            let wake = wake.clone();
            // The counter of an eventfd does not overflow by this.
            move || {
                let _ = rustix::io::write(&*wake, &1u64.to_ne_bytes());
            }
        });
        wait_for(&[&pidfd, &wake], None)?;
        if !interrupt.is_raised() {
            let status = self.child.wait()?;
            self.ended = true;
            if is_interrupted(status) {
                wait_for(&[&wake], Some(SOON))?;
            }
            if !interrupt.is_raised() {
                return Ok(Some(status));
            }
        }
        marked::signal(&self.owner, Signal::TERM);
        marked::signal(&self.owner, Signal::CONT);
        wait_for(&[&pidfd], Some(GRACE))?;
        Ok(None)
    }
}

/// Nothing of a command that was interrupted stays; nor of one that can't be waited for.
impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            marked::kill(&self.owner, GONE);
            // It may have cleared its environment. It is not reaped yet, so this is it.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// What a Ctrl-C does to a command, by a signal or by a shell's way to say so.
fn is_interrupted(status: ExitStatus) -> bool {
    let signals = [Signal::INT, Signal::QUIT, Signal::TERM, Signal::HUP].map(Signal::as_raw);
    let told = status.code().map(|code| code - 128);
    signals.iter().any(|signal| [status.signal(), told].contains(&Some(*signal)))
}

/// Until one is readable, or the time is over.
fn wait_for(fds: &[&OwnedFd], within: Option<Duration>) -> io::Result<()> {
    let timeout = within.map(|within| Timespec {
        tv_sec: i64::try_from(within.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(within.subsec_nanos()),
    });
    let mut polled: Vec<PollFd<'_>> =
        fds.iter().map(|fd| PollFd::new(*fd, PollFlags::IN)).collect();
    loop {
        match poll(&mut polled, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn sh(line: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", line]);
        command
    }

    #[test]
    fn a_command_ends_as_it_ends() {
        let interrupt = Interrupt::default();
        let status = run(&mut sh("exit 7"), &interrupt).expect("it runs").expect("its end");
        assert_eq!(status.code(), Some(7));
        let said = output(&mut sh("echo out; echo err >&2"), &interrupt).expect("it runs");
        let said = said.expect("its end");
        assert_eq!((&said.stdout[..], &said.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
        assert!(run(&mut Command::new("/no/such"), &interrupt).is_err());
    }

    #[test]
    fn an_interrupt_ends_what_ignores_signals_with_all_that_it_started() {
        for line in [
            "trap '' TERM INT; echo $$ >PIDS; setsid sh -c 'echo $$ >>PIDS; sleep 1000' & wait; sleep 1000",
            "echo $$ >PIDS; kill -STOP $$; sleep 1000",
        ] {
            let folder = tempfile::tempdir().expect("a folder");
            let file = folder.path().join("pids");
            let interrupt = Interrupt::default();
            let raises = interrupt.clone();
            let pids = file.clone();
            let raiser = std::thread::spawn(move || {
                while !std::fs::read_to_string(&pids).is_ok_and(|text| text.ends_with('\n')) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                std::thread::sleep(Duration::from_millis(100));
                raises.raise();
                Instant::now()
            });
            let line = line.replace("PIDS", &file.display().to_string());
            assert_eq!(run(&mut sh(&line), &interrupt).expect("it runs"), None);
            let raised = raiser.join().expect("it raises");
            // A limit against hangs, on a host of any speed.
            assert!(raised.elapsed() < Duration::from_secs(120), "{:?}", raised.elapsed());
            for pid in std::fs::read_to_string(&file).expect("process ids").lines() {
                let exe = std::path::Path::new("/proc").join(pid).join("exe");
                while exe.exists() {
                    assert!(raised.elapsed() < Duration::from_secs(120), "{pid}");
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        }
    }
}
