//! Ending a run early, from any thread.

use super::types::{now_ns, Reason};
use rustix::event::{eventfd, EventfdFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use vmeter_model::Ns;

/// Asks the launcher to end its run. Clones ask for the same run; the first
/// request counts, later ones are ignored. A request made before the launch ends
/// the run as soon as it begins.
#[derive(Debug, Clone)]
pub struct Stopper(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    wake: OwnedFd,
    request: Mutex<Option<(Reason, Ns)>>,
}

impl Stopper {
    /// A handle for one run.
    ///
    /// # Errors
    /// When no eventfd can be had (descriptors exhausted).
    pub fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(Shared { wake, request: Mutex::new(None) })))
    }

    /// Ends the run now.
    pub fn stop(&self, reason: Reason) {
        self.stop_at(reason, now_ns());
    }

    /// Ends the run for something that happened at `at`, `CLOCK_MONOTONIC` ns: the
    /// arrival of the line that says "ready" is earlier than its recognition.
    pub fn stop_at(&self, reason: Reason, at: Ns) {
        let mut request = self.0.request.lock().unwrap_or_else(PoisonError::into_inner);
        if request.is_none() {
            *request = Some((reason, at));
            // The counter of an eventfd cannot overflow by one write.
            let _ = rustix::io::write(&self.0.wake, &1u64.to_ne_bytes());
        }
    }

    /// The first request, if there was one.
    pub fn requested(&self) -> Option<(Reason, Ns)> {
        self.0.request.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Readable from the first request on.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.wake.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_request_counts() {
        let a = Stopper::new().expect("an eventfd");
        let b = a.clone();
        assert_eq!(a.requested(), None);
        b.stop_at(Reason::ReadyPoint, 5);
        a.stop_at(Reason::TimedOut, 6);
        assert_eq!(a.requested(), Some((Reason::ReadyPoint, 5)));
    }
}
