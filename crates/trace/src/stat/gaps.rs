//! What is not known because events are missing.
//!
//! Lost events are marked where they are missing. Overwritten ones are missing at the trace's
//! beginning, of each CPU until its own first event: a thread that went to such a CPU and came
//! back leaves no trace but a begin and an end of two intervals that look like those of one.

use super::kernel::{Cpu, Kernel, Tables};
use super::table::Took;
use super::threads::Open;
use crate::event::Event;

impl Kernel {
    /// Notes a CPU's first event.
    pub(super) fn begins(&mut self, event: &Event<'_>) {
        self.gaps = true;
        if let Some(cpu) = self.cpu(event.cpu) {
            cpu.first.get_or_insert(event.ts);
        }
    }

    pub(super) fn lost(&mut self, event: &Event<'_>) {
        self.gaps = true;
        let Some(cpu) = self.cpu(event.cpu) else { return };
        for name in cpu.loses(event.ts) {
            self.interrupted(name).cut += 1;
        }
    }

    /// Events of a CPU are missing since a moment.
    fn missing(cpus: &[Cpu], since: u64, cpu: u32) -> bool {
        let cpu = cpus.get(cpu as usize).copied().unwrap_or_default();
        cpu.lost_at.is_some_and(|at| at >= since) || cpu.first.is_some_and(|first| first > since)
    }

    /// Time from an interval's begin until now.
    #[inline]
    pub(super) fn since(&self, open: Open, event: &Event<'_>) -> Took {
        let Some(ticks) = event.ts.checked_sub(open.start) else { return Took::Unknown };
        if !self.gaps {
            return Took::Ticks(ticks);
        }
        let missing = |cpu| Kernel::missing(&self.cpus, open.start, cpu);
        match self.overwritten {
            _ if missing(open.cpu) || missing(event.cpu) => Took::Cut,
            true => Took::Doubtful { ticks, start: open.start, tid: event.tid },
            false => Took::Ticks(ticks),
        }
    }

    /// What is known of an interval whose end has not come until now.
    pub(super) fn unended(&self, open: Open, event: &Event<'_>) -> Took {
        match self.since(open, event) {
            Took::Cut => Took::Cut,
            _ => Took::Unknown,
        }
    }

    /// Takes note of where a thread is, where events are missing.
    #[cold]
    pub(super) fn seen_on(&mut self, index: u32, cpu: u32) {
        let cpus = &self.cpus;
        let missing = |since, cpu| Kernel::missing(cpus, since, cpu);
        self.threads.get(index).seen_on(cpu, missing);
    }

    /// Decides on intervals of the time when the events of some CPUs are overwritten.
    pub(super) fn decide(&mut self) {
        let complete = self.cpus.iter().filter_map(|cpu| cpu.first).max().unwrap_or(0);
        let Tables { ports, mmio_reads, mmio_writes, msrs, exits, .. } = &mut self.tables;
        for table in [ports, mmio_reads, mmio_writes, msrs, exits] {
            table.decide(complete);
        }
        let Tables { hypercalls, syscalls, ioctls, works, .. } = &mut self.tables;
        for table in [hypercalls, syscalls, ioctls, works] {
            table.decide(complete);
        }
        for (tid, ticks) in self.tables.userspace_exits.decide(complete) {
            if let Some(index) = self.threads.find(tid, complete) {
                self.threads.get(index).forget(ticks);
            }
        }
    }
}
