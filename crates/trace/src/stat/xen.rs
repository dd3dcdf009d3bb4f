//! Runstates and VMEXITs of Xen's vCPUs.
//!
//! The bookkeeping gives the same counts and means as xenalyze (tools/xentrace in
//! Xen): a VMEXIT lasts until the VMENTRY, or until the vCPU becomes runnable
//! again if it blocked, so that waiting for a CPU is not charged to the exit; a
//! VMEXIT's time goes to its first handler record; a vCPU's runstates count from
//! the first time it is seen running.

use super::slices::Slice;
use super::table::Table;
use crate::event::Event;
use crate::ops::xen::{BLOCKED, OFFLINE, RUNNABLE, RUNNING};
use crate::ops::{NameId, XenOp};
use std::collections::BTreeMap;

/// Domain of the idle vCPUs.
pub const IDLE_DOMAIN: u16 = 32767;

const LOST: u8 = 4;
const QUEUED: u8 = 5;
const INIT: u8 = 6;

/// Names of a vCPU's runstates, by number.
pub const RUNSTATES: [&str; 7] =
    ["running", "runnable", "blocked", "offline", "lost", "queued", "init"];

/// Names of the ways to become runnable.
pub const WAYS: [&str; 3] = ["wake", "preempt", "other"];

/// Names of a domain's runstates, from its vCPUs' together.
pub const DOMAIN_RUNSTATES: [&str; 7] = [
    "blocked",
    "partial run",
    "full run",
    "partial contention",
    "concurrency_hazard",
    "full_contention",
    "lost",
];

/// More domains or vCPUs than this are not told apart.
const MAX_VCPUS: usize = 1 << 14;
const MAX_CPUS: usize = 1 << 12;

/// Which record decides where a VMEXIT's time goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Handler {
    #[default]
    Generic,
    Port,
    Mmio,
    Msr,
    Cr,
    Hypercall(NameId),
}

#[derive(Debug, Clone, Copy, Default)]
struct Exit {
    valid: bool,
    start: u64,
    reason: u32,
    handler: Handler,
    port: u32,
    write: bool,
    address: u64,
    mmio_write: bool,
    msr: u64,
}

/// One vCPU.
#[derive(Debug, Clone)]
pub struct Vcpu {
    /// Time by runstate.
    pub runstates: Table,
    /// Time runnable by how it came to be.
    pub ways: Table,
    /// VMEXITs seen.
    pub exits: u64,
    state: u8,
    since: u64,
    way: usize,
    wrong: Option<(u8, u8)>,
    cpu: Option<usize>,
    placed: bool,
    exit: Exit,
}

impl Default for Vcpu {
    fn default() -> Vcpu {
        Vcpu {
            runstates: Table::default(),
            ways: Table::default(),
            exits: 0,
            state: INIT,
            since: 0,
            way: 2,
            wrong: None,
            cpu: None,
            placed: false,
            exit: Exit::default(),
        }
    }
}

/// One domain.
#[derive(Debug, Clone, Default)]
pub struct Domain {
    /// Time by the vCPUs' common runstate.
    pub runstates: Table,
    state: u8,
    since: u64,
}

/// Who runs on a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Current {
    /// Not yet known: the trace began while it ran.
    #[default]
    Unnamed,
    /// Nobody, between two switches or after lost records.
    Nobody,
    /// A vCPU: (domain, vCPU).
    Vcpu(u16, u16),
}

#[derive(Debug, Clone, Copy, Default)]
struct Cpu {
    current: Current,
    first: u64,
    last: u64,
    scheduled: bool,
    lost_since: Option<u64>,
    ended: bool,
}

/// Accumulates a xentrace.
#[derive(Debug, Default)]
pub struct Xen {
    /// Port, shifted left by one, plus 1 for a write.
    pub ports: Table,
    /// Address reads.
    pub mmio_reads: Table,
    /// Address writes.
    pub mmio_writes: Table,
    /// Register, shifted left by one, plus 1 for a write.
    pub msrs: Table,
    /// VMEXIT reason, in the processor's own numbering.
    pub exits: Table,
    /// Hypercalls of HVM guests; PV ones are counted, not timed.
    pub hypercalls: Table,
    /// Domains by number.
    pub domains: BTreeMap<u16, Domain>,
    /// vCPUs by (domain, number).
    pub vcpus: BTreeMap<(u16, u16), Vcpu>,
    /// Records that could not be given to a vCPU.
    pub unplaced: u64,
    /// Evidence that reasons are numbered as SVM's, less that they are VMX's.
    svm_votes: i64,
    cpus: Vec<Cpu>,
    lost_cpus: usize,
    /// The slice of the record that is taken.
    at: Slice,
}

impl Xen {
    /// True if VMEXIT reasons are SVM's.
    pub fn is_svm(&self) -> bool {
        self.svm_votes > 0
    }

    /// Takes one op.
    pub fn add(&mut self, event: &Event<'_>, op: XenOp, slice: Slice) {
        self.at = slice;
        let at = event.cpu as usize;
        if at >= MAX_CPUS {
            return;
        }
        if self.cpus.len() <= at {
            self.cpus.resize(at + 1, Cpu::default());
        }
        let cpu = &mut self.cpus[at];
        if op != XenOp::LostBegin && op != XenOp::CpuEnd {
            cpu.last = event.ts;
            if cpu.first == 0 {
                cpu.first = event.ts;
            }
        }
        match op {
            XenOp::Runstate { domain, vcpu, old, new, continues } => {
                self.runstate((domain, vcpu), old, new, continues, at, event.ts);
            }
            XenOp::LostBegin => self.lost_begin(at, event.ts),
            XenOp::LostEnd { domain, vcpu } => self.lost_end(at, (domain, vcpu), event.ts),
            XenOp::CpuEnd => self.cpu_end(at),
            XenOp::Other => {}
            _ => self.guest(at, event.ts, op),
        }
    }

    /// Records of the vCPU that runs on the CPU.
    fn guest(&mut self, at: usize, now: u64, op: XenOp) {
        if let XenOp::PvHypercall { name } = op {
            return self.hypercalls.add(u64::from(name.0), None, self.at);
        }
        let Current::Vcpu(domain, number) = self.cpus[at].current else {
            self.unplaced += 1;
            return;
        };
        let Some(vcpu) = self.vcpus.get_mut(&(domain, number)).filter(|_| domain != IDLE_DOMAIN)
        else {
            self.unplaced += 1;
            return;
        };
        let exit = &mut vcpu.exit;
        match op {
            XenOp::VmExit { reason, svm } => {
                *exit = Exit { valid: true, start: now, reason, ..Exit::default() };
                vcpu.exits += 1;
                self.svm_votes += i64::from(svm || reason > 0xff);
            }
            XenOp::VmEntry if exit.valid => self.close_exit((domain, number), now),
            _ if !exit.valid => {}
            XenOp::Pio { port, write } => {
                exit.port = port;
                // The handler's own direction counts, the last port's number.
                if exit.claim(Handler::Port) {
                    exit.write = write;
                }
                self.svm_votes += i64::from(exit.reason == 0x7b) - i64::from(exit.reason == 30);
            }
            XenOp::Mmio { address, write } => {
                (exit.address, exit.mmio_write) = (address, write);
                exit.claim(Handler::Mmio);
            }
            XenOp::Msr { index, write } => {
                exit.msr = u64::from(index) << 1 | u64::from(write);
                exit.claim(Handler::Msr);
                let vmx = matches!(exit.reason, 31 | 32);
                self.svm_votes += i64::from(exit.reason == 0x7c) - i64::from(vmx);
            }
            XenOp::CrWrite => {
                exit.claim(Handler::Cr);
            }
            XenOp::Vmcall { name } => {
                exit.claim(Handler::Hypercall(name));
                self.svm_votes += i64::from(exit.reason == 0x81) - i64::from(exit.reason == 18);
            }
            _ => {}
        }
    }

    fn close_exit(&mut self, id: (u16, u16), now: u64) {
        let Some(vcpu) = self.vcpus.get_mut(&id) else { return };
        let exit = vcpu.exit;
        vcpu.exit.valid = false;
        let ticks = now.checked_sub(exit.start).filter(|&t| t > 0);
        self.exits.add(u64::from(exit.reason), ticks, self.at);
        match exit.handler {
            Handler::Generic | Handler::Cr => {}
            Handler::Port => {
                self.ports.add(u64::from(exit.port) << 1 | u64::from(exit.write), ticks, self.at);
            }
            Handler::Mmio if exit.mmio_write => self.mmio_writes.add(exit.address, ticks, self.at),
            Handler::Mmio => self.mmio_reads.add(exit.address, ticks, self.at),
            Handler::Msr => self.msrs.add(exit.msr, ticks, self.at),
            Handler::Hypercall(name) => self.hypercalls.add(u64::from(name.0), ticks, self.at),
        }
    }

    fn vcpu(&mut self, id: (u16, u16)) -> Option<&mut Vcpu> {
        if !self.vcpus.contains_key(&id) && self.vcpus.len() >= MAX_VCPUS {
            return None;
        }
        Some(self.vcpus.entry(id).or_default())
    }

    fn runstate(&mut self, id: (u16, u16), old: u8, new: u8, continues: bool, at: usize, now: u64) {
        let Some(vcpu) = self.vcpu(id) else { return };
        let wrong = vcpu.wrong.take();
        let (state, has_exit, where_it_ran) = (vcpu.state, vcpu.exit.valid, vcpu.cpu);
        if state == INIT {
            return self.start(id, old, new, at, now);
        }
        if new == RUNNABLE && has_exit {
            self.close_exit(id, now);
        }
        if state != old {
            let follow = match state {
                LOST => new == RUNNING,
                // The stamps of two CPUs are out of step: the change came already.
                _ if wrong == Some((new, old)) => false,
                _ => {
                    if let Some(vcpu) = self.vcpu(id) {
                        vcpu.wrong = Some((old, state));
                    }
                    state != RUNNING
                }
            };
            if !follow {
                return;
            }
        }
        if continues {
            if state == LOST {
                self.switch_from_current(at, now, LOST);
                self.switch_to(at, id, now);
            }
            self.update(id, RUNNING, now);
        } else if old == RUNNING || state == RUNNING {
            let from = if old == RUNNING { at } else { where_it_ran.unwrap_or(at) };
            self.switch_from(from, id, now, new);
            if self.lost_cpus > 0 && id.0 != IDLE_DOMAIN {
                self.lose(id, now);
            }
        } else if new == RUNNING {
            self.switch_to(at, id, now);
        } else {
            self.update(id, new, now);
        }
    }

    /// First sight of a vCPU: it counts from when it is known to run.
    fn start(&mut self, id: (u16, u16), old: u8, new: u8, at: usize, now: u64) {
        let cpu = &mut self.cpus[at];
        let mut since = now;
        if old == RUNNING {
            if cpu.current != Current::Unnamed {
                return;
            }
            cpu.current = Current::Nobody;
            since = cpu.first;
        }
        if new != RUNNING {
            return;
        }
        cpu.current = Current::Vcpu(id.0, id.1);
        if let Some(vcpu) = self.vcpu(id) {
            vcpu.cpu = Some(at);
        }
        self.update(id, RUNNING, since);
    }

    fn switch_from_current(&mut self, at: usize, now: u64, new: u8) {
        if let Current::Vcpu(domain, vcpu) = self.cpus[at].current {
            self.switch_from(at, (domain, vcpu), now, new);
        }
    }

    fn switch_from(&mut self, at: usize, id: (u16, u16), now: u64, new: u8) {
        let is_current = self.cpus.get(at).is_some_and(|c| c.current == Current::Vcpu(id.0, id.1));
        if let Some(cpu) = self.cpus.get_mut(at) {
            cpu.current = Current::Nobody;
        }
        let Some(vcpu) = self.vcpu(id) else { return };
        if vcpu.cpu != Some(at) || !is_current || vcpu.state != RUNNING {
            vcpu.since = 0;
        }
        self.update(id, new, now);
    }

    fn switch_to(&mut self, at: usize, id: (u16, u16), now: u64) {
        if let (Current::Vcpu(domain, vcpu), false) =
            (self.cpus[at].current, self.cpus[at].scheduled)
        {
            self.update((domain, vcpu), LOST, now);
        }
        if let Some(vcpu) = self.vcpu(id) {
            if vcpu.placed && vcpu.state == RUNNING {
                vcpu.since = 0;
            }
            vcpu.placed = true;
            vcpu.cpu = Some(at);
        }
        self.update(id, RUNNING, now);
        self.cpus[at].current = Current::Vcpu(id.0, id.1);
        self.cpus[at].scheduled = true;
    }

    /// Gives the time until now to the state before, and enters the new one.
    fn update(&mut self, id: (u16, u16), new: u8, now: u64) {
        let at = self.at;
        let Some(vcpu) = self.vcpu(id) else { return };
        if vcpu.since > 0 && vcpu.since < now {
            let ticks = Some(now - vcpu.since);
            vcpu.runstates.add(u64::from(vcpu.state), ticks, at);
            if vcpu.state == RUNNABLE {
                vcpu.ways.add(vcpu.way as u64, ticks, at);
            }
        }
        if new == RUNNABLE {
            vcpu.way = match vcpu.state {
                BLOCKED | OFFLINE => 0,
                RUNNING => 1,
                _ => 2,
            };
        }
        (vcpu.state, vcpu.since) = (new, now);
        let common = self.domain_state(id.0);
        let domain = self.domains.entry(id.0).or_default();
        if domain.since > 0 && domain.since < now {
            domain.runstates.add(u64::from(domain.state), Some(now - domain.since), self.at);
        }
        domain.state = common.unwrap_or(domain.state);
        domain.since = now;
    }

    fn domain_state(&self, domain: u16) -> Option<u8> {
        let mut counts = [0; RUNSTATES.len()];
        let mut all = 0;
        for (_, vcpu) in self.vcpus.range((domain, 0)..=(domain, u16::MAX)) {
            if vcpu.state != INIT {
                all += 1;
                counts[vcpu.state as usize] += 1;
            }
        }
        let asleep = counts[BLOCKED as usize] + counts[OFFLINE as usize] > 0;
        let waits = counts[RUNNABLE as usize] > 0;
        Some(match (counts[RUNNING as usize] > 0, waits, asleep) {
            _ if counts[LOST as usize] == all => 6,
            (true, true, _) => 4,
            (true, false, true) => 1,
            (true, false, false) => 2,
            (false, true, true) => 3,
            (false, true, false) => 5,
            (false, false, true) => 0,
            _ => return None,
        })
    }

    fn lose(&mut self, id: (u16, u16), now: u64) {
        if let Some(vcpu) = self.vcpu(id) {
            vcpu.exit.valid = false;
        }
        self.update(id, LOST, now);
    }

    fn lost_begin(&mut self, at: usize, now: u64) {
        if let Current::Vcpu(domain, vcpu) = self.cpus[at].current {
            if let Some(vcpu) = self.vcpu((domain, vcpu)) {
                vcpu.exit.valid = false;
            }
        }
        self.switch_from_current(at, now, LOST);
        if self.cpus[at].lost_since.replace(now).is_none() {
            self.lost_cpus += 1;
        }
        // Whoever does not run may be scheduled on the CPU whose records are missing.
        let waiting: Vec<_> =
            self.vcpus.iter().filter(|(_, v)| v.state != RUNNING).map(|(id, _)| *id).collect();
        for id in waiting {
            self.lose(id, now);
        }
    }

    fn lost_end(&mut self, at: usize, id: (u16, u16), now: u64) {
        if self.cpus[at].lost_since.is_none_or(|since| now <= since) {
            return;
        }
        if !matches!(self.cpus[at].current, Current::Vcpu(..)) {
            self.switch_to(at, id, now);
            // Inferred, not seen: the next switch may contradict it.
            self.cpus[at].scheduled = false;
        }
        self.cpus[at].lost_since = None;
        self.lost_cpus = self.lost_cpus.saturating_sub(1);
    }

    fn cpu_end(&mut self, at: usize) {
        if std::mem::replace(&mut self.cpus[at].ended, true) {
            return;
        }
        if let Current::Vcpu(domain, vcpu) = self.cpus[at].current {
            let last = self.cpus[at].last;
            self.lose((domain, vcpu), last);
        }
    }

    /// A state's name, for rows.
    pub fn runstate_name(state: u64) -> &'static str {
        RUNSTATES.get(state as usize).copied().unwrap_or(RUNSTATES[QUEUED as usize])
    }
}

impl Exit {
    /// The first handler record of a VMEXIT gets its time.
    fn claim(&mut self, handler: Handler) -> bool {
        let free = self.handler == Handler::Generic;
        if free {
            self.handler = handler;
        }
        free
    }
}
