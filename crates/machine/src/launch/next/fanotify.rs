//! fanotify(7): the kernel tells of each exec of a file that is marked, as soon as the file is opened for it.
//! It only tells (`FAN_OPEN_EXEC`): nothing waits for an answer, so nobody's VMM is held, even if vmeter is stopped.

use super::{Heard, Reading, Source};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use vmeter_model::Ns;

/// From the open of the file to the news of it, ns, where its reader gets a CPU at once: 0.05 to 0.3 ms.
const TOLD_NS: Ns = 300_000;

/// The news of some files.
#[derive(Debug)]
pub(super) struct Marked(File);

impl Marked {
    /// Has the kernel tell of each exec of these files.
    ///
    /// # Errors
    /// Without `CAP_SYS_ADMIN`, or where a file can't be marked.
    pub fn of(files: &[PathBuf]) -> io::Result<Self> {
        let flags = libc::FAN_CLASS_NOTIF | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK;
        let for_events = (libc::O_RDONLY | libc::O_CLOEXEC) as libc::c_uint;
        // SAFETY: two numbers go in, a descriptor or -1 comes back.
        let fd = unsafe { libc::fanotify_init(flags, for_events) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        let news = unsafe { OwnedFd::from_raw_fd(fd) };
        for file in files {
            let path = CString::new(file.as_os_str().as_bytes())?;
            let (add, mask) = (libc::FAN_MARK_ADD, libc::FAN_OPEN_EXEC);
            // SAFETY: the path is a string that ends in 0 and lives until the call returns.
            let done = unsafe { libc::fanotify_mark(fd, add, mask, libc::AT_FDCWD, path.as_ptr()) };
            if done < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Marked(File::from(news)))
    }
}

impl Source for Marked {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn read(&mut self, reading: Reading) -> io::Result<Vec<Heard>> {
        let mut bytes = [0; 4096];
        let length = match self.0.read(&mut bytes) {
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        let error_ns = reading.late_ns + TOLD_NS;
        let heard = |pid| Heard {
            pid,
            exec_ns: reading.now_ns,
            error_ns,
            how: "the kernel reported the start of the VMM's execve (fanotify)",
            is_through: false,
        };
        Ok(events(&bytes[..length]).into_iter().map(heard).collect())
    }
}

/// The processes of events (`struct fanotify_event_metadata`), whose descriptors are closed.
fn events(mut bytes: &[u8]) -> Vec<i32> {
    const FD: usize = 16;
    const PID: usize = 20;
    let number = |bytes: &[u8], at: usize| {
        bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map(i32::from_ne_bytes)
    };
    let mut pids = Vec::new();
    while let (Some(length), Some(fd), Some(pid)) =
        (number(bytes, 0), number(bytes, FD), number(bytes, PID))
    {
        if fd >= 0 {
            // SAFETY: the kernel opened it for this event, and nobody else knows it.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        pids.push(pid);
        let length = usize::try_from(length).unwrap_or(0);
        bytes = bytes.get(length.max(PID + 4)..).unwrap_or(&[]);
    }
    pids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_one_after_the_other_and_a_torn_one_is_none() {
        let event = |pid: i32| {
            let mut bytes = vec![0; 24];
            bytes[..4].copy_from_slice(&24i32.to_ne_bytes());
            bytes[16..20].copy_from_slice(&(-1i32).to_ne_bytes());
            bytes[20..].copy_from_slice(&pid.to_ne_bytes());
            bytes
        };
        let mut bytes = event(7);
        bytes.extend(event(8));
        assert_eq!(events(&bytes), [7, 8]);
        assert_eq!(events(&bytes[..40]), [7]);
        bytes[..4].fill(0);
        assert_eq!(
            events(&bytes),
            [7, 8],
            "an event that has no length ends where the next begins"
        );
    }
}
