//! What a way ends at, in words: what is slow, what to change, what would prove it.

use super::super::levels::{Level, Sum};
use super::super::waits::{is_grace, syncs, waits};
use super::super::View;
use super::locks::a;
use super::{Cause, Story};
use crate::evidence::tree::Frame;
use crate::evidence::Work;
use crate::kind::Why;
use crate::moment::Sym;
use crate::result::Severity;
use vmeter_render::quantity::{brief_percent, grouped};
use vmeter_trace::ops::Lock;

/// A finding's words.
pub(super) struct Words {
    pub(super) why: Why,
    pub(super) summary: String,
    pub(super) suggestion: String,
    pub(super) confirm: String,
    pub(super) at_most: Option<Severity>,
}

pub(super) fn words(why: Why, summary: String, suggestion: &str, confirm: &str) -> Words {
    let (suggestion, confirm) = (suggestion.to_string(), confirm.to_string());
    Words { why, summary, suggestion, confirm, at_most: Some(Severity::Low) }
}

impl Words {
    pub(super) fn at_most(self, at_most: Option<Severity>) -> Words {
        Words { at_most, ..self }
    }

    pub(super) fn medium(self) -> Words {
        self.at_most(Some(Severity::Medium))
    }
}

/// The timer of TCP that a wait of so many seconds stands for: TCP_DELACK_MIN is 40 ms,
/// TCP_RTO_MIN 200 ms; soft interrupts may be late.
fn tcp_timer(each: f64) -> Option<&'static str> {
    match each {
        e if (0.038..0.052).contains(&e) => Some("TCP's delayed acknowledgement"),
        e if (0.198..0.23).contains(&e) => Some("TCP's retransmission timer"),
        _ => None,
    }
}

fn tcp_words(summary: String) -> Words {
    words(
        Why::Timer,
        summary,
        "send a message by one write, or set TCP_NODELAY: Nagle's algorithm holds its end back \
         until the other end's delayed acknowledgement",
        "strace -f -T -e trace=network,read,write -p PID (it, and once more with TCP_NODELAY)",
    )
    .medium()
}

/// Waits that are a pattern.
pub(super) const LEAST_TIMES: u64 = 10;

const CALLS: &str = "perf trace -s -p PID sleep 5";
const WORKS: &str = "trace-cmd record -e raw_syscalls -e sched -e workqueue";
pub(super) const DELAY: &str = "perf sched record -- sleep 5 && perf sched timehist";

impl Story {
    pub(super) fn words(&self, view: &View<'_>, cause: Cause) -> Words {
        match cause {
            Cause::Timer => self.timer_words(view),
            Cause::NoCpu => self.no_cpu_words(view),
            Cause::Device => self.device_words(view),
            Cause::Lock => self.lock_words(view),
            Cause::Work => self.work_words(view),
            Cause::Call => self.call_words(view),
            Cause::Child => self.child_words(view),
            Cause::Stopped => self.stopped_words(view),
            Cause::InCall => self.in_call_words(view),
            Cause::Network => self.network_words(view),
            Cause::Held => self.held_up_words(view),
            Cause::Faults => words(
                Why::Faults,
                format!(
                    "{} takes {} page faults: it touches fresh memory again and again",
                    self.doer(view),
                    grouped(&self.faults().to_string())
                ),
                "keep and reuse the memory, or have it there beforehand (MAP_POPULATE, huge pages)",
                "perf stat -e minor-faults,major-faults -p PID sleep 5",
            )
            .at_most(Some(self.faults_at_most(view))),
            Cause::HandOver => {
                let wakers = self.last().wakers().into_iter().take(2);
                let whom: Vec<String> = wakers.map(|(group, _)| view.threads(group)).collect();
                words(
                    Why::HandOver,
                    format!("{} waits for {}", self.who(view), whom.join(" and ")),
                    "hand over less often: more work at a time",
                    "perf sched record -- sleep 5 && perf sched timehist -w",
                )
            }
            Cause::Asleep | Cause::Computes => self.thread_words(view, cause),
        }
    }

    /// Memory that is touched first when a program begins is no fault.
    fn faults_at_most(&self, view: &View<'_>) -> Severity {
        if self.begins(view) {
            Severity::Low
        } else {
            Severity::Medium
        }
    }

    /// It touches fresh memory without a wait between, as a program does when it begins.
    pub(super) fn begins(&self, view: &View<'_>) -> bool {
        let who = self.last().who.or(self.subject_group(view));
        let goes = who.and_then(|who| view.evidence.ledger.fault_goes.get(&who));
        goes.is_some_and(|goes| *goes < super::LEAST_GOES)
    }

    fn child_words(&self, view: &View<'_>) -> Words {
        let doer = self.child(view).map_or_else(|| self.doer(view), |who| view.threads(who));
        let times = grouped(&self.started(view).to_string());
        words(
            Why::Child,
            format!("{} waits for {doer}, started {times} times", self.subject(view)),
            "do it in the process itself, or keep one helper (a pool of threads) and talk to it",
            "strace -f -c -e trace=process -p PID",
        )
        .at_most(Some(if self.waits >= 20 { Severity::Medium } else { Severity::Low }))
    }

    fn in_call_words(&self, view: &View<'_>) -> Words {
        let (subject, call) = (self.subject(view), self.in_calls(view));
        let (name, sum) = call.map_or(("calls", Sum::default()), |(_, c, sum)| (view.name(c), sum));
        let count = grouped(&sum.count.to_string());
        let each = view.time(sum.ticks as f64 / sum.count.max(1) as f64);
        let change = format!("call {name} once for many, or not in the request's path");
        let Some((work, items)) = self.provoked_works(view) else {
            let share = match self.in_call(view) {
                Some(_) => "most of the time".to_string(),
                None => {
                    let share = sum.ticks as f64 / self.busy.max(1) as f64;
                    brief_percent(share.min(1.0)) + " of its time"
                }
            };
            let summary = format!("{subject} is in {name} {share}: {count} times, {each} each");
            let runs = self
                .levels
                .first()
                .map_or(0, |first| first.ticks(|c, s| c.is_some() && s == Frame::Runs));
            let why = if runs.saturating_mul(2) >= sum.ticks { Why::Busy } else { Why::InCall };
            return words(why, summary, &change, CALLS);
        };
        let of_each = view.evidence.works.get(&work).is_some_and(Work::of_each_cpu);
        let state = |want: fn(Frame) -> bool| {
            self.levels.first().map_or(0, |first| first.ticks(|call, s| call.is_some() && want(s)))
        };
        let (runs, waits) =
            (state(|s| s == Frame::Runs), state(|s| matches!(s, Frame::Waker(_) | Frame::Asleep)));
        if view.computes_itself((runs, waits), items) {
            let work = view.name(work);
            let summary =
                format!("{subject} is busy in {name}: {count} times, {each} each; it has workers run {work}");
            return words(Why::Busy, summary, &change, CALLS).medium();
        }
        let (kind, reason) = match (is_grace(view.name(work)), of_each) {
            (true, _) => (Why::Grace, " (a grace period)"),
            (_, true) => (Why::EveryCpu, " on every CPU"),
            _ => (Why::Work, ""),
        };
        let summary = format!(
            "{subject} calls {name} {count} times, {each} each, until workers ran {}{reason}",
            view.name(work)
        );
        words(kind, summary, &change, WORKS).medium()
    }

    fn network_words(&self, view: &View<'_>) -> Words {
        let net = |s| matches!(s, Frame::Irq(irq) if view.name(irq) == "NET_RX");
        let (call, sum) = self.last().most_in(net).unwrap_or_default();
        let inside = call.map_or(String::new(), |call| format!(" {}", view.frame(call)));
        let each = view.seconds(sum.ticks).map_or(0.0, |s| s / sum.count.max(1) as f64);
        let long = view.time(sum.ticks as f64 / sum.count.max(1) as f64);
        let who = self.who(view);
        let Some(timer) = tcp_timer(each) else {
            return words(
                Why::Network,
                format!("{who} waits{inside} for the network, {long} each time"),
                "look at the other end, and at the network between",
                CALLS,
            );
        };
        tcp_words(format!("{who} waits{inside} for the network, {long} each: {timer}, it seems"))
    }

    /// The last one on the way.
    pub(super) fn doer(&self, view: &View<'_>) -> String {
        self.last().who.map_or_else(|| self.subject(view), |who| view.threads(who))
    }

    /// What a sentence about the last one on the way begins with.
    pub(super) fn who(&self, view: &View<'_>) -> String {
        match self.last().who {
            Some(who) if self.levels.len() > 3 => {
                let next = self.levels.get(1).and_then(|level| level.who);
                let next = next.map_or_else(String::new, |next| view.threads(next));
                let last = view.threads(who);
                format!("{} waits for {next}, at the end for {last}, which", self.subject(view))
            }
            Some(who) => format!("{} waits for {}, which", self.subject(view), view.threads(who)),
            None => self.subject(view),
        }
    }

    fn timer_words(&self, view: &View<'_>) -> Words {
        let want = |s| matches!(s, Frame::Timer | Frame::Interrupt | Frame::Irq(_));
        let (call, sum) = self.last().most_in(want).unwrap_or_default();
        let each = view.time(sum.ticks as f64 / sum.count.max(1) as f64);
        let inside = call.map_or(String::new(), |c| format!(" in {}", view.frame_name(c)));
        // These have no time-out of their own: the timer is a protocol's.
        let name = call.map_or("", |call| view.frame_name(call));
        let receives = |name: &str| {
            matches!(name, "read" | "readv")
                || name.starts_with("recv")
                || name.starts_with("accept")
        };
        let each_s =
            |sum: &Sum| view.seconds(sum.ticks).map_or(0.0, |s| s / sum.count.max(1) as f64);
        // Or the one at the other end idles as well.
        let via = self.levels.iter().rev().nth(1).filter(|via| via.who == self.levels[0].who);
        let via = via.and_then(|via| via.most_in(|s| matches!(s, Frame::Waker(_))));
        if let Some((Some(call), sum)) = via.filter(|(_, sum)| sum.count >= LEAST_TIMES) {
            let timer = tcp_timer(each_s(&sum)).filter(|_| receives(view.frame_name(call)));
            if let Some(timer) = timer.filter(|_| waits(name)) {
                let each = view.time(sum.ticks as f64 / sum.count as f64);
                let (who, call) = (self.subject(view), view.frame(call));
                return tcp_words(format!(
                    "{who} waits {call}, {each} each time: {timer}, it seems"
                ));
            }
        }
        if let Some(timer) = tcp_timer(each_s(&sum)).filter(|_| receives(name)) {
            let who = self.who(view);
            return tcp_words(format!("{who} waits{inside}, {each} each time: {timer}, it seems"));
        }
        if let Some(words) = self.time_out_words(view) {
            return words;
        }
        self.sleeper_words(view, &inside, &each).at_most(self.timer_at_most(view))
    }

    fn device_words(&self, view: &View<'_>) -> Words {
        let call = self.call(view).map(|(_, call, _)| view.name(call));
        if let Some(words) = self.grace_words(view, call) {
            return words;
        }
        let device = |s| matches!(s, Frame::Irq(_) | Frame::Deep | Frame::Interrupt);
        let inside = self.last().most_in(device);
        let inside = inside.and_then(|(call, _)| call).map(|call| view.frame_name(call));
        let who = self.last().who.or(self.subject_group(view));
        let calls = view.evidence.ledger.calls.keys().any(|(own, _)| Some(*own) == who);
        let faults = view.evidence.seen(self.file(view)).syscalls && self.faults() >= LEAST_TIMES;
        if call.or(inside).is_none() && (calls || faults) {
            return self.fault_words(view);
        }
        let asleep = self.last().ticks(|_, s| device(s));
        let held = who.and_then(|who| view.evidence.held_back.get(&who));
        if held.is_some_and(|(_, ticks)| ticks * 2 >= asleep) {
            return self.held_words(view, call.or(inside));
        }
        let what = call.or(inside).unwrap_or("a call that is not recorded");
        let change = format!(
            "call {what} less often, for many requests at once, or not in the request's path"
        );
        let who = match self.call(view) {
            Some((Some(who), ..)) => {
                format!("{} waits for {}, which", self.subject(view), view.threads(who))
            }
            Some((None, ..)) => self.subject(view),
            None => self.who(view),
        };
        let summary = format!("{who} is in {what}, waiting for a device");
        let words = words(Why::Device, summary, &change, CALLS);
        match syncs(what) {
            true => words.medium(),
            false => words,
        }
    }

    /// Pages that have to be read are touched.
    fn fault_words(&self, view: &View<'_>) -> Words {
        let reclaims = |name: &str| ["vmpressure", "swap"].iter().any(|b| name.starts_with(b));
        let who = self.last().who.or(self.subject_group(view));
        let provoked = view.evidence.ledger.provoked.iter();
        let provoked = provoked.filter(|((own, ..), _)| Some(*own) == who);
        let short = provoked.into_iter().any(|((.., work), _)| reclaims(view.name(*work)));
        let (what, change) = match short {
            true => (
                "in page faults: too little memory, pages are given up or swapped out",
                "give it more memory (a cgroup's memory.max, memory.limit_in_bytes), or have it \
                 use less",
            ),
            false => (
                "outside calls: page faults (a mapped file, or swapped memory)",
                "have the file in memory beforehand (MAP_POPULATE, madvise), read it in large \
                 pieces; for swap, more memory",
            ),
        };
        let summary = format!("{} waits for a disk {what}", self.who(view));
        words(Why::Device, summary, change, "perf stat -e major-faults -p PID sleep 5")
    }

    /// Requests that a cgroup's limit holds back.
    fn held_words(&self, view: &View<'_>, call: Option<&str>) -> Words {
        let inside = call.map_or(String::new(), |call| format!(" in {call}"));
        words(
            Why::Device,
            format!(
                "{} waits{inside} for its cgroup's I/O limit (blk_throtl_dispatch)",
                self.who(view)
            ),
            "raise the cgroup's io.max (blkio.throttle.*), or read and write less",
            "grep . /sys/fs/cgroup/CGROUP/io.max /sys/fs/cgroup/blkio/CGROUP/blkio.throttle.*",
        )
        .medium()
    }

    /// The soft interrupt that ends a grace period is no device.
    fn grace_words(&self, view: &View<'_>, call: Option<&str>) -> Option<Words> {
        let grace = |s| matches!(s, Frame::Irq(irq) if view.name(irq) == "RCU");
        let (last, device) = (self.last(), |s| matches!(s, Frame::Irq(_) | Frame::Deep));
        let graces = last.ticks(|_, s| grace(s));
        if graces == 0 || graces * 2 < last.ticks(|_, s| device(s)) {
            return None;
        }
        let inside = call.map_or(String::new(), |call| format!(" in {call}"));
        let what = call.unwrap_or("the call");
        let change = format!("keep {what} out of the request's path, or do it once for many");
        let summary = format!("{} waits{inside} for an RCU grace period", self.who(view));
        Some(words(Why::Grace, summary, &change, CALLS).medium())
    }

    fn lock_words(&self, view: &View<'_>) -> Words {
        let last = self.last();
        let inside = Level::sorted(&last.calls).into_iter().find_map(|(call, _)| call);
        let inside = inside.filter(|_| self.levels.len() > 1);
        let via = self.levels.iter().rev().nth(1);
        let waits = via.and_then(|via| via.most_in(|s| matches!(s, Frame::Waker(_))));
        let waits = waits.or(last.most_in(|s| s == Frame::Asleep));
        let call = waits.and_then(|(call, _)| call);
        // One behind the other: the holder waits, too, before it has the lock.
        let inside = inside.filter(|inside| call != Some(*inside));
        let inside =
            inside.map_or(String::new(), |call| format!(" while in {}", view.frame_name(call)));
        let holder = self.levels.iter().rev().find_map(|level| level.who);
        let holder = holder.map_or("another thread".into(), |who| view.threads(who));
        let subject = self.subject(view);
        let known = self.last_lock(view).map(|waits| waits.kind);
        let kind = known.map_or("a lock".to_string(), a);
        if let (None, Some(waits)) = (known, self.spins(view)) {
            return self.spin_words(view, waits.kind);
        }
        let summary = match call {
            Some(call) => format!(
                "{subject} waits in {} for {kind} that {holder} holds{inside}",
                view.frame_name(call)
            ),
            None if known.is_some() => {
                format!("{subject} waits for {kind} that {holder} holds{inside}")
            }
            None => format!("{subject} waits for {holder}, one for the other: a lock, it seems"),
        };
        words(
            Why::Lock,
            summary,
            "hold the lock for less: around the shared data, not around the whole call",
            "perf lock record -a -- sleep 5 && perf lock contention",
        )
        .at_most(self.lock_at_most(view))
    }

    fn spin_words(&self, view: &View<'_>, kind: Lock) -> Words {
        let call = self.last().most_in(|s| s == Frame::Runs).and_then(|(call, _)| call);
        let inside = call.map_or(String::new(), |call| format!(" in {}", view.frame_name(call)));
        words(
            Why::Lock,
            format!("{} spins{inside} for {} of the kernel", self.who(view), a(kind)),
            "do it from fewer threads at a time, or each with data of its own",
            "perf lock record -a -- sleep 5 && perf lock contention",
        )
        .medium()
    }

    fn call_words(&self, view: &View<'_>) -> Words {
        let runs = self.last().parts.iter();
        let runs = runs.filter(|((call, s), _)| call.is_some() && *s == Frame::Runs);
        let call = runs.max_by_key(|(_, sum)| sum.ticks).and_then(|((call, _), _)| *call);
        let what = call.map_or("calls", |call| view.frame_name(call));
        let change = format!("call {what} less often, or with more work a call");
        let summary = format!("{} is busy in {what}{}", self.who(view), self.and_waits(view));
        let words = words(Why::Busy, summary, &change, CALLS);
        match self.levels.len() {
            1 => words,
            _ => words.medium(),
        }
    }

    /// Whom else of the kernel it waits for, if for long.
    fn and_waits(&self, view: &View<'_>) -> String {
        let last = self.last();
        let known = last.all.ticks.saturating_sub(last.noise());
        let kernel =
            |(who, sum): &(_, Sum)| view.evidence.groups.is_kernel(*who) && sum.ticks * 5 >= known;
        let worker = last.wakers().into_iter().find(kernel);
        worker.map_or(String::new(), |(who, _)| format!(", and waits for {}", view.threads(who)))
    }

    fn thread_words(&self, view: &View<'_>, cause: Cause) -> Words {
        let call = self.last().most_in(|s| s == Frame::Asleep).and_then(|(call, _)| call);
        let inside = call.map_or(String::new(), |call| format!(" in {}", view.frame_name(call)));
        let state = match cause {
            Cause::Asleep => format!("sleeps{inside}; who wakes it is not recorded"),
            _ if !view.evidence.seen(self.file(view)).syscalls => "is busy on a CPU".to_string(),
            _ => "computes".to_string(),
        };
        let state = match self.asked_by(view) {
            Some(other) if cause != Cause::Asleep => {
                format!("{state} after {} has woken it", view.threads(other))
            }
            _ => state,
        };
        let why = match cause {
            Cause::Asleep => Why::Asleep,
            _ if !view.evidence.seen(self.file(view)).syscalls => Why::OnCpu,
            _ => Why::Computes,
        };
        words(
            why,
            format!("{} {state}", self.who(view)),
            "look into that thread: where its time goes is its own code",
            "perf record -g -p PID sleep 5",
        )
    }

    /// The grace period's work that workers who are waited for have others run, time after time.
    fn grace_of_workers(&self, view: &View<'_>) -> Option<Sym> {
        let groups = &view.evidence.groups;
        let who = self.levels.iter().find_map(|l| l.who.filter(|who| groups.is_kernel(*who)))?;
        let provoked = view.evidence.ledger.provoked.iter();
        let often = provoked.filter(|((own, _, work), made)| {
            *own == who && is_grace(view.name(*work)) && made.count * 2 >= self.waits
        });
        often.max_by_key(|((.., work), made)| (made.count, *work)).map(|((.., work), _)| *work)
    }

    fn work_words(&self, view: &View<'_>) -> Words {
        let (own, groups) = (self.call(view), &view.evidence.groups);
        let call = own.map(|(_, call, _)| view.name(call));
        let work = self.work().map(|(work, _)| work).or_else(|| self.grace_of_workers(view));
        let of_each =
            work.is_some_and(|work| view.evidence.works.get(&work).is_some_and(Work::of_each_cpu));
        let grace = work.is_some_and(|work| is_grace(view.name(work)));
        let kind = match (grace, of_each, call.is_some_and(syncs)) {
            (true, ..) => Why::Grace,
            (_, true, _) => Why::EveryCpu,
            (.., true) => Why::Device,
            _ => Why::Work,
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
        words(kind, format!("{subject} waits{inside} for {workers}{what}{why}"), &change, WORKS)
            .medium()
    }
}
