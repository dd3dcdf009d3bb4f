//! The guest that is to be saved: when it is ready, and how often it says so.
//!
//! A guest that prints its line once a period answers up to that much later than it could.

use super::saved_machine::{wrong, Making};
use anyhow::Result;
use regex::Regex;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use vmeter_migrate::Process;
use vmeter_model::time::seconds;
use vmeter_model::Ns;
use vmeter_record::clock;
use vmeter_session::failure::{failure, Class};
use vmeter_session::Interrupt;

/// How much of a console is searched for the ready point, bytes.
const TAIL: usize = 64 << 10;
/// For so many further lines, or so long, it is listened how often they come.
const AGAIN: usize = 10;
const LISTEN: Duration = Duration::from_secs(2);

/// What a guest said that is ready.
#[derive(Debug)]
pub(super) struct Heard {
    /// When the line came, ns of `CLOCK_MONOTONIC`.
    pub at: Ns,
    /// The line.
    pub line: String,
    /// Mean time from one such line to the next, s, if it came again.
    pub period_s: Option<f64>,
}

/// Waits for the line of the ready point, and listens for how often it comes.
pub(super) fn wait(
    process: &mut Process,
    serial: UnixStream,
    making: &Making<'_>,
    interrupt: &Interrupt,
) -> Result<Heard> {
    let mut console = Console { serial, tail: Vec::new() };
    let deadline = Instant::now() + making.timeout;
    let (at, line) = loop {
        if let Some(found) = console.hear(process, making, interrupt)? {
            break found;
        }
        if Instant::now() >= deadline {
            let why = format!(
                "its guest was not ready within {} s (--timeout); {}",
                making.timeout.as_secs(),
                console.last()
            );
            return Err(wrong(making.saved.method, &why));
        }
    };
    let until = Instant::now() + LISTEN;
    let mut again = Vec::new();
    while again.len() < AGAIN && Instant::now() < until {
        again.extend(console.hear(process, making, interrupt)?.map(|(at, _)| at));
    }
    let period_s = again.last().map(|last| seconds(last - at) / again.len() as f64);
    // Nobody listens from here on, and it must not wait for that.
    std::thread::spawn(move || {
        let mut chunk = [0u8; 4096];
        while console.serial.read(&mut chunk).is_ok_and(|n| n > 0) {}
    });
    Ok(Heard { at, line, period_s })
}

struct Console {
    serial: UnixStream,
    /// What was printed and not found to be the line.
    tail: Vec<u8>,
}

impl Console {
    /// The line, if it is there or comes soon.
    fn hear(
        &mut self,
        process: &mut Process,
        making: &Making<'_>,
        interrupt: &Interrupt,
    ) -> Result<Option<(Ns, String)>> {
        if interrupt.is_raised() {
            return Err(failure(Class::Interrupted, "interrupted"));
        }
        if let Some(line) = self.take(making.until) {
            return Ok(Some((clock::monotonic(), line)));
        }
        let step = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        // An interrupted wait is a shorter one.
        let readable = poll(&mut [PollFd::new(&self.serial, PollFlags::IN)], Some(&step));
        let mut chunk = [0u8; 4096];
        let count = match readable {
            Ok(n) if n > 0 => self.serial.read(&mut chunk).unwrap_or(0),
            _ => 0,
        };
        let at = clock::monotonic();
        self.tail.extend_from_slice(&chunk[..count]);
        let from = self.tail.len().saturating_sub(TAIL);
        self.tail.drain(..from);
        if let Some(line) = self.take(making.until) {
            return Ok(Some((at, line)));
        }
        if let Some(status) = process.ended() {
            let why =
                format!("the VMM ended ({status}) before its guest was saved{}", process.said());
            return Err(wrong(making.saved.method, &why));
        }
        Ok(None)
    }

    /// Takes all up to the first line that is one.
    fn take(&mut self, until: &Regex) -> Option<String> {
        let mut end = 0;
        for line in self.tail.split_inclusive(|byte| *byte == b'\n') {
            end += line.len();
            let text = String::from_utf8_lossy(line);
            let text = text.trim_end_matches(['\n', '\r']);
            if until.is_match(text) {
                let found = text.to_owned();
                self.tail.drain(..end);
                return Some(found);
            }
        }
        None
    }

    fn last(&self) -> String {
        let text = String::from_utf8_lossy(&self.tail);
        let line = text.lines().next_back().map(|line| line.chars().take(120).collect::<String>());
        let mute = "it printed nothing: is its console on standard output?";
        line.map_or_else(|| mute.to_owned(), |line| format!("its last line is {line:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_with_all_that_came_before_it() {
        let (serial, _other) = UnixStream::pair().expect("a pair");
        let tail = b"boot\r\ntick 1\r\ntick 2\r\nti".to_vec();
        let mut console = Console { serial, tail };
        let until = Regex::new("tick [0-9]+").expect("valid");
        assert_eq!(console.take(&until).as_deref(), Some("tick 1"));
        assert_eq!(console.take(&until).as_deref(), Some("tick 2"));
        assert_eq!(console.take(&until), None);
        assert!(console.last().contains("ti"), "{}", console.last());
    }
}
