//! Waiting for a lock of the kernel.

use super::interval::{At, Open, Took};
use super::visitor::Visitor;
use super::Walk;
use crate::ops::Lock;

impl Walk {
    pub(super) fn lock_wait<V: Visitor>(&mut self, at: &At, (lock, kind): (u64, Lock), v: &mut V) {
        self.seen.locks = true;
        if !V::WAKERS || self.cpus.in_interrupt(at) {
            return;
        }
        let Some(index) = self.running(at, v) else { return };
        let thread = self.threads.get(index);
        match &mut thread.contended {
            // It has spun, and goes to sleep now: the same wait.
            Some((known, of, _)) if *known == lock => *of = kind,
            contended => *contended = Some((lock, kind, Open::at(at))),
        }
    }

    pub(super) fn lock_waited<V: Visitor>(&mut self, at: &At, lock: u64, v: &mut V) {
        if !V::WAKERS || self.cpus.in_interrupt(at) {
            return;
        }
        let Some(index) = self.running(at, v) else { return };
        let thread = self.threads.get(index);
        let Some((_, kind, open)) = thread.contended.take_if(|(known, ..)| *known == lock) else {
            return;
        };
        if !matches!(self.cpus.since(open, at), Took::Cut | Took::Unknown) {
            v.lock_waited(at, self.threads.get(index), kind, open);
        }
    }
}
