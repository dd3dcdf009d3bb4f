//! What a subject's time leads to, if one follows whom it waits for: the name of what is there.
//!
//! A subject is a kind of request, or the whole life of the threads of a name. The way down its
//! largest branches ([`super::levels`]) ends at somebody who does something; what that is makes
//! the finding's kind, and the way is its chain.

use super::levels::{levels, Doing, Level, Sum};
use super::waits::{is_grace, syncs, waits};
use super::{Candidate, View};
use crate::evidence::groups::GroupId;
use crate::evidence::subject::Key;
use crate::evidence::tree::Frame;
use crate::moment::Sym;
use crate::result::{Link, Severity};
use std::collections::BTreeMap;
use vmeter_render::quantity::{brief_percent, grouped};

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

    /// What the way ends at, and how much of the time.
    fn cause(&self, view: &View<'_>) -> (Cause, u64) {
        let last = self.last();
        let via = self.levels.len().checked_sub(2).and_then(|at| self.levels.get(at));
        let by_design = |call: Option<Frame>| call.is_none_or(|c| waits(view.frame_name(c)));
        let hops = self.levels.len() > 1 || matches!(self.root, Frame::Request(_));
        let interrupt = |state| matches!(state, Frame::Irq(_) | Frame::Interrupt | Frame::Deep);
        let timer = last.ticks(|c, s| {
            s == Frame::Timer
                || hops && s == Frame::Interrupt && by_design(c)
                || matches!(s, Frame::Irq(i) if view.name(i).to_ascii_lowercase().contains("timer"))
        });
        let timer = if hops {
            timer
        } else {
            last.ticks(|c, s| {
                s == Frame::Timer && c.is_some_and(|c| view.frame_name(c).contains("nanosleep"))
            })
        };
        let device = last.ticks(|c, s| interrupt(s) && !(s == Frame::Interrupt && by_design(c)));
        let deep = |s| s == Frame::Deep;
        let device =
            if hops { device } else { last.ticks(|c, s| deep(s) || interrupt(s) && !by_design(c)) };
        // Waiting for a CPU that now this has and now that is the host's business.
        let no_cpu = last.ticks(|_, s| s == Frame::NoCpu);
        let no_cpu = match self.rival() {
            Some((_, ticks)) if ticks * 5 >= no_cpu * 4 => no_cpu,
            _ => no_cpu / 4,
        };
        let asleep = last.ticks(|c, s| s == Frame::Asleep && (hops || !by_design(c)));
        let runs = last.ticks(|_, s| matches!(s, Frame::Runs | Frame::Guest));
        let others = crate::sum(last.wakers().iter().map(|(_, sum)| sum.ticks));
        let (most, cause) = [
            (timer, Cause::Timer),
            (device, Cause::Device),
            (no_cpu, Cause::NoCpu),
            (asleep, Cause::Asleep),
            (runs, Cause::Computes),
            (others, Cause::HandOver),
        ]
        .into_iter()
        .max_by_key(|(ticks, _)| *ticks)
        .unwrap_or((0, Cause::Computes));
        let all = last.all.ticks;
        if let Some(inside) = self.inside(view).filter(|_| cause != Cause::NoCpu) {
            return inside;
        }
        if let Some(via) = via {
            let kernel = last.who.is_some_and(|who| view.evidence.groups.is_kernel(who));
            if kernel || self.work().is_some() {
                return (Cause::Work, all);
            }
            if cause != Cause::Timer && self.is_lock(view, via, last) {
                return (Cause::Lock, all);
            }
            if in_call(view, via, &["wait4", "waitid", "vfork", "clone", "clone3", "fork"]) {
                return (Cause::Child, all);
            }
        }
        match cause {
            Cause::Computes => self.computes(view, most),
            Cause::Asleep
                if matches!(self.root, Frame::Request(_))
                    && self.levels.len() == 1
                    && is_futex(
                        view,
                        last.most_in(|s| s == Frame::Asleep).and_then(|(c, _)| c),
                    ) =>
            {
                (Cause::Lock, most)
            }
            cause => (cause, most),
        }
    }

    /// Who had the CPU most of the time that the last one on the way had none.
    fn rival(&self) -> Option<(GroupId, u64)> {
        let mut by: BTreeMap<GroupId, u64> = BTreeMap::new();
        for ((group, _), sum) in &self.last().rivals {
            *by.entry(*group).or_default() += sum.ticks;
        }
        by.into_iter().max_by_key(|(_, ticks)| *ticks)
    }

    /// In a call that has data on a disk before it returns: whatever it does there.
    fn inside(&self, view: &View<'_>) -> Option<(Cause, u64)> {
        let (_, call, sum) = self.call(view)?;
        let share = sum.ticks as f64 / self.busy.max(1) as f64;
        (syncs(view.name(call)) && share >= SHARE).then_some((Cause::Device, sum.ticks))
    }

    /// On a CPU: page faults, a call, or its own computing.
    fn computes(&self, view: &View<'_>, runs: u64) -> (Cause, u64) {
        let last = self.last();
        let state = |s| matches!(s, Frame::Runs);
        let faults = self.faults();
        let user = last.ticks(|c, s| state(s) && c.is_none());
        let each = view.seconds(user).map(|s| s / faults.max(1) as f64);
        if faults >= 100 && user * 2 >= runs && each.is_some_and(|each| each <= FAULT_S) {
            return (Cause::Faults, user);
        }
        let in_calls = last.ticks(|c, s| state(s) && c.is_some());
        if in_calls * 2 >= runs {
            return (Cause::Call, runs);
        }
        (Cause::Computes, runs)
    }

    /// Who lets a thread go on in a futex may hold a lock, or hand over what that waits for.
    fn lock_at_most(&self, view: &View<'_>) -> Option<Severity> {
        let (last, via) = (self.last(), self.levels.iter().rev().nth(1));
        let calls = view.evidence.calls_seen.contains(&self.file(view));
        let futex = via.is_some_and(|via| {
            is_futex(view, via.most_in(|s| matches!(s, Frame::Waker(_))).and_then(|(c, _)| c))
        });
        let own_kind = last.who.is_some()
            && last.who == via.and_then(|via| via.who).or(self.subject_group(view));
        match (calls, futex && !own_kind, self.waits < MANY_WAITS) {
            (false, ..) | (_, true, true) => Some(Severity::Low),
            _ if own_kind && self.closed(view) < CLOSED => Some(Severity::Low),
            (_, true, false) => Some(Severity::Medium),
            _ => None,
        }
    }

    /// A nap alone may be idling; one that nobody is known to have asked for is no alarm.
    fn timer_at_most(&self, view: &View<'_>) -> Option<Severity> {
        let (Frame::Life(own), Some(first)) = (self.root, self.levels.first()) else { return None };
        let Some((other, sum)) = first.wakers().first().copied() else {
            return Some(Severity::Low);
        };
        if self.levels.len() == 1 {
            return Some(Severity::Low);
        }
        let asked = view.evidence.asked(own, other) * 2 >= sum.count;
        (!asked).then_some(Severity::Medium)
    }

    fn naps(&self) -> u64 {
        let last = self.last().parts.iter();
        let naps =
            last.filter(|((_, s), _)| matches!(s, Frame::Timer | Frame::Interrupt | Frame::Irq(_)));
        naps.map(|(_, sum)| sum.count).sum()
    }

    fn faults(&self) -> u64 {
        self.last()
            .parts
            .iter()
            .filter(|((_, s), _)| *s == Frame::Faults)
            .map(|(_, s)| s.count)
            .sum()
    }

    /// Waited for in a futex, or in a call that does not wait by design, and not asked to do
    /// something by the one that waits.
    fn is_lock(&self, view: &View<'_>, via: &Level, last: &Level) -> bool {
        let Some(who) = last.who else { return false };
        let wants = |state| state == Frame::Waker(who);
        let own_kind = via.who.or(self.subject_group(view)) == Some(who);
        if own_kind && via.calls.keys().all(Option::is_none) {
            return true;
        }
        let Some((Some(call), sum)) = via.most_in(wants) else { return false };
        let waiting = crate::sum(via.wakers().iter().map(|(_, waiting)| waiting.ticks));
        if sum.ticks * 2 < waiting {
            return false;
        }
        let name = view.frame_name(call);
        let kernel = !waits(name) && !matches!(name, "write" | "writev" | "sendto" | "sendmsg");
        if !kernel && !name.starts_with("futex") {
            return false;
        }
        if kernel {
            // In the kernel: the one that lets it go on is in a call, too.
            let inside = last.ticks(|call, _| call.is_some_and(|c| !waits(view.frame_name(c))));
            return inside * 2 >= last.all.ticks;
        }
        // Who sleeps in a wait of its own holds nothing that it could let go.
        let idle = |call: Option<Frame>| {
            call.is_some_and(|call| {
                let name = view.frame_name(call);
                waits(name) && !name.starts_with("futex")
            })
        };
        let works = last.ticks(|call, state| {
            !idle(call)
                && match state {
                    Frame::Runs => true,
                    Frame::NoCpu | Frame::Unknown => false,
                    _ => call.is_some_and(|call| !waits(view.frame_name(call))),
                }
        });
        let known = last.all.ticks.saturating_sub(last.noise());
        let top = Level::sorted(&last.calls).first().and_then(|(call, _)| *call);
        if works * 3 < known || works * 5 < last.all.ticks || idle(top) {
            return false;
        }
        let asked = match via.who.or(self.subject_group(view)) {
            // Their own kind: whoever has it lets the next one go on.
            Some(waiting) if waiting == who => 0,
            Some(waiting) => view.evidence.asked(waiting, who),
            None => 0,
        };
        asked * 2 < sum.count
    }

    fn subject_group(&self, view: &View<'_>) -> Option<GroupId> {
        match self.root {
            Frame::Life(group) => Some(group),
            Frame::Request(_) => view.evidence.vcpu_group(),
            _ => None,
        }
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
        let (kind, summary, suggestion, confirm, at_most) = self.words(view, cause);
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

    fn words(
        &self,
        view: &View<'_>,
        cause: Cause,
    ) -> (&'static str, String, String, String, Option<Severity>) {
        let last = self.last();
        let subject = self.subject(view);
        let who = last.who.map(|who| view.threads(who));
        let waits_for = match &who {
            Some(who) => format!("{subject} waits for {who}, which"),
            None => subject.clone(),
        };
        let call = self.call(view);
        let named = call.map(|(_, call, _)| view.name(call).to_string());
        let (low, medium) = (Some(Severity::Low), Some(Severity::Medium));
        let perf = "perf trace -s -p PID sleep 5 (the calls, their number and time)".to_string();
        match cause {
            Cause::Timer => {
                let want = |s| matches!(s, Frame::Timer | Frame::Interrupt | Frame::Irq(_));
                let (call, sum) = last.most_in(want).unwrap_or_default();
                let each = view.time(sum.ticks as f64 / sum.count.max(1) as f64);
                let call =
                    call.map_or("sleeps".into(), |c| format!("sleeps in {}", view.frame_name(c)));
                (
                    "timer-paced",
                    format!("{waits_for} {call} until a timer fires, {each} each time"),
                    "wait for the event itself (eventfd, epoll, futex), not for a period".into(),
                    "strace -f -T -e trace=nanosleep,clock_nanosleep,poll,ppoll,epoll_wait,timerfd_settime -p PID".into(),
                    self.timer_at_most(view),
                )
            }
            Cause::NoCpu => {
                let total = last.ticks(|_, s| s == Frame::NoCpu);
                match self.rival() {
                    Some((rival, ticks)) if ticks * 5 >= total * 4 => (
                        "no-cpu",
                        format!("{waits_for} has no CPU: {} has it", view.threads(rival)),
                        format!(
                            "give {} another CPU (taskset, cpuset) or a lower priority",
                            view.threads(rival)
                        ),
                        "perf sched timehist -p PID (the delay until a woken thread has a CPU)"
                            .into(),
                        if ticks * 3 >= self.busy * 2 { medium } else { low },
                    ),
                    _ => (
                        "no-cpu",
                        format!(
                            "{waits_for} waits for a CPU: the host is busy with other programs"
                        ),
                        "measure again on an idle host, or with CPUs of its own (taskset, cpuset)"
                            .into(),
                        "perf sched timehist -p PID (the delay until a woken thread has a CPU)"
                            .into(),
                        low,
                    ),
                }
            }
            Cause::Device => {
                let what = named.unwrap_or_else(|| "a call that is not recorded".into());
                let most = if syncs(&what) { medium } else { low };
                (
                    "slow-call",
                    format!("{waits_for} is in {what}, waiting for a device"),
                    format!("call {what} less often, for many requests at once, or not in the request's path"),
                    perf,
                    most,
                )
            }
            Cause::Lock => {
                let holder = self.levels.iter().rev().find_map(|l| l.who).map(|w| view.threads(w));
                let inside = Level::sorted(&last.calls).into_iter().find_map(|(c, _)| c);
                let inside = match inside {
                    Some(call) if self.levels.len() > 1 => {
                        format!(" while in {}", view.frame_name(call))
                    }
                    _ => String::new(),
                };
                let before = self
                    .levels
                    .iter()
                    .rev()
                    .nth(1)
                    .and_then(|l| l.most_in(|s| matches!(s, Frame::Waker(_))));
                let own = last.most_in(|s| s == Frame::Asleep);
                let call = before.or(own).and_then(|(c, _)| c).map_or("", |c| view.frame_name(c));
                let holder = holder.unwrap_or_else(|| "another thread".into());
                (
                    "lock-wait",
                    match call {
                        "" => format!(
                            "{subject} waits for {holder}, one for the other: a lock, it seems"
                        ),
                        _ => format!(
                            "{subject} waits in {call} for a lock that {holder} holds{inside}"
                        ),
                    },
                    "hold the lock for less: around the shared data, not around the whole call"
                        .into(),
                    "perf lock contention -ab -p PID sleep 5".into(),
                    self.lock_at_most(view),
                )
            }
            Cause::Child => {
                let child = who.unwrap_or_else(|| "a child".into());
                (
                    "child-process",
                    format!(
                        "{subject} waits for {child}, a process that is started again and again"
                    ),
                    "do it in the process itself, or keep one helper running and talk to it".into(),
                    "strace -f -c -e trace=process -p PID".into(),
                    medium,
                )
            }
            Cause::Faults => {
                let doer = who.unwrap_or_else(|| subject.clone());
                (
                    "page-faults",
                    format!("{doer} takes {} page faults: it touches fresh memory again and again", grouped(&self.faults().to_string())),
                    "keep and reuse the memory, or have it there beforehand (MAP_POPULATE, huge pages)".into(),
                    "perf stat -e minor-faults,major-faults -p PID sleep 5".into(),
                    medium,
                )
            }
            Cause::Work => self.work_words(view, &subject, named),
            Cause::Call => {
                let what = last.most_in(|s| s == Frame::Runs).and_then(|(c, _)| c);
                let what = what.map_or("calls".into(), |c| view.frame_name(c).to_string());
                (
                    "slow-call",
                    format!("{waits_for} is busy in {what}"),
                    format!("call {what} less often, or with more work a call"),
                    perf,
                    if alone_low(self) { low } else { medium },
                )
            }
            Cause::HandOver => {
                let whom: Vec<String> =
                    last.wakers().iter().take(2).map(|(g, _)| view.threads(*g)).collect();
                (
                    "ping-pong",
                    format!("{waits_for} waits for {}", whom.join(" and ")),
                    "hand over less often: more work at a time".into(),
                    "perf sched timehist -p PID (who wakes whom)".into(),
                    low,
                )
            }
            Cause::Asleep | Cause::Computes => {
                let state = if cause == Cause::Asleep {
                    "sleeps; who wakes it is not recorded"
                } else {
                    "computes"
                };
                (
                    "busy-thread",
                    format!("{waits_for} {state}"),
                    "look into that thread: perf record -p PID".into(),
                    "perf record -g -p PID sleep 5".into(),
                    low,
                )
            }
        }
    }

    fn work_words(
        &self,
        view: &View<'_>,
        subject: &str,
        named: Option<String>,
    ) -> (&'static str, String, String, String, Option<Severity>) {
        let work = self.work();
        let function = work.map(|(work, _)| view.name(work).to_string());
        let of_each = work.is_some_and(|(work, _)| {
            view.evidence.works.get(&work).is_some_and(super::super::evidence::Work::of_each_cpu)
        });
        let grace = function.as_deref().is_some_and(is_grace);
        let kernel =
            self.levels.iter().find_map(|l| l.who.filter(|w| view.evidence.groups.is_kernel(*w)));
        let workers = kernel.map_or("kernel workers".into(), |k| view.threads(k));
        let what = function.map_or(String::new(), |f| format!(" to run {f}"));
        let inside = named.clone().map_or(String::new(), |call| format!(" in {call}"));
        let sync = named.as_deref().is_some_and(syncs);
        let whose = self.call(view).and_then(|(who, ..)| who).map(|who| view.threads(who));
        let subject = match whose {
            Some(whose) => format!("{subject} waits for {whose}, which"),
            None => subject.to_string(),
        };
        let why = if grace { " (an RCU grace period)" } else { "" };
        (
            if grace { "lock-wait" } else if of_each { "work-on-every-cpu" } else if sync { "slow-call" } else { "waits-for-work" },
            format!("{subject} waits{inside} for {workers}{what}{why}"),
            format!("keep {} out of the request's path, or do it once for many", named.unwrap_or_else(|| "the call".into())),
            "trace-cmd record -e raw_syscalls -e sched -e workqueue (the call, the items it queues, who runs them)".into(),
            Some(Severity::Medium),
        )
    }

    /// A level as a link of the chain.
    fn link(&self, view: &View<'_>, at: usize, level: &Level) -> Link {
        let name = match level.who {
            Some(who) => view.threads(who),
            None => self.subject(view),
        };
        let whole = level.all.ticks.max(1);
        let mut parts: Vec<(Doing, Sum)> = Level::sorted(&level.parts);
        parts.retain(|(_, sum)| sum.ticks * 20 >= whole);
        let mut words: Vec<String> = Vec::new();
        let calls = Level::sorted(&level.calls);
        for (call, sum) in calls.iter().filter(|(_, sum)| sum.ticks * 20 >= whole).take(3) {
            let call_name = call.map_or("outside calls".to_string(), |call| view.frame(call));
            let share = brief_percent(sum.ticks as f64 / whole as f64);
            let times = if sum.count > 1 {
                format!(" ({} times)", grouped(&sum.count.to_string()))
            } else {
                String::new()
            };
            let inside = parts.iter().filter(|((c, _), _)| c == call).take(3);
            let inside: Vec<String> = inside
                .map(|((_, state), part)| {
                    format!(
                        "{} {}",
                        view.frame(*state),
                        brief_percent(part.ticks as f64 / whole as f64)
                    )
                })
                .collect();
            words.push(format!("{call_name} {share}{times}: {}", inside.join(", ")));
        }
        let mut rivals = Level::sorted(&level.rivals);
        rivals.retain(|(_, sum)| sum.ticks * 10 >= whole);
        for ((rival, doing), sum) in rivals.iter().take(2) {
            let doing = doing.map_or(String::new(), |doing| format!(" {}", view.frame(doing)));
            words.push(format!(
                "{}{doing} has the CPU meanwhile {}",
                view.threads(*rival),
                brief_percent(sum.ticks as f64 / whole as f64)
            ));
        }
        let faults: u64 = level
            .parts
            .iter()
            .filter(|((_, s), _)| *s == Frame::Faults)
            .map(|(_, s)| s.count)
            .sum();
        if faults > 0 {
            words.push(format!("{} page faults", grouped(&faults.to_string())));
        }
        words.extend(self.missing(view, level));
        let role = match (at, self.root) {
            (0, Frame::Life(_)) => format!("{name}, seen for {}", view.time(whole as f64)),
            (0, _) => format!("{name}, {} in all", view.time(whole as f64)),
            _ => format!("{name}, waited for {}", view.time(whole as f64)),
        };
        let claim = format!("{role}: {}", words.join("; "));
        let key = match self.root {
            Frame::Request(key) => key,
            _ => Key {
                file: self.file(view),
                what: crate::evidence::subject::What::Port { port: 0, write: false },
            },
        };
        let count = level.all.count.max(level.calls.values().map(|sum| sum.count).sum());
        view.link(
            key,
            claim,
            (count, level.all.ticks),
            &[("share", whole as f64 / self.busy.max(1) as f64)],
            &[level.all.worst],
        )
    }

    /// What is not recorded of a level, and the event that would tell.
    fn missing(&self, view: &View<'_>, level: &Level) -> Option<String> {
        let kernel = level.who.is_some_and(|who| view.evidence.groups.is_kernel(who));
        let none = level.calls.keys().all(Option::is_none);
        let asleep = level.ticks(|_, state| state == Frame::Asleep);
        if none && kernel && view.evidence.works.is_empty() {
            return Some("what they run is not recorded (workqueue:*)".into());
        }
        if none && !kernel && !view.evidence.calls_seen.contains(&self.file(view)) {
            return Some("in which calls is not recorded (raw_syscalls)".into());
        }
        (asleep * 3 >= level.all.ticks)
            .then(|| "who wakes it is not recorded (sched_waking, irq:*)".into())
    }

    fn file(&self, view: &View<'_>) -> u16 {
        match self.root {
            Frame::Life(group) => {
                view.evidence.groups.get(group).map_or(0, |group| group.first.file)
            }
            _ => 0,
        }
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

fn alone_low(story: &Story) -> bool {
    story.levels.len() == 1
}

fn is_futex(view: &View<'_>, call: Option<Frame>) -> bool {
    call.is_some_and(|call| view.frame_name(call).starts_with("futex"))
}

fn in_call(view: &View<'_>, level: &Level, names: &[&str]) -> bool {
    let waits = level.most_in(|s| matches!(s, Frame::Waker(_)));
    waits.and_then(|(call, _)| call).is_some_and(|call| names.contains(&view.frame_name(call)))
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
