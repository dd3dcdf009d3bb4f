//! What a device model's thread did for a request that a hypervisor made of it.
//!
//! A Xen vCPU sleeps in the hypervisor meanwhile: no wake-up of its own kernel's leads to that thread.

use super::subject::{Breakdown, Part, Who};
use super::thread::{Segment, State};
use super::threads::Threads;
use crate::moment::Tid;

/// Adds what it did from one moment to another; `now` is the last event's.
pub fn served(
    threads: &Threads,
    thread: Tid,
    (from, to): (u64, u64),
    now: u64,
    out: &mut Breakdown,
) {
    let who = Who::Thread(thread);
    let Some(state) = threads.get(&thread) else {
        out.add(who, Part::Paused, to.saturating_sub(from));
        return;
    };
    let mut covered = 0_u64;
    for segment in state.back(now) {
        if segment.end <= from && segment.start < from {
            break;
        }
        let Some(ticks) = overlap(&segment, from, to) else { continue };
        covered = ticks.saturating_add(covered);
        let part = match segment.state {
            State::Blocked if segment.end >= to => Part::Return,
            State::Blocked if segment.start <= from => Part::Delivery,
            _ => part(&segment),
        };
        let amount = out.add(who, part, ticks);
        amount.count += u64::from(part == Part::Delivery);
    }
    let rest = to.saturating_sub(from).saturating_sub(covered);
    if rest > 0 {
        out.add(who, Part::Unknown, rest);
    }
}

/// Ticks of a segment within a stretch; none if it lies outside.
fn overlap(segment: &Segment, from: u64, to: u64) -> Option<u64> {
    let (start, end) = (segment.start.max(from), segment.end.min(to));
    (start <= end && segment.start <= to).then(|| end - start)
}

fn part(segment: &Segment) -> Part {
    match (segment.state, segment.call, segment.work) {
        (State::Unknown, ..) => Part::Unknown,
        (State::Runnable, ..) => Part::Runnable,
        (State::Blocked, call, _) => Part::Blocked(call),
        (State::Guest | State::Kvm, ..) => Part::Kvm,
        (State::Kernel, Some(call), _) => Part::Kernel(call),
        (_, _, Some(work)) => Part::Work(work),
        _ => Part::User,
    }
}
