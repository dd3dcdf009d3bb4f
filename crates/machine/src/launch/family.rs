//! The processes and threads that are traced besides the launched one.
//!
//! A launcher (a script that speaks to a VMM's API, a supervisor, `sudo`) starts its VMM as a
//! child. Which one that is shows by the name of its image, or by the VM that it holds at its
//! end; until then the moments of each are kept apart.

use super::image::Breakpoint;
use super::kvm;
use rustix::process::Pid;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use vmeter_model::{Moment, Ns};

/// Processes and threads that are kept apart; more than any launcher starts.
const MOST: usize = 1 << 14;

/// A process or thread that is traced.
#[derive(Debug)]
pub struct Member {
    /// The process that it is, or is a thread of.
    pub process: Pid,
    /// What was seen of its image, absolute times.
    pub moments: Vec<(Ns, Moment)>,
    /// Where it will be stopped.
    pub breakpoints: Vec<Breakpoint>,
    /// What it executes.
    pub image: Option<PathBuf>,
    /// True if it is no longer to die with vmeter.
    spared: bool,
}

/// All that are traced besides the launched process's main thread.
#[derive(Debug, Default)]
pub struct Family(HashMap<Pid, Member>);

impl Family {
    /// A member that was seen to stop; it is one from now on.
    pub fn member(&mut self, pid: Pid) -> &mut Member {
        if self.0.len() >= MOST && !self.0.contains_key(&pid) {
            self.0.clear();
        }
        self.0.entry(pid).or_insert_with(|| Member {
            process: process_of(pid),
            moments: Vec::new(),
            breakpoints: Vec::new(),
            image: None,
            spared: false,
        })
    }

    /// It is gone: what was seen of it.
    pub fn remove(&mut self, pid: Pid) -> Option<Member> {
        self.0.remove(&pid)
    }

    /// All of them.
    pub fn all(&self) -> Vec<Pid> {
        self.0.keys().copied().collect()
    }

    /// The processes among them.
    pub fn processes(&self) -> Vec<Pid> {
        let processes = self.0.iter().filter(|(pid, member)| member.process == **pid);
        processes.map(|(pid, _)| *pid).collect()
    }

    /// True for one that is no longer to die with vmeter.
    pub fn is_spared(&self, pid: Pid) -> bool {
        self.0.get(&pid).is_some_and(|member| member.spared)
    }

    /// Has a process and its threads be spared at their next stop: gives them.
    pub fn spare(&mut self, process: Pid) -> Vec<Pid> {
        let of_it = self.0.iter_mut().filter(|(_, member)| member.process == process);
        let spared = of_it.map(|(pid, member)| {
            member.spared = true;
            *pid
        });
        spared.collect()
    }

    /// A process and its threads are of no interest any more.
    pub fn forget(&mut self, process: Pid) {
        self.0.retain(|_, member| member.process != process);
    }

    /// True if there are processes among them, which may leave the process group.
    pub fn has_processes(&self) -> bool {
        self.0.iter().any(|(pid, member)| member.process == *pid)
    }

    /// Those that have left a process group, and whose stops therefore nobody waits for.
    pub fn strangers(&self, group: Pid) -> Vec<Pid> {
        // rustix has no number for a group of outside this PID namespace: 0.
        // SAFETY: getpgid(2) takes a number and touches no memory.
        let group_of = |pid: &Pid| unsafe { libc::getpgid(number(*pid)) };
        let left = |pid: &Pid| ![-1, number(group)].contains(&group_of(pid));
        self.0.keys().copied().filter(left).collect()
    }

    /// A process among them that holds a VM.
    pub fn with_machine(&self) -> Option<Pid> {
        let processes = self.0.iter().filter(|(pid, member)| member.process == **pid);
        processes.map(|(pid, _)| *pid).find(|pid| has_machine(*pid))
    }
}

/// True if a process holds a VM of KVM's.
pub fn has_machine(pid: Pid) -> bool {
    kvm::machines(number(pid)) > 0
}

/// The process that a thread is of (`Tgid` in proc(5)); itself, if that is not to be had.
fn process_of(pid: Pid) -> Pid {
    let status = std::fs::read_to_string(format!("/proc/{}/status", number(pid)));
    let status = status.unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    line.and_then(|tgid| Pid::from_raw(tgid.trim().parse().ok()?)).unwrap_or(pid)
}

pub fn number(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}

/// What is known of an image by the name of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// Nothing: it can be a launcher, or somebody's own VMM.
    No,
    /// A VMM that keeps its guest's RAM to its end.
    KeepsRam,
    /// A VMM that may free it before.
    FreesRam,
}

/// Looks an image up among the VMMs that are known.
pub fn known(image: Option<&Path>) -> Known {
    match image.and_then(crate::backend::of_image).map(|dialect| dialect.abilities().ram_at_exit) {
        None => Known::No,
        Some(true) => Known::KeepsRam,
        Some(false) => Known::FreesRam,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_and_processes_are_told_apart() {
        let me = rustix::process::getpid();
        let mut family = Family::default();
        assert!(!family.has_processes());
        let thread = std::thread::scope(|scope| {
            let other = scope.spawn(rustix::thread::gettid);
            other.join().expect("a thread")
        });
        assert_eq!(process_of(rustix::thread::gettid()), me);
        family.member(me).process = thread;
        assert!(!family.has_processes(), "one that is a thread of another");
        family.member(me).process = me;
        assert!(family.has_processes() && family.with_machine().is_none());
        assert!(family.strangers(me).len() <= 1);
        assert!(family.remove(me).is_some() && family.remove(me).is_none());
    }

    #[test]
    fn images_by_name() {
        let of = |name: &str| known(Some(Path::new(name)));
        assert_eq!(of("/usr/bin/qemu-system-x86_64"), Known::KeepsRam);
        assert_eq!(of("/opt/firecracker-v1.12"), Known::FreesRam);
        assert_eq!((of("/bin/bash"), known(None)), (Known::No, Known::No));
    }
}
