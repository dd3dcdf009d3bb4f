//! What proc(5) says of a process: `/proc/PID/stat`, and what it has open.
//!
//! The numbers of `stat` are read here and not asked of the kernel by getsid(2) and its like: in a PID
//! namespace (a container) the session or the group of a process may be one of outside, whose
//! number is 0, and a type for process numbers has no 0.

use std::fs;
use std::path::{Path, PathBuf};

/// What a VM's descriptor leads to (virt/kvm/kvm_main.c, `kvm_dev_ioctl_create_vm`).
pub const KVM_VM: &str = "anon_inode:kvm-vm";
/// What a vCPU's begins with (virt/kvm/kvm_main.c, `create_vcpu_fd`).
pub const KVM_VCPU: &str = "anon_inode:kvm-vcpu:";

/// A process's descriptors, with what each leads to; none if it is gone or another user's.
pub fn descriptors(pid: i32) -> impl Iterator<Item = (i32, PathBuf)> {
    let folder = fs::read_dir(format!("/proc/{pid}/fd"));
    folder.into_iter().flatten().flatten().filter_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        Some((number, fs::read_link(entry.path()).ok()?))
    })
}

/// The fields of `/proc/PID/stat` that vmeter uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stat {
    /// `comm`, as the kernel writes it: it may hold any byte, here with U+FFFD for what is not UTF-8.
    pub name: String,
    /// `state`: `Z` and `X` are gone.
    pub state: char,
    /// `ppid`; 0 if the parent is outside of this PID namespace.
    pub parent: i32,
    /// `pgrp`; 0 if the group's number is one of outside.
    pub group: i32,
    /// `session`; 0 if the session's number is one of outside.
    pub session: i32,
    /// `tty_nr`: 0 without a controlling terminal.
    pub terminal: i32,
    /// `utime` and `stime`, clock ticks.
    pub ran: (u64, u64),
    /// `starttime`: clock ticks after boot.
    pub started: u64,
    /// `vsize`, bytes: 0 for a kernel thread or a zombie.
    pub memory: u64,
    /// `guest_time`, clock ticks; 0 where the kernel has no such field.
    pub guest_time: u64,
    /// `env_start` and `env_end`; 0 where they are not set or not to be seen.
    pub environment: (u64, u64),
}

impl Stat {
    /// Of a process; none if it is gone.
    pub fn of(pid: i32) -> Option<Self> {
        Self::read(Path::new(&format!("/proc/{pid}/stat")))
    }

    /// Of this process.
    pub fn own() -> Option<Self> {
        Self::read(Path::new("/proc/self/stat"))
    }

    /// Of a thread of a process.
    pub fn of_thread(pid: i32, tid: i32) -> Option<Self> {
        Self::read(Path::new(&format!("/proc/{pid}/task/{tid}/stat")))
    }

    fn read(file: &Path) -> Option<Self> {
        Self::parse(&String::from_utf8_lossy(&fs::read(file).ok()?))
    }

    /// Of the file's text. The name is in parentheses and may itself hold some, and spaces.
    pub fn parse(text: &str) -> Option<Self> {
        let (before, rest) = text.rsplit_once(") ")?;
        let (_, name) = before.split_once('(')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        // proc(5) counts from 1, and the state is the third.
        let number = |field: usize| fields.get(field - 3).and_then(|text| text.parse::<u64>().ok());
        let id = |field: usize| fields.get(field - 3).and_then(|text| text.parse::<i32>().ok());
        Some(Stat {
            name: name.to_owned(),
            state: fields.first()?.chars().next()?,
            parent: id(4)?,
            group: id(5)?,
            session: id(6)?,
            terminal: id(7).unwrap_or(0),
            ran: (number(14).unwrap_or(0), number(15).unwrap_or(0)),
            started: number(22)?,
            memory: number(23).unwrap_or(0),
            guest_time: number(43).unwrap_or(0),
            environment: (number(50).unwrap_or(0), number(51).unwrap_or(0)),
        })
    }

    /// True for a process that has ended, whether its parent has seen that or not.
    pub fn is_gone(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_of_proc() {
        let fields: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
        let text = format!("7 (a) b (c) S {}\n", fields.join(" "));
        let stat = Stat::parse(&text).expect("a line");
        assert_eq!((stat.name.as_str(), stat.state), ("a) b (c", 'S'));
        assert_eq!((stat.parent, stat.group, stat.session), (4, 5, 6));
        assert_eq!((stat.terminal, stat.ran), (7, (14, 15)));
        assert_eq!((stat.started, stat.memory, stat.guest_time), (22, 23, 43));
        assert_eq!(stat.environment, (50, 51));
        assert!(!stat.is_gone());
        assert!(Stat::parse(&text.replace(") S", ") Z")).is_some_and(|stat| stat.is_gone()));
        let short = format!("7 (a) S {}", fields[..20].join(" "));
        assert_eq!(Stat::parse(&short).map(|stat| (stat.guest_time, stat.memory)), Some((0, 23)));
        assert_eq!(Stat::parse("7 (a) S 1 2"), None);
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn this_process_has_one() {
        let own = Stat::own().expect("proc(5)");
        let pid = i32::try_from(std::process::id()).expect("a process id");
        assert_eq!(Stat::of(pid).map(|stat| stat.started), Some(own.started));
        assert!(own.memory > 0 && own.environment.0 > 0);
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "[0-9]{0,3} ?\\(?[ -~]{0,60}\\)?[ 0-9SZ-]{0,200}") {
            let _ = Stat::parse(&text);
        }
    }
}
