//! Work that a thread has others do: work items, and functions on other CPUs.

use super::interval::{At, Open};
use super::visitor::{Ends, Slice, Visitor};
use super::{Took, Walk};
use crate::ops::{NameId, Sign};

impl Walk {
    pub(super) fn call_cpu<V: Visitor>(&mut self, at: &At, function: NameId, v: &mut V) {
        if !V::WAKERS || self.cpus.in_interrupt(at) {
            return;
        }
        if let Some(index) = self.running(at, v) {
            v.calls_cpu(at, self.threads.get(index), function);
        }
    }

    /// In an interrupt it is no thread's doing.
    pub(super) fn sign<V: Visitor>(&mut self, at: &At, sign: Sign, v: &mut V) {
        if !V::WAKERS {
            return;
        }
        let index = if self.cpus.in_interrupt(at) { None } else { self.running(at, v) };
        v.sign(at, index.map(|index| &*self.threads.get(index)), sign);
    }

    pub(super) fn work_queued<V: Visitor>(&mut self, at: &At, function: NameId, v: &mut V) {
        self.seen.queues = true;
        // Queued by an interrupt: not by the thread it interrupted.
        if !V::WAKERS || self.cpus.in_interrupt(at) {
            return;
        }
        if let Some(index) = self.running(at, v) {
            v.queued(at, self.threads.get(index), function);
        }
    }

    pub(super) fn work_start<V: Visitor>(
        &mut self,
        at: &At,
        (item, function): (u64, NameId),
        v: &mut V,
    ) {
        self.seen.works = true;
        self.task::<V>(at);
        v.work_begins(at, item, function);
        let Some(index) = self.running(at, v) else { return v.work(function, Took::Unknown) };
        let thread = self.threads.get(index);
        v.begins(at, Slice::Work(function));
        let mut stale = None;
        let work = Some((function, Open::at(at)));
        let ended = thread.works(at.ts, |thread| stale = std::mem::replace(&mut thread.work, work));
        v.span(thread, &ended);
        if let Some((function, open)) = stale {
            v.work(function, self.cpus.unended(open, at));
        }
    }

    pub(super) fn work_end<V: Visitor>(&mut self, at: &At, v: &mut V) {
        let Some(index) = self.running(at, v) else { return };
        v.ends(at, Ends::Work);
        let mut work = None;
        let thread = self.threads.get(index);
        let ended = thread.works(at.ts, |thread| work = thread.work.take());
        v.span(thread, &ended);
        if let Some((function, open)) = work {
            v.work(function, self.cpus.since(open, at));
        }
    }
}
