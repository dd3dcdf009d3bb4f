//! System calls, KVM, interrupts and work items of a Linux kernel's trace.

use super::slices::Slice;
use super::table::{Cell, Table, Took};
use super::threads::{Access, Open, State, Threads};
use super::Part;
use crate::event::Event;
use crate::ops::{NameId, Op};

/// Tables by key; keys of names are [`NameId`]s.
#[derive(Debug, Default)]
pub struct Tables {
    /// Port, shifted left by one, plus 1 for a write.
    pub ports: Table,
    /// Address reads.
    pub mmio_reads: Table,
    /// Address writes.
    pub mmio_writes: Table,
    /// Register, shifted left by one, plus 1 for a write.
    pub msrs: Table,
    /// VMEXIT reason.
    pub exits: Table,
    /// KVM's exits to user space.
    pub userspace_exits: Table,
    /// Hypercall.
    pub hypercalls: Table,
    /// System call.
    pub syscalls: Table,
    /// ioctl request.
    pub ioctls: Table,
    /// Interrupt.
    pub irqs: Table,
    /// Inter-processor interrupts, received.
    pub ipis: Table,
    /// Inter-processor interrupts, sent, and other vectors.
    pub ipi_sends: Table,
    /// Local interrupts that are no IPIs.
    pub vectors: Table,
    /// Work function.
    pub works: Table,
}

/// Which kinds of event there were: what the figures can rest on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// `sched_switch`.
    pub switches: bool,
    /// `sys_enter_*` or `raw_syscalls`.
    pub syscalls: bool,
    /// `kvm_exit` and `kvm_entry`.
    pub kvm_exits: bool,
}

#[derive(Debug, Clone, Copy)]
struct OpenInterrupt {
    name: NameId,
    start: u64,
}

/// Interrupts nest at most this deep in what is timed.
const MAX_NESTED: usize = 4;

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cpu {
    interrupts: [Option<OpenInterrupt>; MAX_NESTED],
    depth: usize,
    /// Events were lost here last at this stamp.
    pub(super) lost_at: Option<u64>,
    /// First event.
    pub(super) first: Option<u64>,
}

impl Cpu {
    /// The interrupts that it is in, as events are lost now.
    pub(super) fn loses(&mut self, now: u64) -> impl Iterator<Item = NameId> {
        let fresh = Cpu { lost_at: Some(now), first: self.first, ..Cpu::default() };
        let Cpu { interrupts, depth, .. } = std::mem::replace(self, fresh);
        interrupts.into_iter().take(depth).flatten().map(|open| open.name)
    }
}

/// Accumulates a kernel trace.
#[derive(Debug, Default)]
pub struct Kernel {
    /// The tables.
    pub tables: Tables,
    /// The threads.
    pub threads: Threads,
    /// What was seen.
    pub seen: Seen,
    pub(super) cpus: Vec<Cpu>,
    /// The slice of the event that is taken.
    at: Slice,
    /// Whose books are kept.
    pub(super) part: Part,
    /// The trace's oldest events were overwritten.
    pub(super) overwritten: bool,
    /// Events are missing: overwritten, or lost until now.
    pub(super) gaps: bool,
}

const MAX_CPUS: usize = 1 << 14;

impl Kernel {
    /// Takes one op.
    #[inline]
    pub fn add(&mut self, event: &Event<'_>, op: Op, at: Slice) {
        self.at = at;
        if self.overwritten {
            self.begins(event);
        }
        if event.comm.is_some() {
            self.thread(event);
        }
        match op {
            Op::Other | Op::Xen(_) => {}
            Op::SyscallEnter { name, request, kvm_run } => {
                self.call_enter(event, name, request, kvm_run);
            }
            Op::SyscallExit { name } => self.call_exit(event, Some(name)),
            Op::ThreadStart => self.call_exit(event, None),
            Op::Switch { prev, runnable, next } => self.switch(event, prev, runnable, next),
            Op::Wake { tid } => self.wake(event, tid),
            Op::VmExit { .. } | Op::VmEntry | Op::UserspaceExit { .. } => self.kvm(event, op),
            Op::Pio { port, write } => {
                self.access(event, Access::Port(u64::from(port) << 1 | u64::from(write)));
            }
            Op::Mmio { address, write } => self.access(event, Access::Mmio(address, write)),
            Op::Msr { index, write } => {
                self.access(event, Access::Msr(u64::from(index) << 1 | u64::from(write)));
            }
            Op::Hypercall { name } => self.access(event, Access::Hypercall(name)),
            Op::Syscall { name, request, duration } => {
                self.whole_call(event, name, request, duration);
            }
            Op::Lost => self.lost(event),
            _ => self.interrupt(event, op),
        }
    }

    pub(super) fn cpu(&mut self, cpu: u32) -> Option<&mut Cpu> {
        let cpu = cpu as usize;
        if cpu >= MAX_CPUS {
            return None;
        }
        if self.cpus.len() <= cpu {
            self.cpus.resize(cpu + 1, Cpu::default());
        }
        Some(&mut self.cpus[cpu])
    }

    #[inline]
    fn thread(&mut self, event: &Event<'_>) -> Option<u32> {
        let index = self.threads.running(event.tid, event.cpu, event.ts)?;
        if self.gaps {
            self.seen_on(index, event.cpu);
        }
        if let Some(comm) = event.comm {
            let thread = self.threads.get(index);
            if thread.name.is_none() {
                thread.name = Some(comm.into());
            }
        }
        Some(index)
    }

    #[inline]
    fn call_enter(
        &mut self,
        event: &Event<'_>,
        name: NameId,
        request: Option<NameId>,
        kvm_run: bool,
    ) {
        self.seen.syscalls = true;
        let Some(index) = self.thread(event) else { return };
        let open = Open { start: event.ts, cpu: event.cpu };
        let thread = self.threads.get(index);
        let stale = thread.call.replace((name, request, open));
        thread.layers(false, kvm_run, true, event.ts);
        if kvm_run {
            thread.is_vcpu = true;
            self.resume(event, index);
        }
        if let Some((name, request, open)) = stale {
            let took = self.unended(open, event);
            self.untimed_call(name, request, took);
        }
    }

    /// A call whose end was not seen: it never returned, or that was lost.
    #[cold]
    fn untimed_call(&mut self, name: NameId, request: Option<NameId>, took: Took) {
        self.tables.syscalls.add(u64::from(name.0), took, self.at);
        if let Some(request) = request {
            self.tables.ioctls.add(u64::from(request.0), took, self.at);
        }
    }

    /// The end of a call; none of a new thread, whose call is its parent's.
    #[inline]
    fn call_exit(&mut self, event: &Event<'_>, name: Option<NameId>) {
        self.seen.syscalls = true;
        let Some(index) = self.thread(event) else { return };
        let thread = self.threads.get(index);
        let call = thread.call.take();
        thread.layers(false, false, false, event.ts);
        match call {
            Some((entered, request, open)) if Some(entered) == name => {
                let ticks = self.since(open, event);
                self.tables.syscalls.add(u64::from(entered.0), ticks, self.at);
                if let Some(request) = request {
                    self.tables.ioctls.add(u64::from(request.0), ticks, self.at);
                }
                return;
            }
            Some((entered, request, open)) => {
                let took = self.unended(open, event);
                self.untimed_call(entered, request, took);
            }
            None => {}
        }
        // Entered before the trace began, or its entry was lost.
        if let Some(name) = name {
            self.tables.syscalls.add(u64::from(name.0), Took::Unknown, self.at);
        }
    }

    fn whole_call(
        &mut self,
        event: &Event<'_>,
        name: NameId,
        request: Option<NameId>,
        ticks: Option<u64>,
    ) {
        self.tables.syscalls.add(u64::from(name.0), ticks, self.at);
        if let Some(request) = request {
            self.tables.ioctls.add(u64::from(request.0), ticks, self.at);
        }
        if let (Some(index), Some(ticks)) = (self.threads.find(event.tid, event.ts), ticks) {
            let thread = self.threads.get(index);
            let time = &mut thread.times[State::Kernel as usize];
            *time = time.saturating_add(ticks);
        }
    }

    /// The thread, if its books are kept here.
    #[inline]
    fn mine(&self, tid: i32) -> Option<i32> {
        self.part.has(tid).then_some(tid)
    }

    #[inline]
    fn switch(&mut self, event: &Event<'_>, prev: i32, runnable: bool, next: i32) {
        self.seen.switches = true;
        if let Some(index) = self.mine(prev).and_then(|tid| self.threads.find(tid, event.ts)) {
            if self.gaps {
                self.seen_on(index, event.cpu);
            }
            let state = if runnable { State::Runnable } else { State::Blocked };
            self.threads.get(index).enter(state, event.ts);
        }
        let next = self.mine(next);
        if let Some(index) = next.and_then(|tid| self.threads.running(tid, event.cpu, event.ts)) {
            self.threads.get(index).switched_to(event.ts);
        }
    }

    #[inline]
    fn wake(&mut self, event: &Event<'_>, tid: i32) {
        if let Some(index) = self.mine(tid).and_then(|tid| self.threads.find(tid, event.ts)) {
            let thread = self.threads.get(index);
            if thread.state() == State::Blocked {
                thread.enter(State::Runnable, event.ts);
            }
        }
    }

    fn kvm(&mut self, event: &Event<'_>, op: Op) {
        let Some(index) = self.thread(event) else { return };
        let open = Open { start: event.ts, cpu: event.cpu };
        let thread = self.threads.get(index);
        thread.is_vcpu = true;
        match op {
            Op::VmExit { reason } => {
                self.seen.kvm_exits = true;
                let stale = thread.exit.replace((reason, open));
                let in_call = thread.in_call();
                thread.layers(false, true, in_call, event.ts);
                if let Some((reason, before)) = stale {
                    // No entry was seen in between: counted, not timed.
                    let took = self.unended(before, event);
                    self.tables.exits.add(u64::from(reason.0), took, self.at);
                    self.settle(index, took);
                }
            }
            Op::VmEntry => {
                self.seen.kvm_exits = true;
                let in_call = thread.in_call();
                thread.layers(true, true, in_call, event.ts);
                self.resume(event, index);
                if let Some((reason, open)) = self.threads.get(index).exit.take() {
                    let ticks = self.since(open, event);
                    self.tables.exits.add(u64::from(reason.0), ticks, self.at);
                    self.settle(index, ticks);
                }
                self.threads.get(index).served = None;
            }
            Op::UserspaceExit { reason } => {
                thread.user_exit = Some((reason, open));
                thread.served = None;
                let in_call = thread.in_call();
                thread.layers(false, false, in_call, event.ts);
            }
            _ => {}
        }
    }

    /// The guest goes on: user space has served what it was asked.
    fn resume(&mut self, event: &Event<'_>, index: u32) {
        let thread = self.threads.get(index);
        let Some((reason, open)) = thread.user_exit.take() else { return };
        let timed_by_exit = thread.exit.is_some();
        let ticks = self.since(open, event);
        self.tables.userspace_exits.add(u64::from(reason.0), ticks, self.at);
        if !timed_by_exit {
            // Hosts without kvm_exit (software KVM): the exit to user space is the time, of
            // a write that was reported before it or else of a read to be reported next.
            if !self.settle(index, ticks) {
                self.threads.get(index).served = Some(ticks);
            }
        }
    }

    /// Shares a VMEXIT's time among what it was for; false if nothing is known to be.
    fn settle(&mut self, index: u32, took: Took) -> bool {
        let (accesses, count) = self.threads.get(index).take_accesses();
        let share = took.shared(count);
        for access in &accesses[..count] {
            self.count(*access, share);
        }
        count > 0
    }

    fn count(&mut self, access: Access, took: Took) {
        let (tables, at) = (&mut self.tables, self.at);
        match access {
            Access::Port(key) => tables.ports.add(key, took, at),
            Access::Mmio(address, false) => tables.mmio_reads.add(address, took, at),
            Access::Mmio(address, true) => tables.mmio_writes.add(address, took, at),
            Access::Msr(key) => tables.msrs.add(key, took, at),
            Access::Hypercall(name) => tables.hypercalls.add(u64::from(name.0), took, at),
        }
    }

    fn access(&mut self, event: &Event<'_>, access: Access) {
        let Some(index) = self.thread(event) else { return self.count(access, Took::Unknown) };
        let thread = self.threads.get(index);
        thread.is_vcpu |= event.kind.name.starts_with("kvm_");
        // Without kvm_exit, a read is reported after user space has served it.
        if let (None, Some(served)) = (thread.exit, thread.served.take()) {
            if access.is_read() {
                return self.count(access, served);
            }
        }
        if !thread.is_vcpu || !thread.remember(access) {
            self.count(access, Took::Unknown);
        }
    }

    fn interrupt(&mut self, event: &Event<'_>, op: Op) {
        match op {
            Op::IrqEntry { irq } => self.interrupt_enter(event, irq),
            Op::VectorEntry { name, .. } => self.interrupt_enter(event, name),
            Op::IrqExit => self.interrupt_exit(event, None),
            Op::VectorExit { name } => self.interrupt_exit(event, Some(name)),
            Op::IpiSend { name } => {
                self.tables.ipi_sends.add(u64::from(name.0), Took::Unknown, self.at)
            }
            Op::WorkStart { function, .. } => self.work_start(event, function),
            Op::WorkEnd { .. } => self.work_end(event),
            _ => {}
        }
        match op {
            Op::IrqEntry { irq } => self.tables.irqs.cell(u64::from(irq.0)).count(self.at),
            Op::VectorEntry { name, ipi: true } => {
                self.tables.ipis.cell(u64::from(name.0)).count(self.at);
            }
            Op::VectorEntry { name, ipi: false } => {
                self.tables.vectors.cell(u64::from(name.0)).count(self.at);
            }
            _ => {}
        }
    }

    fn interrupt_enter(&mut self, event: &Event<'_>, name: NameId) {
        let start = event.ts;
        if let Some(cpu) = self.cpu(event.cpu) {
            if let Some(slot) = cpu.interrupts.get_mut(cpu.depth) {
                *slot = Some(OpenInterrupt { name, start });
                cpu.depth += 1;
            } else {
                // Exits are not recorded: keep the newest only.
                cpu.interrupts = [None; MAX_NESTED];
                cpu.interrupts[0] = Some(OpenInterrupt { name, start });
                cpu.depth = 1;
            }
        }
    }

    fn interrupt_exit(&mut self, event: &Event<'_>, name: Option<NameId>) {
        let Some(cpu) = self.cpu(event.cpu) else { return };
        let Some(top) = cpu.depth.checked_sub(1) else { return };
        let Some(open) = cpu.interrupts[top].take() else { return };
        cpu.depth = top;
        let Some(ticks) = event.ts.checked_sub(open.start) else { return };
        let key = u64::from(open.name.0);
        match name {
            None => self.tables.irqs.cell(key).time(ticks, self.at),
            Some(name) if name != open.name => {}
            Some(name) => {
                let at = self.at;
                self.interrupted(name).time(ticks, at);
            }
        }
    }

    /// The row of an interrupt that was counted.
    pub(super) fn interrupted(&mut self, name: NameId) -> &mut Cell {
        let (key, tables) = (u64::from(name.0), &mut self.tables);
        match (tables.vectors.has(key), tables.irqs.has(key)) {
            (true, _) => tables.vectors.cell(key),
            (_, true) if !tables.ipis.has(key) => tables.irqs.cell(key),
            _ => tables.ipis.cell(key),
        }
    }

    fn work_start(&mut self, event: &Event<'_>, function: NameId) {
        let open = Open { start: event.ts, cpu: event.cpu };
        match self.thread(event) {
            Some(index) => self.threads.get(index).work = Some((function, open)),
            None => self.tables.works.add(u64::from(function.0), Took::Unknown, self.at),
        }
    }

    fn work_end(&mut self, event: &Event<'_>) {
        let Some(index) = self.thread(event) else { return };
        if let Some((function, open)) = self.threads.get(index).work.take() {
            let ticks = self.since(open, event);
            self.tables.works.add(u64::from(function.0), ticks, self.at);
        }
    }

    /// Counts what was open when the trace ended, and closes the threads' times.
    pub fn close(&mut self, now: u64, at: Slice) {
        self.at = at;
        self.threads.close(now);
        if self.overwritten {
            self.decide();
        }
        let open: Vec<_> =
            self.threads.iter().map(|t| (t.exit, t.user_exit, t.call, t.work)).collect();
        for (index, (exit, user_exit, call, work)) in open.into_iter().enumerate() {
            if let Some((reason, _)) = exit {
                self.tables.exits.add(u64::from(reason.0), Took::Unknown, self.at);
            }
            if let Some((reason, _)) = user_exit {
                self.tables.userspace_exits.add(u64::from(reason.0), Took::Unknown, self.at);
            }
            if let Some((name, request, _)) = call {
                self.untimed_call(name, request, Took::Unknown);
            }
            if let Some((function, _)) = work {
                self.tables.works.add(u64::from(function.0), Took::Unknown, self.at);
            }
            self.settle(index as u32, Took::Unknown);
        }
    }

    /// Adds the books of other threads and CPUs of the same trace, closed before; `name`
    /// translates the keys that are names.
    pub(super) fn absorb(&mut self, other: Kernel, name: impl Fn(u64) -> u64) {
        let (own, theirs) = (&mut self.tables, &other.tables);
        own.ports.merge(&theirs.ports, |key| key);
        own.mmio_reads.merge(&theirs.mmio_reads, |key| key);
        own.mmio_writes.merge(&theirs.mmio_writes, |key| key);
        own.msrs.merge(&theirs.msrs, |key| key);
        own.exits.merge(&theirs.exits, &name);
        own.userspace_exits.merge(&theirs.userspace_exits, &name);
        own.hypercalls.merge(&theirs.hypercalls, &name);
        own.syscalls.merge(&theirs.syscalls, &name);
        own.ioctls.merge(&theirs.ioctls, &name);
        own.irqs.merge(&theirs.irqs, &name);
        own.ipis.merge(&theirs.ipis, &name);
        own.ipi_sends.merge(&theirs.ipi_sends, &name);
        own.vectors.merge(&theirs.vectors, &name);
        own.works.merge(&theirs.works, &name);
        self.seen.switches |= other.seen.switches;
        self.seen.syscalls |= other.seen.syscalls;
        self.seen.kvm_exits |= other.seen.kvm_exits;
        self.threads.absorb(other.threads);
    }
}
