//! The point up to which a boot is measured, watched for while it runs.

use regex::Regex;
use std::sync::Mutex;
use vmeter_model::Ns;

/// Where the measurement of a boot ends (`--until`).
#[derive(Debug, Clone)]
pub enum Until {
    /// The VMM's exit, after the guest powered off.
    PowerOff,
    /// The first sign of user space on the console.
    Userspace,
    /// A console line that matches.
    Line(Regex),
}

/// Signs of user space on a console: vmeter's own init, systemd, a login prompt,
/// the kernel naming its init.
const USERSPACE: &str =
    r"^vmeter: ready|Run \S+ as init process|systemd\[1\]: |Welcome to |login: ?$";

impl Until {
    /// Reads `userspace`, `poweroff` or `line:REGEX`.
    ///
    /// # Errors
    /// A message that lists what is valid, or says what is wrong with the expression.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "poweroff" => Ok(Until::PowerOff),
            "userspace" => Ok(Until::Userspace),
            _ => match text.strip_prefix("line:") {
                Some(expression) => Regex::new(expression)
                    .map(Until::Line)
                    .map_err(|e| format!("--until {text}: {e}")),
                None => Err(format!(
                    "--until {text}: expected userspace, poweroff or line:REGEX"
                )),
            },
        }
    }

    /// The expression to look for on the console, if it is one that ends the run.
    pub fn pattern(&self) -> Option<Regex> {
        match self {
            Until::PowerOff => None,
            Until::Userspace => Regex::new(USERSPACE).ok(),
            Until::Line(regex) => Some(regex.clone()),
        }
    }
}

/// Looks at console lines and calls back once, at the first that matches.
pub struct ReadyWatch {
    pattern: Regex,
    reached: Mutex<Reached>,
}

type Callback = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Reached {
    at: Option<Ns>,
    callback: Option<Callback>,
}

impl std::fmt::Debug for ReadyWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadyWatch")
            .field("pattern", &self.pattern)
            .finish_non_exhaustive()
    }
}

impl ReadyWatch {
    /// Watches for `pattern`.
    pub fn new(pattern: Regex) -> Self {
        ReadyWatch {
            pattern,
            reached: Mutex::default(),
        }
    }

    /// Says what to do at the match; done at once if it has come already.
    pub fn on_reached(&self, callback: Callback) {
        let mut reached = self.lock();
        if reached.at.is_some() {
            drop(reached);
            callback();
        } else {
            reached.callback = Some(callback);
        }
    }

    /// Looks at a line that began to arrive at `at`.
    pub fn see(&self, at: Ns, line: &str) {
        if !self.pattern.is_match(line) {
            return;
        }
        let mut reached = self.lock();
        if reached.at.is_none() {
            reached.at = Some(at);
            let callback = reached.callback.take();
            drop(reached);
            if let Some(callback) = callback {
                callback();
            }
        }
    }

    /// When the match came, `CLOCK_MONOTONIC` ns.
    pub fn reached(&self) -> Option<Ns> {
        self.lock().at
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Reached> {
        self.reached
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::Arc;

    #[test]
    fn the_first_match_calls_back_once() {
        let watch = ReadyWatch::new(Until::parse("line:log[i]n:").unwrap().pattern().unwrap());
        let calls = Arc::new(AtomicUsize::new(0));
        let seen = calls.clone();
        watch.on_reached(Box::new(move || {
            seen.fetch_add(1, Ordering::Relaxed);
        }));
        watch.see(1, "booting");
        watch.see(2, "host login:");
        watch.see(3, "host login:");
        assert_eq!(
            (watch.reached(), calls.load(Ordering::Relaxed)),
            (Some(2), 1)
        );
    }

    #[test]
    fn what_is_not_valid_is_refused_with_what_is() {
        assert!(Until::parse("ready").unwrap_err().contains("line:REGEX"));
        assert!(Until::parse("line:(")
            .unwrap_err()
            .contains("--until line:("));
        assert!(Until::parse("userspace")
            .unwrap()
            .pattern()
            .unwrap()
            .is_match("vmeter: ready"));
    }
}
