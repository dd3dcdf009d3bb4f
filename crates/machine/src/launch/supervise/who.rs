//! Who of those that run is the VMM: what was launched, what it executes, or a child of it.

use super::super::family::{has_machine, known, number, Known};
use super::super::tracee::Tracee;
use super::super::types::{Mode, Vmm};
use super::super::{arguments, image, kvm, own, ptrace};
use super::{Followed, Leader, Supervisor};
use crate::vmm::{Console, Dialect};
use crate::{argv, backend};
use rustix::process::Pid;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use vmeter_model::{Moment, Ns};

/// True for a VMM whose guest's console is known to be elsewhere than on its standard output.
fn is_elsewhere(vmm: &dyn Dialect, words: &[OsString]) -> bool {
    let file = argv::console_file(words);
    matches!(vmm.read(words).console, Console::Elsewhere(_))
        && file.is_none_or(|(file, _)| argv::is_same_for_all(file))
}

impl Supervisor<'_> {
    pub(super) fn gone(&mut self, pid: Pid, at: Ns) {
        self.family.remove(pid);
        if pid == self.vmm {
            self.vmm = self.pid;
            let proven = self.hooks.has_seen_guest();
            self.followed = if proven { Followed::Gone } else { Followed::Doubted };
            self.seen.moments.push((at, Moment::WrapperResumed));
        }
    }

    /// A thread is at its end. The first that ran a vCPU may be the last moment at which the
    /// guest's RAM is there: some VMMs wait for it and then unmap all. The end of the main
    /// thread is the end of its process.
    pub(super) fn on_exit(&mut self, pid: Pid, process: Pid, tracee: &Tracee) {
        let is_main = pid == process;
        if is_main && self.seeks() {
            self.look_around(&[process]);
        }
        let ran_vcpu = || kvm::is_vcpu(number(process), number(pid));
        let may_be_vmm = process != self.vmm && self.may_be_launcher() && has_machine(process);
        if may_be_vmm && (is_main || ran_vcpu()) {
            self.adopt(process);
        }
        if process != self.vmm {
            return;
        }
        self.seen.has_vmm |= is_main && has_machine(process);
        if !self.is_running() {
            return;
        }
        if is_main {
            self.seen.moments.push((tracee.stopped_ns, Moment::VmmExiting));
            self.look(tracee);
            self.note_cpu(tracee);
        } else if !self.looked && ran_vcpu() {
            self.seen.has_vmm = true;
            self.look(tracee);
        }
    }

    /// True until the VMM has ended before its wrapper.
    fn is_running(&self) -> bool {
        matches!(self.followed, Followed::Sought | Followed::Found)
    }

    /// True while what was launched may be anything but the VMM.
    fn may_be_launcher(&self) -> bool {
        self.options.frees_ram && self.is_sought() && self.vmm == self.pid && !has_machine(self.pid)
    }

    /// True as long as no VMM is seen among the processes of the launch.
    pub(super) fn seeks(&self) -> bool {
        self.traced && self.seen.execs > 0 && !self.seen.has_vmm && self.is_sought()
    }

    fn is_sought(&self) -> bool {
        matches!(self.followed, Followed::Sought | Followed::Doubted)
    }

    /// Looks whether one of `processes`, or of all, is a VMM, or asks a daemon for one.
    pub(super) fn look_around(&mut self, processes: &[Pid]) {
        let mut all = self.family.processes();
        all.extend([self.pid, rustix::process::getpid()]);
        let those = if processes.is_empty() { &all[..all.len() - 1] } else { processes };
        self.seen.has_vmm |= self.asks.look(those, &all);
    }

    /// Notes who of the launch sends the VMM a signal that ends it.
    pub(super) fn note_sender(&mut self, pid: Pid, signal: i32) {
        let ends = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT].contains(&signal);
        if !ends || pid != self.vmm || pid == self.pid {
            return;
        }
        let sender = ptrace::sender(pid).and_then(Pid::from_raw);
        let of_launch = |sender: &Pid| {
            *sender == self.pid
                || self.family.processes().contains(sender)
                || self.own.has(*sender, self.pid, self.leader)
        };
        self.seen.told_by = sender
            .filter(of_launch)
            .map(|sender| format!("{} (pid {})", own::name(sender), number(sender)));
    }

    /// What was seen so far was a wrapper's, or of a VMM that was only asked something.
    fn begin_anew(&mut self) {
        self.seen.moments.retain(|(_, moment)| {
            self.followed != Followed::Doubted
                || !matches!(moment, Moment::VmmExiting | Moment::WrapperResumed)
        });
        for (_, moment) in &mut self.seen.moments {
            *moment = moment.clone().of_wrapper();
        }
        self.looked = false;
        self.seen.looked = None;
    }

    /// A process that a launcher started turned out to be the VMM.
    pub(super) fn adopt(&mut self, vmm: Pid) {
        if !self.may_be_launcher() {
            return;
        }
        self.begin_anew();
        let member = self.family.member(vmm);
        let own = std::mem::take(&mut member.moments);
        self.breakpoints = std::mem::take(&mut member.breakpoints);
        self.seen.image = member.image.take();
        self.seen.moments.extend(own);
        self.vmm = vmm;
        self.followed = Followed::Found;
        self.seen.has_vmm = true;
        self.seen.vmm = Some(format!("{} (pid {})", own::name(vmm), number(vmm)));
    }

    /// A new image. What came before it was a wrapper (a script, `env`, `taskset`):
    /// its moments keep their times under another name. A wrapper's child counts only
    /// if its image is the VMM's, or it holds a VM later.
    pub(super) fn on_exec(&mut self, pid: Pid, tracee: &Tracee) -> io::Result<()> {
        self.asks.forget(pid);
        let image = std::fs::read_link(format!("/proc/{}/exe", tracee.pid)).ok();
        let (follow, frees) = (self.options.follow.as_deref(), self.options.frees_ram);
        let argv = arguments::of(tracee.pid);
        let dialect = image.as_deref().and_then(|image| backend::of_exec(image, &argv));
        let is_named = |name| {
            let file = image.as_deref().and_then(Path::file_name);
            file.is_some_and(|file| file.to_string_lossy().contains(name))
        };
        let is_probe = dialect.is_some_and(|dialect| dialect.is_probe(&argv));
        self.seen.probes += u32::from(is_probe);
        let is_vmm = !is_probe && (dialect.is_some() || follow.is_some_and(is_named));
        if is_vmm && pid != self.vmm && matches!(self.followed, Followed::Found | Followed::Gone) {
            self.seen.others.push(format!("{} (pid {})", own::name(pid), tracee.pid));
            let silent = dialect.is_some_and(|vmm| is_elsewhere(vmm, &argv));
            let prints = !silent && self.has_console(tracee);
            self.seen.others_print |= prints;
            self.hooks.on_other(prints);
            return Ok(());
        }
        let sought = match self.followed {
            Followed::Sought => pid == self.pid || is_vmm,
            Followed::Found => pid == self.vmm,
            Followed::Doubted => is_vmm,
            Followed::Gone => false,
        };
        if !sought {
            if frees && self.followed == Followed::Sought && self.options.mode == Mode::Traced {
                let breakpoints = image::set_breakpoints(tracee);
                let member = self.family.member(pid);
                (member.image, member.breakpoints) = (image, breakpoints);
                member.moments = vec![(tracee.stopped_ns, Moment::VmmExec)];
            }
            return Ok(());
        }
        self.begin_anew();
        self.vmm = pid;
        self.followed = if is_vmm { Followed::Found } else { Followed::Sought };
        self.seen.has_vmm |= is_vmm;
        self.seen.vmm = is_vmm.then(|| format!("{} (pid {})", own::name(pid), tracee.pid));
        self.seen.execs += 1;
        self.seen.moments.push((tracee.stopped_ns, Moment::VmmExec));
        if let Some(dialect) = dialect.filter(|_| is_vmm) {
            let has_console = self.has_console(tracee);
            let is_own = self.leader == Leader::Runs && self.own.has(pid, self.pid, self.leader);
            let vmm = Vmm { tracee, dialect, argv, has_console, is_own };
            self.hooks.on_vmm(&vmm);
            self.seen.vmm_argv = vmm.argv;
        }
        let forks = (follow.is_some() || frees) && !is_vmm;
        let kept = known(image.as_deref()) == Known::KeepsRam
            || dialect.is_some_and(|dialect| dialect.abilities().ram_at_exit);
        self.seen.image = image;
        if self.options.mode == Mode::Started {
            return ptrace::watch(pid, false, forks, false);
        }
        ptrace::watch(pid, true, forks, frees && !kept)?;
        self.breakpoints = image::set_breakpoints(tracee);
        self.hooks.on_exec(tracee);
        Ok(())
    }

    /// True if its output goes where the launch's does.
    fn has_console(&self, tracee: &Tracee) -> bool {
        let is_it = |number: i32| {
            let file = std::fs::read_link(format!("/proc/{}/fd/{number}", tracee.pid)).ok();
            file.is_some() && file == self.stdout
        };
        is_it(1) || is_it(2)
    }
}
