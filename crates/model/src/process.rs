//! A process of the guest's user space.

use crate::time::Ns;
use serde::{Deserialize, Serialize};

/// What is known of one process. Times are ns after the VMM's exec.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Process id in the guest.
    pub pid: i32,
    /// That of who forked it; none for the kernel's own helpers, or where no fork was seen.
    pub parent: Option<i32>,
    /// As its span is called.
    pub name: String,
    /// Arguments of what it executed last, from `argv[0]`, as far as they were kept.
    pub arguments: Vec<String>,
    /// systemd's unit that it belongs to.
    pub unit: Option<String>,
    /// Its fork, or its first `execve` where no fork was seen.
    pub start: Ns,
    /// None if it was still there at the end.
    pub end: Option<Ns>,
    /// How it ended, as wait(2) says it.
    pub status: Option<i32>,
    /// CPU time of its threads, ns.
    pub cpu: Option<Ns>,
    /// How long another process stood still for its end, ns; none if none did.
    pub waited: Option<Ns>,
}
