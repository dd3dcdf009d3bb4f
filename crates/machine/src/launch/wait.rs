//! Collecting a process's change of state, and what the kernel accounted to it.

use rustix::process::Pid;
use std::io;
use vmeter_model::run::Usage;

/// Consumes a change of state; with `WNOHANG`, none if there is none.
pub fn wait4(pid: Pid, flags: i32) -> io::Result<Option<(i32, Usage)>> {
    let mut status = 0;
    // SAFETY: an all-zero rusage is valid, and both pointers are to locals.
    let (r, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        let pid = pid.as_raw_nonzero().get();
        (libc::wait4(pid, &mut status, flags | libc::__WALL, &mut usage), usage)
    };
    match r {
        -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => wait4(pid, flags),
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        _ => Ok(Some((status, convert(&usage)))),
    }
}

fn convert(usage: &libc::rusage) -> Usage {
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    let count = |n: libc::c_long| u64::try_from(n).unwrap_or(0);
    Usage {
        user_s: seconds(usage.ru_utime),
        system_s: seconds(usage.ru_stime),
        max_rss_bytes: count(usage.ru_maxrss).saturating_mul(1024),
        voluntary_switches: count(usage.ru_nvcsw),
        involuntary_switches: count(usage.ru_nivcsw),
        minor_faults: count(usage.ru_minflt),
        major_faults: count(usage.ru_majflt),
    }
}

/// Waits for the next change of `child` or of whoever in its process group is traced
/// or inherited, without consuming it: whose it is, and whether it is that one's end.
/// The child leads the group from before its exec.
pub fn next_change(child: Pid) -> io::Result<(libc::pid_t, bool)> {
    let number = child.as_raw_nonzero().get().unsigned_abs();
    let options = libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT | libc::__WALL;
    let wait = |kind| {
        // SAFETY: an all-zero siginfo_t is valid, the pointer is to a local, and after
        // success the fields of SIGCHLD are filled.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            match libc::waitid(kind, number, &mut info, options) {
                0 => Ok((info.si_pid(), info.si_code)),
                _ => Err(io::Error::last_os_error()),
            }
        }
    };
    let (who, code) = match wait(libc::P_PGID) {
        // It ended before it had a group of its own.
        Err(e) if e.raw_os_error() == Some(libc::ECHILD) => wait(libc::P_PID)?,
        other => other?,
    };
    Ok((who, matches!(code, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED)))
}
