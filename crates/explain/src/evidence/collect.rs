//! What the visitor needs for each event: who, when, where, on the common time base.

use super::features::Feature;
use super::groups::is_kernel_name;
use super::model::served;
use super::name_traits::Traits;
use super::subject::{Breakdown, Part, SubjectKind, Who};
use super::thread::{Segment, State, Thread, Waker};
use super::uncertain_wakers::GRACE;
use super::{xen, Collector};
use crate::moment::{Place, Sym, Tid};
use vmeter_trace::ops::xen::{RUNNABLE, RUNNING};
use vmeter_trace::ops::{Access, Lock, NameId, Op, Sign, Sleep};
use vmeter_trace::walk::vcpu as vcpus;
use vmeter_trace::walk::{self, By, Ended, Open, Request, Took};
use vmeter_trace::Context;

/// Stretches of a thread's past that are looked through for what ended its wait for a lock.
const RECENT: usize = 32;

/// Programs that record.
const RECORDERS: [&str; 3] = ["perf", "strace", "vmeter"];

/// True for a program that records: nobody waits for it.
pub(crate) fn records(name: &str) -> bool {
    RECORDERS.contains(&name.split('-').next().unwrap_or(name)) || name == "trace-cmd"
}

/// The kernel's threads that soft interrupts are left to: these wake them, and they wake for these.
const SOFT: &str = "ksoftirqd/";

impl Collector<'_> {
    pub(super) fn tid(&self, thread: &walk::Thread) -> Tid {
        Tid { file: self.moment.file, tid: thread.tid }
    }

    pub(super) fn vcpu(&self, (domain, number): vcpus::VcpuId) -> xen::VcpuId {
        (self.moment.file, domain, number)
    }

    pub(super) fn own(&mut self, thread: &walk::Thread) -> Option<&mut Thread> {
        self.evidence.threads.or_begin(self.tid(thread), self.moment.ts)
    }

    pub(super) fn common(&self, stamp: u64) -> u64 {
        self.merge.common(self.moment.file, stamp)
    }

    /// Who wakes a thread that sleeps in that system call.
    pub(super) fn waker(&self, waker: walk::Waker, (woken, call): (i32, Option<Sym>)) -> Waker {
        let slept = self.merge.traits_of(call);
        match waker {
            // Nothing else ends such a sleep, but a signal.
            walk::Waker::Thread(_) if slept.has(Traits::NANOSLEEP) => Waker::Timer,
            // Where wake-ups are not recorded, who had the CPU before only had it.
            walk::Waker::Unknown if self.evidence.wakes.is_empty() => Waker::Unknown,
            walk::Waker::Unknown => self.remote(call).map_or(Waker::Unknown, Waker::Thread),
            walk::Waker::Thread(_) if self.is_interrupted(woken, call) => Waker::Interrupt,
            walk::Waker::Thread(tid) => Waker::Thread(Tid { file: self.moment.file, tid }),
            walk::Waker::Timer => Waker::Timer,
            walk::Waker::Expired(function) => match self.moment.sym(function) {
                // Not the sleeper's own: the kernel's, of its connection.
                of_tcp if self.merge.traits(of_tcp).has(Traits::TCP) => Waker::Irq(of_tcp),
                _ => Waker::Timer,
            },
            walk::Waker::Interrupt
                if self.moment.context == Context::Softirq
                    && slept.has(Traits::WAITS)
                    && self.is_sending() =>
            {
                Waker::Thread(Tid { file: self.moment.file, tid: self.moment.tid })
            }
            walk::Waker::Interrupt => self.remote(call).map_or(Waker::Interrupt, Waker::Thread),
            walk::Waker::Irq(irq) => match self.moment.sym(irq) {
                irq if self.sends(irq) => {
                    Waker::Thread(Tid { file: self.moment.file, tid: self.moment.tid })
                }
                irq if self.completes(irq).is_some() => {
                    self.completes(irq).map_or(Waker::Irq(irq), Waker::Thread)
                }
                irq if self.merge.traits(irq).has(Traits::TIMER) => Waker::Timer,
                irq => Waker::Irq(irq),
            },
        }
    }

    /// True if it must be an interrupt that wakes somebody, though the event does not say so: who
    /// is in user space wakes nobody that sleeps in a call, nor does one in a call that wakes
    /// nobody, or a recorder that writes down what it has.
    fn is_interrupted(&self, woken: i32, asleep: Option<Sym>) -> bool {
        if self.moment.context != Context::Unknown {
            return false;
        }
        let tid = Tid { file: self.moment.file, tid: self.moment.tid };
        let own = self.evidence.threads.get(&tid);
        let Some(asleep) = asleep else {
            let woken = self.merge.thread_name(Tid { file: self.moment.file, tid: woken });
            let user = own.is_some_and(|own| self.is_in_user_space(own));
            let grace = user || self.merge.thread_name(tid).starts_with(SOFT);
            return woken.starts_with(SOFT) || woken.starts_with(GRACE) && grace;
        };
        let call = own.and_then(Thread::call).map(|call| self.merge.traits(call));
        own.is_some_and(|own| self.is_in_user_space(own))
            || call.is_some_and(|call| !call.may_wake(self.merge.traits(asleep)))
            || records(self.merge.thread_name(tid))
            || self.merge.thread_name(tid).starts_with(SOFT)
    }

    /// Where it is in no call, it is in user space: its calls are recorded, and not just some of them.
    fn is_in_user_space(&self, own: &Thread) -> bool {
        let file = self.moment.file;
        // Threads of the kernel make none.
        let name = self.merge.thread_name(Tid { file, tid: self.moment.tid });
        let user = !name.is_empty() && !is_kernel_name(name);
        let recorded = own.calls || user && self.evidence.called.contains(&file);
        recorded && own.state() == State::User && !self.evidence.chosen.contains(&file)
    }

    /// `sched_wakeup` comes on the CPU of the one that is woken, if another CPU asks for that: then
    /// it is the only thread that is in a call there which lets such sleepers go on.
    fn remote(&self, asleep: Option<Sym>) -> Option<Tid> {
        let asleep = asleep?;
        let slept = self.merge.traits(asleep);
        if !slept.has(Traits::FUTEX | Traits::WAITS) {
            return None;
        }
        let (file, cpu) = (self.moment.file, self.moment.cpu);
        let there = self.evidence.runs.now((file, cpu)).filter(|tid| *tid > 0);
        let mut able = there.map(|tid| Tid { file, tid }).filter(|tid| {
            let own = self.evidence.threads.get(tid).filter(|own| own.state() == State::Kernel);
            own.and_then(Thread::call).is_some_and(|call| {
                let traits = self.merge.traits(call);
                match slept.has(Traits::FUTEX) {
                    true => traits.has(Traits::FUTEX),
                    false => call != asleep && traits.has(Traits::SENDS),
                }
            })
        });
        let one = able.next();
        one.filter(|_| able.next().is_none())
    }

    /// True if a thread that sends something to this machine itself (by the loopback device), or
    /// tells a sender that there is room again, delivers it, too: the soft interrupt is its own
    /// doing.
    fn sends(&self, irq: Sym) -> bool {
        self.merge.traits(irq).has(Traits::NET_RX) && self.is_sending()
    }

    /// True if the thread that has the CPU is in a call that sends, or makes room.
    pub(super) fn is_sending(&self) -> bool {
        let tid = Tid { file: self.moment.file, tid: self.moment.tid };
        let call = self.evidence.threads.get(&tid).and_then(Thread::call);
        self.merge.traits_of(call).has(Traits::SENDS)
    }

    /// The worker of a loop device that says that a request is done: the soft interrupt is its own
    /// doing, even if the thread that soft interrupts are left to gets it.
    fn completes(&self, irq: Sym) -> Option<Tid> {
        if !self.merge.traits(irq).has(Traits::BLOCK) {
            return None;
        }
        let tid = Tid { file: self.moment.file, tid: self.moment.tid };
        let own = self.evidence.threads.get(&tid)?;
        let slept = |segment: &Segment| segment.state == State::Blocked;
        if self.merge.thread_name(tid).starts_with(SOFT) {
            // A disk's own interrupt would have woken it.
            let by = own.back(self.moment.ts).take(RECENT).find(slept)?.waker;
            return match by {
                Waker::Thread(by) if self.merge.thread_name(by).starts_with("kworker/") => Some(by),
                _ => None,
            };
        }
        let work = own.work()?;
        self.merge.traits(work).has(Traits::LOOP).then_some(tid)
    }

    /// What a request's time went into.
    pub(super) fn anatomy(&self, thread: &walk::Thread, request: &Request<'_>) -> Breakdown {
        let (now, tid) = (self.moment.ts, self.tid(thread));
        let start = self.common(request.open.start);
        let event = match request.by {
            By::Exit => "kvm_exit",
            By::UserspaceExit => "kvm_userspace_exit",
        };
        let place = Place { cpu: request.open.cpu, stamp: request.open.start, ..self.place(event) };
        let mut anatomy = Breakdown {
            total: now.saturating_sub(start),
            place,
            incomplete: matches!(request.took, Took::Cut | Took::Unknown),
            start,
            ..Breakdown::default()
        };
        let sleep = self.evidence.threads.get(&tid).and_then(|thread| thread.sleep);
        anatomy.sleep = sleep.filter(|sleep| sleep.start >= start);
        let entry = self.moment.op == Op::VmEntry;
        anatomy.ended = Some(self.place(if entry { "kvm_entry" } else { "KVM_RUN" }));
        anatomy
    }

    /// What an access is for.
    pub(super) fn what(&self, access: Access) -> Option<SubjectKind> {
        match access {
            Access::Hypercall { name } => Some(SubjectKind::Hypercall(self.moment.sym(name))),
            access => SubjectKind::of(access),
        }
    }

    pub(super) fn place(&self, event: &'static str) -> Place {
        self.moment.place(event)
    }

    /// A Xen vCPU's request is over.
    pub(super) fn xen_request(&mut self, vcpu: vcpus::VcpuId, request: &vcpus::VcpuRequest) {
        let now = self.moment.ts;
        let Some(exit) = self.evidence.xen.resumed(self.vcpu(vcpu), now) else { return };
        let Some(what) = request.access.and_then(SubjectKind::of) else { return };
        let (start, place) = (exit.start, exit.place);
        let incomplete = matches!(request.took, Took::Cut | Took::Unknown);
        let total = now.saturating_sub(start);
        let mut anatomy = Breakdown { total, start, place, incomplete, ..Breakdown::default() };
        for (state, from, to) in exit.spans {
            let ticks = to.saturating_sub(from);
            match (state, self.evidence.xen.model()) {
                (RUNNING, _) => anatomy.add(Who::Own, Part::XenRunning, ticks).count += 1,
                (RUNNABLE, _) => anatomy.add(Who::Own, Part::XenRunnable, ticks).count += 1,
                (_, Some(model)) => {
                    served(&self.evidence.threads, model, (from, to), now, &mut anatomy);
                }
                _ => anatomy.add(Who::Own, Part::Paused, ticks).count += 1,
            }
        }
        self.evidence.settle(place.file, what, &anatomy);
    }

    /// A thread has waited for a lock of the kernel.
    pub(super) fn contended(&mut self, thread: &walk::Thread, kind: Lock, open: Open) {
        let (now, start) = (self.moment.ts, self.common(open.start));
        let place = Place { stamp: open.start, cpu: open.cpu, ..self.place("contention_begin") };
        let Some(own) = self.own(thread) else { return };
        own.has(Feature::Lock(kind));
        let call = own.call();
        let slept = |segment: &Segment| segment.state == State::Blocked;
        let meanwhile = own.back(now).take_while(|segment| segment.end > start);
        let waker = meanwhile.take(RECENT).find(slept).map(|segment| segment.waker);
        let holder = match waker {
            Some(Waker::Thread(tid)) => self.group(tid),
            _ => None,
        };
        if let Some(group) = self.group(self.tid(thread)) {
            let ticks = now.saturating_sub(start);
            self.evidence.ledger.locked((group, call, kind, holder), ticks, place);
        }
    }

    /// The kernel does something that says why a thread waits, or others than that.
    pub(super) fn sees(&mut self, thread: Option<&walk::Thread>, sign: Sign) {
        if sign == Sign::Delivered {
            let now = self.moment.ts;
            if let Some(own) = thread.and_then(|thread| self.own(thread)) {
                own.handles(now);
            }
        }
        let place = self.place(sign.event());
        let call = thread.and_then(|thread| self.own(thread)?.call());
        let group = thread.and_then(|thread| self.group(self.tid(thread)));
        let who = group.map(|group| (group, call));
        self.evidence.ledger.sign(who, sign, place);
    }

    /// A stretch that ends now; when it began, its thread knows.
    pub(super) fn segment(&self, tid: i32, ended: &Ended) -> Segment {
        let (now, sym) = (self.moment.ts, |id: NameId| self.moment.sym(id));
        // Data comes in soft interrupts, and who waits for a disk sleeps deeply.
        let call = ended.call.map(sym);
        let by_design = || call.is_none_or(|call| self.merge.traits(call).has(Traits::LIGHT));
        let light = ended.sleep == Sleep::Light && by_design();
        let timer = self.moment.context == Context::Hardirq && light;
        let asleep = ended.state == State::Blocked && !self.over;
        let waker = asleep.then(|| self.waker(ended.waker, (tid, call)));
        let waker = match waker.unwrap_or(Waker::Unknown) {
            Waker::Interrupt if timer => Waker::Timer,
            waker => waker,
        };
        Segment {
            start: now,
            end: now,
            state: ended.state,
            call,
            work: ended.work.map(sym),
            waker,
            ends_call: ended.ends_call,
            queued: false,
            rival: 0,
            sleep: ended.sleep,
            faults: 0,
        }
    }
}
