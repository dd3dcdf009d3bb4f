//! The one interpretation of a kernel's, a device model's or strace's events.
//!
//! A [`Walk`] takes the ops of one trace in its order and keeps a state machine for each
//! thread and each CPU: what the thread does, the intervals that are open in it, the requests
//! that its vCPU waits for, the interrupts that a CPU is in, and on which CPUs events are
//! missing since when. What it finds out goes to a [`Visitor`]. Statistics, explanations, the
//! alignment of clocks and exports are visitors; none of them looks at ops itself.
//!
//! A request lasts from `kvm_exit` to `kvm_entry`. Where the host records no `kvm_exit`
//! (software KVM), it lasts from `kvm_userspace_exit` to the next `KVM_RUN`; a write is
//! reported before that, a read after it, so what such a request was for may be known only
//! when it is over ([`Visitor::late`]).
//!
//! An interval during which events were lost on the CPU where it began or where it ends, or
//! which began before the oldest event kept of such a CPU, is [`Took::Cut`].

mod close;
mod cpu;
mod interval;
mod lock;
mod part;
mod seen;
mod thread;
pub mod vcpu;
mod visitor;
mod work;
pub mod xen;

use crate::format::TraceInfo;
use crate::ops::{Access, NameId, Op, Sleep, Vector};
use cpu::Cpus;
pub use cpu::{Interrupt, Waker};
pub use interval::{At, Open, Took, IMPLAUSIBLE, LONGEST};
pub(crate) use part::Part;
pub use seen::Seen;
pub use thread::{Call, Ended, State, Thread, Threads, STATES};
pub use visitor::{By, End, Ends, Request, Slice, Visitor};
use xen::Xen;

/// The state of one trace's threads and CPUs.
#[derive(Debug, Default)]
pub struct Walk {
    /// The threads.
    pub threads: Threads,
    /// What was seen.
    pub seen: Seen,
    /// Xen's vCPUs.
    pub xen: Xen,
    cpus: Cpus,
    part: Part,
    /// True once accesses of memory regions were logged.
    regions: bool,
}

impl Walk {
    /// Before the first event of a trace.
    pub fn new(info: &TraceInfo) -> Walk {
        let mut walk = Walk::default();
        walk.cpus.overwritten = info.overwritten.is_some();
        walk
    }

    /// Of some threads and CPUs only.
    pub(crate) fn of_part(part: Part) -> Walk {
        Walk { part, ..Walk::default() }
    }

    /// True if the trace's oldest events were overwritten.
    pub fn overwritten(&self) -> bool {
        self.cpus.overwritten
    }

    /// From when on all CPUs are recorded, if the oldest events were overwritten; else 0.
    pub fn complete(&self) -> u64 {
        self.cpus.complete()
    }

    /// Takes the trace's next op.
    #[inline]
    pub fn add<V: Visitor>(&mut self, at: &At, op: Op, v: &mut V) {
        if at.tid < 0 {
            // perf's number of a thread that ends and has none any more.
            let at = At { tid: self.threads.last_on(at.cpu), ..*at };
            return self.take(&at, op, v);
        }
        self.take(at, op, v);
    }

    #[inline]
    fn take<V: Visitor>(&mut self, at: &At, op: Op, v: &mut V) {
        if self.cpus.overwritten {
            self.cpus.begins(at);
        }
        match op {
            Op::Other => {}
            Op::Lost => self.lost(at, v),
            Op::VmExit { reason } => self.vm_exit(at, reason, v),
            Op::VmEntry => self.vm_entry(at, v),
            Op::UserspaceExit { reason } => self.userspace_exit(at, reason, v),
            Op::Access(access) => self.access(at, access, v),
            Op::Logged(access) => {
                self.regions = true;
                self.logged(at, access, v);
            }
            Op::LoggedByDevice(_) if self.regions => {}
            Op::LoggedByDevice(access) => self.logged(at, access, v),
            Op::SyscallEnter { name, request, kvm_run } => {
                let call = Call { name, request, kvm_run, open: Open::at(at) };
                self.call_enter(at, call, v);
            }
            Op::SyscallExit { name, returned } => self.call_exit(at, Some(name), returned, v),
            Op::ThreadStart => self.call_exit(at, None, None, v),
            Op::Syscall { name, request, duration, returned } => {
                let call = Call { name, request, kvm_run: false, open: Open::at(at) };
                self.whole_call(at, &call, duration, returned, v);
            }
            Op::IrqEntry { irq } => self.interrupt(at, Interrupt::Irq(irq), v),
            Op::VectorEntry { name, vector: Vector::Ipi } => {
                self.interrupt(at, Interrupt::Ipi(name), v);
            }
            Op::VectorEntry { name, vector: Vector::Timer } => {
                self.interrupt(at, Interrupt::Timer(name), v);
            }
            Op::VectorEntry { name, vector: Vector::Local } => {
                self.interrupt(at, Interrupt::Local(name), v);
            }
            Op::IrqExit => self.handled(at, None, v),
            Op::VectorExit { name } => self.handled(at, Some(name), v),
            Op::TimerEntry { function } => self.timer::<V>(at, true, function),
            Op::TimerExit => self.timer::<V>(at, false, None),
            Op::BlockDone { action } => self.block_done::<V>(at, Some(action)),
            Op::SoftirqEntry { action, timer } => self.softirq(at, Some(action), timer, v),
            Op::SoftirqExit => self.softirq(at, None, false, v),
            Op::PageFault => self.page_fault(at, v),
            Op::Fork { child } => v.forked(at, child),
            Op::LockWait { lock, kind } => self.lock_wait(at, (lock, kind), v),
            Op::LockWaited { lock } => self.lock_waited(at, lock, v),
            Op::IpiSend { name } => v.ipi(at, name),
            Op::Sign(sign) => self.sign(at, sign, v),
            Op::CallCpu { name } => self.call_cpu(at, name, v),
            Op::WorkQueue { work: _, function } => self.work_queued(at, function, v),
            Op::WorkStart { work, function } => self.work_start(at, (work, function), v),
            Op::WorkEnd { work: _ } => self.work_end(at, v),
            Op::Switch { prev, runnable, sleep, next, .. } => {
                self.switch(at, (prev, runnable, sleep), next, v);
            }
            Op::Wake { tid, new } => {
                if new {
                    v.forked(at, tid);
                }
                self.wake(at, tid, v);
            }
            Op::Xen(op) => self.xen.add(at, op, v),
        }
    }

    /// Names a thread, if it has no name yet.
    pub(crate) fn name<V: Visitor>(&mut self, at: &At, name: &str, v: &mut V) {
        if let Some(index) = self.running(at, v) {
            let thread = self.threads.get(index);
            if thread.name.is_none() {
                thread.name = Some(name.into());
            }
        }
    }

    /// The thread that an event happened in; none for the idle thread.
    #[inline]
    fn running<V: Visitor>(&mut self, at: &At, v: &mut V) -> Option<u32> {
        let index = self.threads.running(at.tid, at.cpu, at.ts)?;
        if self.cpus.gaps {
            self.seen_on(index, at.cpu, v);
        }
        Some(index)
    }

    /// Takes note of where a thread is, where events are missing.
    #[cold]
    fn seen_on<V: Visitor>(&mut self, index: u32, cpu: u32, v: &mut V) {
        let cpus = &self.cpus;
        let thread = self.threads.get(index);
        if thread.seen_on(cpu, |since, cpu| cpus.missing(since, cpu)) {
            v.incomplete(thread);
        }
    }

    /// The CPU does a thread's work again: interrupts whose end is not recorded are over.
    #[inline]
    fn task<V: Visitor>(&mut self, at: &At) {
        if V::WAKERS {
            self.cpus.task(at.cpu);
        }
    }

    #[inline]
    fn call_enter<V: Visitor>(&mut self, at: &At, call: Call, v: &mut V) {
        self.seen.syscalls = true;
        self.task::<V>(at);
        let Some(index) = self.running(at, v) else { return };
        v.begins(at, Slice::Call(call.what()));
        let thread = self.threads.get(index);
        thread.is_vcpu |= call.kvm_run;
        let mut stale = None;
        let ended = thread.change(at.ts, |thread| {
            stale = thread.call.replace(call);
            thread.layers(false, call.kvm_run);
        });
        v.span(thread, &ended);
        if call.kvm_run {
            self.resume(at, index, v);
            v.resumed(at, self.threads.get(index));
        }
        if let Some(stale) = stale {
            v.call(stale.name, stale.request, self.cpus.unended(stale.open, at));
        }
    }

    /// The end of a call; `name` is none for a new thread's, whose call is its parent's.
    #[inline]
    fn call_exit<V: Visitor>(
        &mut self,
        at: &At,
        name: Option<NameId>,
        returned: Option<i64>,
        v: &mut V,
    ) {
        self.seen.syscalls = true;
        self.task::<V>(at);
        let Some(index) = self.running(at, v) else { return };
        let thread = self.threads.get(index);
        let (call, ended) = thread.returns(at.ts, returned);
        v.span(thread, &ended);
        if name.is_some() {
            v.ends(at, Ends::Call);
        }
        match call {
            Some(call) if Some(call.name) == name => {
                return v.call(call.name, call.request, self.cpus.since(call.open, at));
            }
            Some(call) => v.call(call.name, call.request, self.cpus.unended(call.open, at)),
            None => {}
        }
        // Entered before the trace began, or its entry was lost.
        if let Some(name) = name {
            v.call(name, None, Took::Unknown);
        }
    }

    fn whole_call<V: Visitor>(
        &mut self,
        at: &At,
        call: &Call,
        ticks: Option<u64>,
        returned: Option<i64>,
        v: &mut V,
    ) {
        v.call(call.name, call.request, ticks.into());
        v.whole_call(at, call, ticks.into(), returned);
        if let (Some(index), Some(ticks)) = (self.threads.find(at.tid, at.ts), ticks) {
            self.threads.get(index).spends(State::Kernel, ticks);
        }
    }

    #[inline]
    fn switch<V: Visitor>(
        &mut self,
        at: &At,
        (prev, runnable, sleep): (i32, bool, Sleep),
        next: i32,
        v: &mut V,
    ) {
        self.seen.switches = true;
        self.task::<V>(at);
        if let Some(gone) = self.threads.leaves(prev, at.cpu) {
            v.incomplete(self.threads.get(gone));
        }
        if let Some(index) = self.part.mine(prev).and_then(|tid| self.threads.find(tid, at.ts)) {
            if self.cpus.gaps {
                self.seen_on(index, at.cpu, v);
            }
            let state = if runnable { State::Runnable } else { State::Blocked };
            let thread = self.threads.get(index);
            let ended = thread.leaves(state, at.ts);
            thread.sleep = sleep;
            v.span(thread, &ended);
        }
        let next = self.part.mine(next);
        let next = next.and_then(|tid| self.threads.running(tid, at.cpu, at.ts));
        match next {
            Some(index) => {
                self.threads.comes(index, at.cpu);
                let thread = self.threads.get(index);
                v.switched(at, prev, Some(thread));
                let ended = thread.switched_to(at.ts);
                v.span(thread, &ended);
            }
            None => v.switched(at, prev, None),
        }
    }

    #[inline]
    fn wake<V: Visitor>(&mut self, at: &At, tid: i32, v: &mut V) {
        self.seen.wakes = true;
        if let Some(index) = self.part.mine(tid).and_then(|tid| self.threads.find(tid, at.ts)) {
            let waker = if V::WAKERS { self.cpus.waker(at) } else { Waker::Unknown };
            // A request that is done wakes one.
            self.block_done::<V>(at, None);
            let thread = self.threads.get(index);
            v.woken(at, thread, waker);
            if thread.state() == State::Blocked {
                let ended = thread.wakes(waker, at.ts);
                v.span(thread, &ended);
            }
        }
    }

    fn vm_exit<V: Visitor>(&mut self, at: &At, reason: NameId, v: &mut V) {
        self.task::<V>(at);
        let Some(index) = self.running(at, v) else { return };
        self.seen.kvm_exits = true;
        let thread = self.threads.get(index);
        thread.is_vcpu = true;
        v.begins(at, Slice::Exit(reason));
        let stale = thread.exit.replace((reason, Open::at(at)));
        let ended = thread.change(at.ts, |thread| thread.layers(false, true));
        v.span(thread, &ended);
        unclaimed(at, thread, v);
        v.left(at, thread);
        if let Some((reason, open)) = stale {
            // No entry was seen in between.
            let took = self.cpus.unended(open, at);
            self.served(at, index, (By::Exit, reason, open), took, End::Missing, v);
        }
    }

    fn vm_entry<V: Visitor>(&mut self, at: &At, v: &mut V) {
        self.task::<V>(at);
        let Some(index) = self.running(at, v) else { return };
        self.seen.kvm_exits = true;
        let thread = self.threads.get(index);
        v.ends(at, Ends::Exit);
        thread.is_vcpu = true;
        let ended = thread.change(at.ts, |thread| thread.layers(true, true));
        v.span(thread, &ended);
        self.resume(at, index, v);
        if let Some((reason, open)) = self.threads.get(index).exit.take() {
            let took = self.cpus.since(open, at);
            self.served(at, index, (By::Exit, reason, open), took, End::Resumed, v);
        }
        let thread = self.threads.get(index);
        unclaimed(at, thread, v);
        v.resumed(at, thread);
    }

    fn userspace_exit<V: Visitor>(&mut self, at: &At, reason: NameId, v: &mut V) {
        self.task::<V>(at);
        let Some(index) = self.running(at, v) else { return };
        self.goes_on(at, index, v);
        let thread = self.threads.get(index);
        thread.is_vcpu = true;
        let stale = thread.user_exit.replace((reason, Open::at(at)));
        unclaimed(at, thread, v);
        let ended = thread.change(at.ts, |thread| thread.layers(false, false));
        v.span(thread, &ended);
        v.left(at, thread);
        if let Some((reason, open)) = stale {
            v.userspace_exit(reason, self.cpus.unended(open, at));
        }
    }

    /// Without system calls, the next event of KVM in the thread tells that the guest has gone
    /// on; some of the time was the guest's then.
    fn goes_on<V: Visitor>(&mut self, at: &At, index: u32, v: &mut V) {
        let thread = self.threads.get(index);
        if V::WAKERS && !self.seen.syscalls && thread.exit.is_none() && thread.user_exit.is_some() {
            let ended = thread.change(at.ts, |thread| thread.layers(false, true));
            v.span(thread, &ended);
            self.resume(at, index, v);
        }
    }

    /// The guest goes on: user space has served what it was asked.
    fn resume<V: Visitor>(&mut self, at: &At, index: u32, v: &mut V) {
        let thread = self.threads.get(index);
        let Some((reason, open)) = thread.user_exit.take() else { return };
        let within_exit = thread.exit.is_some();
        let took = self.cpus.since(open, at);
        v.userspace_exit(reason, took);
        if !within_exit {
            // KVM may have completed a write itself (an ioeventfd): then a read that is reported
            // next is what user space has served.
            let write = self.threads.get(index).take_last_write(open.start, |own| v.untimed(own));
            let request = (By::UserspaceExit, reason, open);
            if !self.served(at, index, request, took, End::Resumed, v) {
                self.threads.get(index).served = Some(thread::Served { took, at: at.ts, write });
            }
        }
    }

    /// Tells of a request; false if nothing is known of what it was for.
    fn served<V: Visitor>(
        &mut self,
        at: &At,
        index: u32,
        (by, reason, open): (By, NameId, Open),
        took: Took,
        end: End,
        v: &mut V,
    ) -> bool {
        let thread = self.threads.get(index);
        let accesses = thread.take_accesses();
        let accesses = accesses.as_slice();
        v.request(at, thread, &Request { by, reason, open, took, end, accesses });
        !accesses.is_empty()
    }

    fn access<V: Visitor>(&mut self, at: &At, access: Access, v: &mut V) {
        let Some(index) = self.running(at, v) else {
            v.reported(at, None, access);
            return v.untimed(access);
        };
        self.goes_on(at, index, v);
        let thread = self.threads.get(index);
        thread.is_vcpu = true;
        v.reported(at, Some(thread), access);
        // Without kvm_exit, a read is reported after user space has served it.
        if thread.exit.is_none() {
            if let Some(served) = thread.served.filter(|s| access.is_read() && s.is_read(at.ts)) {
                thread.served = None;
                served.write.into_iter().for_each(|(write, _)| v.untimed(write));
                return v.late(at, thread, access, served.took);
            }
            unclaimed(at, thread, v);
            // It is of no exit that is still to come.
            if access.is_read() && !self.seen.kvm_exits {
                return v.untimed(access);
            }
        }
        if !thread.remember(access, at.ts) {
            v.untimed(access);
        }
    }

    fn logged<V: Visitor>(&mut self, at: &At, access: Access, v: &mut V) {
        v.untimed(access);
        let Some(index) = self.running(at, v) else { return v.reported(at, None, access) };
        let thread = self.threads.get(index);
        v.reported(at, Some(thread), access);
        let Some((before, open)) = thread.logged.replace((access, Open::at(at))) else { return };
        if !before.is_read() {
            v.logged(at, thread, before, open);
        } else if access.is_read() {
            v.logged(at, thread, access, open);
        }
    }

    fn interrupt<V: Visitor>(&mut self, at: &At, interrupt: Interrupt, v: &mut V) {
        self.seen.interrupts = true;
        v.begins(at, Slice::Interrupt(interrupt.name()));
        v.interrupted(interrupt);
        self.cpus.interrupt(at, interrupt);
    }

    fn handled<V: Visitor>(&mut self, at: &At, name: Option<NameId>, v: &mut V) {
        v.ends(at, Ends::Interrupt);
        if let Some((interrupt, ticks)) = self.cpus.returns(at, name) {
            v.handled(interrupt, Took::Ticks(ticks));
        }
    }

    fn timer<V: Visitor>(&mut self, at: &At, fires: bool, function: Option<NameId>) {
        self.seen.interrupts = true;
        if V::WAKERS {
            self.cpus.timer(at.cpu, fires, function);
        }
    }

    fn block_done<V: Visitor>(&mut self, at: &At, action: Option<NameId>) {
        if V::WAKERS {
            self.cpus.block_done(at.cpu, action);
        }
    }

    fn softirq<V: Visitor>(&mut self, at: &At, action: Option<NameId>, timer: bool, v: &mut V) {
        self.seen.interrupts = true;
        if !V::WAKERS {
            return;
        }
        if let Some((action, since)) = self.cpus.softirq(at, action, timer) {
            if let Some(index) = self.running(at, v) {
                v.softirq(at, self.threads.get(index), action, since);
            }
        }
    }

    fn page_fault<V: Visitor>(&mut self, at: &At, v: &mut V) {
        if V::WAKERS {
            if let Some(index) = self.running(at, v) {
                v.page_fault(at, self.threads.get(index));
            }
        }
    }

    fn lost<V: Visitor>(&mut self, at: &At, v: &mut V) {
        v.lost(at);
        for interrupt in self.cpus.loses(at) {
            v.handled(interrupt, Took::Cut);
        }
    }
}

/// No read claims the thread's last request: a write before it does, if there was one.
fn unclaimed<V: Visitor>(at: &At, thread: &mut Thread, v: &mut V) {
    let Some(served) = thread.served.take() else { return };
    match served.write {
        Some((write, _)) => v.late(at, thread, write, served.took),
        None => v.unclaimed(thread),
    }
}
