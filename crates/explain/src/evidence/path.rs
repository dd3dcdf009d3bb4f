//! The critical path: what a stretch of a thread's time really waited for.
//!
//! While the thread ran, the time is its own. While it slept, the time belongs to
//! whoever woke it: what that thread did from the beginning of the sleep to the
//! wake-up, and so on through as many threads as waited for each other.

use super::subject::{Anatomy, Part, Who};
use super::thread::{Segment, State, Thread, Waker};
use crate::merge::Merge;
use crate::moment::{Sym, Tid};
use vmeter_trace::hash::FastMap;

/// Most threads that wait for each other in a row.
const MAX_HOPS: usize = 8;

/// Most functions queued by one request that are told apart.
const MAX_QUEUED: usize = 64;

/// System calls that only a timer or a signal ends.
const SLEEPS: [&str; 2] = ["nanosleep", "clock_nanosleep"];

/// Walks back from a moment.
pub struct Path<'a> {
    /// All threads.
    pub threads: &'a FastMap<Tid, Thread>,
    /// Names.
    pub merge: &'a Merge,
    /// Now.
    pub now: u64,
}

impl Path<'_> {
    /// Takes a stretch of a thread's own time apart.
    pub fn own(&self, thread: Tid, from: u64, to: u64, out: &mut Anatomy) {
        self.walk(thread, Who::Own, (from, to), &mut vec![thread], out);
    }

    /// Takes apart what a device model's thread did for a request that another kernel, or a
    /// hypervisor, made of it.
    pub fn model(&self, thread: Tid, from: u64, to: u64, out: &mut Anatomy) {
        let Some(state) = self.threads.get(&thread) else {
            out.add(Who::Thread(thread), Part::Paused, to.saturating_sub(from));
            return;
        };
        let who = Who::Thread(thread);
        let mut covered = 0_u64;
        for segment in state.back(self.now) {
            if segment.end <= from && segment.start < from {
                break;
            }
            let Some(ticks) = overlap(&segment, from, to) else { continue };
            covered = ticks.saturating_add(covered);
            let part = match segment.state {
                State::Blocked if segment.end >= to => Part::Return,
                State::Blocked if segment.start <= from => Part::Delivery,
                _ => part(&segment, None, None),
            };
            let amount = out.add(who, part, ticks);
            amount.count += u64::from(part == Part::Delivery);
        }
        let rest = to.saturating_sub(from).saturating_sub(covered);
        if rest > 0 {
            out.add(who, Part::Unknown, rest);
        }
    }

    fn walk(
        &self,
        thread: Tid,
        who: Who,
        (from, to): (u64, u64),
        stack: &mut Vec<Tid>,
        out: &mut Anatomy,
    ) {
        let Some(state) = self.threads.get(&thread) else {
            out.add(who, Part::Unknown, to.saturating_sub(from));
            return;
        };
        let mut covered = 0_u64;
        let mut later = None;
        let mut segments = state.back(self.now).peekable();
        while let Some(segment) = segments.next() {
            if segment.end < from || segment.start < from && segment.end == from {
                break;
            }
            if segment.faults > 0 {
                continue;
            }
            if segment.queued {
                self.queued(&segment, (from, to), out);
                continue;
            }
            let Some(ticks) = overlap(&segment, from, to) else { continue };
            covered = ticks.saturating_add(covered);
            if segment.state == State::Blocked {
                let span = (segment.start.max(from), segment.end.min(to));
                self.blocked(&segment, who, span, stack, out);
            } else {
                let earlier = segments.peek().and_then(|segment| segment.call);
                let amount = out.add(who, part(&segment, earlier, later), ticks);
                amount.count += u64::from(segment.ends_call && segment.end <= to);
            }
            later = segment.call;
        }
        let rest = to.saturating_sub(from).saturating_sub(covered);
        if rest > 0 {
            out.add(who, Part::Unknown, rest);
        }
    }

    fn queued(&self, mark: &Segment, (from, to): (u64, u64), out: &mut Anatomy) {
        let (Some(work), true) = (mark.work, (from..=to).contains(&mark.start)) else { return };
        let key = (work, mark.call);
        if let Some((_, items)) = out.queued.iter_mut().find(|(known, _)| *known == key) {
            *items += 1;
        } else if out.queued.len() < MAX_QUEUED {
            out.queued.push((key, 1));
        }
    }

    fn blocked(
        &self,
        segment: &Segment,
        who: Who,
        (from, to): (u64, u64),
        stack: &mut Vec<Tid>,
        out: &mut Anatomy,
    ) {
        let ticks = to.saturating_sub(from);
        let sleeps = segment.call.is_some_and(|call| SLEEPS.contains(&self.merge.name(call)));
        let part = match segment.waker {
            _ if sleeps => Part::Timer(segment.call),
            Waker::Timer => Part::Timer(segment.call),
            Waker::Irq(irq) => Part::Irq(irq),
            Waker::Thread(waker) if stack.len() < MAX_HOPS && !stack.contains(&waker) => {
                let who = match self.merge.thread_name(waker) {
                    name if name.starts_with("kworker") => Who::Kworker,
                    _ => Who::Thread(waker),
                };
                stack.push(waker);
                self.walk(waker, who, (from, to), stack, out);
                stack.pop();
                return;
            }
            _ => Part::Blocked(segment.call),
        };
        out.add(who, part, ticks).count += 1;
    }
}

/// Ticks of a segment within a stretch; none if it lies outside.
fn overlap(segment: &Segment, from: u64, to: u64) -> Option<u64> {
    let (start, end) = (segment.start.max(from), segment.end.min(to));
    (start <= end && segment.start <= to).then(|| end - start)
}

fn part(segment: &Segment, earlier: Option<Sym>, later: Option<Sym>) -> Part {
    match (segment.state, segment.call, segment.work) {
        (State::Unknown, ..) => Part::Unknown,
        (State::Runnable, ..) => Part::Runnable,
        (State::Blocked, call, _) => Part::Blocked(call),
        (State::Guest | State::Kvm, ..) => Part::Kvm,
        (State::Kernel, Some(call), _) => Part::Kernel(call),
        (_, _, Some(work)) => Part::Work(work),
        _ => match (earlier, later) {
            (Some(earlier), Some(later)) if earlier == later => Part::Between(later),
            _ => Part::User,
        },
    }
}
