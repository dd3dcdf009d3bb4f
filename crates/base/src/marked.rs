//! Processes that vmeter started, and theirs, by the mark in their environment.

use crate::owner::Owner;
use rustix::process::{kill_process, Pid, Signal};
use std::process::Command;
use std::time::{Duration, Instant};

/// Between two looks at what was killed.
const PAUSE: Duration = Duration::from_millis(5);

/// Has what the command starts carry `owner` in its environment.
pub fn mark(command: &mut Command, owner: &Owner) {
    command.env(crate::owner::VARIABLE, owner.to_string());
}

/// Sends a signal to each process that carries just this mark.
pub fn signal(owner: &Owner, signal: Signal) -> usize {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    let marked = numbers.filter(|pid| *pid != own && Owner::of_process(*pid) == Some(*owner));
    let sent = marked.filter_map(Pid::from_raw).filter(|pid| kill_process(*pid, signal).is_ok());
    sent.count()
}

/// Kills each of them, also those that are started meanwhile; waits so long at most.
pub fn kill(owner: &Owner, within: Duration) {
    let begin = Instant::now();
    while signal(owner, Signal::KILL) > 0 && begin.elapsed() < within {
        std::thread::sleep(PAUSE);
    }
}
