//! The thread that is the VMM's parent, and waits for it.
//!
//! `PR_SET_PDEATHSIG` fires when the *thread* that cloned the child ends, and a
//! stop of a tracee cannot be polled for. One thread answers both: it clones the
//! child, then sleeps in `waitid` (without consuming) and turns every change of
//! state into an eventfd for the supervising thread, with the time it was seen.

use super::child::{Prepared, Report};
use super::wait::next_change;
use rustix::event::{eventfd, EventfdFlags};
use rustix::fd::OwnedFd;
use rustix::process::{waitid, Pid, WaitId, WaitIdOptions};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, Ordering};
use std::sync::mpsc::Receiver;

/// What the reaper and the supervisor share.
#[derive(Debug)]
pub struct Changes {
    /// Readable when the child's state changed.
    pub fd: OwnedFd,
    /// When it changed, `CLOCK_MONOTONIC` ns.
    pub at: AtomicI64,
    /// Whose state changed: the child, or another process of its group that is traced
    /// or was inherited.
    who: AtomicI32,
    /// True when the change is the child's end: a zombie until the supervisor reaps it.
    pub ended: AtomicBool,
    /// What the child says.
    pub report: Report,
}

impl Changes {
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            at: AtomicI64::new(0),
            who: AtomicI32::new(1),
            ended: AtomicBool::new(false),
            report: Report::default(),
        })
    }

    /// Whose state changed.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.who.load(Ordering::Relaxed)).unwrap_or(Pid::INIT)
    }

    /// Forgets the change that `fd` said.
    pub fn take(&self) {
        let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
    }
}

/// Body of the thread. Each change is announced once; the next one is waited for
/// after a message on `next`. Returns when the child is gone and reaped.
pub fn run(prepared: Prepared, changes: &Changes, next: &Receiver<()>) -> io::Result<()> {
    let pid = prepared.spawn(&changes.report)?;
    let Some(pid) = Pid::from_raw(pid) else { return Ok(()) };
    loop {
        let (who, ended) = match next_change(pid) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // Collected by the supervisor, which looks itself whether it is.
            Err(_) => return Ok(()),
            Ok(change) => change,
        };
        let at = super::types::now_ns();
        let ended = ended && who == pid.as_raw_nonzero().get();
        changes.at.store(at, Ordering::Relaxed);
        changes.who.store(who, Ordering::Relaxed);
        changes.ended.store(ended, Ordering::Release);
        let _ = rustix::io::write(&changes.fd, &1u64.to_ne_bytes());
        if next.recv().is_err() {
            // The supervisor is gone, as on an early failure: reap here.
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
            let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
            return Ok(());
        }
    }
}
