//! A thread that does what the vCPU's thread asks it for, as QEMU's I/O threads do.
//!
//! One eventfd carries the request, one the answer, so each command is a wake-up
//! there and one back.

use crate::faults::Fault;
use rustix::event::{eventfd, EventfdFlags};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

struct Channel {
    request: OwnedFd,
    answer: OwnedFd,
}

/// What is written to say that there is no further command.
const END: u64 = 1 << 32;
const DONE: u64 = 1;
const FAILED: u64 = 2;

/// A running worker.
pub(crate) struct Worker {
    channel: Arc<Channel>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Worker {
    pub fn start(mut fault: Fault) -> io::Result<Worker> {
        let channel = Arc::new(Channel {
            request: eventfd(0, EventfdFlags::CLOEXEC)?,
            answer: eventfd(0, EventfdFlags::CLOEXEC)?,
        });
        let own = channel.clone();
        let thread = std::thread::Builder::new().name("worker".into()).spawn(move || {
            while take(&own.request)? < END {
                let done = fault.command();
                give(&own.answer, if done.is_ok() { DONE } else { FAILED })?;
                done?;
            }
            Ok(())
        })?;
        Ok(Worker { channel, thread: Some(thread) })
    }

    pub fn command(&mut self) -> io::Result<()> {
        give(&self.channel.request, 1)?;
        match take(&self.channel.answer)? {
            DONE => Ok(()),
            _ => self.end(),
        }
    }

    fn end(&mut self) -> io::Result<()> {
        give(&self.channel.request, END)?;
        let thread = self.thread.take().map(JoinHandle::join);
        thread.unwrap_or(Ok(Ok(()))).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.thread.is_some() {
            // The run is over; an error of its last command has been reported by it.
            let _ = self.end();
        }
    }
}

fn take(fd: &OwnedFd) -> io::Result<u64> {
    let mut value = [0; 8];
    rustix::io::read(fd, &mut value)?;
    Ok(u64::from_ne_bytes(value))
}

fn give(fd: &OwnedFd, value: u64) -> io::Result<()> {
    Ok(rustix::io::write(fd, &value.to_ne_bytes()).map(drop)?)
}
