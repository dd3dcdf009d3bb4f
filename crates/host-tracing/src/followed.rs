//! Threads that a recording is to follow though the kernel's `event-fork` misses them.
//!
//! `event-fork` goes by `sched_process_fork`, which threads made by the kernel on a
//! process's behalf do not pass: vhost workers since Linux 6.4, KVM's recovery thread,
//! io_uring's workers. They are among the process's tasks, so these are looked at now
//! and then.

use std::collections::HashSet;
use std::time::Duration;

/// How long such a thread may run unseen.
pub const INTERVAL: Duration = Duration::from_millis(50);

/// Descendants are not looked for deeper than this.
const MAX_DEPTH: usize = 8;

/// A process, with what it started.
#[derive(Debug)]
pub struct Followed {
    pid: i32,
    known: HashSet<i32>,
}

impl Followed {
    /// A process of which some threads are followed already.
    pub fn new(pid: i32, tids: &[i32]) -> Followed {
        Followed { pid, known: tids.iter().copied().collect() }
    }

    /// Threads, of it and of its descendants, that were not known before.
    pub fn fresh(&mut self) -> Vec<i32> {
        let mut all = Vec::new();
        threads(self.pid, MAX_DEPTH, &mut all);
        all.retain(|tid| self.known.insert(*tid));
        all
    }
}

fn threads(pid: i32, depth: usize, all: &mut Vec<i32>) {
    for tid in numbers(&format!("/proc/{pid}/task")) {
        all.push(tid);
        let children = format!("/proc/{pid}/task/{tid}/children");
        let children = std::fs::read_to_string(children).unwrap_or_default();
        if depth > 0 {
            let children = children.split_whitespace().filter_map(|child| child.parse().ok());
            children.for_each(|child| threads(child, depth - 1, all));
        }
    }
}

/// The entries of a folder that are numbers.
pub fn numbers(path: &str) -> Vec<i32> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_is_told_once() {
        let own = i32::try_from(std::process::id()).expect("a process id");
        let mut followed = Followed::new(own, &[own]);
        let others = followed.fresh();
        assert!(!others.contains(&own), "known before");
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let (tid, said) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            tid.send(rustix::thread::gettid().as_raw_nonzero().get()).expect("listened to");
            // Until the other end is dropped.
            let _ = wait.recv();
        });
        let tid = said.recv().expect("its id");
        assert!(followed.fresh().contains(&tid));
        assert!(!followed.fresh().contains(&tid), "told before");
        drop(go);
        thread.join().expect("its end");
    }

    #[test]
    fn children_are_found() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let pid = i32::try_from(child.id()).expect("a process id");
        let own = i32::try_from(std::process::id()).expect("a process id");
        assert!(Followed::new(own, &[]).fresh().contains(&pid));
        child.kill().expect("kill");
        child.wait().expect("its end");
        assert!(Followed::new(pid, &[]).fresh().is_empty(), "it is gone");
    }
}
