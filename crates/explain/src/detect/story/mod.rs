//! What a subject's time leads to, if one follows whom it waits for: the name of what is there.
//!
//! A subject is a kind of request, or the whole life of the threads of a name. The way down its
//! largest branches ([`super::levels`]) ends at somebody who does something; what that is makes
//! the finding's kind, and the way is its chain.

mod cause;
mod links;
mod words;

use super::levels::{levels, Level, Sum};
use super::waits::{syncs, waits};
use super::{Candidate, View};
use crate::evidence::groups::GroupId;
use crate::evidence::tree::Frame;
use crate::moment::Sym;
use crate::result::{Link, Severity};
use words::Words;

/// Fewer waits than this are no pattern.
const LEAST_WAITS: u64 = 10;
/// Fewer than this, and having no CPU for them is no alarm.
const MANY_WAITS: u64 = 100;
/// A thread's part of the traced time from which it is looked at.
const LEAST_LIFE: f64 = 0.05;
/// Share of a subject's time from which something is its cause.
const SHARE: f64 = 0.3;
/// Time a page fault from which it is no longer the faults that take it, s.
const FAULT_S: f64 = 20e-6;
/// From here on, two threads' waiting is for each other.
const CLOSED: f64 = 0.4;
/// Most subjects that are told of where none was named.
const MOST: usize = 3;

/// What the way ends at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Timer,
    NoCpu,
    Device,
    Lock,
    Child,
    Call,
    Faults,
    Work,
    HandOver,
    Computes,
    Asleep,
}

/// The way from a subject.
pub struct Story {
    root: Frame,
    levels: Vec<Level>,
    /// Ticks of the subject without its idling.
    busy: u64,
    /// How often the subject waited for somebody.
    waits: u64,
}

impl Story {
    /// The way from a root; none if nothing is known of it.
    pub fn of(view: &View<'_>, root: Frame) -> Option<Story> {
        let levels = levels(view, root);
        let first = levels.first()?;
        let idle = |call: Option<Frame>, state| {
            let waits = call.is_none_or(|call| waits(view.frame_name(call)));
            matches!(state, Frame::Unknown)
                || waits
                    && matches!(
                        state,
                        Frame::Timer | Frame::Asleep | Frame::Irq(_) | Frame::Interrupt
                    )
        };
        let busy = match root {
            Frame::Request(_) => first.all.ticks,
            _ => {
                let unknown = first.ticks(|_, state| state == Frame::Unknown);
                let noise = first.noise().saturating_sub(unknown);
                first.all.ticks.saturating_sub(first.ticks(idle)).saturating_sub(noise)
            }
        };
        let waits = first.wakers().iter().map(|(_, sum)| sum.count).sum();
        (busy > 0).then_some(Story { root, levels, busy, waits })
    }

    fn last(&self) -> &Level {
        self.levels.last().expect("a story has a level")
    }

    /// The deepest call on the way that does not wait by design, and whose it is.
    fn call(&self, view: &View<'_>) -> Option<(Option<GroupId>, Sym, Sum)> {
        let told = self.levels.iter().rev().filter_map(|level| {
            let (call, sum) = Level::sorted(&level.calls).into_iter().next()?;
            let Some(Frame::Call(name)) = call else { return None };
            let most = sum.ticks * 3 >= level.all.ticks;
            (most && !waits(view.name(name))).then_some((level.who, name, sum))
        });
        told.into_iter().next()
    }

    /// The work function with most of the time, on the way.
    fn work(&self) -> Option<(Sym, Sum)> {
        let all = self.levels.iter().rev().flat_map(|level| Level::sorted(&level.calls));
        all.filter_map(|(call, sum)| match call {
            Some(Frame::Work(work)) => Some((work, sum)),
            _ => None,
        })
        .next()
    }

    fn subject(&self, view: &View<'_>) -> String {
        view.frame(self.root)
    }

    /// The finding; none if the subject computes itself, or waits for its own kind's work.
    pub fn candidate(&self, view: &View<'_>) -> Option<Candidate> {
        let (cause, saving) = self.cause(view);
        let share = saving as f64 / self.busy.max(1) as f64;
        let alone = self.levels.len() == 1;
        let life = matches!(self.root, Frame::Life(_));
        let own = matches!(cause, Cause::Computes | Cause::NoCpu | Cause::Asleep | Cause::HandOver);
        let seldom = cause == Cause::Timer && self.naps() < LEAST_WAITS;
        if share < SHARE || alone && life && own || seldom {
            return None;
        }
        let Words { kind, summary, suggestion, confirm, at_most } = self.words(view, cause);
        // A request that is slow is that whatever it waits for.
        let fault = match cause {
            Cause::Timer | Cause::Lock | Cause::Faults | Cause::Work | Cause::Child => true,
            Cause::Device => self.call(view).is_some_and(|(_, call, _)| syncs(view.name(call))),
            _ => false,
        };
        let at_most = at_most.filter(|_| life || !fault);
        let mut chain: Vec<Link> = Vec::new();
        for (at, level) in self.levels.iter().enumerate() {
            chain.push(self.link(view, at, level));
        }
        Some(Candidate {
            kind,
            key: match self.root {
                Frame::Request(key) => Some(key),
                _ => None,
            },
            subject: self.subject(view),
            saving,
            summary,
            chain,
            suggestion,
            confirm,
            at_most,
        })
    }

    /// How much of the time of a subject and of whom it waits for is waiting for each other: 1
    /// for a request and its answer, over and over.
    fn closed(&self, view: &View<'_>) -> f64 {
        let (Frame::Life(own), Some(first)) = (self.root, self.levels.first()) else { return 0.0 };
        let share = |level: &Level, of: GroupId| {
            let ticks = level.ticks(|_, state| state == Frame::Waker(of));
            let life = level.ticks(|_, state| state != Frame::Unknown).max(1);
            ticks as f64 / life as f64
        };
        let of = |other: GroupId| {
            let back = levels(view, Frame::Life(other)).into_iter().next();
            share(first, other) + back.map_or(0.0, |back| share(&back, own))
        };
        let wakers = first.wakers().into_iter().take(4);
        let many = view.evidence.groups.get(own).is_some_and(|group| group.many);
        let often =
            wakers.filter(|(other, sum)| (*other != own || many) && sum.count >= LEAST_WAITS);
        often.map(|(other, _)| of(other)).fold(0.0, f64::max).min(1.0)
    }

    /// What two stories that are one have in common.
    fn end(&self, view: &View<'_>) -> (Option<GroupId>, Option<Sym>) {
        let last = self.levels.iter().rev().find_map(|level| level.who);
        let own = match self.root {
            Frame::Life(group) => Some(group),
            _ => None,
        };
        (last.or(own), self.call(view).map(|(_, call, _)| call))
    }
}

/// What stands out in the lives of threads, where there are no requests of a guest.
pub fn lives(view: &View<'_>) -> Vec<Candidate> {
    let requests = view.requests();
    let of_guest = requests.iter().any(|(_, subject)| subject.count >= super::view::LEAST_COUNT);
    if of_guest && view.comm().is_none() {
        return Vec::new();
    }
    let mut all: Vec<(f64, Story, Candidate)> = Vec::new();
    for (_, node) in view.evidence.tree.roots() {
        let Frame::Life(group) = node.frame else { continue };
        let chosen = view.comm().map(|comm| view.evidence.groups.is_called(group, comm));
        let shows = match chosen {
            Some(chosen) => chosen,
            None => !view.evidence.groups.is_kernel(group) && view.share(node.ticks) >= LEAST_LIFE,
        };
        if !shows {
            continue;
        }
        let Some(story) = Story::of(view, node.frame) else { continue };
        if story.waits < LEAST_WAITS && story.levels.len() > 1 && chosen.is_none() {
            continue;
        }
        if let Some(mut candidate) = story.candidate(view) {
            let closed = story.closed(view);
            let few = candidate.kind == "no-cpu" && story.waits < MANY_WAITS;
            if few || closed < CLOSED {
                candidate.at_most = Some(Severity::Low);
            }
            // Of findings as severe, that of a request and its answer goes first.
            all.push((closed, story, candidate));
        }
    }
    let severity = |c: &Candidate| {
        let severity = Severity::of_share(view.share(c.saving));
        c.at_most.map_or(severity, |most| severity.min(most))
    };
    let order = |closed: f64, c: &Candidate| ((0.2 + closed) * c.saving as f64) as u64;
    all.sort_by_key(|(closed, _, c)| std::cmp::Reverse((severity(c), order(*closed, c))));
    let mut ends = Vec::new();
    all.retain(|(_, story, _)| {
        let end = story.end(view);
        let fresh = !ends.contains(&end);
        ends.push(end);
        fresh
    });
    all.into_iter().take(MOST).map(|(_, _, candidate)| candidate).collect()
}
