//! Whose time it is at the end of a way: of one that was asked about, of one who works for somebody
//! else, of one that another has let go on.

use super::super::levels::{levels, Level};
use super::super::waits::waits;
use super::super::View;
use super::cause::is_futex;
use super::{Cause, Story, LEAST_WAITS, ONCE, SHARE};
use crate::evidence::groups::{is_vcpu_name, GroupId};
use crate::evidence::tree::Frame;
use crate::moment::{Sym, Tid};
use std::collections::{BTreeMap, BTreeSet};

/// Part of what somebody does after one has woken it, from which it does that for that one.
const ASKED_BY: f64 = 0.4;

/// A part of the wake-ups within threads of a name that goes both ways, from which they take turns.
const BY_TURNS: u64 = 3;

/// Part of a thread's life asleep from which it idles between two pieces of work.
const IDLES: (u64, u64) = (4, 5);
/// A part of its waits in which it lets one go on that sleeps in futex, from which they may share a
/// lock.
const LETS_GO: u64 = 4;

/// A part of its waits in which it wakes another or asks whom it waits for, up to which nobody waits
/// for what it does.
const ASKS_NOBODY: u64 = 10;

impl Story {
    /// It has itself no CPU for more of the time than it has one, and for much of what was traced:
    /// whoever is asked about, or runs a guest.
    pub(super) fn starves(&self, view: &View<'_>) -> bool {
        let no_cpu = self.last().ticks(|_, s| s == Frame::NoCpu);
        let runs = self.last().ticks(|_, s| matches!(s, Frame::Runs | Frame::Guest));
        let rival = self.rival().map(|(rival, _)| rival);
        let other = rival.is_some() && rival != self.root.life();
        self.is_asked_for(view)
            && other
            && self.levels.len() == 1
            && no_cpu > runs
            && view.share(no_cpu) >= SHARE
    }

    /// Who asks the one that is waited for at the end for most of what it does, if that is somebody
    /// else than those on the way.
    pub(super) fn asked_by(&self, view: &View<'_>) -> Option<GroupId> {
        let last = self.last().who.filter(|_| self.levels.len() > 1)?;
        let all = view.evidence.ledger.behalf.iter().filter(|((who, _), _)| *who == last);
        let whole = crate::sum(all.clone().map(|(_, ticks)| *ticks));
        let ((_, other), most) = all.max_by_key(|((_, other), ticks)| (**ticks, *other))?;
        let stranger = self.root.life() != Some(*other)
            && self.levels.iter().all(|level| level.who != Some(*other))
            && !view.evidence.groups.is_kernel(*other);
        (stranger && *most as f64 >= ASKED_BY * whole as f64).then_some(*other)
    }

    /// It was named, or runs a guest: what others do alone may be idling.
    pub(super) fn is_asked_for(&self, view: &View<'_>) -> bool {
        let guest = |group| is_vcpu_name(view.evidence.groups.name(group));
        view.comm().is_some() || self.root.life().is_some_and(guest)
    }

    /// Most of the sleeping in a call that ends when its time is up (ETIMEDOUT) was until then.
    pub(super) fn times_out(&self, view: &View<'_>, call: Option<Frame>) -> bool {
        let Some(Frame::Call(name)) = call else { return false };
        let who = self.last().who.or(self.subject_group(view));
        let calls = who.and_then(|who| view.evidence.ledger.calls.get(&(who, name)));
        let slept = |s| matches!(s, Frame::Interrupt | Frame::Asleep);
        let asleep = self.last().ticks(|c, s| c == call && slept(s));
        calls.is_some_and(|calls| {
            calls.timed_out.0 >= LEAST_WAITS && calls.timed_out.1.saturating_mul(2) >= asleep
        })
    }

    /// What whom is waited for does meanwhile is not recorded, or it was not there yet: then what
    /// is known is who has ended the wait, and in which call.
    pub(super) fn held(&self, view: &View<'_>) -> Option<(Cause, u64)> {
        let (last, via) = (self.last(), self.levels.iter().rev().nth(1)?);
        let unknown = last.ticks(|_, s| s == Frame::Unknown);
        let (call, sum) = via.most_in(|s| s == last.who.map_or(Frame::Unknown, Frame::Waker))?;
        let by_design = call.is_none_or(|call| waits(view.frame_name(call)));
        let most = unknown * 2 >= last.all.ticks && view.share(sum.ticks) >= ONCE;
        (most && !by_design && self.let_go(view).is_some()).then_some((Cause::Held, sum.ticks))
    }

    /// The call in which the last one on the way lets the one before it go on.
    pub(super) fn let_go(&self, view: &View<'_>) -> Option<Sym> {
        let via = self.levels.iter().rev().nth(1)?;
        let (by, whom) = (self.last().who?, via.who.or(self.subject_group(view))?);
        view.evidence.ledger.let_go(by, whom, |_| true)
    }

    /// Those of a level that sleep in futex wait for the next work there, and for no lock.
    pub(super) fn waits_for_work(&self, view: &View<'_>, via: &Level) -> bool {
        let file = self.file(view);
        if let (Frame::Thread(group, tid), 2) = (self.root, self.levels.len()) {
            return idles_between(view, group, Tid { file, tid });
        }
        let Some(who) = via.who.or(self.subject_group(view)) else { return false };
        let wakes = view.evidence.wakes.keys().map(|(_, woken)| *woken);
        let own = |woken: &Tid| view.evidence.groups.group_of(*woken) == Some(who);
        let woken: BTreeSet<Tid> = wakes.filter(own).collect();
        let mut sleep = woken.into_iter().filter(|tid| sleeps_in_futex(view, *tid)).peekable();
        sleep.peek().is_some() && sleep.all(|tid| idles_between(view, who, tid))
    }

    /// It waits by design for the next work of one that a timer paces, has not asked that one and
    /// wakes nobody, while a guest or others of the program wait for each other at least as often:
    /// those are who is slow.
    pub(super) fn idles_beside_others(&self, view: &View<'_>) -> bool {
        let (Some(own), 2) = (self.root.life(), self.levels.len()) else { return false };
        let (Some(by), Some((Some(call), sum))) = (self.last().who, self.first_wait()) else {
            return false;
        };
        let groups = &view.evidence.groups;
        let few = |count: u64| count.saturating_mul(ASKS_NOBODY) <= sum.count;
        let mut pairs: BTreeMap<(GroupId, GroupId), u64> = BTreeMap::new();
        for ((by, to), count) in &view.evidence.wakes {
            let (Some(by), Some(to)) = (groups.group_of(*by), groups.group_of(*to)) else {
                continue;
            };
            if !groups.is_kernel(by) && !groups.is_kernel(to) {
                *pairs.entry((by, to)).or_default() += count;
            }
        }
        let told = pairs.iter().filter(|((waker, woken), _)| *waker == own && *woken != own);
        let told = told.map(|(_, count)| *count).sum::<u64>();
        let often = |(waker, woken): (GroupId, GroupId)| {
            let there = [waker, woken].iter().all(|who| *who != own && !view.is_foreign(*who));
            let count = |pair| pairs.get(&pair).copied().unwrap_or(0);
            there && waker != woken && count((waker, woken)).min(count((woken, waker))) >= sum.count
        };
        let guest = view.requests().iter().any(|(_, subject)| subject.count >= sum.count);
        let others = guest || pairs.keys().any(|pair| often(*pair));
        let paced = waits(view.frame_name(call)) && few(told) && few(view.evidence.asked(own, by));
        paced && others && !view.is_beyond() && view.comm().is_none()
    }

    /// Most of a level's waiting for those is until one of them has ended.
    pub(super) fn joins(&self, view: &View<'_>, via: &Level, who: GroupId) -> bool {
        let own = via.who.or(self.subject_group(view));
        let joined = own.and_then(|own| view.evidence.joined.get(&(own, who)));
        let waits = via.ticks(|_, state| state == Frame::Waker(who));
        joined.is_some_and(|(_, ticks)| ticks.saturating_mul(2) >= waits)
    }
}

/// A thread that is asleep in futex for most of its life, and tells those who sleep in other calls
/// that it has done something, waits for its next work: who lets go of a lock lets those go on that
/// sleep in futex for it.
fn idles_between(view: &View<'_>, group: GroupId, tid: Tid) -> bool {
    let Some(own) = levels(view, Frame::Thread(group, tid.tid)).into_iter().next() else {
        return false;
    };
    let runs = |state| matches!(state, Frame::Runs | Frame::NoCpu | Frame::Unknown);
    let asleep = own.ticks(|call, state| is_futex(view, call) && !runs(state));
    let (mut told, mut let_go) = (0_u64, 0_u64);
    for ((_, woken), count) in view.evidence.wakes.iter().filter(|((by, _), _)| *by == tid) {
        match sleeps_in_futex(view, *woken) {
            true => let_go += count,
            false => told += count,
        }
    }
    let waits = own.wakers().iter().map(|(_, sum)| sum.count).sum::<u64>();
    asleep >= own.all.ticks / IDLES.1 * IDLES.0
        && told * 2 >= waits.max(LEAST_WAITS)
        && let_go * LETS_GO < waits
}

/// Most of a thread's sleeping until somebody lets it go on is in futex.
fn sleeps_in_futex(view: &View<'_>, thread: Tid) -> bool {
    let Some(group) = view.evidence.groups.group_of(thread) else { return false };
    let own = levels(view, Frame::Thread(group, thread.tid)).into_iter().next();
    let own = own.or_else(|| levels(view, Frame::Life(group)).into_iter().next());
    let call = own.and_then(|own| own.most_in(|s| matches!(s, Frame::Waker(_) | Frame::Asleep)));
    call.is_some_and(|(call, _)| is_futex(view, call))
}

/// True if threads of a name both let each other go on and are let go on, as those do that share a
/// lock: who waits for the end of those it has started never lets one go on.
pub(super) fn by_turns(view: &View<'_>, who: GroupId) -> bool {
    let is = |tid: &Tid| view.evidence.groups.group_of(*tid) == Some(who);
    let mut by: BTreeMap<Tid, (u64, u64)> = BTreeMap::new();
    for ((waker, woken), count) in &view.evidence.wakes {
        if waker != woken && is(waker) && is(woken) {
            by.entry(*waker).or_default().0 += count;
            by.entry(*woken).or_default().1 += count;
        }
    }
    let all: u64 = by.values().map(|(gives, _)| gives).sum();
    let both: u64 = by.values().map(|(gives, gets)| *gives.min(gets)).sum();
    both > 0 && both * BY_TURNS >= all
}
