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
use vmeter_trace::ops::{Op, Sleep};

/// Most threads that are remembered.
const MOST: usize = 1 << 16;
/// Events of a file by whose threads one may have turned tracing on.
const FIRST: usize = 32;
/// Wake-ups that are remembered: who ends wakes who waits for that just before.
const WOKEN: usize = 8;
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
    /// The threads of the first events.
    head: Vec<Tid>,
    /// Who woke whom last, and how many have by then; by that number.
    woke: [(Tid, i32); WOKEN],
    wakes: usize,
    /// Who has started whom, or has waited for its end; and those that each has started.
    parents: FastMap<Tid, Tid>,
    children: FastMap<Tid, Vec<Tid>>,
}

impl Started {
    /// Who has made a thread, or has waited for its end.
    pub fn maker(&self, thread: Tid) -> Option<Tid> {
        self.parents.get(&thread).copied()
    }

    /// An event comes: the first of a file tell who turned tracing on.
    #[inline]
    pub fn begins(&mut self, moment: &Moment, merge: &Merge) {
        let thread = Tid { file: moment.file, tid: moment.tid };
        match moment.op {
            Op::Switch { prev, sleep: Sleep::Dead, .. } => self.ended(thread, prev),
            Op::Wake { tid, .. } => {
                self.wakes += 1;
                self.woke[self.wakes % WOKEN] = (thread, tid);
            }
            _ => {}
        }
        if self.last != Some(moment.file) {
            self.last = Some(moment.file);
            if self.files.insert(moment.file) {
                self.head.clear();
            }
        }
        if self.head.len() < FIRST {
            self.first(thread, moment, merge);
        }
    }

    /// A thread that has ended leaves its CPU, and has woken who waits for that.
    fn ended(&mut self, by: Tid, prev: i32) {
        let prev = Tid { tid: prev, ..by };
        if prev.tid <= 0 {
            return;
        }
        // perf has no number for who ends.
        let by_it = |waker: &Tid| *waker == prev || *waker == by;
        let mut latest_first = (1..=WOKEN).map(|n| self.woke[(self.wakes + n) % WOKEN]).rev();
        let woken = latest_first.find(|(waker, woken)| by_it(waker) && *woken > 0);
        if let Some((_, woken)) = woken {
            self.waited(Tid { tid: woken, ..prev }, prev);
        }
    }

    /// One of the first events of a file: whose first is the return from a write turned it on,
    /// though another CPU's event may have come in between.
    fn first(&mut self, thread: Tid, moment: &Moment, merge: &Merge) {
        let write = |name| merge.name(moment.sym(name)) == "write";
        let turned_on = matches!(moment.op, Op::SyscallExit { name, returned: Some(bytes) }
            if write(name) && SWITCH.contains(&bytes));
        let known = self.recorders.keys().any(|recorder| recorder.file == thread.file);
        if turned_on && thread.tid > 0 && !known && !self.head.contains(&thread) {
            self.recorders.insert(thread, ());
        }
        self.head.push(thread);
    }

    /// A thread starts another; `launched` says whether a recorder is known to have started it.
    /// The threads that the recording's maker is now known to have started: the other, and those
    /// that it has started itself before its maker's call returned.
    pub fn forked(&mut self, parent: Tid, launched: bool, child: Tid) -> Vec<Tid> {
        self.parent(parent, child);
        let recorder = self.recorders.contains_key(&parent);
        let made = recorder || launched || self.made.contains_key(&parent);
        let mut fresh = vec![child];
        if !made {
            return Vec::new();
        }
        let mut at = 0;
        while let Some(next) = fresh.get(at).copied().filter(|_| self.made.len() < MOST) {
            self.made.insert(next, ());
            let below = self.children.get(&next).into_iter().flatten();
            let below: Vec<Tid> = below.filter(|t| !self.made.contains_key(t)).copied().collect();
            fresh.extend(below);
            at += 1;
        }
        fresh
    }

    /// A thread has waited for the end of another: it has started it.
    pub fn waited(&mut self, parent: Tid, child: Tid) {
        if !self.parents.contains_key(&child) {
            self.parent(parent, child);
        }
    }

    fn parent(&mut self, parent: Tid, child: Tid) {
        if self.parents.len() < MOST || self.parents.contains_key(&child) {
            // Its fork and its maker's return both say so; of each thread one maker is kept.
            if self.parents.insert(child, parent).is_none() {
                self.children.entry(parent).or_default().push(child);
            }
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
