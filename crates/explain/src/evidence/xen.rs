//! Xen's vCPUs: what an exit's time went into, in the hypervisor and in dom0.

use crate::moment::{Place, Tid};
use vmeter_trace::hash::FastMap;
use vmeter_trace::ops::xen::{BLOCKED, OFFLINE};
use vmeter_trace::walk::vcpu::VcpuSpan;
use vmeter_trace::walk::xen::IDLE_DOMAIN;

/// Most vCPUs and threads that are told apart.
const MAX_VCPUS: usize = 1 << 14;
/// Most changes of runstate within one exit that are kept.
const MAX_SPANS: usize = 1 << 10;

/// A vCPU: file, domain, number.
pub type VcpuId = (u16, u16, u16);

/// A stretch of a runstate: state, from, to.
pub type Span = (u8, u64, u64);

/// A VMEXIT.
#[derive(Debug, Default)]
pub struct Exit {
    /// When it began, ticks of the common base.
    pub start: u64,
    /// Where that is.
    pub place: Place,
    /// The vCPU's runstates in it.
    pub spans: Vec<Span>,
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
    pub vcpus: FastMap<VcpuId, Vcpu>,
    /// vCPUs that wait in an exit now.
    waiting: usize,
    /// Threads by how often they were woken while a vCPU waited.
    woken: FastMap<Tid, u64>,
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

    /// A vCPU leaves the guest.
    pub fn left(&mut self, id: VcpuId, start: u64, place: Place) {
        if let Some(vcpu) = self.vcpus.get_mut(&id) {
            vcpu.exits += 1;
            vcpu.exit = Some(Exit { start, place, ..Exit::default() });
        }
    }

    /// A vCPU enters the guest; gives the exit, whose last runstate ends now.
    pub fn resumed(&mut self, id: VcpuId, now: u64) -> Option<Exit> {
        let vcpu = self.vcpus.get_mut(&id)?;
        let mut exit = vcpu.exit.take()?;
        let (state, since) = vcpu.state?;
        exit.spans.push((state, since.max(exit.start), now));
        vcpu.exit_ticks = vcpu.exit_ticks.saturating_add(now.saturating_sub(exit.start));
        Some(exit)
    }

    /// A vCPU's runstate from `start` to `end`, on the common base, is over.
    pub fn changes(&mut self, id: VcpuId, ended: &VcpuSpan, (start, end): (u64, u64)) {
        if id.1 == IDLE_DOMAIN || self.vcpus.len() >= MAX_VCPUS && !self.vcpus.contains_key(&id) {
            return;
        }
        let vcpu = self.vcpus.entry(id).or_default();
        vcpu.state = Some((ended.next, end));
        if let Some(time) = vcpu.times.get_mut(ended.state as usize) {
            *time = time.saturating_add(end.saturating_sub(start));
        }
        let waits = |state| vcpu.exit.is_some() && matches!(state, BLOCKED | OFFLINE);
        self.waiting += usize::from(waits(ended.next));
        self.waiting = self.waiting.saturating_sub(usize::from(waits(ended.state)));
        if let Some(exit) = vcpu.exit.as_mut().filter(|exit| exit.spans.len() < MAX_SPANS) {
            exit.spans.push((ended.state, start.max(exit.start), end));
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
