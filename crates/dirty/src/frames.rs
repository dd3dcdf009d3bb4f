//! The rhythm of a screen.

use crate::DirtyError;
use rustix::time::{
    timerfd_create, timerfd_settime, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags,
    Timespec,
};
use std::os::fd::OwnedFd;

/// Frames at a rate.
#[derive(Debug)]
pub(crate) struct Frames(OwnedFd);

impl Frames {
    pub(crate) fn new(hz: u32) -> Result<Self, DirtyError> {
        let failed = |step| {
            move |errno: rustix::io::Errno| DirtyError::System { step, source: errno.into() }
        };
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)
            .map_err(failed("timerfd_create"))?;
        let ns = 1_000_000_000 / i64::from(hz.max(1));
        let period = Timespec { tv_sec: ns / 1_000_000_000, tv_nsec: ns % 1_000_000_000 };
        let times = Itimerspec { it_interval: period, it_value: period };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &times)
            .map_err(failed("timerfd_settime"))?;
        Ok(Self(timer))
    }

    /// Until the next frame; at once if that has begun.
    pub(crate) fn wait(&self) -> Result<(), DirtyError> {
        let mut count = [0; 8];
        let read = rustix::io::retry_on_intr(|| rustix::io::read(&self.0, &mut count));
        read.map(drop)
            .map_err(|errno| DirtyError::System { step: "reading a timerfd", source: errno.into() })
    }
}
