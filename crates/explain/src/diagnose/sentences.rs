//! A cause in words: one sentence, what to change and how to check.

use super::cause::{Batch, Cause};
use super::end::{End, Ending, FAULTS};
use crate::detect::{is_grace, syncs};
use crate::evidence::groups::GroupId;
use crate::evidence::tree::Frame;
use crate::kind::Why;
use crate::moment::Sym;
use crate::rank::fits;
use vmeter_render::quantity::{grouped, three_digits};
use vmeter_trace::ops::BETWEEN_TRIES;

/// What a finding says.
pub struct Words {
    /// Kind.
    pub why: Why,
    /// One sentence.
    pub summary: String,
    /// What to change.
    pub fix: String,
    /// What would prove it.
    pub check: String,
}

impl Cause<'_> {
    /// What the last one on the path does, after `which`.
    fn tail(&self) -> String {
        let (view, Ending { end, call, count, .. }) = (self.view, self.ending);
        let inside = self.inside(call);
        let kernel = self.path.workers().map(|who| view.threads(who));
        if let Some(growth) = self.growth() {
            let (first, last) = (view.time(growth.intercept.max(0.0)), view.time(growth.last));
            let does = match call {
                Some(call) => format!("is in {}", self.name(call)),
                None => "computes".to_owned(),
            };
            return format!("{does} for longer each time: {first} at first, {last} at the end");
        }
        match end {
            End::User if self.calls_seen() => "computes".into(),
            End::User => "is busy on a CPU".into(),
            End::Guest => "runs its guest".into(),
            End::Dropped(by) => format!(
                "takes {} page faults: {} drops pages with madvise",
                grouped(&count.to_string()),
                view.threads(by)
            ),
            End::Faults => format!(
                "takes {} page faults: it touches fresh memory",
                grouped(&count.to_string())
            ),
            End::Syscall if self.spins() => format!("spins{inside} for a lock of the kernel"),
            End::Syscall | End::InCall if self.batch().is_some() => self.in_a_row(),
            End::Syscall => format!("is busy{inside}{}{}", self.and_faults(), self.and_waits()),
            End::InCall => format!("is{inside} for {} each time", self.each()),
            End::Work(work) => {
                let grace = if is_grace(self.name(work)) { " (an RCU grace period)" } else { "" };
                match kernel {
                    Some(kernel) => {
                        format!("waits{inside} for {kernel} to run {}{grace}", self.name(work))
                    }
                    None if self.is_interrupted() => {
                        format!("loses its CPU to softirq {}", self.name(work))
                    }
                    None if call.is_some() => {
                        format!("waits{inside} until each CPU has run the work function {}", self.name(work))
                    }
                    None => format!("runs {}{grace}", self.name(work)),
                }
            }
            End::Kernel(who) => format!("waits{inside} for {}", view.threads(who)),
            End::Cpu(rival) => {
                let rival = view.threads(rival);
                match kernel {
                    Some(kernel) => {
                        format!("waits{inside} for {kernel}, which {rival} keeps off the CPU")
                    }
                    None => format!("{rival} keeps off the CPU"),
                }
            }
            End::HostLoad => format!("waits for a CPU that {} have", self.crowd()),
            End::Quota => "is throttled: its cgroup's CPU quota (cpu.max) is used up".into(),
            End::Timer | End::Network | End::Asleep | End::Interrupt
                if self.tcp_timer().is_some() =>
            {
                let timer = self.tcp_timer().unwrap_or_default();
                format!("waits{inside} for {}: {timer}", self.each())
            }
            End::Timer => {
                let until = match self.call() {
                    "" => " until a timer fires",
                    name if name.contains("nanosleep") => "",
                    _ => " until its time-out",
                };
                let holder = self.tried_by().map_or(String::new(), |who| {
                    format!(", which {} calls as well", view.threads(who))
                });
                let until = format!("{until}{holder}");
                match count {
                    0 | 1 => format!("sleeps{inside}{until} for {}", self.each()),
                    count => format!(
                        "sleeps{inside}{until}, {} times, {} each",
                        grouped(&count.to_string()),
                        self.each()
                    ),
                }
            }
            End::Disk if self.is_held_back() => {
                format!("waits{inside} for the disk: the I/O limit of this program's cgroup \
                    holds the program back")
            }
            End::Disk if ["", "KVM_RUN"].contains(&self.call()) && self.calls_seen() => match self.reclaims() {
                true => "waits for the disk in page faults: too little memory".into(),
                false => "waits for the disk in page faults of a mapped file".into(),
            },
            End::Disk => match kernel {
                Some(kernel) => format!("waits{inside} for the disk and for the kernel's {kernel}"),
                None if self.reclaims() && !syncs(self.call()) => {
                    format!("waits{inside} for the disk: too little memory, pages are reclaimed")
                }
                None => format!("waits{inside} for the disk"),
            },
            End::Network => format!("waits{inside} for the network"),
            End::Stopped(by) => {
                format!("is stopped by a signal until {} continues it", view.threads(by))
            }
            End::Peer(peer) => format!(
                "waits{inside} for {}, {} times",
                view.threads(peer),
                grouped(&count.to_string())
            ),
            End::Held => match call {
                Some(call) => format!("calls {}, which lets the waiting thread go on", self.name(call)),
                None => "does something that the trace does not show, then lets the waiting thread go on".into(),
            },
            End::Interrupt => format!(
                "sleeps{inside} until an interrupt of a timer or a device, {} times, {} each",
                grouped(&count.to_string()),
                self.each()
            ),
            End::Deep if self.reclaims() => {
                format!("waits{inside} for a disk (state D): memory is short, and the kernel \
                    reclaims this program's pages")
            }
            End::Deep => format!(
                "sleeps{inside} for a disk, a lock or a kworker (state D); what wakes it is not recorded"
            ),
            End::Asleep | End::Idle => format!("sleeps{inside}; what wakes it is not recorded"),
        }
    }

    /// Those who have its CPU most.
    fn crowd(&self) -> String {
        let mut by: Vec<_> = self.path.doing().had_by().into_iter().collect();
        by.sort_by_key(|(who, ticks)| (std::cmp::Reverse(*ticks), *who));
        let groups = &self.view.evidence.groups;
        let names: Vec<&str> = by.iter().take(3).map(|(who, _)| groups.name(*who)).collect();
        match names.split_last() {
            Some((last, others)) if !others.is_empty() => {
                format!("{} and {last}", others.join(", "))
            }
            _ => "others".into(),
        }
    }

    /// Who else makes the call most that fails between its naps.
    fn tried_by(&self) -> Option<GroupId> {
        let (_, tried) = self.call().split_once(BETWEEN_TRIES)?;
        let own = self.path.group_at(self.view, self.path.doer);
        let calls = self.view.evidence.ledger.calls.iter();
        let others = calls.filter(|((by, call), _)| Some(*by) != own && self.name(*call) == tried);
        others.max_by_key(|(key, calls)| (calls.count, **key)).map(|((by, _), _)| *by)
    }

    /// How many small calls there are.
    fn in_a_row(&self) -> String {
        let Some(Batch { row, count, bytes }) = self.batch() else { return String::new() };
        let sized = match bytes.map(three_digits).as_deref() {
            Some("1.00") => " of 1 byte".to_owned(),
            Some(bytes) => format!(" of {bytes} bytes"),
            None => String::new(),
        };
        let each = if matches!(self.path.root, Frame::Request(_)) { "each" } else { "in a row" };
        match row {
            Some(row) => format!("calls {} {} times {each}{sized}", self.call(), three_digits(row)),
            None => {
                format!("calls {} {} times{sized} each", self.call(), grouped(&count.to_string()))
            }
        }
    }

    /// Page faults, if these are a good part of what it does.
    fn and_faults(&self) -> String {
        let level = self.path.doing();
        let faults = level.parts.iter().filter(|((_, state), _)| *state == Frame::Faults);
        let faults: u64 = faults.map(|(_, sum)| sum.count).sum();
        let each = self.view.seconds(self.ending.ticks / faults.max(1));
        match faults >= FAULTS.0 && each.is_some_and(|each| each <= FAULTS.1) {
            true => format!(", with {} page faults", grouped(&faults.to_string())),
            false => String::new(),
        }
    }

    /// Threads of the kernel that are waited for as well, for a tenth of the time.
    fn and_waits(&self) -> String {
        let (view, level) = (self.view, self.path.last());
        let kernel = level.wakers().into_iter().find(|(who, sum)| {
            view.evidence.groups.is_kernel(*who) && sum.ticks * 10 >= level.all.ticks
        });
        kernel.map_or(String::new(), |(who, _)| format!(" and waits for {}", view.threads(who)))
    }

    /// What a thread of its own does that nobody else is named for.
    fn tail_of_subject(&self) -> String {
        match (self.ending.end, self.path.workers()) {
            (End::Cpu(rival), None) if self.path.group_at(self.view, 0) == Some(rival) => {
                match self.path.root {
                    Frame::Life(_) => {
                        "keep each other off the CPU, because they share too few CPUs".into()
                    }
                    _ => format!(
                        "is ready, but other threads of {} have the CPU",
                        self.view.threads(rival)
                    ),
                }
            }
            (End::Cpu(rival), None) => {
                format!("gets no CPU, because {} has it", self.view.threads(rival))
            }
            _ => self.tail(),
        }
    }

    /// One sentence.
    fn summary(&self) -> String {
        let (view, path) = (self.view, self.path);
        let subject = view.frame(path.root);
        let Some(doer) = self.doer() else {
            return match self.convoy() {
                Some((call, _)) => format!(
                    "{subject} wait{} for a lock that another of these threads has; the holder {}",
                    self.inside(call),
                    self.tail()
                ),
                None => format!("{subject} {}", self.tail_of_subject()),
            };
        };
        let inside = self.inside(self.hop.and_then(|hop| hop.call));
        let who = view.threads(doer);
        if self.child() && self.why() == Why::Child {
            let born = view.evidence.groups.get(doer).map_or(0, |group| u64::from(group.born));
            let count = path.hop(path.doer).map_or(0, |hop| hop.count).max(born);
            let count = grouped(&count.to_string());
            let by = self.starter();
            let by_call = |call: Sym| format!(" by {}", self.name(call));
            let named = |(by, call): (GroupId, Option<Sym>)| {
                (view.threads(by), call.map(by_call).unwrap_or_default())
            };
            let started = match by.map(named) {
                Some((by, how)) => self.through(
                    &format!("{subject} waits{inside}"),
                    (path.doer - 1, &by),
                    format!("starts {who}{how} {count} times"),
                ),
                None => {
                    format!("{subject} waits{inside} for {who}, which was started {count} times")
                }
            };
            // What every program does says nothing.
            return match self.ending.end {
                End::Syscall | End::Work(_) if !["", "execve"].contains(&self.call()) => {
                    format!("{started}, which {}", self.tail())
                }
                _ => started,
            };
        }
        let same = path.group_at(view, 0) == Some(doer) && matches!(path.root, Frame::Life(_));
        let who = if same { "another of them".to_string() } else { who };
        match self.lock() {
            Some((at, hop)) => {
                let holder = path
                    .levels
                    .get(at)
                    .and_then(|l| l.who)
                    .map_or(String::new(), |w| view.threads(w));
                let inside = self.inside(hop.call.or(self.hop.and_then(|hop| hop.call)));
                let holder = if same { who.clone() } else { holder };
                let further =
                    if at < path.doer { format!(", which waits for {who}") } else { String::new() };
                let lock = format!(
                    "waits{inside} for a lock held by {holder}{further}, which {}",
                    self.tail()
                );
                match at.checked_sub(1).filter(|waits| *waits > 0 && !same) {
                    Some(waits) => {
                        let waiter =
                            path.group_at(view, waits).map_or(String::new(), |w| view.threads(w));
                        let first = self.inside(path.hop(1).and_then(|hop| hop.call));
                        self.through(&format!("{subject} waits{first}"), (waits, &waiter), lock)
                    }
                    None => format!("{subject} {lock}"),
                }
            }
            None => self.through(
                &format!("{subject} waits{inside}"),
                (self.path.doer, &who),
                self.tail(),
            ),
        }
    }

    /// Whom the subject waits for, hop by hop where there is room, to the one at a level, which does that.
    fn through(&self, begin: &str, (until, last): (usize, &str), does: String) -> String {
        let name = |at: usize| {
            let who = self.path.group_at(self.view, at);
            who.map_or("others", |who| self.view.evidence.groups.name(who))
        };
        let call = |at: usize| self.inside(self.path.hop(at).and_then(|hop| hop.call));
        let way = |calls: bool| {
            let hops = (1..until).map(|at| {
                let next = if at + 1 < until { name(at + 1) } else { last };
                let how = if calls { call(at + 1) } else { String::new() };
                format!(", that{how} for {next}")
            });
            let first = if until > 1 { name(1) } else { last };
            format!("{begin} for {first}{}, which ", hops.collect::<String>())
        };
        let most = does.split([',', ';', ':']).next().unwrap_or_default();
        let ways = [way(true), way(false)];
        let room = ways.into_iter().find(|way| fits(&format!("{way}{most}")));
        room.unwrap_or_else(|| format!("{begin} for {last}, which ")) + &does
    }

    /// What the finding says.
    pub fn words(&self) -> Words {
        let why = self.why();
        let (fix, check) = remedy(self, why);
        Words { why, summary: self.summary(), fix, check }
    }
}

fn remedy(cause: &Cause<'_>, why: Why) -> (String, String) {
    let view = cause.view;
    let call = cause.ending.call.map_or("the call", |call| view.name(call));
    let (fix, check) = match (why, cause.ending.end) {
        (Why::NoCpu, End::Cpu(rival)) => {
            let rival = view.threads(rival);
            (format!("let it use another CPU (taskset -p), or give {rival} a lower priority or another CPU"),
             "perf sched record -- sleep 5 && perf sched timehist")
        }
        (Why::NoCpu, _) => (
            "run fewer threads beside it, or give it its own CPUs".into(),
            "perf sched record -- sleep 5 && perf sched timehist",
        ),
        (Why::Throttled, _) => (
            "raise the cgroup's cpu.max, or use less CPU time".into(),
            "grep . /sys/fs/cgroup/CGROUP/cpu.stat",
        ),
        (Why::Stopped, _) => (
            "find the process that sends it SIGSTOP or stops it with ptrace".into(),
            "perf trace -e kill,tgkill,ptrace -a sleep 5",
        ),
        (Why::Timer | Why::Network, _) if cause.tcp_timer().is_some() => (
            "send a message by one write, or set TCP_NODELAY: Nagle's algorithm delays the last \
             part of a message until the peer sends its delayed acknowledgement"
                .into(),
            "strace -f -T -e trace=network,read,write -p PID",
        ),
        (Why::Timer, _) if cause.lock().is_some() => {
            ("do not sleep while the lock is held".into(), "perf trace -s -p PID sleep 5")
        }
        (Why::Timer, _) if cause.held_back() => (
            "find what makes the vCPU's thread sleep while its guest has work, e.g. a \
                migration's auto-converge, or a call that the thread repeats after a pause"
                .into(),
            "strace -f -T -e trace=/nanosleep,/poll,futex -p PID",
        ),
        (Why::Timer, _) => (
            "wait for the event itself (eventfd, futex, epoll), not for a period".into(),
            "strace -f -T -e trace=/nanosleep,/poll,futex -p PID",
        ),
        (Why::Lock, end) => (
            "hold the lock for a shorter time, or give each thread its own lock; \
            do not sleep or do I/O while holding it"
                .into(),
            match end {
                End::User => "perf record -g -p PID sleep 5",
                _ => "perf trace -s -p PID sleep 5",
            },
        ),
        (Why::Grace, _) => (
            format!(
                "keep {call} out of the request's path, or call it once for \
            many requests: each call waits for a grace period"
            ),
            "trace-cmd record -e raw_syscalls -e sched -e workqueue",
        ),
        (Why::Work, _) if cause.is_interrupted() => (
            "have another CPU take these interrupts (/proc/irq/*/smp_affinity, rps_cpus)".into(),
            "perf stat -e irq:softirq_entry -a -A sleep 5",
        ),
        (Why::Work | Why::EveryCpu, _) => (
            format!(
                "keep {call} out of the request's path, or \
            make one call for many requests"
            ),
            "trace-cmd record -e raw_syscalls -e sched -e workqueue",
        ),
        (Why::Device | Why::SlowSync, _) if syncs(call) => (
            format!(
                "make fewer {call} calls, \
            each for many requests, or use a faster disk"
            ),
            "perf trace -s -p PID sleep 5",
        ),
        (Why::Device, _) => (
            format!(
                "keep the data in memory (page cache, read-ahead), or use a \
            faster disk; {call} waits for the data"
            ),
            "biolatency-bpfcc 5 1",
        ),
        (Why::Network, _) => ("look at the other end: it answers late".into(), "ss -tinp"),
        (Why::Child, _) => (
            "do the work without a child process, or have each child process do many pieces of \
                work"
                .into(),
            "strace -f -c -e trace=process -p PID",
        ),
        (Why::Burst, _) => (
            format!(
                "use one {call} for many items (a buffer, writev, io_uring), \
            not one for each item"
            ),
            "strace -f -c -p PID",
        ),
        (Why::Busy, _) => (
            format!("call {call} less often, with more work in each call"),
            "perf record -g -p PID sleep 5",
        ),
        (Why::SlowCall | Why::InCall, _) => (
            format!(
                "call {call} less often; a kernel trace \
            shows what it waits for"
            ),
            "vmeter explain --pid PID",
        ),
        (Why::Faults, End::Dropped(by)) => (
            format!(
                "make {} return memory less often, and only \
            memory that is not used",
                view.threads(by)
            ),
            "perf stat -e minor-faults -p PID sleep 5",
        ),
        (Why::Faults, _) => (
            "keep and reuse the memory, or allocate it in advance \
            (MAP_POPULATE, huge pages)"
                .into(),
            "perf stat -e minor-faults,major-faults -p PID sleep 5",
        ),
        (Why::HandOver, _) => (
            "hand work over less often: more work in each hand-over".into(),
            "perf sched record -- sleep 5 && perf sched timehist -w",
        ),
        (Why::Asleep, _) => (
            "record wake-ups and interrupts (sched_waking, irq:*)".into(),
            "vmeter explain --pid PID",
        ),
        (Why::Walks | Why::Grows, _) => (
            "do the work for the new item only, not for all before it".into(),
            "perf record -g -p PID sleep 5",
        ),
        _ => (
            "look into that thread: its own code takes the time".into(),
            "perf record -g -p PID sleep 5",
        ),
    };
    (fix, check.to_string())
}
