//! One QEMU: started, spoken to, looked into, and never left behind.

use crate::error::MigrateError;
use crate::process::Process;
use crate::side::Side;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use vmeter_machine::qmp::{self, Qmp, QmpError};

/// How long a monitor may take to answer. While QEMU switches over it answers nobody.
const ANSWER: Duration = Duration::from_secs(30);

/// A running QEMU, as [`Process`].
pub struct Vm {
    /// Which it is.
    pub side: Side,
    /// Its monitor.
    pub qmp: Qmp,
    /// It.
    pub process: Process,
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
        let (monitor, theirs) = qmp::pair().map_err(MigrateError::io("making a monitor"))?;
        let mut argv = argv.to_vec();
        argv.extend(qmp::arguments(theirs.as_raw_fd()).map(OsString::from));
        let (mut process, serial) = Process::start(&argv, pin, Some(theirs.as_fd()))?;
        // Its end is its alone, so that an end of file says that it is gone.
        drop(theirs);
        match Qmp::greet(monitor, ANSWER) {
            Ok(qmp) => Ok((Self { side, qmp, process }, serial)),
            Err(error) => {
                let (status, said) = (process.kill(), process.said());
                Err(if said.is_empty() {
                    MigrateError::Qmp { side, error }
                } else {
                    MigrateError::Ended { side, status, stderr: said }
                })
            }
        }
    }

    /// Waits until its monitor has news, it ends, one of `others` is readable, or the time is over.
    pub fn wait_for_news(&self, others: &[&OwnedFd], most: Duration) {
        let mut polled = vec![
            PollFd::new(&self.qmp, PollFlags::IN),
            PollFd::new(self.process.pidfd(), PollFlags::IN),
        ];
        polled.extend(others.iter().map(|fd| PollFd::new(*fd, PollFlags::IN)));
        let seconds = i64::try_from(most.as_secs()).unwrap_or(i64::MAX);
        let timeout = Timespec { tv_sec: seconds, tv_nsec: i64::from(most.subsec_nanos()) };
        // An interrupted wait is only a shorter one.
        let _ = poll(&mut polled, Some(&timeout));
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
        match self.process.ended().filter(|_| gone) {
            Some(status) => {
                MigrateError::Ended { side: self.side, status, stderr: self.process.said() }
            }
            None => MigrateError::Qmp { side: self.side, error },
        }
    }
}
