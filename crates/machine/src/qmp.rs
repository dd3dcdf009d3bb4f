//! Talking to QEMU's monitor (QMP) over a socket that exists before QEMU does.
//!
//! A socket pair is made first and one end is inherited by the VMM
//! (`-chardev socket,fd=N`, accepted since QEMU 2.12), so there is no path, no
//! race and nothing to wait for: the greeting is there when QEMU is.
//!
//! The words are those of `qapi-spec`; the crate that has every command of one QEMU
//! version as a type takes a tenth of a release build, and another version's answers
//! do not fit it.

use crate::plan::LaunchPlan;
pub use qapi_spec::Command;
use qapi_spec::{Execute, Never};
use rustix::fs::inotify;
use serde_json::Value;
use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// More than the longest answer (every trace event: 0.3 MB).
const MAX_LINE: u64 = 16 << 20;

/// Why QEMU's monitor does not answer.
#[derive(Debug, thiserror::Error)]
pub enum QmpError {
    /// The socket failed, ended, or the time was up.
    #[error("QMP: {error}; did QEMU end? Its stderr says why")]
    Io {
        /// What happened.
        error: io::Error,
    },
    /// QEMU refused a command.
    #[error("QMP: {command}: {message}")]
    Refused {
        /// The command.
        command: &'static str,
        /// QEMU's words.
        message: String,
    },
    /// No socket appeared.
    #[error("QMP: no socket at {path} within {seconds} s; is the path in the VMM's -qmp option?")]
    NoSocket {
        /// Where.
        path: PathBuf,
        /// How long it was waited for.
        seconds: f64,
    },
}

impl From<io::Error> for QmpError {
    fn from(error: io::Error) -> Self {
        Self::Io { error }
    }
}

/// Something QEMU announced.
#[derive(Debug, Clone, PartialEq)]
pub struct Announcement {
    /// Name, e.g. `SHUTDOWN`.
    pub name: String,
    /// Its data, null if none.
    pub data: Value,
    /// When QEMU announced it, `CLOCK_REALTIME`, ns since the epoch.
    pub realtime_ns: i64,
}

/// Commands of the monitor: a type for each, as [`Qmp::execute`] takes it.
#[macro_export]
macro_rules! qmp_commands {
    ($($(#[$doc:meta])* $vis:vis $name:ident = $wire:literal -> $ok:ty {
        $($(#[$attribute:meta])* $field:ident: $type:ty),* $(,)?
    })*) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, serde::Serialize)]
        #[serde(rename_all = "kebab-case")]
        $vis struct $name {
            $($(#[$attribute])* $vis $field: $type),*
        }

        impl $crate::qmp::Command for $name {
            type Ok = $ok;
            const NAME: &'static str = $wire;
            const ALLOW_OOB: bool = false;
        }
    )* };
}

qmp_commands! {
    Negotiate = "qmp_capabilities" -> Value {}
    QueryStatus = "query-status" -> Value {}
    Cont = "cont" -> Value {}
    Quit = "quit" -> Value {}
}

/// A monitor that has been greeted.
pub struct Qmp {
    reader: BufReader<UnixStream>,
    announced: VecDeque<Announcement>,
    limit: Duration,
}

/// A socket pair: our end, and the end for the VMM.
///
/// # Errors
/// When descriptors are exhausted.
pub fn pair() -> io::Result<(UnixStream, OwnedFd)> {
    let (ours, theirs) = UnixStream::pair()?;
    Ok((ours, theirs.into()))
}

/// The arguments that make descriptor `fd` of the VMM its monitor.
pub fn arguments(fd: i32) -> [String; 4] {
    [
        "-chardev".into(),
        format!("socket,id=vmeter-qmp,fd={fd}"),
        "-mon".into(),
        "chardev=vmeter-qmp,mode=control".into(),
    ]
}

/// Adds a monitor to the plan of a VMM that can be passed no descriptors: it connects to the
/// socket that is returned, at this path.
///
/// # Errors
/// When the socket cannot be made: its path has more than 107 bytes, say.
pub fn add_by_path(plan: &mut LaunchPlan, path: &Path) -> io::Result<Option<UnixListener>> {
    if !plan.may_inject || plan.only_words {
        return Ok(None);
    }
    let listener = UnixListener::bind(path)?;
    let [chardev, _, mon, mode] = arguments(0);
    // QEMU takes a doubled comma for one in a value.
    let path = path.display().to_string().replace(',', ",,");
    plan.inject(&[&chardev, &format!("socket,id=vmeter-qmp,path={path}"), &mon, &mode]);
    Ok(Some(listener))
}

/// Adds a monitor to a plan, where it may be: our end of its socket.
///
/// # Errors
/// When descriptors are exhausted.
pub fn add(plan: &mut LaunchPlan) -> io::Result<Option<UnixStream>> {
    if !plan.may_inject {
        return Ok(None);
    }
    let (ours, theirs) = pair()?;
    let fd = plan.pass_fd(theirs);
    plan.inject(&arguments(fd).each_ref().map(String::as_str));
    Ok(Some(ours))
}

impl Qmp {
    /// Greets the monitor. `limit` bounds this and every later answer.
    ///
    /// # Errors
    /// When there is no greeting in time, or it is none.
    pub fn greet(stream: UnixStream, limit: Duration) -> Result<Self, QmpError> {
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        let mut qmp = Self { reader: BufReader::new(stream), announced: VecDeque::new(), limit };
        let greeting = qmp.line()?;
        if greeting.get("QMP").is_none() {
            let shown: String = greeting.to_string().chars().take(80).collect();
            let what = format!("a greeting {{\"QMP\": …}} was expected, found {shown}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what).into());
        }
        qmp.execute(&Negotiate {})?;
        Ok(qmp)
    }

    /// Connects to a socket that a VMM of the user's own makes at `path`; waits for
    /// it to appear (by inotify) for as long as `limit`.
    ///
    /// # Errors
    /// When none appears in time, or what answers is no monitor.
    pub fn connect(path: &Path, limit: Duration) -> Result<Self, QmpError> {
        let none = || QmpError::NoSocket { path: path.to_owned(), seconds: limit.as_secs_f64() };
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC).map_err(io::Error::from)?;
        inotify::add_watch(&watch, folder.unwrap_or(Path::new(".")), inotify::WatchFlags::CREATE)
            .map_err(|_| none())?;
        let deadline = Instant::now() + limit;
        loop {
            match UnixStream::connect(path) {
                Ok(stream) => return Self::greet(stream, limit),
                // Bound, not listening yet: a few instructions of QEMU's away.
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                    std::thread::yield_now();
                }
                Err(_) => wait_readable(&watch, deadline)?,
            }
            if Instant::now() >= deadline {
                return Err(none());
            }
        }
    }

    /// Executes a command and returns its answer.
    ///
    /// # Errors
    /// When QEMU refuses it, or does not answer in time.
    pub fn execute<C: Command>(&mut self, command: &C) -> Result<C::Ok, QmpError> {
        let mut message = serde_json::to_vec(&Execute::<_, Never>::with_command(command))
            .map_err(io::Error::from)?;
        message.push(b'\n');
        self.reader.get_mut().write_all(&message)?;
        let deadline = Instant::now() + self.limit;
        while Instant::now() < deadline {
            let mut answer = self.line()?;
            if let Some(event) = announcement(&answer) {
                self.announced.push_back(event);
            } else if let Some(error) = answer.get("error") {
                let message =
                    error.get("desc").and_then(Value::as_str).unwrap_or("no reason given");
                return Err(QmpError::Refused { command: C::NAME, message: message.to_owned() });
            } else if let Some(value) = answer.get_mut("return") {
                return Ok(serde_json::from_value(value.take()).map_err(io::Error::from)?);
            }
        }
        Err(io::Error::from(io::ErrorKind::TimedOut).into())
    }

    fn line(&mut self) -> io::Result<Value> {
        let mut line = Vec::new();
        if self.reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_slice(&line)?)
    }

    /// QEMU's run state, e.g. `running`, `prelaunch`, `shutdown`.
    ///
    /// # Errors
    /// As [`Qmp::execute`].
    pub fn status(&mut self) -> Result<String, QmpError> {
        let answer = self.execute(&QueryStatus {})?;
        Ok(answer.get("status").and_then(Value::as_str).unwrap_or("unknown").to_owned())
    }

    /// Lets a machine that was started with `-S` run.
    ///
    /// # Errors
    /// As [`Qmp::execute`].
    pub fn cont(&mut self) -> Result<(), QmpError> {
        self.execute(&Cont {}).map(drop)
    }

    /// Ends QEMU.
    ///
    /// # Errors
    /// As [`Qmp::execute`]. QEMU may be gone before its answer is out; that is no error.
    pub fn quit(&mut self) -> Result<(), QmpError> {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        match self.execute(&Quit {}) {
            Err(QmpError::Io { error })
                if [BrokenPipe, ConnectionReset, UnexpectedEof].contains(&error.kind()) =>
            {
                Ok(())
            }
            other => other.map(drop),
        }
    }

    /// What was announced since it was last asked for; waits for nothing.
    ///
    /// # Errors
    /// When QEMU ended, or says what is no JSON.
    pub fn announcements(&mut self) -> Result<Vec<Announcement>, QmpError> {
        while !self.reader.buffer().is_empty() || is_readable(self.as_fd())? {
            let said = self.line()?;
            self.announced.extend(announcement(&said));
        }
        Ok(self.announced.drain(..).collect())
    }

    /// Waits for an announcement with this name; earlier others are dropped.
    ///
    /// # Errors
    /// When the time is up, or QEMU ends first.
    pub fn wait_for(&mut self, name: &str) -> Result<Announcement, QmpError> {
        let deadline = Instant::now() + self.limit;
        while let Some(event) = self.announced.pop_front() {
            if event.name == name {
                return Ok(event);
            }
        }
        while Instant::now() < deadline {
            if let Some(event) = announcement(&self.line()?).filter(|e| e.name == name) {
                return Ok(event);
            }
        }
        Err(io::Error::from(io::ErrorKind::TimedOut).into())
    }
}

impl AsFd for Qmp {
    /// Readable when QEMU has something to say.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.get_ref().as_fd()
    }
}

fn announcement(message: &Value) -> Option<Announcement> {
    let name = message.get("event")?.as_str()?.to_owned();
    let time = |part: &str| message.get("timestamp")?.get(part)?.as_i64();
    let ns = |seconds: i64, micros: i64| seconds.checked_mul(1_000_000)?.checked_add(micros);
    let realtime_ns = time("seconds")
        .zip(time("microseconds"))
        .and_then(|(seconds, micros)| ns(seconds, micros)?.checked_mul(1000));
    Some(Announcement {
        name,
        data: message.get("data").cloned().unwrap_or(Value::Null),
        realtime_ns: realtime_ns.unwrap_or(0),
    })
}

fn is_readable(fd: BorrowedFd<'_>) -> io::Result<bool> {
    use rustix::event::{poll, PollFd, PollFlags, Timespec};
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&at_once))? > 0)
}

fn wait_readable(fd: &OwnedFd, deadline: Instant) -> io::Result<()> {
    use rustix::event::{poll, PollFd, PollFlags, Timespec};
    let left = deadline.saturating_duration_since(Instant::now());
    let left = Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(left.subsec_nanos()),
    };
    if poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&left))? > 0 {
        rustix::io::read(fd, &mut [0u8; 4096])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_peer_that_ends_or_talks_nonsense_is_an_error() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        drop(theirs);
        assert!(Qmp::greet(ours, Duration::from_secs(5)).is_err());
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        theirs.write_all(b"SSH-2.0-OpenSSH\n").expect("written");
        assert!(Qmp::greet(ours, Duration::from_secs(5)).is_err());
    }

    #[test]
    fn no_socket_is_said() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("qmp");
        let error = Qmp::connect(&path, Duration::from_millis(20)).err().expect("none is there");
        assert!(error.to_string().contains("no socket at"), "{error}");
    }
}
