//! Processes that a VMM leaves behind it, as `-daemonize` does: found and ended.
//!
//! vmeter is made the subreaper of its descendants (`PR_SET_CHILD_SUBREAPER`,
//! prctl(2)): whoever loses its parent becomes a child of vmeter. Which of these
//! children came from which launch is told by a mark in their environment.

use rustix::process::Pid;
use std::collections::BTreeSet;
use vmeter_base::owner::{environment_of, Owner, VARIABLE};

/// Ending one process may make vmeter the parent of the next: so often at most.
const ROUNDS: usize = 64;

/// The mark of one launch, for its environment: `NAME=VALUE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark(String);

impl Mark {
    /// A mark that no other launch has, and vmeter as the heir of its orphans.
    pub fn new() -> Self {
        // Without it (Linux before 3.4) orphans are not found; nothing else changes.
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        Self(format!("{VARIABLE}={}", Owner::this()))
    }

    /// As the environment of the VMM has it.
    pub fn entry(&self) -> &str {
        &self.0
    }

    /// Ends every orphan of this launch, and says their names.
    pub fn end_orphans(&self) -> Vec<String> {
        let mut names = Vec::new();
        for _ in 0..ROUNDS {
            let orphans: Vec<Pid> =
                all_children().into_iter().filter(|pid| self.marks(*pid)).collect();
            if orphans.is_empty() {
                break;
            }
            for pid in orphans {
                names.push(name(pid));
                // It can be traced as well: then it stops once more on its way.
                super::ends::bury(pid);
            }
        }
        names
    }

    fn marks(&self, pid: Pid) -> bool {
        let Some(environment) = environment_of(pid.as_raw_nonzero().get()) else { return false };
        environment.split(|byte| *byte == 0).any(|entry| entry == self.0.as_bytes())
    }
}

fn name(pid: Pid) -> String {
    let comm = std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()));
    super::types::printable(comm.unwrap_or_default().trim().as_bytes())
}

/// Children of this process, none of them missed: the kernel's list skips some when another child
/// is collected while it is read (proc(5)), so it is read until it stays as it is.
fn all_children() -> Vec<Pid> {
    let mut all = BTreeSet::new();
    let mut last = None;
    for _ in 0..ROUNDS {
        let now = children();
        all.extend(now.iter().copied());
        if last.as_ref() == Some(&now) {
            break;
        }
        last = Some(now);
    }
    all.into_iter().filter_map(Pid::from_raw).collect()
}

/// Children of every thread of this process (proc(5): `task/TID/children`).
fn children() -> BTreeSet<i32> {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return BTreeSet::new() };
    let listed = |entry: std::fs::DirEntry| {
        std::fs::read_to_string(entry.path().join("children")).unwrap_or_default()
    };
    let all: Vec<String> = threads.flatten().map(listed).collect();
    let pids = all.iter().flat_map(|line| line.split_ascii_whitespace());
    pids.filter_map(|pid| pid.parse().ok()).collect()
}
