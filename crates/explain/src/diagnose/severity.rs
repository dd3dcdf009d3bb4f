//! How much a cause matters: the one place that says so.

use super::cause::Cause;
use super::end::End;
use super::loops::loops;
use super::path::Edge;
use super::subjects::partner;
use crate::detect::segments::{NoCpu, GUEST};
use crate::detect::{syncs, waits, View};
use crate::evidence::subject::{Key, SubjectKind};
use crate::evidence::tree::Frame;
use crate::kind::Why;
use crate::result::Severity;

/// Share of the subject's time from which something is its cause.
const SHARE: f64 = 0.3;
/// For a request that is not slower than its peers: share of its time, and of the traced time.
const ALONE: (f64, f64) = (0.5, 0.1);
/// Share of two threads' time from which they wait for each other.
const CLOSED: f64 = 0.4;
/// A part of a round that is considerable.
const CONSIDERABLE: u64 = 6;
/// What it takes at most to go to sleep in a call and to wake up, or to wake another, s.
const SWITCH: f64 = 30e-6;
/// Share of the traced time that a thread computes, from which that is told if nothing else is.
const MOST: f64 = 0.5;
/// Fewer waits than this are no pattern.
const LEAST: u64 = 10;

/// What goes first of causes that are as severe: what a loop waits for, then waits that nobody asked for or
/// that come a few times only, then what waits for nobody or works in no loop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Aside {
    /// A loop's wait.
    #[default]
    No,
    /// A few waits, or such as nobody asked for.
    Rare,
    /// A loop that waits for nobody.
    Alone,
    /// It works in no loop: what runs beside the load.
    Beside,
    /// Neither does it wait nor work in a loop.
    Last,
}

/// What a cause weighs.
pub struct Weight {
    /// Ticks that would be saved.
    pub saving: u64,
    /// Its severity at most.
    pub max_severity: Option<Severity>,
    /// Others as severe go first.
    pub aside: Aside,
    /// It computes or sleeps by itself.
    pub idle: bool,
    /// The subject has asked for what it waits for, or wants a lock.
    pub firm: bool,
}

/// What a cause weighs; none if it is nothing to tell.
pub fn weigh(cause: &Cause<'_>) -> Option<Weight> {
    let (view, path) = (cause.view, cause.path);
    let saving = saving(cause);
    let total = path.total().max(1);
    match path.root {
        Frame::Request(key) => {
            let subject = view.evidence.subjects.get(&key)?;
            let slow = view.peers(key).is_some_and(|peers| peers.slow);
            let share = saving as f64 / total as f64;
            let tells = match slow {
                true => share >= SHARE || path.doer > 0,
                false => subject.timed >= 20 && share >= ALONE.0 && view.share(saving) >= ALONE.1,
            };
            // Of one that is like its peers, only a wait for somebody or something is told.
            let busy = match cause.ending.end {
                End::HostLoad | End::Guest => true,
                End::User | End::Asleep | End::Interrupt | End::Peer(_) | End::Syscall => {
                    !slow && path.doer == 0
                }
                _ => false,
            };
            let computes = matches!(cause.why(), Why::Computes | Why::OnCpu) || switches(cause);
            // Nobody knows whether a wait is a loss of which the end is not recorded.
            let known = !matches!(cause.ending.end, End::Asleep | End::Interrupt | End::Idle);
            let max_severity = if slow && known && !computes { None } else { cap(cause, true) };
            (tells && !busy).then_some(Weight {
                saving,
                max_severity,
                aside: Aside::No,
                idle: false,
                firm: true,
            })
        }
        _ => thread(cause, saving),
    }
}

/// What it does in a call is to go to sleep and to wake up (the call waits by design), or to wake the one
/// that waits (it answers each time by one call): no other call would cost less.
fn switches(cause: &Cause<'_>) -> bool {
    let call = cause.ending.call.filter(|_| cause.ending.end == End::Syscall);
    let Some((call, frame)) = call.map(|call| (call, Frame::Call(call))) else { return false };
    let level = cause.path.doing();
    let Some(runs) = level.parts.get(&(Some(frame), Frame::Runs)) else { return false };
    let calls = level.calls.get(&Some(frame)).map_or(1, |calls| calls.count.max(1));
    let answers = cause.hop.is_some_and(|hop| calls * 10 <= hop.count * 11);
    let each = cause.view.seconds(runs.ticks / calls);
    (answers || waits(cause.view.name(call))) && each.is_some_and(|each| each <= SWITCH)
}

/// Ticks that would be saved: those at the end; for a lock all that is waited for it.
fn saving(cause: &Cause<'_>) -> u64 {
    let path = cause.path;
    let whole = match (cause.why(), cause.lock()) {
        (Why::Lock, Some((_, hop))) => hop.ticks,
        (Why::Lock, None) => {
            cause.convoy().map_or(cause.ending.ticks, |(_, ticks)| ticks.max(cause.ending.ticks))
        }
        (Why::Child, _) => cause.hop.map_or(0, |hop| hop.ticks),
        _ => cause.ending.ticks,
    };
    match cause.ending.end {
        End::HostLoad => whole,
        _ => whole.min(path.total()),
    }
}

/// Of threads: what nobody waits for, or nobody asked for, is no loss.
fn thread(cause: &Cause<'_>, saving: u64) -> Option<Weight> {
    let (view, path) = (cause.view, cause.path);
    let group = path.root.life()?;
    let waits_for = path.hop(1).map_or(0, |hop| hop.count);
    let named = view.is_named(group) || view.is_beyond();
    let vcpu = view.is_vcpu(group);
    let alone = path.doer == 0;
    let edge = cause.hop.map(|hop| hop.edge);
    let why = cause.why();
    if cause.ending.end == End::Guest
        || view.share(saving) < 0.02
        || saving * 10 < path.active(view).saturating_sub(path.load())
    {
        return None;
    }
    let guest = view.times_requests() && vcpu && !view.is_beyond();
    let waits_in = cause.hop.map_or(cause.ending.call, |hop| hop.call);
    let waits_in = waits_in.map_or("", |call| view.name(call));
    let held = cause.held_back();
    let computes =
        alone && matches!(cause.ending.end, End::User | End::Syscall | End::HostLoad | End::Idle);
    if guest
        && !held
        && (computes || !GUEST.contains(&waits_in))
        && !matches!(cause.ending.end, End::Cpu(_) | End::Quota | End::Stopped(_))
    {
        // What it waits for in a request, the request tells.
        return None;
    }
    let partial = view.evidence.ends.any_gaps();
    let asked = named || partial || view.own().is_some_and(|own| own.contains(&group));
    let runs = |who| !view.is_beyond() && view.is_vcpu(who);
    let halts = match cause.ending.end {
        End::User | End::Syscall | End::HostLoad | End::Interrupt => true,
        End::Timer => GUEST.contains(&cause.ending.call.map_or("", |call| view.name(call))),
        _ => false,
    };
    if cause.doer().is_some_and(runs) && halts {
        // It waits for a vCPU that runs its guest, or whose guest idles: the vCPU asks.
        return None;
    }
    let convoy = cause.convoy().is_some();
    let waits_by_design = cause.ending.call.is_none_or(|call| waits(view.name(call)));
    let call = cause.ending.call.map_or("", |call| view.name(call));
    let says_little = why != Why::Walks
        && match cause.ending.end {
            End::User | End::HostLoad | End::Peer(_) | End::Idle => true,
            End::Timer if held => false,
            End::Timer | End::Asleep | End::Interrupt | End::Network => waits_by_design,
            // A guest that idles does not sleep deeply.
            End::Deep => !vcpu && waits_by_design,
            End::Cpu(_) => !vcpu && !matches!(path.doing().no_cpu, NoCpu::Preempted(_)),
            _ => false,
        };
    let strace = view.evidence.only_calls();
    if strace && cause.ending.end == End::Idle || strace && alone && cause.ending.end == End::User {
        // Between two calls is strace's own time, too.
        return None;
    }
    let between = path.doing().ticks(|call, state| call.is_none() && state == Frame::Runs);
    let in_calls = path.doing().all.ticks.saturating_sub(between);
    let own = cause.ending.call.and_then(|call| path.doing().calls.get(&Some(Frame::Call(call))));
    let of_call = own.map_or(0, |sum| sum.ticks);
    let calls = match cause.ending.end {
        End::InCall => !slow_call(cause),
        // Of strace's short calls, one that is most of them.
        End::Syscall => strace && of_call * 3 < in_calls,
        _ => false,
    };
    if calls && alone && !named {
        return None;
    }
    let asked = asked || strace && !(waits_by_design && matches!(cause.ending.end, End::Peer(_)));
    let round = loops(view, path.root);
    if alone && !convoy && says_little && (!asked || view.times_requests() && !named) {
        // It computes or idles, and waits for nobody; where a guest asks, its requests are the subject.
        // What computes for most of the time is told after all else.
        let most = cause.ending.end == End::User && view.share(saving) >= MOST;
        let stays = !view.evidence.groups.comes_and_goes(group) && !view.times_requests();
        let aside = if round { Aside::Alone } else { Aside::Last };
        let max_severity = Some(Severity::Low);
        let busy = round && matches!(cause.ending.end, End::User | End::HostLoad);
        return ((most || busy) && stays).then_some(Weight {
            saving,
            max_severity,
            aside,
            idle: true,
            firm: false,
        });
    }
    if alone
        && vcpu
        && !named
        && matches!(
            cause.ending.end,
            End::Timer | End::Asleep | End::Interrupt | End::Idle | End::Network
        )
        && GUEST.contains(&call)
    {
        // Its guest idles.
        return None;
    }
    let closed = partner(view, group).map_or(0.0, |(_, part, _)| part);
    let mut max_severity = cap(cause, closed >= CLOSED || edge == Some(Edge::Lock) || convoy);
    let firm = edge == Some(Edge::Lock) || closed >= CLOSED || convoy || vcpu;
    let once = matches!(cause.ending.end, End::Peer(_)) && cause.ending.count < LEAST;
    let rare = once
        || (!alone || path.workers().is_some()) && waits_for < LEAST
        || view.evidence.groups.comes_and_goes(group);
    let idles = idles(view, cause) && !held;
    let joins = edge == Some(Edge::Join);
    let own_kernel = alone && matches!(why, Why::Work | Why::Grace);
    let lone = closed < CLOSED && !own_kernel && !convoy && edge != Some(Edge::Lock);
    // It asks one that is known, which does not answer: `poll (DNS server 10.0.0.1)`.
    let unanswered = why == Why::Timer && call.contains(" (");
    let kept = unanswered
        || held
        || (matches!(cause.ending.end, End::Quota | End::Stopped(_))
            || firm && matches!(cause.ending.end, End::Cpu(_)))
            && (named || vcpu || !alone || !matches!(cause.ending.end, End::Cpu(_)));
    let pause = !unanswered && why == Why::Timer && is_pause(cause);
    let lone = lone && !kept && why != Why::Walks;
    let no_loss = lone || rare || idles && !kept || pause && !vcpu;
    if joins || no_loss && !view.is_beyond() {
        max_severity = Some(Severity::Low);
    }
    if strace && edge == Some(Edge::Lock) {
        // What ends a wait is inferred.
        max_severity =
            max_severity.map(|most| most.min(Severity::Medium)).or(Some(Severity::Medium));
    }
    let beside = !round && !named && !view.own().is_some_and(|own| own.contains(&group));
    if beside && !strace {
        max_severity = Some(Severity::Low);
    }
    // A process that was started to compute computes.
    let job = cause.doer().is_some_and(|who| view.evidence.groups.comes_and_goes(who))
        && why != Why::Child
        && matches!(cause.ending.end, End::User | End::HostLoad | End::Syscall);
    let idle = alone && !convoy && says_little || job;
    // Of a wait that ends nobody knows by what, the other end says more.
    let vague = alone && !held && cause.ending.end == End::Timer && yields(cause)
        || !alone
            && match cause.ending.end {
                End::Asleep | End::Interrupt | End::Idle => why == Why::Asleep,
                End::Kernel(_) => cause.ending.call.is_none(),
                // A circle has no end.
                End::Peer(who) => (0..path.doer).any(|at| path.group_at(view, at) == Some(who)),
                End::Timer => pause && yields(cause),
                // Between two calls of strace is its own time, too.
                End::User => strace,
                _ => false,
            };
    // One that computes and has no CPU meanwhile: nobody waits for it.
    let bystander = alone && !vcpu && !asked && matches!(cause.ending.end, End::Cpu(_));
    let unasked = closed < CLOSED && (idles && !kept || rare || bystander);
    let aside = match joins || once || vague || unasked {
        _ if idle && !round => Aside::Last,
        _ if beside => Aside::Beside,
        _ if idle => Aside::Alone,
        true => Aside::Rare,
        false => Aside::No,
    };
    Some(Weight { saving, max_severity, aside, idle, firm })
}

/// Two threads wait for each other, and one of them naps. If that one asks, it is a pause between two
/// requests; if it answers, it is late. Which one asks is not in a trace of threads.
fn is_pause(cause: &Cause<'_>) -> bool {
    cause.path.doer > 0 && cause.lock().is_none()
}

/// In a loop the one naps, and the other, or itself, does something else for a considerable part of the
/// round: what takes the time is that, and the nap is when nobody asks.
fn yields(cause: &Cause<'_>) -> bool {
    let (view, path) = (cause.view, cause.path);
    let call = cause.ending.call.map_or("", |call| view.name(call));
    let next = path.levels.get(1).and_then(|level| level.who).map(Frame::Waker);
    let waits = path.levels[0].ticks(|_, state| Some(state) == next);
    let does = path.active(view).saturating_sub(waits);
    (call.is_empty() || call.ends_with("nanosleep")) && does * CONSIDERABLE >= path.total()
}

/// Nobody asked for what it waits for: a pool's thread, a consumer, a pause of its own.
fn idles(view: &View<'_>, cause: &Cause<'_>) -> bool {
    if view.is_beyond() {
        return false;
    }
    let call = cause.ending.call.map_or("", |call| view.name(call));
    match cause.hop {
        None => {
            matches!(
                cause.ending.end,
                End::Timer | End::Asleep | End::Interrupt | End::Idle | End::Network
            ) && (call.is_empty() || waits(call))
        }
        Some(hop) => hop.edge == Edge::Idle,
    }
}

/// A call of strace that has data on a disk, takes several times as long as others, or is one of many
/// small ones.
fn slow_call(cause: &Cause<'_>) -> bool {
    let view = cause.view;
    let Some(call) = cause.ending.call else { return false };
    let key = Key { file: call.file, what: SubjectKind::Call(call) };
    syncs(view.name(call))
        || cause.batch().is_some()
        || view.peers(key).is_none_or(|peers| peers.slow)
}

/// Severity at most without a contrast: only what is a loss by itself is more than low. Whether a disk,
/// a process, or a timer should be waited for, one trace does not tell; its twin does (`--vs`).
fn cap(cause: &Cause<'_>, closed: bool) -> Option<Severity> {
    let hops = cause.path.doer > 0;
    match cause.why() {
        Why::Throttled | Why::Stopped => None,
        Why::Timer if cause.held_back() => None,
        Why::Lock if closed => None,
        // Threads of one priority share a CPU: that is the host's load.
        Why::NoCpu if matches!(cause.path.last().no_cpu, NoCpu::Shared(rival) if !cause.view.evidence.own.contains(&rival)) => {
            Some(Severity::Low)
        }
        Why::NoCpu if matches!(cause.ending.end, End::Cpu(_)) => {
            Some(if hops { Severity::High } else { Severity::Medium })
        }
        // It takes longer each time: against itself.
        Why::Walks | Why::Grows => Some(Severity::Medium),
        // Somebody does not answer.
        Why::Timer if cause.ending.call.is_some_and(|c| cause.view.name(c).contains(" (")) => {
            Some(Severity::Medium)
        }
        _ => Some(Severity::Low),
    }
}
