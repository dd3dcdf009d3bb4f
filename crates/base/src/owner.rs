//! The vmeter process that something belongs to, by the thing's name or its environment.
//!
//! `vmeter-PID-STARTED-N`: the process, when it started (clock ticks after boot,
//! field 22 of `/proc/PID/stat`, so that a process id used again is told apart),
//! and the number of the thing in it. Instances of tracefs, temporary folders and processes
//! carry it, so that whoever comes after a vmeter that was killed knows what is whose.

use crate::process::Stat;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const PREFIX: &str = "vmeter-";
/// An environment that is empty for so long is: the kernel places one in less, even without a CPU meanwhile.
const PLACING: Duration = Duration::from_millis(20);
/// An execve(2) may read a program from a slow disk.
const EXECUTING: Duration = Duration::from_secs(1);
/// The variable in the environment of each process that vmeter starts.
pub const VARIABLE: &str = "VMETER_LAUNCH";
static NEXT: AtomicU64 = AtomicU64::new(0);
static BEFORE: OnceLock<fn()> = OnceLock::new();

/// The owner of something, and its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    pid: u32,
    started: u64,
    number: u64,
}

/// Calls `f` whenever something is about to be named after this process: who clears up after
/// it must be there before. Only the first call of this function counts.
pub fn before_each(f: fn()) {
    // A second one is the same program's mistake at worst, and harmless.
    let _ = BEFORE.set(f);
}

impl Owner {
    /// This process, with a number not used before.
    pub fn this() -> Self {
        if let Some(before) = BEFORE.get() {
            before();
        }
        Self::numbered()
    }

    /// This process, with a number not used before, of something that is there for a moment.
    pub fn numbered() -> Self {
        Owner { number: NEXT.fetch_add(1, Ordering::Relaxed), ..Self::process() }
    }

    /// This process, for comparisons.
    pub fn process() -> Self {
        let started = Stat::own().map_or(0, |stat| stat.started);
        Owner { pid: std::process::id(), started, number: 0 }
    }

    /// The owner that a name tells of; none for what other programs made.
    pub fn parse(name: &str) -> Option<Self> {
        let (owner, rest) = Self::leading(name)?;
        rest.is_empty().then_some(owner)
    }

    /// The owner that is told of somewhere in a name, as in `.vmeter-1-2-3-x7aw.partial`.
    pub fn within(name: &str) -> Option<Self> {
        name.match_indices(PREFIX).find_map(|(at, _)| Some(Self::leading(&name[at..])?.0))
    }

    /// The owner at the start of a text, and what follows it.
    fn leading(text: &str) -> Option<(Self, &str)> {
        let rest = text.strip_prefix(PREFIX)?;
        let (pid, rest) = rest.split_once('-')?;
        let (started, rest) = rest.split_once('-')?;
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, rest) = rest.split_at(end);
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        (digits(pid) && digits(started)).then_some(())?;
        let (pid, started) = (pid.parse().ok()?, started.parse().ok()?);
        Some((Owner { pid, started, number: number.parse().ok()? }, rest))
    }

    /// The owner of a process: who started it, or one of those that it comes from. None of one
    /// that has left the session in which vmeter started it: a daemon is nobody's.
    pub fn of_process(pid: i32) -> Option<Self> {
        let (owner, session) = Self::in_environment(&environment_of(pid)?)?;
        let now = Stat::of(pid).map(|stat| stat.session);
        (session.is_none() || now == session).then_some(owner)
    }

    /// As [`Self::of_process`], of one that has left its session too.
    pub fn marked(pid: i32) -> Option<Self> {
        Some(Self::in_environment(&environment_of(pid)?)?.0)
    }

    /// The mark of what is started in a session: the value of [`VARIABLE`]. The session's number
    /// has ten digits, so that who begins a session can write its own over it.
    pub fn mark(&self, session: i32) -> String {
        format!("{self}:{session:010}")
    }

    /// As [`Self::mark`], in this process's own session.
    pub fn mark_here(&self) -> String {
        self.mark(Stat::own().map_or(0, |stat| stat.session))
    }

    /// The owner, and the session where a mark has one.
    fn in_environment(environment: &[u8]) -> Option<(Self, Option<i32>)> {
        environment.split(|byte| *byte == 0).find_map(|entry| {
            let (name, value) = std::str::from_utf8(entry).ok()?.split_once('=')?;
            let value = Some(value).filter(|_| name == VARIABLE)?;
            match value.split_once(':') {
                Some((owner, session)) => Some((Self::parse(owner)?, Some(session.parse().ok()?))),
                None => Some((Self::parse(value)?, None)),
            }
        })
    }

    /// True if both are of one process.
    pub fn is_same_process(&self, other: &Owner) -> bool {
        (self.pid, self.started) == (other.pid, other.started)
    }

    /// True while the process runs.
    pub fn is_alive(&self) -> bool {
        let stat = i32::try_from(self.pid).ok().and_then(Stat::of);
        stat.is_some_and(|stat| stat.started == self.started && !stat.is_gone())
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}-{}-{}", self.pid, self.started, self.number)
    }
}

/// The environment that a process was started with; none if it is gone, or not to be read by us.
///
/// In the middle of execve(2) a process has none: that is waited for, a second at most. One that
/// is cut off by an execve(2) while it is read is read again.
pub fn environment_of(pid: i32) -> Option<Vec<u8>> {
    let until = Instant::now() + EXECUTING;
    let mut none_at = (0, Instant::now());
    loop {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        let stat = Stat::of(pid)?;
        let late = Instant::now() > until;
        match environment_in(&stat) {
            Environment::None => return Some(environment),
            // Where it begins is set a moment before where it ends.
            Environment::Within(start, end) if start == end => {
                if none_at.0 != start {
                    none_at = (start, Instant::now());
                } else if none_at.1.elapsed() > PLACING {
                    return Some(environment);
                }
            }
            Environment::Within(start, end) if environment.len() as u64 == end - start => {
                return Some(environment)
            }
            _ if late => return Some(environment),
            Environment::Within(..) | Environment::Unplaced => {}
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// What proc(5) says of a process's environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Environment {
    /// A zombie or a kernel thread: no memory (`vsize`).
    None,
    /// Addresses where it begins and ends: the same ones if it is empty (`env -i`).
    Within(u64, u64),
    /// In an execve(2): the kernel has not placed it yet.
    Unplaced,
}

fn environment_in(stat: &Stat) -> Environment {
    match stat.environment {
        _ if stat.memory == 0 => Environment::None,
        (start, end) if 0 < start && start <= end => Environment::Within(start, end),
        _ => Environment::Unplaced,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A shell that becomes itself again and again is ours whenever it is asked for.
    #[test]
    fn a_process_in_the_middle_of_its_exec_has_an_owner() {
        let owner = Owner::this();
        let script = r#"[ "$1" -lt 400 ] && exec /bin/sh -c "$0" "$0" $(($1 + 1)); sleep 1000"#;
        let mut child = std::process::Command::new("/bin/sh")
            .args(["-c", script, script, "0"])
            .env(VARIABLE, owner.to_string())
            .spawn()
            .expect("a shell");
        let pid = i32::try_from(child.id()).expect("a process id");
        let asked = 2_000;
        let found = (0..asked).filter(|_| Owner::of_process(pid) == Some(owner)).count();
        child.kill().expect("killed");
        child.wait().expect("collected");
        assert_eq!(found, asked);
        assert_eq!(Owner::of_process(pid), None, "it is gone");
    }

    /// What setsid(1) started has its mark, and belongs to nobody.
    #[test]
    fn who_leaves_the_session_is_nobodys() {
        let owner = Owner::this();
        let started = |program: &str, arguments: &[&str]| {
            let mut command = std::process::Command::new(program);
            command.args(arguments).env(VARIABLE, owner.mark_here());
            command.spawn().expect(program)
        };
        for (program, arguments, stays) in
            [("sleep", ["1000"].as_slice(), true), ("setsid", &["sleep", "1000"], false)]
        {
            let mut child = started(program, arguments);
            let pid = i32::try_from(child.id()).expect("a process id");
            let comm = || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            while comm().trim() != "sleep" {
                std::thread::sleep(Duration::from_millis(1));
            }
            let found = (Owner::of_process(pid), Owner::marked(pid));
            child.kill().expect("killed");
            child.wait().expect("collected");
            assert_eq!(found, (Some(owner).filter(|_| stays), Some(owner)), "{program}");
        }
    }

    #[test]
    fn names_tell_their_owner() {
        let owner = Owner::this();
        assert_eq!(Owner::parse(&owner.to_string()), Some(owner));
        assert!(owner.is_alive());
        let reused = Owner { started: owner.started + 1, ..owner };
        assert!(!reused.is_alive(), "another process of the same id");
        assert!(!reused.is_same_process(&owner) && owner.is_same_process(&Owner::process()));
        assert_ne!(Owner::this(), owner);
        for other in
            ["vmeter-1", "vmeter-1-2-3-4", "vmeter-x-1-2", "vmeter-+1-1-2", "trace-cmd", ""]
        {
            assert_eq!(Owner::parse(other), None, "{other}");
        }
        let told = Owner { pid: 1, started: 2, number: 3 };
        for name in ["vmeter-1-2-3", ".vmeter-1-2-3-x7aw.partial", ".new-vmeter-1-2-3.x"] {
            assert_eq!(Owner::within(name), Some(told), "{name}");
        }
        assert_eq!(Owner::within(".vmeter-x7aw.partial"), None);
    }

    #[test]
    fn an_environment_tells_its_owner() {
        let of = |text: &str| Owner::in_environment(text.as_bytes());
        let told = Owner { pid: 1, started: 2, number: 3 };
        assert_eq!(of("A=b\0VMETER_LAUNCH=vmeter-1-2-3\0C="), Some((told, None)));
        let entry = format!("{VARIABLE}={}", told.mark(77));
        assert_eq!(entry, "VMETER_LAUNCH=vmeter-1-2-3:0000000077");
        assert_eq!(of(&entry), Some((told, Some(77))));
        assert_eq!(of("VMETER_LAUNCH=vmeter-1-2-3:x"), None);
        assert_eq!(of("A=VMETER_LAUNCH=vmeter-1-2-3\0XVMETER_LAUNCH=vmeter-1-2-3"), None);
    }

    proptest! {
        #[test]
        fn nothing_panics(name in "\\PC*") {
            let _ = Owner::parse(&name);
            let _ = Owner::within(&name);
        }
    }
}
