//! What the recording was made of: the threads that its maker started.
//!
//! Who turns tracing on and then runs a program (`perf record COMMAND`, `trace-cmd record
//! COMMAND`, a shell that writes `tracing_on`) asks about that program. The first event of such a
//! recording is the return from the write that turned it on.

use super::groups::{GroupId, Groups};
use crate::moment::Tid;
use std::collections::BTreeSet;
use vmeter_trace::hash::FastMap;

/// Most threads that are remembered.
const MOST: usize = 1 << 16;
/// Programs that record what they start.
const RECORDERS: [&str; 3] = ["perf", "trace-cmd", "vmeter"];

/// Threads that a recording's maker started, and those that these started.
#[derive(Debug, Default)]
pub struct Started {
    recorders: FastMap<Tid, ()>,
    made: FastMap<Tid, ()>,
    files: BTreeSet<u16>,
}

impl Started {
    /// An event of a file comes; `turns_on` says whether it is the return from a write.
    pub fn begins(&mut self, thread: Tid, turns_on: impl FnOnce() -> bool) {
        if self.files.insert(thread.file) && thread.tid > 0 && turns_on() {
            self.recorders.insert(thread, ());
        }
    }

    /// True if the file has no event yet.
    pub fn is_first(&self, file: u16) -> bool {
        !self.files.contains(&file)
    }

    /// A thread starts another; `launched` says whether a recorder is known to have started it.
    pub fn forked(&mut self, parent: Tid, name: &str, launched: bool, child: Tid) {
        let recorder = self.recorders.contains_key(&parent) || RECORDERS.contains(&name);
        if (recorder || launched || self.made.contains_key(&parent)) && self.made.len() < MOST {
            self.made.insert(child, ());
        }
    }

    /// A recorder started this one before the first event.
    pub fn launched(&mut self, thread: Tid) {
        self.made.insert(thread, ());
    }

    /// Their names' groups.
    pub fn groups(&self, groups: &Groups) -> BTreeSet<GroupId> {
        let recorders = &self.recorders;
        let own = self.made.keys().filter(|tid| !recorders.contains_key(tid));
        own.filter_map(|tid| groups.group_of(*tid)).collect()
    }
}
