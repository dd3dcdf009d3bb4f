//! Traces that have nothing but whole calls (strace): a thread is in a call or between two, and what
//! ended a wait is inferred from the calls of the others.
//!
//! A call that wakes begins before the wait ends that it ends. Of those that could have, the last to
//! begin is taken. `wait4` says itself which child has ended, and a futex's wake how many it woke.

use super::name_traits::Traits;
use super::thread::{Segment, State, Waker};
use super::wait_for::Stack;
use super::{Collector, Evidence};
use crate::moment::{Sym, Tid};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use vmeter_trace::ops::Sleep;

/// How late a call may be written down, or begin after the wait's end that it ends, s: strace stops both.
const SLACK_S: f64 = 300e-6;
/// Calls that are remembered.
const RECENT: usize = 2048;
/// Calls that are not over.
const MOST: usize = 1 << 16;
/// A call that takes no longer than this, s, has not slept.
const SHORT_S: f64 = 150e-6;
/// How long after a call has let one go on that one may wait for a CPU, s: what goes on for longer waits for
/// something else.
const LATE_S: f64 = 20e-3;

/// What waits begin with, and what ends them.
const ENDS: [(&[&str], &[&str]); 8] = [
    // A page that the guest waits for.
    (&["KVM_RUN"], &["UFFDIO_"]),
    (&["futex"], &["futex"]),
    (&["flock"], &["flock", "close"]),
    (&["fcntl"], &["fcntl", "close"]),
    (&["sem", "msgrcv", "mq_"], &["sem", "msgsnd", "mq_"]),
    (&["accept"], &["connect"]),
    (&["send", "write"], &["recv", "read", "splice"]),
    (
        &["read", "recv", "poll", "ppoll", "epoll_", "select", "pselect"],
        &["write", "send", "pwrite", "connect", "close", "shutdown", "splice", "kill", "tgkill"],
    ),
];

/// A call, from when to when, ticks of the common base.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Whole {
    end: u64,
    start: u64,
    tid: Tid,
    call: Sym,
    returned: Option<i64>,
}

/// Calls that are not over yet, and those that began lately.
#[derive(Debug, Default)]
pub struct Inferred {
    open: BinaryHeap<Reverse<Whole>>,
    recent: VecDeque<Whole>,
}

impl Evidence {
    /// The files have nothing but whole calls (strace).
    pub fn only_calls(&self) -> bool {
        !self.runs_seen() && !self.inferred.recent.is_empty()
    }

    /// Ticks of so many seconds, in a trace whose ticks are nanoseconds.
    fn ticks_of(s: f64) -> u64 {
        (s * 1e9) as u64
    }
}

impl Collector<'_> {
    /// A call of a trace that has nothing else, from when to when.
    pub(super) fn infer(&mut self, tid: Tid, call: Sym, span: (u64, u64), returned: Option<i64>) {
        let whole = Whole { end: span.1, start: span.0, tid, call, returned };
        let inferred = &mut self.evidence.inferred;
        if inferred.recent.len() >= RECENT {
            inferred.recent.pop_front();
        }
        inferred.recent.push_back(whole);
        if inferred.open.len() < MOST {
            inferred.open.push(Reverse(whole));
        }
        self.close(span.0.saturating_sub(Evidence::ticks_of(SLACK_S)));
    }

    /// Calls that were over before a moment.
    pub(super) fn close(&mut self, until: u64) {
        while let Some(Reverse(whole)) = self.evidence.inferred.open.peek().copied() {
            if whole.end > until {
                break;
            }
            self.evidence.inferred.open.pop();
            self.over(whole);
        }
    }

    fn over(&mut self, whole: Whole) {
        let Whole { end, start, tid, call, .. } = whole;
        let Some(own) = self.evidence.threads.or_begin(tid, start) else { return };
        let since = own.since();
        let user = Segment { end: start, state: State::User, call: None, ..own.current(start) };
        if since < start {
            self.stretch(tid, user);
        }
        let length = end.saturating_sub(start);
        let waker = self.ended_by(&whole);
        let slept =
            self.merge.traits(call).has(Traits::WAITS) || length > Evidence::ticks_of(SHORT_S);
        let state = if slept { State::Blocked } else { State::Kernel };
        let segment = Segment {
            start,
            end,
            state,
            call: Some(call),
            work: None,
            waker,
            ends_call: true,
            queued: false,
            rival: 0,
            sleep: Sleep::Light,
            faults: 0,
        };
        self.stretch(tid, segment);
        if let (Waker::Thread(by), State::Blocked) = (waker, state) {
            super::queries::count(&mut self.evidence.wakes, (by, tid), 1 << 15);
            self.wakes_in(by, tid);
        }
    }

    /// Keeps a stretch, and adds it to the tree.
    fn stretch(&mut self, tid: Tid, mut segment: Segment) {
        let room = self.evidence.threads.room();
        let Some(own) = self.evidence.threads.or_begin(tid, segment.start) else { return };
        segment.start = own.ends(segment, room);
        let call = segment.call;
        own.begins(State::User, None, None);
        own.calls |= call.is_some();
        let Some(root) = self.root(tid) else { return };
        if segment.start >= segment.end {
            return;
        }
        let span = (segment.start, segment.end);
        match segment.state {
            State::Blocked => self.life().segment(root, tid, &segment, span, &mut Stack::of(tid)),
            _ => self.runs(tid, root, &segment),
        }
    }

    /// What ended a call's wait.
    fn ended_by(&self, whole: &Whole) -> Waker {
        let (name, traits) = (self.merge.name(whole.call), self.merge.traits(whole.call));
        match whole.returned {
            _ if traits.has(Traits::NANOSLEEP) => return Waker::Timer,
            Some(returned) if traits.timed_out(returned) => return Waker::Timer,
            Some(child) if ["wait4", "waitid"].contains(&name) && child > 0 => {
                return Waker::Thread(Tid { tid: child as i32, ..whole.tid });
            }
            _ => {}
        }
        let Some((_, by)) =
            ENDS.iter().find(|(waits, _)| waits.iter().any(|w| name.starts_with(w)))
        else {
            return Waker::Unknown;
        };
        let late = whole.end.saturating_add(Evidence::ticks_of(SLACK_S) / 3);
        let could = |other: &&Whole| {
            let call = self.merge.name(other.call);
            let woke = !call.starts_with("futex") || other.returned.is_some_and(|woken| woken > 0);
            // Others read as well: who makes room lets the writer go on at once.
            let soon = if name.starts_with("write") { SLACK_S } else { LATE_S };
            let since = whole.end.saturating_sub(Evidence::ticks_of(soon));
            other.tid != whole.tid
                && other.tid.file == whole.tid.file
                && (whole.start..=late).contains(&other.start)
                && other.end >= since
                && by.iter().any(|begin| call.starts_with(begin))
                && woke
                && other.returned.is_none_or(|returned| returned >= 0)
        };
        let last =
            self.evidence.inferred.recent.iter().filter(could).max_by_key(|other| other.start);
        last.map_or(Waker::Unknown, |other| Waker::Thread(other.tid))
    }
}
