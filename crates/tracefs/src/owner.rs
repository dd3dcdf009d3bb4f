//! The process that an instance belongs to, by the instance's name.
//!
//! `vmeter-PID-STARTED-N`: the process, when it started (clock ticks after boot,
//! field 22 of `/proc/PID/stat`, so that a process id used again is told apart),
//! and the number of the instance in it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

const PREFIX: &str = "vmeter-";
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The owner of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    pid: u32,
    started: u64,
    number: u64,
}

impl Owner {
    /// This process, with a number not used before.
    pub fn this() -> Self {
        let pid = std::process::id();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Owner { pid, started: started(pid).unwrap_or(0), number }
    }

    /// The owner that a name tells of; none for instances of other programs.
    pub fn parse(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix(PREFIX)?.split('-');
        let owner = Owner {
            pid: parts.next()?.parse().ok()?,
            started: parts.next()?.parse().ok()?,
            number: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(owner)
    }

    /// True while the process runs.
    pub fn is_alive(&self) -> bool {
        started(self.pid) == Some(self.started)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}-{}-{}", self.pid, self.started, self.number)
    }
}

/// When a process started, clock ticks after boot; none if it is gone or a zombie.
fn started(pid: u32) -> Option<u64> {
    started_in(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The command's name, in parentheses, may itself hold parentheses and spaces.
fn started_in(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?;
    let started = fields.nth(18)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(started)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_tell_their_owner() {
        let owner = Owner::this();
        assert_eq!(Owner::parse(&owner.to_string()), Some(owner));
        assert!(owner.is_alive());
        let reused = Owner { started: owner.started + 1, ..owner };
        assert!(!reused.is_alive(), "another process of the same id");
        assert_ne!(Owner::this(), owner);
        for other in ["vmeter-1", "vmeter-1-2-3-4", "vmeter-x-1-2", "trace-cmd", ""] {
            assert_eq!(Owner::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_zombie_is_gone() {
        let of = |state: &str| format!("7 (a) b) {state} {}99 0", "1 ".repeat(18));
        assert_eq!(started_in(&of("S")), Some(99));
        assert_eq!(started_in(&of("Z")), None);
    }

    proptest! {
        #[test]
        fn nothing_panics(name in "\\PC*", stat in "[0-9]{0,3} ?\\(?[ -~]{0,60}\\)?[ 0-9SZ-]{0,60}") {
            let _ = Owner::parse(&name);
            let _ = started_in(&stat);
        }
    }
}
