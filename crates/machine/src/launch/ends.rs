//! Ending processes, and what is asked of one that may be gone.

use super::wait::wait4;
use super::{ptrace, threads};
use rustix::process::{Pid, Signal};
use std::io;
use std::path::Path;
use std::time::Duration;
use vmeter_model::run::Usage;

/// Kills a tracee or child and collects it, whatever stops it and its threads pass on the way.
pub fn bury(pid: Pid) {
    let _ = rustix::process::kill_process(pid, Signal::KILL);
    loop {
        match changed(pid) {
            Ok(Some((status, _))) if !libc::WIFSTOPPED(status) => return,
            Ok(Some(_)) => drop(ptrace::resume(pid, 0)),
            Ok(None) if is_there(pid) => {}
            Ok(None) | Err(_) => return,
        }
        for thread in threads::tids(pid).into_iter().filter(|tid| *tid != pid) {
            if let Ok(Some((status, _))) = changed(thread) {
                if libc::WIFSTOPPED(status) {
                    let _ = ptrace::resume(thread, 0);
                }
            }
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// True until a child or tracee was collected.
fn is_there(pid: Pid) -> bool {
    Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists()
}

/// What became of a child or tracee, if something did; nothing of one that was collected.
pub fn changed(pid: Pid) -> io::Result<Option<(i32, Usage)>> {
    match wait4(pid, libc::WNOHANG) {
        Err(e) if e.raw_os_error() == Some(libc::ECHILD) => Ok(None),
        other => other,
    }
}

/// True if a signal of job control has stopped a process (`T` in proc(5)).
pub fn is_stopped(pid: Pid) -> bool {
    let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
    let stat = std::fs::read_to_string(path).unwrap_or_default();
    // The name before it is in parentheses, and can hold any.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

/// A tracee that was killed meanwhile is reported by the next wait.
pub fn gone_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        r => r,
    }
}

/// The child leads a session of its own, so its group is what it left running.
pub fn kill_group(pid: Pid) {
    let _ = rustix::process::kill_process_group(pid, Signal::KILL);
}
