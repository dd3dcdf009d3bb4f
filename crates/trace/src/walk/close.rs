//! The end of a trace, and the putting together of its parts.

use super::interval::{At, Took};
use super::visitor::{By, End, Request, Visitor};
use super::Walk;

impl Walk {
    /// Closes everything at the trace's last stamp: what is still open was not timed.
    pub fn finish<V: Visitor>(&mut self, last: u64, v: &mut V) {
        for index in 0..self.threads.len() {
            let thread = self.threads.get(index);
            let context = crate::Context::Unknown;
            let at = At { ts: last, cpu: crate::NO_CPU, tid: thread.tid, context };
            let state = thread.state();
            let ended = thread.enter(state, last);
            v.span(thread, &ended);
            let accesses = thread.take_accesses();
            super::unclaimed(&at, thread, v);
            if let Some((reason, open)) = thread.exit {
                let (by, took, end, accesses) = (By::Exit, Took::Unknown, End::OfTrace, &[]);
                let request = Request { by, reason, open, took, end, accesses };
                v.request(&at, thread, &request);
            }
            if let Some((reason, _)) = thread.user_exit {
                v.userspace_exit(reason, Took::Unknown);
            }
            if let Some(call) = thread.call {
                v.call(call.name, call.request, Took::Unknown);
            }
            if let Some((function, _)) = thread.work {
                v.work(function, Took::Unknown);
            }
            accesses.as_slice().iter().for_each(|access| v.untimed(*access));
        }
    }

    /// Adds the threads of other parts of the same trace, finished before.
    pub(crate) fn absorb(&mut self, other: Walk) {
        self.seen.absorb(other.seen);
        self.threads.absorb(other.threads);
    }
}
