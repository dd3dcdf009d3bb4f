//! Listening to the guest on both sides at once.
//!
//! A thread of its own: what it stamps must not wait for a monitor that does not answer,
//! which is what monitors do while QEMU switches over.

use crate::beat::{Beat, Kind, Parser};
use crate::error::MigrateError;
use crate::side::Side;
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags};
use rustix::fd::OwnedFd;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vmeter_machine::launch::now_ns;

/// Heartbeats kept of a side: three hours of them.
const LIMIT: usize = 10_000_000;
/// How often a wait looks whether it is to be given up.
const LOOK: Duration = Duration::from_millis(50);

/// Everything heard so far.
#[derive(Debug, Default)]
pub struct Heard {
    source: Vec<Beat>,
    destination: Vec<Beat>,
}

impl Heard {
    /// Of one side, in order of arrival.
    pub fn of(&self, side: Side) -> &[Beat] {
        match side {
            Side::Source => &self.source,
            Side::Destination => &self.destination,
        }
    }

    fn of_mut(&mut self, side: Side) -> &mut Vec<Beat> {
        match side {
            Side::Source => &mut self.source,
            Side::Destination => &mut self.destination,
        }
    }

    /// The frame with which the guest of a side halted.
    pub fn halted(&self, side: Side) -> Option<Beat> {
        self.of(side).iter().rev().find(|beat| beat.kind == Kind::Halted).copied()
    }
}

struct Shared {
    heard: Mutex<Heard>,
    news: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The listener.
pub struct Heart {
    shared: Arc<Shared>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    lines: [UnixStream; 2],
}

impl Heart {
    /// Listens to our ends of the two serial ports.
    ///
    /// # Errors
    /// When descriptors or threads are exhausted.
    pub fn listen(source: UnixStream, destination: UnixStream) -> Result<Self, MigrateError> {
        let start = || -> io::Result<Self> {
            let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
            let shared = Arc::new(Shared { heard: Mutex::default(), news: Condvar::new() });
            let lines = [source.try_clone()?, destination.try_clone()?];
            let (thread_shared, thread_stop) = (shared.clone(), stop.clone());
            let thread = std::thread::Builder::new()
                .name("heartbeats".into())
                .spawn(move || hear([source, destination], &thread_stop, &thread_shared))?;
            Ok(Self { shared, stop, thread: Some(thread), lines })
        };
        start().map_err(MigrateError::io("listening to the guest"))
    }

    /// Tells the guest of a side to stop once it has written so many pages.
    ///
    /// # Errors
    /// When its QEMU is gone.
    pub fn stop_guest(&mut self, side: Side, pages: u64) -> Result<(), MigrateError> {
        let line = match side {
            Side::Source => &mut self.lines[0],
            Side::Destination => &mut self.lines[1],
        };
        line.write_all(&pages.to_le_bytes()).map_err(MigrateError::io("talking to the guest"))
    }

    /// What was heard, read by `look`.
    pub fn look<T>(&self, look: impl FnOnce(&Heard) -> T) -> T {
        look(&self.shared.lock())
    }

    /// Waits until `look` finds something; none when the time is up or `give_up` says so.
    pub fn wait<T>(
        &self,
        limit: Duration,
        mut give_up: impl FnMut() -> bool,
        mut look: impl FnMut(&Heard) -> Option<T>,
    ) -> Option<T> {
        let deadline = Instant::now() + limit;
        let mut heard = self.shared.lock();
        loop {
            if let Some(found) = look(&heard) {
                return Some(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || give_up() {
                return None;
            }
            heard = match self.shared.news.wait_timeout(heard, left.min(LOOK)) {
                Ok((heard, _)) => heard,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        // The counter of an eventfd cannot overflow by one write.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn hear(lines: [UnixStream; 2], stop: &OwnedFd, shared: &Shared) {
    let [source, destination] = lines;
    let mut open = vec![
        (Side::Source, source, Parser::default()),
        (Side::Destination, destination, Parser::default()),
    ];
    while !open.is_empty() {
        let mut polled: Vec<PollFd<'_>> =
            open.iter().map(|(_, line, _)| PollFd::new(line, PollFlags::IN)).collect();
        polled.push(PollFd::new(stop, PollFlags::IN));
        match poll(&mut polled, None) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
            Ok(_) => {}
        }
        let mut ready = polled.iter().map(|p| !p.revents().is_empty()).collect::<Vec<_>>();
        if ready.pop() == Some(true) {
            return;
        }
        let mut ready = ready.into_iter();
        open.retain_mut(|(side, line, parser)| {
            ready.next() != Some(true) || take(*side, line, parser, shared)
        });
    }
}

/// Reads what has arrived; false at the end of the line.
fn take(side: Side, line: &mut UnixStream, parser: &mut Parser, shared: &Shared) -> bool {
    let mut buffer = [0u8; 4096];
    let count = match line.read(&mut buffer) {
        Ok(0) | Err(_) => return false,
        Ok(count) => count,
    };
    let beats = parser.push(&buffer[..count], now_ns());
    if !beats.is_empty() {
        let mut heard = shared.lock();
        let kept = heard.of_mut(side);
        let room = LIMIT.saturating_sub(kept.len());
        kept.extend(beats.into_iter().take(room));
        drop(heard);
        shared.news.notify_all();
    }
    true
}
