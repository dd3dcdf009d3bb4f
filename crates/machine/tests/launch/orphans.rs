//! A launcher that is killed, or that panics, leaves no VMM behind.

use std::io::{BufRead, BufReader};
use std::process::Command;

/// Waits (without polling) until a process that is not our child is gone.
fn wait_until_gone(pid: i32) {
    use rustix::event::{poll, PollFd, PollFlags};
    use rustix::process::{pidfd_open, Pid, PidfdFlags};
    let pid = Pid::from_raw(pid).expect("a process id");
    if let Ok(fd) = pidfd_open(pid, PidfdFlags::empty()) {
        let limit = rustix::time::Timespec { tv_sec: 20, tv_nsec: 0 };
        let n = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).expect("polled");
        assert_eq!(n, 1, "process {pid:?} outlived its launcher");
    }
}

fn launcher(part: &str, plain: bool) -> (std::process::Child, i32) {
    let me = std::env::current_exe().expect("own path");
    let mut command = Command::new(me);
    command.args(["--exact", "part", "--nocapture"]).env("ROLE", part);
    if plain {
        command.env("PLAIN", "1");
    }
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().expect("spawned");
    let mut line = String::new();
    let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
    stderr.read_line(&mut line).expect("the VMM's process id");
    (child, line.trim().parse().expect("a number"))
}

#[test]
fn killing_the_launcher_leaves_no_vmm() {
    for plain in [true, false] {
        let (mut child, vmm) = launcher("launcher", plain);
        child.kill().expect("kill -9");
        child.wait().expect("reaped");
        wait_until_gone(vmm);
    }
}

#[test]
fn a_panic_in_a_hook_leaves_no_vmm() {
    let (mut child, vmm) = launcher("panicking-hook", false);
    wait_until_gone(vmm);
    child.wait().expect("the launcher ends as well");
}
