//! Stopping the other threads of a VMM, traced or not, for one look at its memory.

use super::ptrace;
use rustix::process::Pid;
use std::collections::HashMap;

/// Threads that were stopped, each with the signal it was about to receive.
#[derive(Debug)]
pub struct Stopped(HashMap<Pid, i32>);

/// Stops every thread but the main one, which is stopped already. Threads that
/// are created meanwhile are found by looking again until nothing new appears.
pub fn stop_others(main: Pid) -> Stopped {
    let mut stopped = HashMap::new();
    loop {
        let before = stopped.len();
        for tid in tids(main) {
            if tid != main && !stopped.contains_key(&tid) {
                if let Some(signal) = stop(tid) {
                    stopped.insert(tid, signal);
                }
            }
        }
        if stopped.len() == before {
            return Stopped(stopped);
        }
    }
}

/// Lets them go on, no longer traced.
pub fn release(stopped: Stopped) {
    for (tid, signal) in stopped.0 {
        // A thread that was killed while stopped is gone; that is all right.
        let _ = ptrace::detach(tid, signal);
    }
}

/// The signal that the stop held back (0 for none), or nothing if the thread ended.
fn stop(tid: Pid) -> Option<i32> {
    // One that is traced all along is refused, and stops all the same.
    let _ = ptrace::seize_thread(tid);
    ptrace::interrupt(tid).ok()?;
    let mut status = 0;
    loop {
        // SAFETY: the status is a local.
        let r = unsafe { libc::waitpid(tid.as_raw_nonzero().get(), &mut status, libc::__WALL) };
        if r == -1 {
            if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted {
                continue;
            }
            return None;
        }
        if !libc::WIFSTOPPED(status) {
            return None;
        }
        let signal = if ptrace::event(status) == 0 { libc::WSTOPSIG(status) } else { 0 };
        return Some(signal);
    }
}

/// The threads of a process.
pub fn tids(pid: Pid) -> Vec<Pid> {
    let Ok(folder) = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())) else {
        return Vec::new();
    };
    folder
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse().ok())
        .filter_map(Pid::from_raw)
        .collect()
}
