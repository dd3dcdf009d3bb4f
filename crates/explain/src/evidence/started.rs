//! What the recording was made of: the threads that its maker started.
//!
//! Who turns tracing on and then runs a program (`perf record COMMAND`, `trace-cmd record
//! COMMAND`, a shell that writes `tracing_on`) asks about that program. The first event of such a
//! recording is the return from the write that turned it on. Where calls are not recorded, it is
//! who comes first, starts something at once, and is there again at the end, to turn it off.

use super::groups::{GroupId, Groups};
use crate::merge::Merge;
use crate::moment::{Moment, Sym, Tid};
use std::collections::BTreeSet;
use vmeter_trace::hash::FastMap;
use vmeter_trace::ops::{Op, Sleep};

/// Most threads that are remembered.
const MOST: usize = 1 << 16;
/// Events of a file by whose threads one may have turned tracing on, and turned it off again; and
/// until when it has started something.
const ENDS: usize = 32;
const EARLY: u64 = 256;
/// Most threads of which each has started the next.
const DEEPEST: usize = 32;
/// Most threads that may have.
const CANDIDATES: usize = 8;
/// Wake-ups that are remembered: who ends wakes who waits for that just before.
const WOKEN: usize = 8;
/// Share of the recorded time that somebody was there, from which it may be what was recorded.
const MOST_OF: u64 = 2;
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
    /// Events so far, and the threads of the first.
    events: u64,
    head: Vec<Tid>,
    /// The threads of the last, whom these switched to, and what calls these began.
    tail: [(Tid, i32, Option<Sym>); ENDS],
    /// When threads were first switched to, how long those were there that have ended, and who
    /// woke whom last.
    firsts: FastMap<Tid, u64>,
    ended: FastMap<Tid, u64>,
    woke: [(Tid, i32); WOKEN],
    /// The last event's time, and the first's.
    span: (Option<u64>, u64),
    /// Threads of the first that have started something soon, and what they have.
    perhaps: Vec<Tid>,
    by: FastMap<Tid, Tid>,
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
        let next = match moment.op {
            Op::Switch { prev, next, sleep, .. } => {
                self.switched(thread, (prev, next), sleep, moment.ts);
                next
            }
            _ => 0,
        };
        let enters = match moment.op {
            Op::SyscallEnter { name, .. } => Some(moment.sym(name)),
            _ => None,
        };
        if let Op::Wake { tid, .. } = moment.op {
            self.woke.rotate_right(1);
            self.woke[0] = (thread, tid);
        }
        self.span = (self.span.0.or(Some(moment.ts)), moment.ts);
        self.tail[(self.events % ENDS as u64) as usize] = (thread, next, enters);
        self.events += 1;
        if self.last != Some(moment.file) {
            self.last = Some(moment.file);
            if self.files.insert(moment.file) {
                self.head.clear();
            }
        }
        if self.head.len() < ENDS {
            self.first(thread, moment, merge);
        }
    }

    /// A thread comes to a CPU; one that has ended leaves it, and has woken who waits for that.
    fn switched(&mut self, by: Tid, (prev, next): (i32, i32), sleep: Sleep, now: u64) {
        let (prev, next) = (Tid { tid: prev, ..by }, Tid { tid: next, ..by });
        if next.tid > 0 && self.firsts.len() < MOST {
            self.firsts.entry(next).or_insert(now);
        }
        if sleep != Sleep::Dead || prev.tid <= 0 {
            return;
        }
        let first = self.firsts.remove(&prev).or(self.span.0).unwrap_or(now);
        if self.ended.len() < MOST {
            self.ended.insert(prev, now.saturating_sub(first));
        }
        // perf has no number for who ends.
        let by_it = |waker: &Tid| *waker == prev || *waker == by;
        let woken = self.woke.iter().find(|(waker, woken)| by_it(waker) && *woken > 0);
        if let Some((_, woken)) = woken.copied() {
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
            fresh.retain(|child| self.is_perhaps(parent, *child));
            return fresh;
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

    /// True if a thread has started another, or one that has.
    fn descends(&self, child: Tid, from: Tid) -> bool {
        let mut up = std::iter::successors(Some(child), |child| self.parents.get(child).copied());
        up.by_ref().skip(1).take(DEEPEST).any(|parent| parent == from)
    }

    /// True if one that may have turned tracing on has started the other.
    fn is_perhaps(&mut self, parent: Tid, child: Tid) -> bool {
        if !self.recorders.is_empty() || parent.tid <= 0 {
            return false;
        }
        let early = self.events < EARLY && self.head.contains(&parent);
        if early && !self.perhaps.contains(&parent) && self.perhaps.len() < CANDIDATES {
            self.perhaps.push(parent);
        }
        let by = match self.by.get(&parent) {
            Some(by) => *by,
            None if self.perhaps.contains(&parent) => parent,
            None => return false,
        };
        if self.by.len() < MOST {
            self.by.insert(child, by);
        }
        true
    }

    /// The last event has come: who writes and does not return has turned tracing off; so has, where
    /// calls are not recorded, who may have turned it on and is there at the end, or who waited
    /// for the end of one that was there for most of the time.
    pub fn ends(&mut self, merge: &Merge) {
        if !self.recorders.is_empty() || !self.made.is_empty() || self.files.len() != 1 {
            return;
        }
        let last: Vec<(Tid, i32, Option<Sym>)> = self.last_events().collect();
        let write = |call: &Option<Sym>| call.is_some_and(|call| merge.name(call) == "write");
        let writes = last.iter().enumerate().filter(|(at, (thread, _, call))| {
            let newest = !last.iter().take(*at).any(|(other, ..)| other == thread);
            newest && write(call)
        });
        let writes: Vec<Tid> = writes.map(|(_, (thread, ..))| *thread).collect();
        if let Some((_, recorder)) = self.longest(&writes) {
            return self.recorded_by(recorder);
        }
        let again = |thread: &&Tid| {
            let there = |(last, next, _): &(Tid, i32, _)| last == *thread || *next == thread.tid;
            last.iter().any(there)
        };
        if let Some(recorder) = self.perhaps.iter().find(again).copied() {
            let own = self.by.iter().filter(|(_, by)| **by == recorder);
            self.made = own.map(|(child, _)| (*child, ())).collect();
            self.recorders.insert(recorder, ());
            return;
        }
        let there: Vec<Tid> = last
            .iter()
            .flat_map(|(thread, next, _)| [*thread, Tid { tid: *next, ..*thread }])
            .filter(|thread| thread.tid > 0 && !self.ended.contains_key(thread))
            .collect();
        let span = self.span.1.saturating_sub(self.span.0.unwrap_or(0));
        if let Some((life, recorder)) = self.longest(&there) {
            if life.saturating_mul(MOST_OF) >= span {
                self.recorded_by(recorder);
            }
        }
    }

    /// The last events, newest first.
    fn last_events(&self) -> impl Iterator<Item = (Tid, i32, Option<Sym>)> + '_ {
        let known = self.events.min(ENDS as u64);
        (1..=known).map(|back| self.tail[((self.events - back) % ENDS as u64) as usize])
    }

    /// Of some threads, the one that started what was there longest until it ended, and how long.
    fn longest(&self, of: &[Tid]) -> Option<(u64, Tid)> {
        let all = self.parents.keys().filter_map(|child| {
            let from = of.iter().find(|from| self.descends(*child, **from))?;
            Some((self.ended.get(child).copied().unwrap_or(0), *from))
        });
        all.max()
    }

    fn recorded_by(&mut self, recorder: Tid) {
        let own = self.parents.keys().filter(|child| self.descends(**child, recorder));
        self.made = own.map(|child| (*child, ())).collect();
        self.recorders.insert(recorder, ());
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
