//! What a subject's time leads to, if one follows whom it waits for: the name of what is there.
//!
//! A subject is a kind of request, or the whole life of the threads of a name. The way down its
//! largest branches ([`super::levels`]) ends at somebody who does something; what that is makes
//! the finding's kind, and the way is its chain.

mod cause;
mod idle_words;
mod links;
mod lives;
mod locks;
mod missing;
mod severity;
mod whose;
mod words;

use super::levels::{hogs, levels, Level, Sum};
use super::waits::{syncs, waits};
use super::{Candidate, View};
use crate::evidence::groups::GroupId;
use crate::evidence::tree::Frame;
use crate::moment::Sym;
use crate::result::Link;
pub use lives::{is_asked, lives};
use words::Words;

/// Fewer waits than this are no pattern.
const LEAST_WAITS: u64 = 10;
/// The same in a call that does not wait by design, where they take much of the time.
const FEWEST: u64 = 3;
/// Fewer than this, and having no CPU for them is no alarm.
const MANY_WAITS: u64 = 100;
/// Goes, with a sleep between them, in which pages are touched first: fewer are a beginning.
const LEAST_GOES: u64 = 20;
/// Share of a subject's time from which something is its cause.
const SHARE: f64 = 0.3;
/// Share of the time without a CPU that one has it, from which it is to blame.
pub(super) const HOG: f64 = 0.65;
/// The same where it computes itself for the most part, which says nothing.
const BESIDE: f64 = 0.2;
/// Time a page fault from which it is no longer the faults that take it, s.
const FAULT_S: f64 = 20e-6;
/// From here on, two threads' waiting is for each other.
const CLOSED: f64 = 0.4;
/// Share of the traced time from which a single wait of what was started is worth a word.
const ONCE: f64 = 0.3;

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
    Stopped,
    InCall,
    Network,
    /// Until another lets it go on; what that did meanwhile is not recorded.
    Held,
}

/// The way from a subject.
pub struct Story {
    root: Frame,
    levels: Vec<Level>,
    /// Ticks of the subject without its idling.
    busy: u64,
    /// How often the subject waited for somebody.
    waits: u64,
    /// Who has the CPU most of the time that somebody on the way has none, and how long.
    hog: Option<(GroupId, u64)>,
    /// Who else has a CPU is not recorded.
    partial: bool,
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
        let unknown = first.ticks(|_, state| state == Frame::Unknown);
        let busy = match root {
            // What is no longer kept is like what is.
            Frame::Request(_) => first.all.ticks.saturating_sub(unknown),
            _ => {
                let noise = first.noise().saturating_sub(unknown);
                first.all.ticks.saturating_sub(first.ticks(idle)).saturating_sub(noise)
            }
        };
        // Beside a twin, naps that it has not are no idling.
        let naps = first.ticks(|_, state| state == Frame::Timer);
        let busy = if view.is_beyond() { busy.max(naps) } else { busy };
        let waits = first.wakers().iter().map(|(_, sum)| sum.count).sum();
        let (by, without) = hogs(view, root);
        let hog = by.into_iter().max_by_key(|(_, ticks)| *ticks);
        let own = root.life();
        let partial = view.evidence.ends.any_gaps();
        let hog = hog.filter(|(group, ticks)| {
            let one = *ticks as f64 >= HOG * without as f64;
            one && !partial
                && Some(*group) != own
                && levels.iter().all(|level| level.who != Some(*group))
        });
        (busy > 0).then_some(Story { root, levels, busy, waits, hog, partial })
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

    /// The call, not one that waits by design, that most of the subject's life goes by in.
    fn in_call(&self, view: &View<'_>) -> Option<(Option<GroupId>, Sym, Sum)> {
        let first = self.levels.first()?;
        let known = first.all.ticks - first.ticks(|_, state| state == Frame::Unknown);
        let (call, sum) = Level::sorted(&first.calls).into_iter().next()?;
        let most = matches!(call, Some(Frame::Call(_))) && sum.ticks * 2 >= known;
        self.in_calls(view).filter(|_| most)
    }

    /// The call, not one that waits by design, in which more of the subject's life goes by than
    /// in others.
    fn in_calls(&self, view: &View<'_>) -> Option<(Option<GroupId>, Sym, Sum)> {
        let calls = Level::sorted(&self.levels.first()?.calls).into_iter();
        let mut calls = calls.filter_map(|(call, sum)| match call {
            Some(Frame::Call(name)) if !waits(view.name(name)) => Some((None, name, sum)),
            _ => None,
        });
        calls.next().filter(|(.., sum)| sum.count >= super::view::LEAST_COUNT)
    }

    /// The call that takes longer each time.
    pub(super) fn grown_call(&self, view: &View<'_>) -> Option<Sym> {
        self.grows(view)?;
        self.call(view).or(self.in_calls(view)).map(|(_, call, _)| call)
    }

    /// The work function with most of the time, on the way; one that ran now and then while
    /// workers were waited for is not what is waited for.
    fn work(&self) -> Option<(Sym, Sum)> {
        self.levels.iter().rev().find_map(|level| {
            let often = LEAST_WAITS.min(self.waits / 5);
            let much = |sum: &Sum| sum.ticks * 5 >= level.all.ticks || sum.count >= often;
            let works =
                Level::sorted(&level.calls).into_iter().filter_map(|(call, sum)| match call {
                    Some(Frame::Work(work)) => Some((work, sum)),
                    _ => None,
                });
            works.into_iter().find(|(_, sum)| much(sum))
        })
    }

    fn subject(&self, view: &View<'_>) -> String {
        view.frame(self.root)
    }

    /// The cause and its ticks; for one that says little, the call that it is in meanwhile.
    fn cause_or_call(&self, view: &View<'_>) -> (Cause, u64) {
        let (cause, saving) = self.cause(view);
        // Now this has the CPU and now that: what remains is what it is in meanwhile.
        let vague = cause == Cause::NoCpu && self.hog.is_none() && self.rival().is_none();
        let little = matches!(cause, Cause::NoCpu | Cause::HandOver | Cause::Computes)
            || cause == Cause::Call && self.provoked_works(view).is_some();
        let alone = self.levels.len() == 1;
        let call = self.in_call(view).filter(|_| vague || alone && little);
        // A call's work on every CPU is what it is called for, whatever else it computes.
        let has_all = || {
            let work = self.provoked_works(view).filter(|_| alone && cause == Cause::Call)?;
            let all = view.evidence.works.get(&work.0)?.of_each_cpu();
            let most = |sum: &Sum| sum.ticks as f64 >= SHARE * self.busy as f64;
            self.in_calls(view).filter(|(.., sum)| all && most(sum))
        };
        call.or_else(has_all)
            .map_or((cause, saving), |(.., sum)| (Cause::InCall, sum.ticks.min(self.busy)))
    }

    /// The finding; none if the subject computes itself, or waits for its own kind's work.
    pub fn candidate(&self, view: &View<'_>) -> Option<Candidate> {
        let (cause, saving) = self.worth_telling(view)?;
        let (alone, life) = (self.levels.len() == 1, self.root.life().is_some());
        let Words { why, summary, suggestion, confirm, at_most } = self.words(view, cause);
        let fault = self.is_fault(view, cause);
        Some(Candidate {
            why,
            key: match self.root {
                Frame::Request(key) => Some(key),
                _ => None,
            },
            subject: self.subject(view),
            whose: self.root.life(),
            saving,
            summary,
            way: self.way(view),
            culprit: self.culprit(view),
            chain: self.chain(view, cause),
            suggestion,
            confirm,
            at_most: at_most.filter(|_| life || !fault),
            error: self.levels.get(1).or(self.levels.first()).map(|level| level.squares.sqrt()),
            of_host: life && alone && cause == Cause::NoCpu && !self.starves(view),
            life,
            ..Candidate::default()
        })
    }

    /// The cause and its ticks, if they are so many, and so often, that they are worth a finding.
    fn worth_telling(&self, view: &View<'_>) -> Option<(Cause, u64)> {
        let (mut cause, mut saving) = self.cause_or_call(view);
        let alone = self.levels.len() == 1 && self.root.life().is_some();
        let hogged = cause == Cause::NoCpu && self.hog.is_some();
        let own = |cause| {
            matches!(cause, Cause::Computes | Cause::NoCpu | Cause::Asleep | Cause::HandOver)
                && !(cause == Cause::Computes && view.is_beyond())
        };
        let mut least = SHARE;
        let starves = cause == Cause::NoCpu && self.starves(view);
        if alone && own(cause) && !hogged && !starves {
            if let Some(beside) = self.beside(view) {
                ((cause, saving), least) = (beside, BESIDE);
            }
        }
        let share = saving as f64 / self.busy.max(1) as f64;
        let whole = self.by_child(view) && view.share(saving) >= ONCE;
        let seldom =
            cause == Cause::Timer && self.naps(view) < LEAST_WAITS && !whole && !self.is_held(view);
        let little = share < least
            || alone && own(cause) && !hogged && !starves
            || seldom
            || cause == Cause::Computes && self.runs_a_guest(view);
        (!little).then_some((cause, saving))
    }

    /// What is waited for is a vCPU that is in KVM or its guest for the most part: that is what
    /// it is there for, and nothing on the host makes it slow.
    fn runs_a_guest(&self, view: &View<'_>) -> bool {
        self.last().who.is_some_and(|who| view.evidence.in_guest(who) >= 0.5)
    }

    /// The way, link by link, and what is known besides.
    fn chain(&self, view: &View<'_>, cause: Cause) -> Vec<Link> {
        let levels = self.levels.iter().enumerate();
        let mut chain: Vec<Link> = levels.map(|(at, level)| self.link(view, at, level)).collect();
        if cause == Cause::Lock {
            chain.extend(self.lock_link(view));
        }
        chain.extend(self.grows(view));
        chain.extend(self.contrast(view));
        let unknown = self.unknown(view, cause);
        if !unknown.is_empty() {
            let claim = format!("not known: {}", unknown.join("; "));
            chain.push(Link { claim, ..Link::default() });
        }
        chain
    }

    /// It waits for another for long in a call that does not wait by design: that is no idling,
    /// though it is seldom.
    fn is_held(&self, view: &View<'_>) -> bool {
        self.first_wait().is_some_and(|(call, sum)| {
            let by_design = call.is_none_or(|call| waits(view.frame_name(call)));
            let own = self.root.life().is_some_and(|group| !view.is_foreign(group));
            let least = if own && view.own().is_some() { 1 } else { FEWEST };
            !by_design && sum.count >= least && view.share(sum.ticks) >= ONCE
        })
    }

    /// It waits for the end of another, or for its signal: what that waits for says more.
    fn supervises(&self, view: &View<'_>) -> bool {
        let call = self.first_wait().and_then(|(call, _)| call);
        let name = call.map_or("", |call| view.frame_name(call));
        ["wait", "vfork", "rt_sig"].iter().any(|begin| name.starts_with(begin))
    }

    /// In what the subject waits for others most.
    fn first_wait(&self) -> Option<(Option<Frame>, Sum)> {
        let first = self.levels.first().filter(|_| self.levels.len() > 1)?;
        first.most_in(|s| matches!(s, Frame::Waker(_)))
    }

    /// A request that is slow for such a cause is that whatever it waits for.
    fn is_fault(&self, view: &View<'_>, cause: Cause) -> bool {
        match cause {
            Cause::Timer | Cause::Lock | Cause::Faults | Cause::Work | Cause::Child => true,
            Cause::Stopped => true,
            Cause::InCall => self.provoked_works(view).is_some(),
            Cause::Device => self.call(view).is_some_and(|(_, call, _)| syncs(view.name(call))),
            _ => false,
        }
    }

    /// How much of the time of a subject and of whom it waits for is waiting for each other: 1
    /// for a request and its answer, over and over.
    fn closed(&self, view: &View<'_>) -> f64 {
        let (Some(own), Some(first)) = (self.root.life(), self.levels.first()) else { return 0.0 };
        partner(view, own, first).map_or(0.0, |(_, part, _)| part)
    }

    /// Nobody waits for it, it has asked nobody, and hardly does anything: that threads of a pool,
    /// or of a runtime's compiler, wait for work slows nobody down.
    fn helps(&self, view: &View<'_>, own: GroupId) -> bool {
        let (Some(first), true) = (self.levels.first(), self.levels.len() > 1) else {
            return false;
        };
        let Some((other, sum)) = first.wakers().first().copied() else { return false };
        let call = first.most_in(|s| s == Frame::Waker(other)).and_then(|(call, _)| call);
        let futex = call.is_some_and(|call| view.frame_name(call).starts_with("futex"));
        let runs = first.ticks(|_, s| matches!(s, Frame::Runs));
        let wakes = &view.evidence.wakes;
        let group = |tid| view.evidence.groups.group_of(tid);
        if let Frame::Thread(_, tid) = self.root {
            let gives = wakes.iter().filter(|((by, _), _)| by.tid == tid);
            let gives: u64 = gives.map(|(_, count)| count).sum();
            return futex && runs * 10 < first.all.ticks && gives * 4 < sum.count.max(LEAST_WAITS);
        }
        let gives = wakes.iter().filter(|((by, to), _)| {
            group(*by) == Some(own) && group(*to).is_some_and(|to| to != own)
        });
        let gives: u64 = gives.map(|(_, count)| count).sum();
        futex
            && other != own
            && runs * 10 < first.all.ticks
            && gives * 4 < sum.count
            && view.evidence.asked(own, other) * 4 < sum.count
    }

    /// What two stories that are one have in common.
    fn end(&self, view: &View<'_>) -> (Option<GroupId>, Option<Sym>) {
        let last = self.levels.iter().rev().find_map(|level| level.who);
        let own = self.root.life();
        (last.or(own), self.call(view).map(|(_, call, _)| call))
    }
}

/// With whom threads of a name wait for each other most, how much of their time (0 to 1), and how
/// often.
pub fn closed(view: &View<'_>, own: GroupId) -> Option<(GroupId, f64, u64)> {
    partner(view, own, levels(view, Frame::Life(own)).first()?)
}

fn partner(view: &View<'_>, own: GroupId, first: &Level) -> Option<(GroupId, f64, u64)> {
    let share = |level: &Level, of: GroupId| {
        let ticks = level.ticks(|_, state| state == Frame::Waker(of));
        let life = level.ticks(|_, state| state != Frame::Unknown).max(1);
        ticks as f64 / life as f64
    };
    let of = |other: GroupId| {
        let back = levels(view, Frame::Life(other)).into_iter().next();
        (share(first, other) + back.map_or(0.0, |back| share(&back, own))).min(1.0)
    };
    let wakers = first.wakers().into_iter().take(4);
    let many = view.evidence.groups.get(own).is_some_and(|group| group.many);
    let often = wakers.filter(|(other, sum)| (*other != own || many) && sum.count >= LEAST_WAITS);
    let all = often.map(|(other, sum)| (other, of(other), sum.count));
    all.max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)))
}
