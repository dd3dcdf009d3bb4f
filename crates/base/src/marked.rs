//! Processes that vmeter started, and theirs, by the mark in their environment.

use crate::owner::Owner;
use rustix::process::{kill_process, Pid, Signal};
use std::process::Command;
use std::time::{Duration, Instant};

/// Between two looks at what was killed.
const PAUSE: Duration = Duration::from_millis(5);

/// Has what the command starts carry `owner` in its environment.
pub fn mark(command: &mut Command, owner: &Owner) {
    command.env(crate::owner::VARIABLE, owner.mark_here());
}

/// Sends a signal to each process that carries just this mark.
pub fn signal(owner: &Owner, signal: Signal) -> usize {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let marked = processes().filter(|pid| *pid != own && Owner::marked(*pid) == Some(*owner));
    let sent = marked.filter_map(Pid::from_raw).filter(|pid| kill_process(*pid, signal).is_ok());
    sent.count()
}

/// What of a command that has ended runs on, in its session or not: names and numbers.
pub fn running(owner: &Owner) -> Vec<String> {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let name = |pid: i32| {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        format!("{} (pid {pid})", comm.trim_end().escape_debug())
    };
    processes().filter(|pid| *pid != own && Owner::marked(*pid) == Some(*owner)).map(name).collect()
}

/// The number of each process that this one sees.
pub fn processes() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Kills each of them, also those that are started meanwhile; waits so long at most.
pub fn kill(owner: &Owner, within: Duration) {
    let begin = Instant::now();
    while signal(owner, Signal::KILL) > 0 && begin.elapsed() < within {
        std::thread::sleep(PAUSE);
    }
}
