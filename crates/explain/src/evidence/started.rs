//! What the recording was made of: the threads that its maker started.
//!
//! Who turns tracing on and then runs a program (`perf record COMMAND`, `trace-cmd record
//! COMMAND`, a shell that writes `tracing_on`) asks about that program. The first event of such a
//! recording is the return from the write that turned it on.

use super::groups::{GroupId, Groups};
use crate::merge::Merge;
use crate::moment::{Moment, Tid};
use std::collections::BTreeSet;
use vmeter_trace::hash::FastMap;
use vmeter_trace::ops::Op;

/// Most threads that are remembered.
const MOST: usize = 1 << 16;
/// What `echo 1 > tracing_on` writes, bytes.
const SWITCH: std::ops::RangeInclusive<i64> = 1..=2;

/// Threads that a recording's maker started, and those that these started.
#[derive(Debug, Default)]
pub struct Started {
    recorders: FastMap<Tid, ()>,
    made: FastMap<Tid, ()>,
    files: BTreeSet<u16>,
    /// File of the last event.
    last: Option<u16>,
}

impl Started {
    /// An event comes: the first of a file tells who turned tracing on.
    #[inline]
    pub fn begins(&mut self, moment: &Moment, merge: &Merge) {
        if self.last == Some(moment.file) {
            return;
        }
        self.last = Some(moment.file);
        let thread = Tid { file: moment.file, tid: moment.tid };
        let write = |name| merge.name(moment.sym(name)) == "write";
        let turned_on = matches!(moment.op, Op::SyscallExit { name, returned: Some(bytes) }
            if write(name) && SWITCH.contains(&bytes));
        if self.files.insert(moment.file) && moment.tid > 0 && turned_on {
            self.recorders.insert(thread, ());
        }
    }

    /// A thread starts another; `launched` says whether a recorder is known to have started it.
    pub fn forked(&mut self, parent: Tid, launched: bool, child: Tid) {
        let recorder = self.recorders.contains_key(&parent);
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
