//! How much a cause matters: the one place that says so.

use super::cause::Cause;
use super::end::End;
use super::loops::loops;
use super::path::{Edge, Path};
use super::subjects::partner;
use crate::detect::segments::{NoCpu, GUEST};
use crate::detect::{syncs, waits, View};
use crate::evidence::groups::GroupId;
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
    let thread = Thread::of(cause, saving)?;
    if thread.is_small() || thread.is_of_requests() || thread.is_vcpus() || thread.is_of_strace() {
        return None;
    }
    let says_little = thread.alone && !thread.convoy && thread.says_little();
    if says_little && (!thread.asked || thread.times_requests && !thread.named) {
        return thread.only_computes();
    }
    if thread.alone && thread.vcpu && !thread.named && thread.waits_in_guest() {
        // Its guest idles.
        return None;
    }
    Some(thread.weight(says_little))
}

/// A thread's cause, and what is asked of it more than once.
struct Thread<'a> {
    cause: &'a Cause<'a>,
    view: &'a View<'a>,
    path: &'a Path,
    group: GroupId,
    /// Ticks at the end of its path.
    saving: u64,
    /// The user asks about it, or it is what a trace has beyond its twin's.
    named: bool,
    /// The recording's maker started it.
    own: bool,
    /// One of these, or the trace has gaps.
    asked: bool,
    vcpu: bool,
    /// The trace times the requests of a guest.
    times_requests: bool,
    /// It waits for no other thread of user space.
    alone: bool,
    why: Why,
    edge: Option<Edge>,
    /// A vCPU that sleeps until a time-out of its own.
    held: bool,
    convoy: bool,
    /// Share of its time and its partner's in which they wait for each other.
    closed: f64,
    /// The call at the end.
    call: &'a str,
    /// The trace has system calls only.
    strace: bool,
    /// It works in a loop.
    round: bool,
}

impl<'a> Thread<'a> {
    fn of(cause: &'a Cause<'a>, saving: u64) -> Option<Thread<'a>> {
        let (view, path) = (cause.view, cause.path);
        let group = path.root.life()?;
        let strace = view.evidence.only_calls();
        let named = view.is_named(group) || view.is_beyond();
        let partial = view.evidence.ends.any_gaps();
        let waits_by_design = cause.ending.call.is_none_or(|call| waits(view.name(call)));
        let calls = strace && !(waits_by_design && matches!(cause.ending.end, End::Peer(_)));
        let own = view.own().is_some_and(|own| own.contains(&group));
        Some(Thread {
            cause,
            view,
            path,
            group,
            saving,
            named,
            own,
            asked: named || partial || own || calls,
            vcpu: view.is_vcpu(group),
            times_requests: view.times_requests(),
            alone: path.doer == 0,
            why: cause.why(),
            edge: cause.hop.map(|hop| hop.edge),
            held: cause.held_back(),
            convoy: cause.convoy().is_some(),
            closed: partner(view, group).map_or(0.0, |(_, part, _)| part),
            call: cause.ending.call.map_or("", |call| view.name(call)),
            strace,
            round: loops(view, path.root),
        })
    }

    fn end(&self) -> End {
        self.cause.ending.end
    }

    fn is_locked(&self) -> bool {
        self.edge == Some(Edge::Lock)
    }

    /// The guest runs, or it is a small part of the trace or of what the thread does.
    fn is_small(&self) -> bool {
        self.end() == End::Guest
            || self.view.share(self.saving) < 0.02
            || self.saving * 10 < self.path.active(self.view).saturating_sub(self.path.load())
    }

    /// A vCPU's wait within a request: the request tells it.
    fn is_of_requests(&self) -> bool {
        let guest = self.times_requests && self.vcpu && !self.view.is_beyond();
        let waits_in = self.cause.hop.map_or(self.cause.ending.call, |hop| hop.call);
        let waits_in = waits_in.map_or("", |call| self.view.name(call));
        let computes = self.alone
            && matches!(self.end(), End::User | End::Syscall | End::HostLoad | End::Idle);
        guest
            && !self.held
            && (computes || !GUEST.contains(&waits_in))
            && !matches!(self.end(), End::Cpu(_) | End::Quota | End::Stopped(_))
    }

    /// It waits for a vCPU that runs its guest, or whose guest idles: the vCPU asks.
    fn is_vcpus(&self) -> bool {
        let runs = |who| !self.view.is_beyond() && self.view.is_vcpu(who);
        let halts = match self.end() {
            End::User | End::Syscall | End::HostLoad | End::Interrupt => true,
            End::Timer => GUEST.contains(&self.call),
            _ => false,
        };
        halts && self.cause.doer().is_some_and(runs)
    }

    /// Between two calls is strace's own time, too; and of its calls only a slow one is told, or one
    /// that is most of them.
    fn is_of_strace(&self) -> bool {
        let level = self.path.doing();
        if self.strace && (self.end() == End::Idle || self.alone && self.end() == End::User) {
            return true;
        }
        let between = level.ticks(|call, state| call.is_none() && state == Frame::Runs);
        let in_calls = level.all.ticks.saturating_sub(between);
        let call = self.cause.ending.call.map(Frame::Call);
        let of_call = call.and_then(|call| level.calls.get(&Some(call))).map_or(0, |sum| sum.ticks);
        let little = match self.end() {
            End::InCall => !slow_call(self.cause),
            End::Syscall => self.strace && of_call * 3 < in_calls,
            _ => false,
        };
        little && self.alone && !self.named
    }

    /// Its end alone is no loss: it computes, or it waits for what comes.
    fn says_little(&self) -> bool {
        let waits_by_design = self.cause.ending.call.is_none() || waits(self.call);
        self.why != Why::Walks
            && match self.end() {
                End::User | End::HostLoad | End::Peer(_) | End::Idle => true,
                End::Timer if self.held => false,
                End::Timer | End::Asleep | End::Interrupt | End::Network => waits_by_design,
                // A guest that idles does not sleep deeply.
                End::Deep => !self.vcpu && waits_by_design,
                End::Cpu(_) => {
                    !self.vcpu && !matches!(self.path.doing().no_cpu, NoCpu::Preempted(_))
                }
                _ => false,
            }
    }

    /// It computes or idles, and waits for nobody; where a guest asks, its requests are the subject.
    /// What computes for most of the time is told after all else.
    fn only_computes(&self) -> Option<Weight> {
        let most = self.end() == End::User && self.view.share(self.saving) >= MOST;
        let stays = !self.comes_and_goes() && !self.times_requests;
        let busy = self.round && matches!(self.end(), End::User | End::HostLoad);
        let aside = if self.round { Aside::Alone } else { Aside::Last };
        let max_severity = Some(Severity::Low);
        let (saving, idle, firm) = (self.saving, true, false);
        ((most || busy) && stays).then_some(Weight { saving, max_severity, aside, idle, firm })
    }

    fn comes_and_goes(&self) -> bool {
        self.view.evidence.groups.comes_and_goes(self.group)
    }

    fn waits_in_guest(&self) -> bool {
        waits_for_what_comes(self.end()) && GUEST.contains(&self.call)
    }

    /// A part of what it waits for came once or a few times only.
    fn is_rare(&self) -> bool {
        let waits_for = self.path.hop(1).map_or(0, |hop| hop.count);
        self.is_once()
            || (!self.alone || self.path.workers().is_some()) && waits_for < LEAST
            || self.comes_and_goes()
    }

    fn is_once(&self) -> bool {
        matches!(self.end(), End::Peer(_)) && self.cause.ending.count < LEAST
    }

    fn is_firm(&self) -> bool {
        self.is_locked() || self.closed >= CLOSED || self.convoy || self.vcpu
    }

    /// It asks one that is known, which does not answer: `poll (DNS server 10.0.0.1)`.
    fn is_unanswered(&self) -> bool {
        self.why == Why::Timer && self.call.contains(" (")
    }

    /// Somebody keeps it from going on.
    fn is_kept(&self) -> bool {
        let cpu = matches!(self.end(), End::Cpu(_));
        let stopped = matches!(self.end(), End::Quota | End::Stopped(_));
        self.is_unanswered()
            || self.held
            || (stopped || self.is_firm() && cpu)
                && (self.named || self.vcpu || !self.alone || !cpu)
    }

    fn idles(&self) -> bool {
        idles(self.view, self.cause) && !self.held && !self.is_kept()
    }

    /// Two threads wait for each other, and one of them naps. If that one asks, it is a pause between two
    /// requests; if it answers, it is late. Which one asks is not in a trace of threads.
    fn pauses(&self) -> bool {
        let naps = self.why == Why::Timer && !self.is_unanswered();
        naps && !self.alone && self.cause.lock().is_none()
    }

    fn is_beside(&self) -> bool {
        !self.round && !self.named && !self.own
    }

    fn max_severity(&self) -> Option<Severity> {
        let most = cap(self.cause, self.closed >= CLOSED || self.is_locked() || self.convoy);
        let own_kernel = self.alone && matches!(self.why, Why::Work | Why::Grace);
        let lone = self.closed < CLOSED
            && !own_kernel
            && !self.convoy
            && !self.is_locked()
            && !self.is_kept()
            && self.why != Why::Walks;
        let no_loss = lone || self.is_rare() || self.idles() || self.pauses() && !self.vcpu;
        let joins = self.edge == Some(Edge::Join);
        let low = joins || no_loss && !self.view.is_beyond() || self.is_beside() && !self.strace;
        // What ends a wait of strace's is inferred.
        let inferred = self.strace && self.is_locked();
        match low {
            true => Some(Severity::Low),
            false if inferred => Some(most.map_or(Severity::Medium, |m| m.min(Severity::Medium))),
            false => most,
        }
    }

    /// Of a wait that ends nobody knows by what, the other end says more.
    fn is_vague(&self) -> bool {
        if self.alone {
            return !self.held && self.end() == End::Timer && yields(self.cause);
        }
        match self.end() {
            End::Asleep | End::Interrupt | End::Idle => self.why == Why::Asleep,
            End::Kernel(_) => self.cause.ending.call.is_none(),
            // A circle has no end.
            End::Peer(who) => {
                let mut levels = 0..self.path.doer;
                levels.any(|at| self.path.group_at(self.view, at) == Some(who))
            }
            End::Timer => self.pauses() && yields(self.cause),
            // Between two calls of strace is its own time, too.
            End::User => self.strace,
            _ => false,
        }
    }

    fn weight(&self, says_little: bool) -> Weight {
        let groups = &self.view.evidence.groups;
        // A process that was started to compute computes.
        let job = self.cause.doer().is_some_and(|who| groups.comes_and_goes(who))
            && self.why != Why::Child
            && matches!(self.end(), End::User | End::HostLoad | End::Syscall);
        let idle = says_little || job;
        // One that computes and has no CPU meanwhile: nobody waits for it.
        let bystander =
            self.alone && !self.vcpu && !self.asked && matches!(self.end(), End::Cpu(_));
        let unasked = self.closed < CLOSED && (self.idles() || self.is_rare() || bystander);
        let rare = self.edge == Some(Edge::Join) || self.is_once() || self.is_vague() || unasked;
        let aside = match rare {
            _ if idle && !self.round => Aside::Last,
            _ if self.is_beside() => Aside::Beside,
            _ if idle => Aside::Alone,
            true => Aside::Rare,
            false => Aside::No,
        };
        let max_severity = self.max_severity();
        Weight { saving: self.saving, max_severity, aside, idle, firm: self.is_firm() }
    }
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

/// It sleeps until something comes: a time, a packet, whatever wakes it.
fn waits_for_what_comes(end: End) -> bool {
    matches!(end, End::Timer | End::Asleep | End::Interrupt | End::Idle | End::Network)
}

/// Nobody asked for what it waits for: a pool's thread, a consumer, a pause of its own.
fn idles(view: &View<'_>, cause: &Cause<'_>) -> bool {
    if view.is_beyond() {
        return false;
    }
    let call = cause.ending.call.map_or("", |call| view.name(call));
    match cause.hop {
        None => waits_for_what_comes(cause.ending.end) && (call.is_empty() || waits(call)),
        Some(hop) => hop.edge == Edge::Idle,
    }
}

/// A call of strace that has data on a disk, takes several times as long as others, or is one of many
/// small ones.
fn slow_call(cause: &Cause<'_>) -> bool {
    let view = cause.view;
    let Some(call) = cause.ending.call else { return false };
    let key = Key { file: call.file(), what: SubjectKind::Call(call) };
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
