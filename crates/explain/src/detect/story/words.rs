//! What a way ends at, in words: what is slow, what to change, what would prove it.

use super::super::levels::Level;
use super::super::waits::{is_grace, syncs};
use super::super::View;
use super::{Cause, Story};
use crate::evidence::tree::Frame;
use crate::evidence::Work;
use crate::result::Severity;
use vmeter_render::quantity::grouped;

/// A finding's words.
pub(super) struct Words {
    pub(super) kind: &'static str,
    pub(super) summary: String,
    pub(super) suggestion: String,
    pub(super) confirm: String,
    pub(super) at_most: Option<Severity>,
}

fn words(kind: &'static str, summary: String, suggestion: &str, confirm: &str) -> Words {
    let (suggestion, confirm) = (suggestion.to_string(), confirm.to_string());
    Words { kind, summary, suggestion, confirm, at_most: Some(Severity::Low) }
}

impl Words {
    fn at_most(self, at_most: Option<Severity>) -> Words {
        Words { at_most, ..self }
    }

    fn medium(self) -> Words {
        self.at_most(Some(Severity::Medium))
    }
}

const CALLS: &str = "perf trace -s -p PID sleep 5 (the calls, their number and time)";
const DELAY: &str = "perf sched timehist -p PID (the delay until a woken thread has a CPU)";

impl Story {
    pub(super) fn words(&self, view: &View<'_>, cause: Cause) -> Words {
        match cause {
            Cause::Timer => self.timer_words(view),
            Cause::NoCpu => self.no_cpu_words(view),
            Cause::Device => self.device_words(view),
            Cause::Lock => self.lock_words(view),
            Cause::Work => self.work_words(view),
            Cause::Call => self.call_words(view),
            Cause::Child => words(
                "child-process",
                format!(
                    "{} waits for {}, a process that is started again and again",
                    self.subject(view),
                    self.doer(view)
                ),
                "do it in the process itself, or keep one helper running and talk to it",
                "strace -f -c -e trace=process -p PID",
            )
            .medium(),
            Cause::Faults => words(
                "page-faults",
                format!(
                    "{} takes {} page faults: it touches fresh memory again and again",
                    self.doer(view),
                    grouped(&self.faults().to_string())
                ),
                "keep and reuse the memory, or have it there beforehand (MAP_POPULATE, huge pages)",
                "perf stat -e minor-faults,major-faults -p PID sleep 5",
            )
            .medium(),
            Cause::HandOver => {
                let wakers = self.last().wakers().into_iter().take(2);
                let whom: Vec<String> = wakers.map(|(group, _)| view.threads(group)).collect();
                words(
                    "ping-pong",
                    format!("{} waits for {}", self.who(view), whom.join(" and ")),
                    "hand over less often: more work at a time",
                    "perf sched timehist -p PID (who wakes whom)",
                )
            }
            Cause::Asleep | Cause::Computes => self.thread_words(view, cause),
        }
    }

    /// The last one on the way.
    fn doer(&self, view: &View<'_>) -> String {
        self.last().who.map_or_else(|| self.subject(view), |who| view.threads(who))
    }

    /// What a sentence about the last one on the way begins with.
    fn who(&self, view: &View<'_>) -> String {
        match self.last().who {
            Some(who) => format!("{} waits for {}, which", self.subject(view), view.threads(who)),
            None => self.subject(view),
        }
    }

    fn timer_words(&self, view: &View<'_>) -> Words {
        let want = |s| matches!(s, Frame::Timer | Frame::Interrupt | Frame::Irq(_));
        let (call, sum) = self.last().most_in(want).unwrap_or_default();
        let each = view.time(sum.ticks as f64 / sum.count.max(1) as f64);
        let inside = call.map_or(String::new(), |c| format!(" in {}", view.frame_name(c)));
        words(
            "timer-paced",
            format!("{} sleeps{inside} until a timer fires, {each} each time", self.who(view)),
            "wait for the event itself (eventfd, epoll, futex), not for a period",
            "strace -f -T -e trace=nanosleep,clock_nanosleep,poll,ppoll,epoll_wait,timerfd_settime \
             -p PID",
        )
        .at_most(self.timer_at_most(view))
    }

    fn no_cpu_words(&self, view: &View<'_>) -> Words {
        let total = self.last().ticks(|_, s| s == Frame::NoCpu);
        let who = self.who(view);
        match self.rival() {
            Some((rival, ticks)) if ticks * 5 >= total * 4 => {
                let rival = view.threads(rival);
                let change =
                    format!("give {rival} another CPU (taskset, cpuset) or a lower priority");
                let words =
                    words("no-cpu", format!("{who} has no CPU: {rival} has it"), &change, DELAY);
                match ticks * 3 >= self.busy * 2 {
                    true => words.medium(),
                    false => words,
                }
            }
            _ => words(
                "no-cpu",
                format!("{who} waits for a CPU: the host is busy with other programs"),
                "measure again on an idle host, or with CPUs of its own (taskset, cpuset)",
                DELAY,
            ),
        }
    }

    fn device_words(&self, view: &View<'_>) -> Words {
        let call = self.call(view).map(|(_, call, _)| view.name(call));
        let what = call.unwrap_or("a call that is not recorded");
        let change = format!(
            "call {what} less often, for many requests at once, or not in the request's path"
        );
        let summary = format!("{} is in {what}, waiting for a device", self.who(view));
        let words = words("slow-call", summary, &change, CALLS);
        match syncs(what) {
            true => words.medium(),
            false => words,
        }
    }

    fn lock_words(&self, view: &View<'_>) -> Words {
        let last = self.last();
        let inside = Level::sorted(&last.calls).into_iter().find_map(|(call, _)| call);
        let inside = inside.filter(|_| self.levels.len() > 1);
        let inside =
            inside.map_or(String::new(), |call| format!(" while in {}", view.frame_name(call)));
        let via = self.levels.iter().rev().nth(1);
        let waits = via.and_then(|via| via.most_in(|s| matches!(s, Frame::Waker(_))));
        let waits = waits.or(last.most_in(|s| s == Frame::Asleep));
        let call = waits.and_then(|(call, _)| call);
        let holder = self.levels.iter().rev().find_map(|level| level.who);
        let holder = holder.map_or("another thread".into(), |who| view.threads(who));
        let subject = self.subject(view);
        let summary = match call {
            Some(call) => format!(
                "{subject} waits in {} for a lock that {holder} holds{inside}",
                view.frame_name(call)
            ),
            None => format!("{subject} waits for {holder}, one for the other: a lock, it seems"),
        };
        words(
            "lock-wait",
            summary,
            "hold the lock for less: around the shared data, not around the whole call",
            "perf lock contention -ab -p PID sleep 5",
        )
        .at_most(self.lock_at_most(view))
    }

    fn call_words(&self, view: &View<'_>) -> Words {
        let call = self.last().most_in(|s| s == Frame::Runs).and_then(|(call, _)| call);
        let what = call.map_or("calls", |call| view.frame_name(call));
        let change = format!("call {what} less often, or with more work a call");
        let summary = format!("{} is busy in {what}", self.who(view));
        let words = words("slow-call", summary, &change, CALLS);
        match self.levels.len() {
            1 => words,
            _ => words.medium(),
        }
    }

    fn thread_words(&self, view: &View<'_>, cause: Cause) -> Words {
        let call = self.last().most_in(|s| s == Frame::Asleep).and_then(|(call, _)| call);
        let inside = call.map_or(String::new(), |call| format!(" in {}", view.frame_name(call)));
        let state = match cause {
            Cause::Asleep => format!("sleeps{inside}; who wakes it is not recorded"),
            _ => "computes".to_string(),
        };
        words(
            "busy-thread",
            format!("{} {state}", self.who(view)),
            "look into that thread: where its time goes is its own code",
            "perf record -g -p PID sleep 5",
        )
    }

    fn work_words(&self, view: &View<'_>) -> Words {
        let (own, groups) = (self.call(view), &view.evidence.groups);
        let call = own.map(|(_, call, _)| view.name(call));
        let work = self.work().map(|(work, _)| work);
        let of_each =
            work.is_some_and(|work| view.evidence.works.get(&work).is_some_and(Work::of_each_cpu));
        let grace = work.is_some_and(|work| is_grace(view.name(work)));
        let kind = match (grace, of_each, call.is_some_and(syncs)) {
            (true, ..) => "lock-wait",
            (_, true, _) => "work-on-every-cpu",
            (.., true) => "slow-call",
            _ => "waits-for-work",
        };
        let kernel = self.levels.iter().find_map(|l| l.who.filter(|who| groups.is_kernel(*who)));
        let workers = kernel.map_or("kernel workers".into(), |who| view.threads(who));
        let subject = match own.and_then(|(who, ..)| who) {
            Some(who) => format!("{} waits for {}, which", self.subject(view), view.threads(who)),
            None => self.subject(view),
        };
        let inside = call.map_or(String::new(), |call| format!(" in {call}"));
        let what = work.map_or(String::new(), |work| format!(" to run {}", view.name(work)));
        let why = if grace { " (an RCU grace period)" } else { "" };
        let call = call.unwrap_or("the call");
        let change = format!("keep {call} out of the request's path, or do it once for many");
        words(
            kind,
            format!("{subject} waits{inside} for {workers}{what}{why}"),
            &change,
            "trace-cmd record -e raw_syscalls -e sched -e workqueue (the call, the items it queues, \
             who runs them)",
        )
        .medium()
    }
}
