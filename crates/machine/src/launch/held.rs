//! A command that is started and held right after its `execve`, before the first
//! instruction of its program.
//!
//! So a recording can be told which process to follow before there is anything to be
//! missed. The command keeps its terminal and its signals; it is ptraced up to that
//! one stop, and by nobody afterwards.

use rustix::process::{Pid, Signal, WaitOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use vmeter_base::marked;
use vmeter_base::owner::Owner;

/// A held command. Dropping it kills it.
#[derive(Debug)]
pub struct Held {
    child: Option<Child>,
    pid: Pid,
    owner: Owner,
}

impl Held {
    /// Starts a command: program and arguments.
    ///
    /// To be let go by the same thread, which is the one that ptraces it; with that
    /// thread the command ends as well (`PR_SET_PDEATHSIG`). With `aside` what it prints goes
    /// to standard error, so that standard output has vmeter's result alone.
    ///
    /// # Errors
    /// A program that can't be started, or a host that forbids ptrace.
    pub fn start(command: &[String], aside: bool) -> Result<Held> {
        let (program, arguments) =
            command.split_first().ok_or_else(|| invalid("there is no command to run"))?;
        let mut start = Command::new(program);
        start.args(arguments);
        let owner = Owner::this();
        marked::mark(&mut start, &owner);
        if aside {
            start.stdout(std::io::stderr().as_fd().try_clone_to_owned()?);
        }
        // SAFETY: between fork and exec only two system calls are made; nothing is
        // allocated and no lock is taken.
        unsafe {
            start.pre_exec(|| {
                rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
                match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
                    -1 => Err(Error::last_os_error()),
                    _ => Ok(()),
                }
            });
        }
        let child = start.spawn().map_err(|e| {
            Error::new(e.kind(), format!("cannot start {program} under ptrace: {e}"))
        })?;
        let pid = Pid::from_child(&child);
        let held = Held { child: Some(child), pid, owner };
        let late = |e: Error| Error::new(e.kind(), format!("{program} was not executed: {e}"));
        held.wait_for_exec().map_err(late)?;
        Ok(held)
    }

    fn wait_for_exec(&self) -> Result<()> {
        loop {
            let changed = rustix::process::waitpid(Some(self.pid), WaitOptions::empty())?;
            let status = changed.map(|(_, status)| status);
            match status.and_then(|status| status.stopping_signal()) {
                Some(libc::SIGTRAP) => return Ok(()),
                // Another signal stopped the child before the SIGTRAP of its exec: deliver it, wait on.
                Some(signal) => self.ptrace(libc::PTRACE_CONT, signal)?,
                None => return Err(Error::other("it ended before")),
            }
        }
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// The mark that it and all that it starts carry in their environment.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Lets it run.
    ///
    /// # Errors
    /// When it is gone.
    pub fn release(mut self) -> Result<Child> {
        self.ptrace(libc::PTRACE_DETACH, 0)?;
        self.child.take().ok_or_else(|| Error::other("vmeter has already let the command run"))
    }

    fn ptrace(&self, request: libc::c_uint, signal: libc::c_int) -> Result<()> {
        // SAFETY: neither request reads or writes memory of this process.
        match unsafe { libc::ptrace(request, self.pid(), 0, libc::c_long::from(signal)) } {
            -1 => Err(Error::last_os_error()),
            _ => Ok(()),
        }
    }
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, what)
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It may be gone already, which is as well.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_the_program_runs_before_it_is_let_go() {
        let folder = tempfile::tempdir().expect("scratch space");
        let made = folder.path().join("made");
        let command = ["touch".to_owned(), made.display().to_string()];
        let held = Held::start(&command, false).expect("it starts");
        let comm = std::fs::read_to_string(format!("/proc/{}/comm", held.pid())).expect("there");
        assert_eq!(comm.trim_end(), "touch", "it is past its exec");
        assert!(!made.exists());
        let mut child = held.release().expect("it goes on");
        assert!(child.wait().expect("its end").success());
        assert!(made.exists());
    }

    #[test]
    fn one_that_is_never_let_go_is_gone() {
        let held = Held::start(&["sleep".into(), "60".into()], true).expect("it starts");
        let process = format!("/proc/{}", held.pid());
        drop(held);
        assert!(!std::path::Path::new(&process).exists());
        let refused = Held::start(&["no-such-program".into()], false).expect_err("there is none");
        assert_eq!(refused.kind(), ErrorKind::NotFound);
    }
}
