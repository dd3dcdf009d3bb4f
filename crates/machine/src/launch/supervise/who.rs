//! Who of those that run is the VMM: what was launched, what it executes, or a child of it.

use super::super::family::{self, has_machine, number, Known};
use super::super::tracee::Tracee;
use super::super::{image, kvm, ptrace};
use super::{Followed, Supervisor};
use rustix::process::Pid;
use std::io;
use std::path::Path;
use vmeter_model::{Moment, Ns};

impl Supervisor<'_> {
    pub(super) fn gone(&mut self, pid: Pid, at: Ns) {
        self.family.remove(pid);
        if pid == self.vmm {
            self.vmm = self.pid;
            self.followed = Followed::Gone;
            self.seen.moments.push((at, Moment::WrapperResumed));
        }
    }

    /// A thread is at its end. The first that ran a vCPU may be the last moment at which the
    /// guest's RAM is there: some VMMs wait for it and then unmap all. The end of the main
    /// thread is the end of its process.
    pub(super) fn on_exit(&mut self, pid: Pid, process: Pid, tracee: &Tracee) {
        if process != self.vmm && self.may_be_launcher() && has_machine(process) {
            self.adopt(process);
        }
        if process != self.vmm || self.followed == Followed::Gone {
            return;
        }
        if pid == process {
            self.seen.moments.push((tracee.stopped_ns, Moment::VmmExiting));
            self.look(tracee);
        } else if !self.looked && kvm::is_vcpu(number(process), number(pid)) {
            self.look(tracee);
        }
    }

    /// True while what was launched may be anything but the VMM.
    fn may_be_launcher(&self) -> bool {
        self.options.frees_ram
            && self.followed == Followed::Sought
            && self.vmm == self.pid
            && !has_machine(self.pid)
    }

    /// A process that a launcher started turned out to be the VMM.
    pub(super) fn adopt(&mut self, vmm: Pid) {
        if !self.may_be_launcher() {
            return;
        }
        for (_, moment) in &mut self.seen.moments {
            *moment = moment.clone().of_wrapper();
        }
        let member = self.family.member(vmm);
        let own = std::mem::take(&mut member.moments);
        self.breakpoints = std::mem::take(&mut member.breakpoints);
        self.seen.image = member.image.take();
        self.seen.moments.extend(own);
        self.vmm = vmm;
        self.followed = Followed::Found;
    }

    /// A new image. What came before it was a wrapper (a script, `env`, `taskset`):
    /// its moments keep their times under another name. A wrapper's child counts only
    /// if its image is the VMM's, or it holds a VM later.
    pub(super) fn on_exec(&mut self, pid: Pid, tracee: &Tracee) -> io::Result<()> {
        let image = std::fs::read_link(format!("/proc/{}/exe", tracee.pid)).ok();
        let (follow, frees) = (self.options.follow.as_deref(), self.options.frees_ram);
        let known = family::known(image.as_deref());
        let is_named = |name| {
            let file = image.as_deref().and_then(Path::file_name);
            file.is_some_and(|file| file.to_string_lossy().contains(name))
        };
        let is_vmm = follow.is_some_and(is_named) || frees && known != Known::No;
        let sought = self.followed == Followed::Sought && (pid == self.pid || is_vmm);
        if pid != self.vmm && !sought {
            if frees && self.followed == Followed::Sought {
                let breakpoints = image::set_breakpoints(tracee);
                let member = self.family.member(pid);
                (member.image, member.breakpoints) = (image, breakpoints);
                member.moments = vec![(tracee.stopped_ns, Moment::VmmExec)];
            }
            return Ok(());
        }
        for (_, moment) in &mut self.seen.moments {
            *moment = moment.clone().of_wrapper();
        }
        self.vmm = pid;
        if self.followed != Followed::Gone {
            self.followed = if is_vmm { Followed::Found } else { Followed::Sought };
        }
        self.seen.execs += 1;
        self.seen.moments.push((tracee.stopped_ns, Moment::VmmExec));
        let forks = (follow.is_some() || frees) && !is_vmm;
        ptrace::watch_exit(pid, forks, frees && known != Known::KeepsRam)?;
        self.breakpoints = image::set_breakpoints(tracee);
        self.seen.image = image;
        self.hooks.on_exec(tracee);
        Ok(())
    }
}
