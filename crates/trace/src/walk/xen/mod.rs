//! Runstates and VMEXITs of Xen's vCPUs: the walk over a xentrace.
//!
//! The bookkeeping gives the same counts and means as xenalyze (tools/xentrace in
//! Xen): a VMEXIT lasts until the VMENTRY, or until the vCPU becomes runnable
//! again if it blocked, so that waiting for a CPU is not charged to the exit; a
//! VMEXIT's time goes to its first handler record; a vCPU's runstates count from
//! the first time it is seen running. Beside that, a request lasts from VMEXIT to VMENTRY,
//! whatever the vCPU did meanwhile.

mod exits;

use super::interval::At;
use super::vcpu::{VcpuId, VcpuSpan, RUNSTATES};
use super::visitor::{Ends, Visitor};
use crate::ops::xen::{BLOCKED, OFFLINE, RUNNABLE, RUNNING};
use crate::ops::{Access, XenOp};
use exits::Exits;
use std::collections::BTreeMap;

/// Domain of the idle vCPUs.
pub const IDLE_DOMAIN: u16 = 32767;

const LOST: u8 = 4;
const QUEUED: u8 = 5;
const INIT: u8 = 6;

/// More domains or vCPUs than this are not told apart.
const MAX_VCPUS: usize = 1 << 14;
const MAX_CPUS: usize = 1 << 12;

/// One vCPU.
#[derive(Debug, Clone)]
pub struct Vcpu {
    exits: Exits,
    state: u8,
    since: u64,
    way: usize,
    wrong: Option<(u8, u8)>,
    cpu: Option<usize>,
    placed: bool,
}

impl Default for Vcpu {
    fn default() -> Vcpu {
        Vcpu {
            exits: Exits::default(),
            state: INIT,
            since: 0,
            way: 2,
            wrong: None,
            cpu: None,
            placed: false,
        }
    }
}

impl Vcpu {
    /// VMEXITs seen.
    pub fn exits(&self) -> u64 {
        self.exits.seen
    }
}

/// One domain's common state, and since when.
#[derive(Debug, Clone, Copy, Default)]
struct Domain {
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

/// The state of a xentrace's vCPUs and CPUs.
#[derive(Debug, Default)]
pub struct Xen {
    domains: BTreeMap<u16, Domain>,
    vcpus: BTreeMap<VcpuId, Vcpu>,
    /// Records that could not be given to a vCPU.
    pub unplaced: u64,
    /// Evidence that reasons are numbered as SVM's, less that they are VMX's.
    svm_votes: i64,
    cpus: Vec<Cpu>,
    lost_cpus: usize,
}

impl Xen {
    /// True if VMEXIT reasons are SVM's.
    pub fn is_svm(&self) -> bool {
        self.svm_votes > 0
    }

    /// Domains that were seen.
    pub fn domains(&self) -> impl Iterator<Item = u16> + '_ {
        self.domains.keys().copied()
    }

    /// vCPUs of a domain, by number.
    pub fn vcpus(&self, domain: u16) -> impl Iterator<Item = (VcpuId, &Vcpu)> {
        self.vcpus.range((domain, 0)..=(domain, u16::MAX)).map(|(id, vcpu)| (*id, vcpu))
    }

    /// True if the trace has no vCPU.
    pub fn is_empty(&self) -> bool {
        self.vcpus.is_empty()
    }

    /// Takes one op.
    pub(super) fn add<V: Visitor>(&mut self, event: &At, op: XenOp, v: &mut V) {
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
                self.runstate((domain, vcpu), old, new, continues, event, v);
            }
            XenOp::LostBegin => self.lost_begin(event, v),
            XenOp::LostEnd { domain, vcpu } => self.lost_end((domain, vcpu), event, v),
            XenOp::CpuEnd => self.cpu_end(event, v),
            XenOp::PvHypercall { name } => v.untimed(Access::Hypercall { name }),
            XenOp::VmExit { reason, svm } => self.vm_exit(event, reason, svm, v),
            XenOp::VmEntry => self.vm_entry(event, v),
            XenOp::Access(access) => self.access(event, access, v),
            XenOp::CrWrite => self.cr_write(event),
            XenOp::Other => {}
        }
    }

    /// The vCPU that runs on the CPU.
    fn current(&mut self, at: &At) -> Option<(VcpuId, &mut Vcpu)> {
        let current = self.cpus.get(at.cpu as usize).map(|cpu| cpu.current);
        let vcpu = match current {
            Some(Current::Vcpu(domain, number)) if domain != IDLE_DOMAIN => {
                let id = (domain, number);
                self.vcpus.get_mut(&id).map(|vcpu| (id, vcpu))
            }
            _ => None,
        };
        self.unplaced += u64::from(vcpu.is_none());
        vcpu
    }

    fn vm_exit<V: Visitor>(&mut self, at: &At, reason: u32, svm: bool, v: &mut V) {
        let Some((id, vcpu)) = self.current(at) else { return };
        v.vcpu_left(at, id);
        vcpu.exits.begin(at, reason);
        self.svm_votes += i64::from(svm || reason > 0xff);
    }

    fn vm_entry<V: Visitor>(&mut self, at: &At, v: &mut V) {
        v.ends(at, Ends::VcpuExit);
        v.vcpu_resumed(at);
        let Some((id, vcpu)) = self.current(at) else { return };
        if let Some(exit) = vcpu.exits.close(at.ts) {
            v.vcpu_exit(&exit);
        }
        if let Some(request) = vcpu.exits.resumed(at.ts) {
            v.vcpu_request(at, id, &request);
        }
    }

    fn access<V: Visitor>(&mut self, at: &At, access: Access, v: &mut V) {
        v.reported(at, None, access);
        let Some((_, vcpu)) = self.current(at) else { return };
        let votes = vcpu.exits.handled(access);
        self.svm_votes += votes;
    }

    fn cr_write(&mut self, at: &At) {
        if let Some((_, vcpu)) = self.current(at) {
            vcpu.exits.cr_written();
        }
    }

    fn vcpu(&mut self, id: (u16, u16)) -> Option<&mut Vcpu> {
        if !self.vcpus.contains_key(&id) && self.vcpus.len() >= MAX_VCPUS {
            return None;
        }
        Some(self.vcpus.entry(id).or_default())
    }

    fn runstate<V: Visitor>(
        &mut self,
        id: VcpuId,
        old: u8,
        new: u8,
        continues: bool,
        event: &At,
        v: &mut V,
    ) {
        let (at, now) = (event.cpu as usize, event.ts);
        let Some(vcpu) = self.vcpu(id) else { return };
        let wrong = vcpu.wrong.take();
        let (state, where_it_ran) = (vcpu.state, vcpu.cpu);
        if state == INIT {
            return self.start(id, (old, new), event, v);
        }
        if new == RUNNABLE {
            if let Some(exit) = vcpu.exits.close(now) {
                v.vcpu_exit(&exit);
            }
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
                self.switch_from_current(at, now, LOST, v);
                self.switch_to(at, id, now, v);
            }
            self.update(id, RUNNING, now, v);
        } else if old == RUNNING || state == RUNNING {
            let from = if old == RUNNING { at } else { where_it_ran.unwrap_or(at) };
            self.switch_from(from, id, now, new, v);
            if self.lost_cpus > 0 && id.0 != IDLE_DOMAIN {
                self.lose(id, now, v);
            }
        } else if new == RUNNING {
            self.switch_to(at, id, now, v);
        } else {
            self.update(id, new, now, v);
        }
    }

    /// First sight of a vCPU: it counts from when it is known to run.
    fn start<V: Visitor>(&mut self, id: VcpuId, (old, new): (u8, u8), event: &At, v: &mut V) {
        let (at, now) = (event.cpu as usize, event.ts);
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
        self.update(id, RUNNING, since, v);
    }

    fn switch_from_current<V: Visitor>(&mut self, at: usize, now: u64, new: u8, v: &mut V) {
        if let Current::Vcpu(domain, vcpu) = self.cpus[at].current {
            self.switch_from(at, (domain, vcpu), now, new, v);
        }
    }

    fn switch_from<V: Visitor>(&mut self, at: usize, id: VcpuId, now: u64, new: u8, v: &mut V) {
        let is_current = self.cpus.get(at).is_some_and(|c| c.current == Current::Vcpu(id.0, id.1));
        if let Some(cpu) = self.cpus.get_mut(at) {
            cpu.current = Current::Nobody;
        }
        let Some(vcpu) = self.vcpu(id) else { return };
        if vcpu.cpu != Some(at) || !is_current || vcpu.state != RUNNING {
            vcpu.since = 0;
        }
        self.update(id, new, now, v);
    }

    fn switch_to<V: Visitor>(&mut self, at: usize, id: VcpuId, now: u64, v: &mut V) {
        if let (Current::Vcpu(domain, vcpu), false) =
            (self.cpus[at].current, self.cpus[at].scheduled)
        {
            self.update((domain, vcpu), LOST, now, v);
        }
        if let Some(vcpu) = self.vcpu(id) {
            if vcpu.placed && vcpu.state == RUNNING {
                vcpu.since = 0;
            }
            vcpu.placed = true;
            vcpu.cpu = Some(at);
        }
        self.update(id, RUNNING, now, v);
        self.cpus[at].current = Current::Vcpu(id.0, id.1);
        self.cpus[at].scheduled = true;
    }

    /// Gives the time until now to the state before, and enters the new one.
    fn update<V: Visitor>(&mut self, id: VcpuId, new: u8, now: u64, v: &mut V) {
        let Some(vcpu) = self.vcpu(id) else { return };
        let known = vcpu.since > 0 && vcpu.since < now;
        let start = if known { vcpu.since } else { now };
        let ended = VcpuSpan { state: vcpu.state, start, end: now, way: vcpu.way, next: new };
        if new == RUNNABLE {
            vcpu.way = match vcpu.state {
                BLOCKED | OFFLINE => 0,
                RUNNING => 1,
                _ => 2,
            };
        }
        (vcpu.state, vcpu.since) = (new, now);
        v.vcpu_span(id, &ended);
        let common = self.domain_state(id.0);
        let domain = self.domains.entry(id.0).or_default();
        if domain.since > 0 && domain.since < now {
            v.domain_span(id.0, domain.state, now - domain.since);
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

    fn lose<V: Visitor>(&mut self, id: VcpuId, now: u64, v: &mut V) {
        if let Some(vcpu) = self.vcpu(id) {
            vcpu.exits.tear();
        }
        self.update(id, LOST, now, v);
    }

    fn lost_begin<V: Visitor>(&mut self, event: &At, v: &mut V) {
        let (at, now) = (event.cpu as usize, event.ts);
        v.lost(event);
        if let Current::Vcpu(domain, vcpu) = self.cpus[at].current {
            if let Some(vcpu) = self.vcpu((domain, vcpu)) {
                vcpu.exits.tear();
            }
        }
        self.switch_from_current(at, now, LOST, v);
        if self.cpus[at].lost_since.replace(now).is_none() {
            self.lost_cpus += 1;
        }
        // Whoever does not run may be scheduled on the CPU whose records are missing.
        let waiting: Vec<_> =
            self.vcpus.iter().filter(|(_, v)| v.state != RUNNING).map(|(id, _)| *id).collect();
        for id in waiting {
            self.lose(id, now, v);
        }
    }

    fn lost_end<V: Visitor>(&mut self, id: VcpuId, event: &At, v: &mut V) {
        let (at, now) = (event.cpu as usize, event.ts);
        if self.cpus[at].lost_since.is_none_or(|since| now <= since) {
            return;
        }
        if !matches!(self.cpus[at].current, Current::Vcpu(..)) {
            self.switch_to(at, id, now, v);
            // Inferred, not seen: the next switch may contradict it.
            self.cpus[at].scheduled = false;
        }
        self.cpus[at].lost_since = None;
        self.lost_cpus = self.lost_cpus.saturating_sub(1);
    }

    fn cpu_end<V: Visitor>(&mut self, event: &At, v: &mut V) {
        let at = event.cpu as usize;
        if std::mem::replace(&mut self.cpus[at].ended, true) {
            return;
        }
        if let Current::Vcpu(domain, vcpu) = self.cpus[at].current {
            let last = self.cpus[at].last;
            self.lose((domain, vcpu), last, v);
        }
    }

    /// A state's name, for rows.
    pub fn runstate_name(state: u64) -> &'static str {
        RUNSTATES.get(state as usize).copied().unwrap_or(RUNSTATES[QUEUED as usize])
    }
}
