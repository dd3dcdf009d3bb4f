//! Naps between tries of a call that fails: a lock that is asked for again and again (SQLite's busy
//! handler, `trylock` with a back-off). Such a nap waits for what the call asks for, so that its name
//! says so: `clock_nanosleep between tries of fcntl`.

use super::names::{NameId, Names};
use super::op::Op;
use crate::hash::FastMap;

/// What is between the name of such a nap and the call that is tried.
pub const BETWEEN_TRIES: &str = " between tries of ";
/// Most threads whose last failure is remembered.
const MOST: usize = 1 << 14;
/// "Try again", "busy", and of a lock's file "exists" (include/uapi/asm-generic/errno-base.h).
const AGAIN: [i64; 3] = [-11, -16, -17];
/// What begins the names of calls that say so of a queue that is empty: who naps then has nothing to do.
const EMPTY: [&str; 10] =
    ["read", "recv", "preadv", "accept", "epoll_", "poll", "ppoll", "select", "futex", "wait"];

/// The call that failed last, by thread, and whether it has succeeded since: once may be to let another
/// lock go.
#[derive(Debug, Default)]
pub(super) struct Retries {
    failed: FastMap<i32, (NameId, bool)>,
}

impl Retries {
    /// Gives a nap that is one between two tries the name of that.
    #[inline]
    pub(super) fn about(&mut self, tid: i32, op: &mut Op, names: &mut Names) {
        match op {
            Op::SyscallExit { name, returned: Some(returned) } => {
                self.returns(tid, *name, *returned, names);
            }
            Op::SyscallEnter { name, request: request @ None, .. } if !self.failed.is_empty() => {
                *request = self.nap(tid, *name, names);
            }
            Op::Syscall { name, request: request @ None, returned, .. } => {
                *request = self.nap(tid, *name, names);
                returned.iter().for_each(|value| self.returns(tid, *name, *value, names));
            }
            _ => {}
        }
    }

    fn returns(&mut self, tid: i32, name: NameId, returned: i64, names: &Names) {
        if AGAIN.contains(&returned) {
            let empty = EMPTY.iter().any(|begin| names.name(name).starts_with(begin));
            if !empty && (self.failed.len() < MOST || self.failed.contains_key(&tid)) {
                self.failed.insert(tid, (name, false));
            }
            return;
        }
        match self.failed.get_mut(&tid) {
            Some((failed, again)) if *failed == name && !*again => *again = true,
            Some((failed, _)) if *failed == name => {
                self.failed.remove(&tid);
            }
            _ => {}
        }
    }

    fn nap(&mut self, tid: i32, name: NameId, names: &mut Names) -> Option<NameId> {
        let nap = names.name(name);
        if self.failed.is_empty() || !["nanosleep", "clock_nanosleep"].contains(&nap) {
            return None;
        }
        let (failed, _) = self.failed.remove(&tid)?;
        let text = format!("{nap}{BETWEEN_TRIES}{}", names.name(failed));
        Some(names.id(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nap_after_a_try_that_failed_says_of_what() {
        let (mut retries, mut names) = (Retries::default(), Names::default());
        let mut run = |call: &str, returned: Option<i64>| -> String {
            let name = names.id(call);
            let mut op = Op::Syscall { name, request: None, duration: None, returned };
            retries.about(7, &mut op, &mut names);
            match op {
                Op::Syscall { request: Some(request), .. } => names.name(request).to_owned(),
                _ => String::new(),
            }
        };
        assert_eq!(run("nanosleep", Some(0)), "");
        run("fcntl", Some(-11));
        run("pread64", Some(16));
        assert_eq!(run("clock_nanosleep", Some(0)), "clock_nanosleep between tries of fcntl");
        assert_eq!(run("clock_nanosleep", Some(0)), "", "each try has one");
        run("fcntl", Some(-11));
        run("fcntl", Some(0));
        let unlocked = run("nanosleep", Some(0));
        assert_eq!(unlocked, "nanosleep between tries of fcntl", "it lets another lock go");
        run("flock", Some(-11));
        run("flock", Some(0));
        run("flock", Some(0));
        assert_eq!(run("nanosleep", Some(0)), "");
        run("openat", Some(-17));
        assert_eq!(run("nanosleep", Some(0)), "nanosleep between tries of openat");
        run("recvfrom", Some(-11));
        assert_eq!(run("nanosleep", Some(0)), "", "it has nothing to do");
    }
}
