//! Processes that a VMM leaves behind it, as `-daemonize` does: found and ended.
//!
//! vmeter is made the subreaper of its descendants (`PR_SET_CHILD_SUBREAPER`,
//! prctl(2)): whoever loses its parent becomes a child of vmeter. Which of these
//! children came from which launch is told by a mark in their environment.

use rustix::process::Pid;
use vmeter_base::owner::{Owner, VARIABLE};

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
            let orphans: Vec<Pid> = children().into_iter().filter(|pid| self.marks(*pid)).collect();
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
        let path = format!("/proc/{}/environ", pid.as_raw_nonzero());
        let Ok(environment) = std::fs::read(path) else { return false };
        environment.split(|byte| *byte == 0).any(|entry| entry == self.0.as_bytes())
    }
}

fn name(pid: Pid) -> String {
    let comm = std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()));
    super::types::printable(comm.unwrap_or_default().trim().as_bytes())
}

/// Children of every thread of this process (proc(5): `task/TID/children`).
fn children() -> Vec<Pid> {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    let listed = |entry: std::fs::DirEntry| {
        std::fs::read_to_string(entry.path().join("children")).unwrap_or_default()
    };
    let all: Vec<String> = threads.flatten().map(listed).collect();
    all.iter()
        .flat_map(|line| line.split_ascii_whitespace())
        .filter_map(|pid| pid.parse().ok().and_then(Pid::from_raw))
        .collect()
}
