//! The point up to which a boot is measured, watched for while it runs.

use crate::stamped::Line;
use regex::Regex;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use vmeter_model::expression::compiled;
use vmeter_model::Ns;

/// Where the measurement of a boot ends (`--until`).
#[derive(Debug, Clone)]
pub enum Until {
    /// The VMM's exit, after the guest powered off.
    PowerOff,
    /// The first sign of user space on the console.
    Userspace,
    /// systemd says on the console that the machine is up: it has reached its target.
    SystemdReady,
    /// The guest tells its VMM that it has booted: Firecracker by its boot timer
    /// (`--boot-timer`), cloud-hypervisor by a code of user space at its debug port.
    GuestBooted,
    /// A console line that matches.
    Line(Regex),
}

/// systemd's words for what it boots to (units/multi-user.target, graphical.target; both names
/// of a unit, as `StatusUnitFormat=` chooses), and what it says when nothing is left to do
/// (manager_notify_finished in src/core/manager.c). It sends READY=1 to a VMM in that moment
/// (`vmm.notify_socket`, from systemd 253 on, by vsock alone).
const SYSTEMD_READY: &str = r"Reached target (multi-user\.target|graphical\.target|Multi-User System|Graphical Interface)|systemd\[1\]: Startup finished in ";

/// What a guest has to be told for its systemd to say so where its console is `quiet`.
pub const SYSTEMD_SAYS: &str = "systemd.show_status=1";

/// Signs of user space on a console: vmeter's own init, systemd, a login prompt,
/// the kernel naming its init.
const USERSPACE: &str =
    r"^vmeter: ready|Run \S+ as init process|systemd\[1\]: |Welcome to |login: ?$";

/// True for such a sign.
pub(crate) fn is_user_space(line: &str) -> bool {
    compiled(USERSPACE).is_some_and(|signs| signs.is_match(line))
}

/// What these VMMs print when they are told (Firecracker's
/// src/vmm/src/devices/pseudo/boot_timer.rs, on standard output; cloud-hypervisor's
/// devices/src/legacy/debug_port.rs, on standard error).
const BOOTED: &str = r"Guest-boot-time *= *[0-9]|\[Debug I/O port: Userspace code ";

pub use vmeter_model::machine::GUEST_BOOTED;

impl Until {
    /// Reads `userspace`, `poweroff`, `systemd-ready`, `guest-booted` or `line:REGEX`.
    ///
    /// # Errors
    /// A message that lists what is valid, or says what is wrong with the expression.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "poweroff" => Ok(Until::PowerOff),
            "userspace" => Ok(Until::Userspace),
            "systemd-ready" => Ok(Until::SystemdReady),
            GUEST_BOOTED => Ok(Until::GuestBooted),
            _ => match text.strip_prefix("line:") {
                Some(expression) => Regex::new(expression).map(Until::Line).map_err(|e| {
                    let all = e.to_string();
                    // The error draws the expression over several lines; its last says what.
                    let what = all.rsplit("error: ").next().unwrap_or_default().trim();
                    format!("--until {text}: {what}; expected a regular expression")
                }),
                None => Err(format!(
                    "--until {text}: expected userspace, poweroff, systemd-ready, guest-booted or \
                     line:REGEX"
                )),
            },
        }
    }

    /// The expression to look for on the console, if it is one that ends the run.
    pub fn pattern(&self) -> Option<Regex> {
        match self {
            Until::PowerOff => None,
            Until::Userspace => compiled(USERSPACE).cloned(),
            Until::SystemdReady => compiled(SYSTEMD_READY).cloned(),
            Until::GuestBooted => compiled(BOOTED).cloned(),
            Until::Line(regex) => Some(regex.clone()),
        }
    }
}

/// As `--until` has it.
impl fmt::Display for Until {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Until::PowerOff => f.write_str("poweroff"),
            Until::Userspace => f.write_str("userspace"),
            Until::SystemdReady => f.write_str("systemd-ready"),
            Until::GuestBooted => f.write_str(GUEST_BOOTED),
            Until::Line(regex) => write!(f, "line:{regex}"),
        }
    }
}

type Callback = Box<dyn FnOnce(Ns) + Send>;

/// Looks at console lines and calls back once, at the first that matches.
pub struct ConsoleWatch {
    pattern: Regex,
    state: Mutex<State>,
}

/// What ends a run at a line of which nobody knows who said it.
pub const WHOSE: &str = "a line, and vmeter does not know which VMM printed it";

struct State {
    reached: Option<(Ns, String)>,
    callback: Option<Callback>,
    /// What was seen after the match.
    since: u64,
    /// Others print there as well.
    is_doubted: bool,
    /// What to do at a match that may be another's.
    in_doubt: Option<Callback>,
}

impl ConsoleWatch {
    /// Watches for `pattern`; `callback` gets the stamp of the line.
    pub fn new(pattern: Regex, callback: Callback) -> Self {
        let state = State {
            reached: None,
            callback: Some(callback),
            since: 0,
            is_doubted: false,
            in_doubt: None,
        };
        ConsoleWatch { pattern, state: Mutex::new(state) }
    }

    /// The same, with what to do at a match that may be another guest's ([`Self::doubt`]).
    pub fn or_in_doubt(self, in_doubt: Callback) -> Self {
        self.lock().in_doubt = Some(in_doubt);
        self
    }

    /// Another VMM prints to the same console from now on: whose a line is is not known.
    pub fn doubt(&self) {
        self.lock().is_doubted = true;
    }

    /// As [`ConsoleWatch::new`], but it calls back only once the console was silent for so
    /// long after the match; what comes later is waited for again.
    pub fn once_silent(pattern: Regex, silent_for: Duration, callback: Callback) -> Arc<Self> {
        Arc::new_cyclic(|own: &Weak<Self>| {
            let own = own.clone();
            let wait = move |at| {
                let waiter = std::thread::Builder::new().name("silence".into());
                // Without a thread a guest that hangs is ended by the timeout.
                let _ = waiter.spawn(move || wait_for_silence(&own, silent_for, at, callback));
            };
            Self::new(pattern, Box::new(wait))
        })
    }

    /// Looks at a line, or at what has arrived of it. What matches has the time of its own first
    /// character, which may have come long after its line's (behind a prompt).
    pub fn see(&self, line: &Line) {
        let mut state = self.lock();
        state.since += 1;
        if state.reached.is_some() {
            return;
        }
        let Some(found) = self.pattern.find(&line.text) else { return };
        let at = line.at(found.start());
        if state.is_doubted {
            let in_doubt = state.in_doubt.take();
            drop(state);
            return in_doubt.into_iter().for_each(|call| call(at));
        }
        state.reached = Some((at, line.text.clone()));
        let callback = state.callback.take();
        drop(state);
        if let Some(callback) = callback {
            callback(at);
        }
    }

    /// When the match came, `CLOCK_MONOTONIC` ns, and what had arrived of its line.
    pub fn reached(&self) -> Option<(Ns, String)> {
        self.lock().reached.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Calls back when a watch has seen nothing for so long; gives up with the watch.
fn wait_for_silence(watch: &Weak<ConsoleWatch>, silent_for: Duration, at: Ns, callback: Callback) {
    let seen = || Some(watch.upgrade()?.lock().since);
    let mut before = seen();
    loop {
        std::thread::sleep(silent_for);
        match seen() {
            None => return,
            now if now == before => return callback(at),
            now => before = now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicI64, Ordering};

    #[test]
    fn the_first_match_calls_back_once() {
        let sum = Arc::new(AtomicI64::new(0));
        let seen = sum.clone();
        let pattern = Until::parse("line:log[i]n:").unwrap().pattern().unwrap();
        let watch = ConsoleWatch::new(
            pattern,
            Box::new(move |at| {
                seen.fetch_add(at, Ordering::Relaxed);
            }),
        );
        let see = |start: Ns, text: &str, later: &[(u32, Ns)]| {
            let (text, later) = (text.to_owned(), later.to_vec());
            watch.see(&Line { start, end: start, text, later });
        };
        see(0, "booting", &[]);
        see(1, "host login:", &[(5, 2)]);
        see(3, "host login:", &[]);
        assert_eq!(
            (watch.reached(), sum.load(Ordering::Relaxed)),
            (Some((2, "host login:".into())), 2)
        );
    }

    #[test]
    fn a_line_that_may_be_anothers_is_no_ready_point() {
        let (ready, doubt) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
        let call = |count: &Arc<AtomicI64>| -> Callback {
            let count = count.clone();
            Box::new(move |_| {
                count.fetch_add(1, Ordering::Relaxed);
            })
        };
        let watch = ConsoleWatch::new(Regex::new("ready").unwrap(), call(&ready));
        let watch = watch.or_in_doubt(call(&doubt));
        watch.doubt();
        for _ in 0..2 {
            watch.see(&Line { start: 1, end: 1, text: "ready".into(), later: Vec::new() });
        }
        let counts = (ready.load(Ordering::Relaxed), doubt.load(Ordering::Relaxed));
        assert_eq!((counts, watch.reached()), ((0, 1), None));
    }

    #[test]
    fn systemd_is_ready_at_its_own_words() {
        let until = Until::parse("systemd-ready").unwrap();
        let pattern = until.pattern().unwrap();
        for line in [
            "[  OK  ] Reached target multi-user.target - Multi-User System.",
            "[  OK  ] Reached target Multi-User System.",
            "[    9.1] systemd[1]: Reached target graphical.target - Graphical Interface.",
            "[    9.2] systemd[1]: Startup finished in 2.1s (kernel) + 3.1s (userspace) = 5.2s.",
        ] {
            assert!(pattern.is_match(line), "{line}");
        }
        for line in ["[  OK  ] Reached target basic.target - Basic System.", "login: "] {
            assert!(!pattern.is_match(line), "{line}");
        }
        assert_eq!(until.to_string(), "systemd-ready");
    }

    #[test]
    fn what_vmms_print_when_a_guest_says_that_it_has_booted() {
        let until = Until::parse(GUEST_BOOTED).unwrap();
        let pattern = until.pattern().unwrap();
        for (line, says) in [
            (
                "2026-11-23T00:00:00.1 [i:fc_vcpu 0] Guest-boot-time =  99102 us 99 ms,  9 CPU us",
                true,
            ),
            (
                "cloud-hypervisor: 1.2s: WARN:<vcpu0> -- [Debug I/O port: Userspace code 0x60] 1.2",
                true,
            ),
            (
                "cloud-hypervisor: 1.2s: WARN:<vcpu0> -- [Debug I/O port: Kernel code 0x41] 1.2",
                false,
            ),
            ("boot-time = 5", false),
        ] {
            assert_eq!(pattern.is_match(line), says, "{line}");
        }
        assert_eq!(until.to_string(), "guest-booted");
    }

    #[test]
    fn what_is_not_valid_is_refused_with_what_is() {
        assert!(Until::parse("ready").unwrap_err().contains("line:REGEX"));
        assert!(Until::parse("line:(").unwrap_err().contains("--until line:("));
        assert!(Until::parse("userspace").unwrap().pattern().unwrap().is_match("vmeter: ready"));
    }
}
