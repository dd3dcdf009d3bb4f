//! What becomes of all processes of a launch when it is over: what is vmeter's own is ended, what
//! is not is let go of ([`own`]).

use super::super::ends::{bury, changed, kill_group};
use super::super::family::{has_machine, known, Known};
use super::super::own::{self, Leader};
use super::super::tracee::Tracee;
use super::super::types::{now_ns, Left, Mode, Status};
use super::super::{image, ptrace, threads};
use super::{number, wait4, Supervisor};
use rustix::process::{waitid, Pid, WaitId, WaitIdOptions};
use std::collections::HashSet;
use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use vmeter_base::process::Stat;
use vmeter_model::run::Usage;
use vmeter_model::Ns;

/// How long what a launcher left may take to end by itself, as children of its own that were told
/// to.
const ENDING: Duration = Duration::from_secs(1);
/// How long a thread that is let go of may take to stop for it.
const STOPPING: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(2);

impl Supervisor<'_> {
    /// The launched process is a zombie: collects it, and ends or lets go of what is left.
    pub(super) fn finish(&mut self) -> io::Result<(Ns, Status, Usage)> {
        let by_itself = self.seen.end.is_none() && self.exited_well();
        self.leader = if by_itself { Leader::Done } else { Leader::Failed };
        if self.seen.end.is_none() && !by_itself {
            let left = self.own.all(self.pid, self.leader).into_iter();
            self.seen.left_behind = left.map(named).collect();
        }
        self.seen.asked = self.asks.take();
        if !by_itself || self.own.ends_all {
            kill_group(self.pid);
        }
        if self.vmm != self.pid && self.is_own(self.vmm) {
            // A launcher that has told its VMM to end does not wait for that.
            if by_itself && self.seen.told_by.is_none() && own::is_alive(self.vmm) {
                self.seen.left_behind.push(named(self.vmm));
            }
            bury(self.vmm);
        }
        let (at, status, usage) = match self.collected.take() {
            Some(collected) => collected,
            None => {
                let at = self.changes.at.load(Ordering::Relaxed);
                let (status, usage) = wait4(self.pid, 0)?.ok_or(io::ErrorKind::NotFound)?;
                (at, status, usage)
            }
        };
        self.leave(by_itself);
        self.drain_stderr();
        self.hooks.on_ended();
        // A ready point counts even if the VMM was quicker than the request.
        if self.seen.end.is_none() {
            let requested = self.stopper.requested();
            self.seen.end = requested.map(|(reason, ready)| (reason, ready.min(at)));
        }
        let usage = match self.seen.vmm_cpu_s {
            Some((user_s, system_s)) => Usage { user_s, system_s, ..usage },
            None => usage,
        };
        let done = (at, Status::from_wait(status), usage);
        self.reaped = Some(done);
        Ok(done)
    }

    /// True for an exit with status 0, of a process that is not collected yet.
    fn exited_well(&self) -> bool {
        let status = match &self.collected {
            Some((_, status, _)) => Some(*status),
            None => {
                let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
                let ended = waitid(WaitId::Pid(self.pid), options).ok().flatten();
                return ended.is_some_and(|ended| ended.exit_status() == Some(0));
            }
        };
        status.is_some_and(|status| Status::from_wait(status).success())
    }

    fn is_own(&self, pid: Pid) -> bool {
        self.doomed.contains(&pid) || self.own.has(pid, self.pid, self.leader)
    }

    /// True for a process that is to be let go of at its exec: a VMM that is only started.
    pub(super) fn is_to_go(&self, pid: Pid) -> bool {
        self.options.mode == Mode::Started && self.seen.has_vmm && pid == self.vmm
    }

    /// VMMs among what is to end that have left the session of what was launched.
    pub(super) fn of_other_sessions(&self) -> Vec<String> {
        let leader = number(self.pid);
        let left = |pid: &Pid| Stat::of(number(*pid)).is_some_and(|stat| stat.session != leader);
        self.doomed.iter().copied().filter(|pid| is_vmm(*pid) && left(pid)).map(named).collect()
    }

    /// Ends what is vmeter's, and lets go of the rest.
    fn leave(&mut self, waits: bool) {
        let begin = Instant::now();
        while waits && !self.own.ends_all && begin.elapsed() < ENDING && !self.left().is_empty() {
            for pid in self.family.all() {
                let _ = self.stopped(pid, now_ns());
            }
            std::thread::sleep(PAUSE);
        }
        // Ending one process may make vmeter the parent of the next.
        loop {
            let mut own: HashSet<Pid> = self.own.all(self.pid, self.leader).into_iter().collect();
            let left = self.left();
            own.extend(left.iter().copied().filter(|pid| self.is_own(*pid)));
            own.extend(self.doomed.drain(..).filter(|pid| own::is_alive(*pid)));
            if own.is_empty() {
                return left.into_iter().for_each(|pid| self.let_go(pid));
            }
            for pid in own {
                // Those that were ended with a run that ended early are of no interest.
                let named = named(pid);
                if self.seen.end.is_none() && !self.seen.left_behind.contains(&named) {
                    self.seen.left_behind.push(named);
                }
                bury(pid);
                self.family.remove(pid);
            }
        }
    }

    /// Processes of this launch that are there: traced, or inherited.
    fn left(&self) -> Vec<Pid> {
        let traced = self.family.processes().into_iter().chain([self.vmm]);
        let all: HashSet<Pid> = traced.chain(self.own.orphans()).collect();
        all.into_iter().filter(|pid| *pid != self.pid && own::is_alive(*pid)).collect()
    }

    /// A daemon must outlive a vmeter that is killed: that it is to die with its tracer is taken
    /// back at a stop.
    pub(super) fn spare_daemon(&mut self, pid: Pid) {
        let to_spare = !self.family.is_spared(pid) && !self.is_own(pid);
        if to_spare && self.family.has_processes() {
            for tid in self.family.spare(pid) {
                let _ = ptrace::interrupt(tid);
            }
        }
    }

    /// Lets a process and its threads run on, untraced and as they were.
    fn let_go(&mut self, process: Pid) {
        let is_vmm = is_vmm(process);
        let tracee = Tracee { pid: number(process), stopped_ns: now_ns() };
        for tid in threads::tids(process) {
            if ptrace::interrupt(tid).is_err() {
                continue;
            }
            let Some(signal) = self.stop_of(tid, &tracee) else { continue };
            for breakpoint in self.breakpoints_of(tid) {
                let _ = image::clear_breakpoint(&tracee, &breakpoint);
            }
            let _ = ptrace::detach(tid, signal);
        }
        self.family.forget(process);
        let (pid, name) = (number(process), own::name(process));
        self.seen.runs_on.push(Left { pid, name, is_vmm });
    }

    /// Waits for a stop, and gives the signal that is to be delivered after it.
    fn stop_of(&mut self, tid: Pid, tracee: &Tracee) -> Option<i32> {
        let begin = Instant::now();
        while begin.elapsed() < STOPPING {
            match changed(tid) {
                Ok(Some((status, _))) if libc::WIFSTOPPED(status) => {
                    let signal = libc::WSTOPSIG(status);
                    let traps = ptrace::event(status) == 0 && signal == libc::SIGTRAP;
                    let handled = traps && self.at_breakpoint(tid, tracee).unwrap_or(false);
                    return Some(if ptrace::event(status) == 0 && !handled { signal } else { 0 });
                }
                Ok(Some(_)) | Err(_) => return None,
                Ok(None) => std::thread::sleep(PAUSE),
            }
        }
        None
    }
}

/// True for a VMM: known by its name, or with a VM of KVM's.
fn is_vmm(pid: Pid) -> bool {
    let image = std::fs::read_link(format!("/proc/{}/exe", number(pid))).ok();
    known(image.as_deref()) != Known::No || has_machine(pid)
}

fn named(pid: Pid) -> String {
    format!("{} (pid {})", own::name(pid), number(pid))
}

/// An early return or a panic must not leave a VMM behind.
impl Drop for Supervisor<'_> {
    fn drop(&mut self) {
        if self.reaped.is_some() {
            return;
        }
        let all = self.own.all(self.pid, Leader::Runs);
        kill_group(self.pid);
        all.into_iter().for_each(bury);
        bury(self.pid);
    }
}
