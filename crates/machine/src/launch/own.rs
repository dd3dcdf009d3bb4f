//! Whose a process is: the one place that decides what vmeter may end.
//!
//! The process that is launched leads a session. What is in that session is vmeter's own, and so
//! is what has left it while a parent of it waits (`sudo`, `setsid --wait`). What has left the
//! session and lost its parent is a daemon, and nobody's; and of a launcher that exited with 0
//! by itself nothing is vmeter's any more, since it meant to leave what it left. At a ready point
//! nobody knows yet what a launcher means to leave: what has left the session and has no terminal
//! (`setsid`, Python's `start_new_session`; not `sudo`, which gives it one) is not vmeter's then.
//! vmeter lets go of these. `--end-vm` makes all of it vmeter's own.

use super::family::number;
use rustix::process::Pid;
use std::collections::BTreeMap;
use vmeter_base::marked;
use vmeter_base::owner::{Owner, VARIABLE};
use vmeter_base::process::Stat;

/// Parents that are followed at most.
const GENERATIONS: usize = 256;

/// How the process that was launched is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leader {
    /// It runs, or waits to be ended.
    Runs,
    /// The same, and what it is measured for is over.
    Ready,
    /// It failed, was killed, or is ended.
    Failed,
    /// It exited with 0 by itself.
    Done,
}

/// The mark of one launch, and what it may end.
#[derive(Debug, Clone, Copy)]
pub struct Own {
    owner: Owner,
    /// When the launch began, clock ticks after boot.
    since: u64,
    /// Everything that came of the launch is to end with it.
    pub ends_all: bool,
}

impl Own {
    /// A mark that no other launch has, and vmeter as the heir of its orphans.
    pub fn new(ends_all: bool) -> Self {
        // Without it (Linux before 3.4) orphans are not found; nothing else changes.
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        Self { owner: Owner::this(), since: ticks_since_boot(), ends_all }
    }

    /// For the environment of the VMM, which writes its session over the ten digits at the end.
    pub fn entry(&self) -> String {
        format!("{VARIABLE}={}", self.owner.mark(0))
    }

    /// True if `pid` is vmeter's to end.
    pub fn has(&self, pid: Pid, leader: Pid, state: Leader) -> bool {
        self.ends_all
            || state != Leader::Done && is_in(number(pid), number(leader), state, &Stat::of)
    }

    /// All that is vmeter's to end, besides the leader itself.
    pub fn all(&self, leader: Pid, state: Leader) -> Vec<Pid> {
        if state == Leader::Done && !self.ends_all {
            return Vec::new();
        }
        let leader = number(leader);
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        let table = table();
        let of = |pid: i32| table.get(&pid).cloned();
        let is_ours =
            |pid: i32| is_in(pid, leader, state, &of) || self.ends_all && self.is_marked(pid);
        let pids = table.iter().filter(|(_, stat)| !stat.is_gone()).map(|(pid, _)| *pid);
        pids.filter(|pid| *pid != leader && *pid != own && is_ours(*pid))
            .filter_map(Pid::from_raw)
            .collect()
    }

    /// Processes that have lost their parents to vmeter and carry the mark of this launch; or that
    /// carry none, as one with an empty environment, and have begun a session of their own since.
    pub fn orphans(&self) -> Vec<Pid> {
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        let here = Stat::of(own).map_or(0, |stat| stat.session);
        let image = |pid: i32| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
        // What another launch is about to execute has neither a mark nor an image of its own yet.
        let ours = image(own);
        let is_another = |pid: i32| image(pid).is_some_and(|of| ours.as_ref() != Some(&of));
        let is_fresh = |pid: i32, stat: &Stat| {
            let elsewhere = stat.session != here && stat.session != 0;
            let unmarked = elsewhere && stat.started >= self.since && is_another(pid);
            unmarked && Owner::marked(pid).is_none()
        };
        let of_ours = |(pid, stat): (&i32, &Stat)| {
            let orphan = stat.parent == own && !stat.is_gone();
            (orphan && (self.is_marked(*pid) || is_fresh(*pid, stat))).then_some(*pid)
        };
        table().iter().filter_map(of_ours).filter_map(Pid::from_raw).collect()
    }

    fn is_marked(&self, pid: i32) -> bool {
        Owner::marked(pid) == Some(self.owner)
    }
}

/// True for what is in the leader's session, or comes of a leader that runs.
fn is_in(pid: i32, leader: i32, state: Leader, of: &dyn Fn(i32) -> Option<Stat>) -> bool {
    let mut next = of(pid);
    if next.as_ref().is_some_and(|stat| stat.session == leader) {
        return true;
    }
    let is_left = next.as_ref().is_some_and(|stat| stat.terminal == 0);
    if state != Leader::Runs && (state != Leader::Ready || is_left) {
        return false;
    }
    for _ in 0..GENERATIONS {
        match next {
            Some(stat) if stat.parent == leader => return true,
            Some(stat) if stat.parent > 1 => next = of(stat.parent),
            _ => return false,
        }
    }
    false
}

/// As [`Stat::started`] counts.
fn ticks_since_boot() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let hertz = rustix::param::clock_ticks_per_second();
    let part = now.tv_nsec as u64 * hertz / 1_000_000_000;
    (now.tv_sec as u64).saturating_mul(hertz).saturating_add(part)
}

fn table() -> BTreeMap<i32, Stat> {
    marked::processes().filter_map(|pid| Some((pid, Stat::of(pid)?))).collect()
}

/// True while a process runs.
pub fn is_alive(pid: Pid) -> bool {
    Stat::of(number(pid)).is_some_and(|stat| !stat.is_gone())
}

/// What a process is called, harmless to print.
pub fn name(pid: Pid) -> String {
    let comm = std::fs::read_to_string(format!("/proc/{}/comm", number(pid)));
    super::types::printable(comm.unwrap_or_default().trim().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_whose() {
        // (process, parent, session): 10 is launched; 99 is vmeter.
        let all = [
            (10, 99, 10),
            (11, 10, 10),
            (12, 11, 12), // of sudo, in a session with a terminal of its own
            (13, 12, 12),
            (20, 99, 20), // a daemon, inherited
            (21, 20, 20),
            (30, 99, 10), // in the background of the session
        ];
        let of = |pid: i32| {
            let found = all.iter().find(|(p, ..)| *p == pid)?;
            let terminal = i32::from(pid == 12);
            Some(Stat { parent: found.1, session: found.2, terminal, ..Stat::default() })
        };
        let own = |state| {
            let pids = all.iter().map(|(pid, ..)| *pid).filter(|pid| *pid != 10);
            pids.filter(|pid| is_in(*pid, 10, state, &of)).collect::<Vec<_>>()
        };
        assert_eq!(own(Leader::Runs), [11, 12, 13, 30]);
        assert_eq!(own(Leader::Failed), [11, 30], "who lost its parent is nobody's");
        assert_eq!(own(Leader::Ready), [11, 12, 30], "13 has no terminal");
    }
}
