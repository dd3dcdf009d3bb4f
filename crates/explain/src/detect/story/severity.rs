//! How severe what a way ends at may be called, by what is known of it.

use super::super::View;
use super::cause::is_futex;
use super::locks::by_signals;
use super::{Story, CLOSED, MANY_WAITS};
use crate::evidence::tree::Frame;
use crate::result::Severity;

/// Calls that wait for whichever of many descriptors comes next.
fn looks_for_many(call: &str) -> bool {
    ["epoll", "poll", "ppoll", "select", "pselect"].iter().any(|begin| call.starts_with(begin))
}

impl Story {
    /// A nap alone may be idling; one that nobody is known to have asked for is no alarm.
    pub(super) fn timer_at_most(&self, view: &View<'_>) -> Option<Severity> {
        let (Some(own), Some(first)) = (self.root.life(), self.levels.first()) else { return None };
        let Some((other, sum)) = first.wakers().first().copied() else {
            return Some(Severity::Low);
        };
        if self.levels.len() == 1 {
            return Some(Severity::Low);
        }
        // Who waits for whichever of many clients comes next idles.
        let call = first.most_in(|s| s == Frame::Waker(other)).and_then(|(call, _)| call);
        let any = call.map_or("", |call| view.frame_name(call));
        let any = looks_for_many(any) || any.starts_with("accept");
        if any && (!view.is_beyond() || view.evidence.groups.get(other).is_some_and(|g| g.many)) {
            return Some(Severity::Low);
        }
        // So does an event loop whose time-out comes.
        let naps = self.last().most_in(|s| s == Frame::Timer).and_then(|(call, _)| call);
        let naps = naps.map_or("", |call| view.frame_name(call));
        if (looks_for_many(naps) || self.by_child(view)) && !view.is_beyond() {
            return Some(Severity::Low);
        }
        let asked = view.evidence.asked(own, other) * 2 >= sum.count;
        // A call without a time-out of its own: the timer is a protocol's.
        if naps.starts_with("accept") || naps.starts_with("recv") || naps == "connect" {
            return Some(Severity::Medium);
        }
        // That it need not sleep, only a twin shows.
        (any || !asked || !view.is_beyond()).then_some(Severity::Medium)
    }

    /// Who lets a thread go on in a futex may hold a lock, or hand over what that waits for.
    pub(super) fn lock_at_most(&self, view: &View<'_>) -> Option<Severity> {
        let (last, via) = (self.last(), self.levels.iter().rev().nth(1));
        // What the kernel's own events say needs no system calls.
        let known = self.last_lock(view).is_some();
        let calls = known || view.evidence.seen(self.file(view)).syscalls;
        let futex = via.is_some_and(|via| {
            is_futex(view, via.most_in(|s| matches!(s, Frame::Waker(_))).and_then(|(c, _)| c))
        });
        let own_kind = last.who.is_some()
            && last.who == via.and_then(|via| via.who).or(self.subject_group(view));
        let signals = own_kind && last.who.is_some_and(|who| by_signals(view, who));
        match (calls, futex && !own_kind, self.waits < MANY_WAITS) {
            (false, ..) | (_, true, true) => Some(Severity::Low),
            _ if own_kind && self.closed(view) < CLOSED => Some(Severity::Low),
            _ if signals => Some(Severity::Medium),
            (_, true, false) => Some(Severity::Medium),
            _ => None,
        }
    }
}
