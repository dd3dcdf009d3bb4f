//! What a trace's walk tells, by port, exit, system call, interrupt, work item and runstate.

use super::slices::Slice;
use super::table::Table;
use crate::event::Event;
use crate::ops::xen::RUNNABLE;
use crate::ops::{Access, NameId, Op};
use crate::walk::vcpu::{VcpuExit, VcpuId, VcpuSpan};
use crate::walk::{At, By, Interrupt, Request, Thread, Took, Visitor, Walk};
use std::collections::BTreeMap;

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
    /// VMEXIT reason; Xen's in the processor's own numbering.
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
    /// Runstates of Xen's domains.
    pub domains: BTreeMap<u16, Table>,
    /// Runstates of Xen's vCPUs, and time runnable by how they came to be.
    pub vcpus: BTreeMap<VcpuId, (Table, Table)>,
    /// The slice of the event that is taken.
    at: Slice,
}

/// Accumulates a kernel trace.
#[derive(Debug, Default)]
pub struct Kernel {
    /// The tables.
    pub tables: Tables,
    /// The threads.
    pub walk: Walk,
}

impl Kernel {
    /// Takes one op.
    #[inline]
    pub fn add(&mut self, event: &Event<'_>, op: Op, slice: Slice) {
        self.tables.at = slice;
        let at = At::of(event);
        if let Some(comm) = event.comm {
            self.walk.name(&at, comm, &mut self.tables);
        }
        self.walk.add(&at, op, &mut self.tables);
    }

    /// Counts what was open when the trace ended, and closes the threads' times.
    pub fn close(&mut self, last: u64, slice: Slice) {
        self.tables.at = slice;
        self.walk.finish(last, &mut self.tables);
        if self.walk.overwritten() {
            let complete = self.walk.complete();
            for (tid, ticks) in self.tables.decide(complete) {
                if let Some(index) = self.walk.threads.find(tid, complete) {
                    self.walk.threads.get(index).forget(ticks);
                }
            }
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
        self.walk.absorb(other.walk);
    }
}

impl Tables {
    /// The table of an access's kind, and its key there.
    fn of(&mut self, access: Access) -> (&mut Table, u64) {
        let directed = |number: u32, write: bool| u64::from(number) << 1 | u64::from(write);
        match access {
            Access::Port { port, write } => (&mut self.ports, directed(port, write)),
            Access::Mmio { address, write: false } => (&mut self.mmio_reads, address),
            Access::Mmio { address, write: true } => (&mut self.mmio_writes, address),
            Access::Msr { index, write } => (&mut self.msrs, directed(index, write)),
            Access::Hypercall { name } => (&mut self.hypercalls, u64::from(name.0)),
        }
    }

    fn count(&mut self, access: Access, took: Took) {
        let at = self.at;
        let (table, key) = self.of(access);
        table.add(key, took, at);
    }

    fn of_interrupt(&mut self, interrupt: Interrupt) -> (&mut Table, u64) {
        let table = match interrupt {
            Interrupt::Irq(_) => &mut self.irqs,
            Interrupt::Ipi(_) => &mut self.ipis,
            Interrupt::Timer(_) | Interrupt::Local(_) => &mut self.vectors,
        };
        (table, u64::from(interrupt.name().0))
    }

    /// Decides on intervals of the time when the events of some CPUs are overwritten; gives
    /// the threads and ticks of exits to user space that are cut.
    fn decide(&mut self, complete: u64) -> Vec<(i32, u64)> {
        let Tables { ports, mmio_reads, mmio_writes, msrs, exits, .. } = self;
        for table in [ports, mmio_reads, mmio_writes, msrs, exits] {
            table.decide(complete);
        }
        let Tables { hypercalls, syscalls, ioctls, works, .. } = self;
        for table in [hypercalls, syscalls, ioctls, works] {
            table.decide(complete);
        }
        self.userspace_exits.decide(complete)
    }
}

impl Visitor for Tables {
    #[inline]
    fn call(&mut self, call: NameId, request: Option<NameId>, took: Took) {
        self.syscalls.add(u64::from(call.0), took, self.at);
        if let Some(request) = request {
            self.ioctls.add(u64::from(request.0), took, self.at);
        }
    }

    fn userspace_exit(&mut self, reason: NameId, took: Took) {
        self.userspace_exits.add(u64::from(reason.0), took, self.at);
    }

    /// A request's time is shared equally among what it was for.
    fn request(&mut self, _at: &At, _thread: &Thread, request: &Request<'_>) {
        if request.by == By::Exit {
            self.exits.add(u64::from(request.reason.0), request.took, self.at);
        }
        let share = request.took.shared(request.accesses.len());
        request.accesses.iter().for_each(|access| self.count(*access, share));
    }

    fn late(&mut self, _at: &At, _thread: &Thread, access: Access, took: Took) {
        self.count(access, took);
    }

    fn untimed(&mut self, access: Access) {
        self.count(access, Took::Unknown);
    }

    fn interrupted(&mut self, interrupt: Interrupt) {
        let at = self.at;
        let (table, key) = self.of_interrupt(interrupt);
        table.cell(key).count(at);
    }

    fn handled(&mut self, interrupt: Interrupt, took: Took) {
        let at = self.at;
        let (table, key) = self.of_interrupt(interrupt);
        let cell = table.cell(key);
        match took {
            Took::Ticks(ticks) => cell.time(ticks, at),
            Took::Cut => cell.cut += 1,
            Took::Doubtful { .. } | Took::Unknown => {}
        }
    }

    fn ipi(&mut self, _at: &At, name: NameId) {
        self.ipi_sends.add(u64::from(name.0), Took::Unknown, self.at);
    }

    fn work(&mut self, function: NameId, took: Took) {
        self.works.add(u64::from(function.0), took, self.at);
    }

    fn vcpu_exit(&mut self, exit: &VcpuExit) {
        self.exits.add(u64::from(exit.reason), exit.took, self.at);
        if let Some(access) = exit.access {
            self.count(access, exit.took);
        }
    }

    fn vcpu_span(&mut self, vcpu: VcpuId, ended: &VcpuSpan) {
        let (runstates, ways) = self.vcpus.entry(vcpu).or_default();
        let ticks = ended.end.saturating_sub(ended.start);
        if ticks > 0 {
            runstates.add(u64::from(ended.state), Some(ticks), self.at);
            if ended.state == RUNNABLE {
                ways.add(ended.way as u64, Some(ticks), self.at);
            }
        }
    }

    fn domain_span(&mut self, domain: u16, state: u8, ticks: u64) {
        self.domains.entry(domain).or_default().add(u64::from(state), Some(ticks), self.at);
    }
}
