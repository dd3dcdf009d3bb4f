//! Words for waits that end by no work: no CPU, a time-out, one that lets another go on.

use super::super::waits::waits;
use super::super::View;
use super::words::{words, Words, DELAY, LEAST_TIMES};
use super::Story;
use crate::evidence::tree::Frame;
use crate::kind::Why;
use vmeter_render::quantity::{brief_percent, grouped};

/// Locks of files: whoever lets one go on in such a call has had the lock.
fn is_file_lock(call: &str) -> bool {
    call == "flock" || call.starts_with("fcntl")
}

impl Story {
    /// Asleep in a call until its own time is up.
    pub(super) fn time_out_words(&self, view: &View<'_>) -> Option<Words> {
        let slept = |s| matches!(s, Frame::Interrupt | Frame::Asleep | Frame::Timer);
        let (call, _) = self.last().most_in(slept)?;
        let Some(Frame::Call(name)) = call else { return None };
        let who = self.last().who.or(self.subject_group(view))?;
        let (count, ticks) = view.evidence.ledger.calls.get(&(who, name))?.timed_out;
        let asleep = self.last().ticks(|c, s| c == call && slept(s));
        if count < LEAST_TIMES || ticks.saturating_mul(2) < asleep {
            return None;
        }
        let (each, count) = (view.time(ticks as f64 / count as f64), grouped(&count.to_string()));
        let summary = format!(
            "{} sleeps in {} until its own time is up (a timer): {count} times, {each} each",
            self.who(view),
            view.name(name)
        );
        let change =
            "find out who set the time: a throttle (auto-converge, cpu limits), a poll, or \
                      a retry";
        let confirm = "strace -f -T -e trace=futex -p PID";
        let words = words(Why::Timer, summary, change, confirm);
        // Whose time-outs nobody asked about may be idling.
        let guest = view.evidence.guests().contains(&who) || view.comm().is_some();
        Some(if guest { words.medium() } else { words })
    }

    /// Asleep until a timer fires, maybe with what another waits for: `inside` is where it sleeps.
    pub(super) fn sleeper_words(&self, view: &View<'_>, inside: &str, each: &str) -> Words {
        let (who, call) = self.awaited_in(view).unwrap_or_else(|| (self.who(view), ""));
        if is_file_lock(call) {
            return words(
                Why::Lock,
                format!("{who} holds it while asleep{inside}, {each} each time"),
                &format!("let go of what {call} locks before the sleep: hold it for the shared data only"),
                &format!("strace -f -T -e trace={call},clock_nanosleep,nanosleep,close -p PID"),
            );
        }
        let event = "wait for the event itself (eventfd, epoll, futex), not for a period";
        let locks = call.starts_with("futex") || call.starts_with("sem");
        let change = match call {
            "" => event.to_string(),
            _ if locks => {
                format!("if it is a lock, do not hold it across the sleep; if not, {event}")
            }
            _ => {
                let last = self.doer(view);
                format!(
                    "call {call} where it does not block the caller (O_NONBLOCK and a queue, or \
                     another thread); or have {last} {event}"
                )
            }
        };
        words(
            Why::Timer,
            format!("{who} sleeps{inside} until a timer fires, {each} each time"),
            &change,
            "strace -f -T -e trace=nanosleep,clock_nanosleep,poll,ppoll,epoll_wait,timerfd_settime \
             -p PID",
        )
    }

    /// What a sentence about the last one on the way begins with, and in which call that one is
    /// waited for, unless that is one that waits for whatever comes next.
    fn awaited_in<'a>(&self, view: &'a View<'_>) -> Option<(String, &'a str)> {
        let (via, who) = (self.levels.iter().rev().nth(1)?, self.last().who?);
        let (call, _) = via.most_in(|state| state == Frame::Waker(who))?;
        let call = view.frame_name(call?);
        if waits(call) && !call.starts_with("futex") && !call.starts_with("sem") {
            return None;
        }
        let (subject, last) = (self.subject(view), view.threads(who));
        match (self.levels.len(), via.who) {
            (2, _) => Some((format!("{subject} waits in {call} for {last}, which"), call)),
            // What it does there would not find room.
            (3, Some(via)) if is_file_lock(call) => {
                let via = view.threads(via);
                let who =
                    format!("{subject} waits for {via}, which waits in {call} for {last}, which");
                Some((who, call))
            }
            _ => None,
        }
    }

    pub(super) fn no_cpu_words(&self, view: &View<'_>) -> Words {
        let total = self.last().ticks(|_, s| s == Frame::NoCpu);
        let who = self.who(view);
        if self.throttled(view) {
            let why = match self.by_quota(view) {
                true => "gets a CPU at multiples of 100 ms only: throttled, it seems",
                false => "may not run though its CPU is idle: throttled",
            };
            return words(
                Why::Throttled,
                format!("{who} {why} (a cgroup's cpu.max)"),
                "raise the cgroup's cpu.max (cpu.cfs_quota_us), or do with less CPU time",
                "grep . /sys/fs/cgroup/CGROUP/cpu.stat (nr_throttled: before and after)",
            )
            .medium();
        }
        let hog = self.hog.filter(|(_, ticks)| *ticks * 5 >= self.busy * 2);
        let (rival, total) = match hog {
            _ if self.starves(view) => (self.rival(), total),
            Some(hog) => (Some(hog), hog.1),
            None => (self.rival(), total),
        };
        let who = match hog {
            // Here and there on the way.
            Some(_) if self.levels.len() > 2 => {
                format!("{}, or whom it waits for,", self.subject(view))
            }
            _ => who,
        };
        match rival {
            Some((rival, ticks)) if ticks * 2 >= total && self.starves(view) => {
                let rival = view.threads(rival);
                let change = format!("give {rival} another CPU (taskset, cpuset), or it");
                let share = brief_percent(view.share(total));
                let most = brief_percent(ticks as f64 / total.max(1) as f64);
                let summary =
                    format!("{who} has no CPU {share} of the time: {rival} has it {most} of that");
                words(Why::NoCpu, summary, &change, DELAY).medium()
            }
            Some((rival, ticks)) if ticks * 5 >= total * 4 => {
                let rival = view.threads(rival);
                let change =
                    format!("give {rival} another CPU (taskset, cpuset) or a lower priority");
                let words =
                    words(Why::NoCpu, format!("{who} has no CPU: {rival} has it"), &change, DELAY);
                match ticks * 3 >= self.busy * 2 {
                    true => words.medium(),
                    false => words,
                }
            }
            _ => words(
                Why::NoCpu,
                format!("{who} waits for a CPU: the host is busy with other programs"),
                "measure again on an idle host, or with CPUs of its own (taskset, cpuset)",
                DELAY,
            ),
        }
    }

    pub(super) fn held_up_words(&self, view: &View<'_>) -> Words {
        let by = self.doer(view);
        let via = self.levels.iter().rev().nth(1).unwrap_or(self.last());
        let waker = |s| self.last().who.is_some_and(|who| s == Frame::Waker(who));
        let (call, sum) = via.most_in(waker).unwrap_or_default();
        let whose = via.who.map_or_else(|| self.subject(view), |who| view.threads(who));
        let inside = call.map_or(String::new(), |call| format!(" in {}", view.frame_name(call)));
        let ends = self.let_go(view).map_or("a call", |call| view.name(call));
        let each = view.time(sum.ticks as f64 / sum.count.max(1) as f64);
        words(
            Why::Lock,
            format!("{whose} is held up{inside} until {by} lets it go on by {ends}, {each} each"),
            &format!(
                "find out what {by} does before its {ends}, and have it do that for less long"
            ),
            "trace-cmd record -e raw_syscalls -e sched (from before the wait begins)",
        )
        .medium()
    }

    pub(super) fn stopped_words(&self, view: &View<'_>) -> Words {
        let by = self.last().parts.iter().filter_map(|((_, state), sum)| match state {
            Frame::Stopped(by) => Some((sum.ticks, *by)),
            _ => None,
        });
        let by = by.max().map_or("another process".into(), |(_, by)| view.threads(by));
        words(
            Why::Stopped,
            format!("{} is stopped (SIGSTOP, or traced) until {by} lets it go on", self.who(view)),
            &format!(
                "find out why {by} stops it; a share of a CPU is better given by cpu.max or nice"
            ),
            "strace -f -e trace=kill,tgkill,ptrace -p STOPPER_PID",
        )
        .medium()
    }
}
