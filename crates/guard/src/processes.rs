//! Processes by the mark in their environment, and what comes from them.

use crate::Whose;
use rustix::process::{pidfd_open, pidfd_send_signal, Pid, PidfdFlags, Signal};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use vmeter_base::marked::processes;
use vmeter_base::owner::{self, Owner};
use vmeter_base::process::Stat;

/// Whom a guard guards; what has this in its environment is a guard.
pub(crate) const VARIABLE: &str = "VMETER_GUARD";

/// A process that is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub pid: i32,
    pub name: String,
}

/// Marked processes, those of their sessions and their descendants.
///
/// A wrapper may have cleared the environment of what it runs: it is then known by its parent
/// or by its session, which a launch always begins.
pub(crate) fn find(whose: Whose) -> Vec<Found> {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let all: BTreeMap<i32, Stat> =
        processes().filter_map(|pid| Some((pid, Stat::of(pid)?))).collect();
    let guards: BTreeSet<i32> = all.keys().copied().filter(|pid| is_guard(*pid)).collect();
    let mut found: BTreeSet<i32> =
        all.keys().copied().filter(|pid| *pid != own && is_marked(*pid, whose)).collect();
    loop {
        let before = found.len();
        let children = all.iter().filter(|(_, stat)| found.contains(&stat.parent));
        let children: Vec<i32> = children.map(|(pid, _)| *pid).collect();
        found.extend(children.into_iter().filter(|pid| *pid != own));
        if found.len() == before {
            break;
        }
    }
    found.retain(|pid| !guards.contains(pid) && all.get(pid).is_some_and(|s| !s.is_gone()));
    found.into_iter().map(|pid| Found { pid, name: name(pid) }).collect()
}

/// Ends it, if it is still the process that was found; another user's is found again.
pub(crate) fn end(found: &Found) {
    let pid = Pid::from_raw(found.pid);
    let Some(Ok(fd)) = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) else { return };
    // The number may mean another process since.
    if name(found.pid) == found.name {
        let _ = pidfd_send_signal(&fd, Signal::KILL);
    }
}

fn is_marked(pid: i32, whose: Whose) -> bool {
    // Process numbers of another namespace mean nothing here. Those of one that is known to
    // be gone are looked for everywhere.
    let comparable = match whose {
        Whose::Of(_) => true,
        Whose::Nobody => namespace(&pid.to_string()) == namespace("self"),
    };
    Owner::of_process(pid).is_some_and(|owner| comparable && whose.has(&owner))
}

fn namespace(process: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/ns/pid")).ok()
}

fn name(pid: i32) -> String {
    let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    comm.trim_end().to_owned()
}

/// True if a process is a guard, of whomever.
fn is_guard(pid: i32) -> bool {
    let environment = owner::environment_of(pid).unwrap_or_default();
    let own = format!("{VARIABLE}=");
    environment.split(|byte| *byte == 0).any(|entry| entry.starts_with(own.as_bytes()))
}
