//! Xen's vCPUs: what an exit's time went into, in the hypervisor and in dom0.

use super::path::Path;
use super::subject::{Anatomy, Part, Place, What, Who};
use super::Evidence;
use crate::merge::{Merge, Moment, Tid};
use std::collections::HashMap;
use vmeter_trace::ops::xen::{BLOCKED, OFFLINE, RUNNABLE, RUNNING};
use vmeter_trace::ops::XenOp;
use vmeter_trace::stat::xen::IDLE_DOMAIN;

/// Most vCPUs and CPUs that are told apart.
const MAX_VCPUS: usize = 1 << 14;
/// Most changes of runstate within one exit that are kept.
const MAX_SPANS: usize = 1 << 10;

/// A vCPU: file, domain, number.
pub type VcpuId = (u16, u16, u16);

/// A stretch of a runstate: state, from, to.
type Span = (u8, u64, u64);

#[derive(Debug, Default)]
struct Exit {
    start: u64,
    place: Place,
    access: Option<What>,
    spans: Vec<Span>,
}

/// A vCPU.
#[derive(Debug, Default)]
pub struct Vcpu {
    /// Time by runstate.
    pub times: [u64; 4],
    /// Time in VMEXITs.
    pub exit_ticks: u64,
    /// VMEXITs.
    pub exits: u64,
    state: Option<(u8, u64)>,
    exit: Option<Exit>,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Xen {
    /// By file, domain and number.
    pub vcpus: HashMap<VcpuId, Vcpu>,
    current: HashMap<(u16, u32), VcpuId>,
    /// Records of a CPU were lost last at this moment.
    lost: HashMap<(u16, u32), u64>,
    /// vCPUs that wait in an exit now.
    waiting: usize,
    /// Threads by how often they were woken while a vCPU waited.
    woken: HashMap<Tid, u64>,
    /// The one woken most often: the device model.
    model: Option<(Tid, u64)>,
}

impl Xen {
    /// The thread that serves the vCPUs' exits, as far as wake-ups tell.
    pub fn model(&self) -> Option<Tid> {
        self.model.map(|(tid, _)| tid)
    }

    /// A thread of dom0 was woken.
    pub fn woken(&mut self, thread: Tid) {
        if self.waiting == 0 || self.woken.len() >= MAX_VCPUS {
            return;
        }
        let count = self.woken.entry(thread).or_default();
        *count += 1;
        if self.model.is_none_or(|(_, most)| *count > most) {
            self.model = Some((thread, *count));
        }
    }

    fn changes(&mut self, id: VcpuId, new: u8, now: u64) {
        if id.1 == IDLE_DOMAIN || self.vcpus.len() >= MAX_VCPUS && !self.vcpus.contains_key(&id) {
            return;
        }
        let vcpu = self.vcpus.entry(id).or_default();
        if let Some((state, since)) = vcpu.state.replace((new, now)) {
            let ticks = now.saturating_sub(since);
            if let Some(time) = vcpu.times.get_mut(state as usize) {
                *time = time.saturating_add(ticks);
            }
            let waits = |state| vcpu.exit.is_some() && matches!(state, BLOCKED | OFFLINE);
            self.waiting += usize::from(waits(new));
            self.waiting = self.waiting.saturating_sub(usize::from(waits(state)));
            if let Some(exit) = vcpu.exit.as_mut().filter(|exit| exit.spans.len() < MAX_SPANS) {
                exit.spans.push((state, since.max(exit.start), now));
            }
        }
    }

    /// Closes the books.
    pub fn finish(&mut self, now: u64) {
        for vcpu in self.vcpus.values_mut() {
            let Some((state, since)) = vcpu.state else { continue };
            if let Some(time) = vcpu.times.get_mut(state as usize) {
                *time = time.saturating_add(now.saturating_sub(since));
            }
        }
    }
}

impl Evidence {
    pub(super) fn xen_op(&mut self, moment: &Moment, op: XenOp, merge: &Merge) {
        let cpu = (moment.file, moment.cpu);
        let now = moment.ts;
        match op {
            XenOp::Runstate { domain, vcpu, new, continues, .. } => {
                let id = (moment.file, domain, vcpu);
                if new == RUNNING && self.xen.current.len() < MAX_VCPUS {
                    self.xen.current.insert(cpu, id);
                } else if self.xen.current.get(&cpu) == Some(&id) {
                    self.xen.current.remove(&cpu);
                }
                if !continues {
                    self.xen.changes(id, new, now);
                }
            }
            XenOp::LostBegin => {
                if self.xen.lost.len() < MAX_VCPUS {
                    self.xen.lost.insert(cpu, now);
                }
                self.xen.current.remove(&cpu);
            }
            XenOp::VmExit { .. } => {
                let Some(vcpu) = self.xen_current(cpu) else { return };
                vcpu.exits += 1;
                let place = moment.place("VMEXIT");
                vcpu.exit = Some(Exit { start: now, place, ..Exit::default() });
            }
            XenOp::Pio { port, write } => {
                self.xen_access(cpu, What::Port { port, write });
            }
            XenOp::Mmio { address, write } => self.xen_access(cpu, What::Mmio { address, write }),
            XenOp::VmEntry => self.xen_entry(cpu, now, merge),
            XenOp::Msr { .. } | XenOp::CrWrite | XenOp::Vmcall { .. } => {}
            XenOp::PvHypercall { .. } | XenOp::LostEnd { .. } | XenOp::CpuEnd | XenOp::Other => {}
        }
    }

    fn xen_current(&mut self, cpu: (u16, u32)) -> Option<&mut Vcpu> {
        let id = self.xen.current.get(&cpu)?;
        self.xen.vcpus.get_mut(id)
    }

    fn xen_access(&mut self, cpu: (u16, u32), what: What) {
        if let Some(exit) = self.xen_current(cpu).and_then(|vcpu| vcpu.exit.as_mut()) {
            exit.access.get_or_insert(what);
        }
    }

    /// The guest goes on: its exit is served.
    fn xen_entry(&mut self, cpu: (u16, u32), now: u64, merge: &Merge) {
        let Some(vcpu) = self.xen_current(cpu) else { return };
        let Some(mut exit) = vcpu.exit.take() else { return };
        let state = vcpu.state.unwrap_or((RUNNING, exit.start));
        exit.spans.push((state.0, state.1.max(exit.start), now));
        let total = now.saturating_sub(exit.start);
        vcpu.exit_ticks = vcpu.exit_ticks.saturating_add(total);
        let lost = |cpu: (u16, u32)| self.xen.lost.get(&cpu).is_some_and(|at| *at >= exit.start);
        let torn = lost(cpu) || lost((cpu.0, exit.place.cpu));
        let Some(what) = exit.access else { return };
        let (start, place) = (exit.start, exit.place);
        let mut anatomy = Anatomy { total, start, place, torn, ..Anatomy::default() };
        let path = Path { threads: &self.threads, merge, now };
        for (state, from, to) in exit.spans {
            let ticks = to.saturating_sub(from);
            match (state, self.xen.model()) {
                (RUNNING, _) => anatomy.add(Who::Own, Part::XenRunning, ticks).count += 1,
                (RUNNABLE, _) => anatomy.add(Who::Own, Part::XenRunnable, ticks).count += 1,
                (_, Some(model)) => path.model(model, from, to, &mut anatomy),
                _ => anatomy.add(Who::Own, Part::Paused, ticks).count += 1,
            }
        }
        self.settle(exit.place.file, what, &anatomy);
    }
}
