//! Trackers by name, and what they need from a VM.

use crate::guest::Interruption;
use crate::DirtyError;
use dirty_log::PageSet;
use dirty_trackers::{
    KvmLog, KvmLogMode, KvmRing, Mprotect, PagemapScan, TrackError, TrackedSlot, Tracker, VcpuRing,
};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Instant;
use vmeter_kvm_probe::kvm_bindings::KVM_CAP_DIRTY_LOG_RING;
use vmeter_kvm_probe::{Vcpu, Vm};

vmeter_base::words! {
    /// Who tells which pages were written.
    pub enum TrackerKind {
        /// KVM_GET_DIRTY_LOG.
        Legacy = "kvm-legacy",
        /// With KVM_CLEAR_DIRTY_LOG.
        ManualProtect = "kvm-manual-protect",
        /// The same, all bits set at first.
        InitiallySet = "kvm-initially-set",
        /// Dirty rings.
        Ring = "kvm-ring",
        /// PAGEMAP_SCAN over asynchronous write protection.
        PagemapScan = "pagemap-scan",
        /// mprotect and KVM's memory faults.
        Mprotect = "mprotect",
    }
}

impl TrackerKind {
    /// What `KVM_ENABLE_CAP` has to be called with before there is a vCPU.
    pub(crate) fn capability(self, ring_entries: usize) -> Option<(u32, [u64; 4])> {
        let bytes = ring_entries as u64 * 16;
        (self == Self::Ring).then_some((KVM_CAP_DIRTY_LOG_RING, [bytes, 0, 0, 0]))
    }
}

/// What a guest's tracker is called, on disk and in exports; `none` where nobody tracks.
pub(crate) fn label(tracker: Option<TrackerKind>) -> &'static str {
    tracker.map_or("none", TrackerKind::word)
}

/// A tracker at work: one for each slot, so that each can be timed, where that is possible.
#[derive(Debug)]
pub(crate) struct Source {
    kind: TrackerKind,
    how: How,
    /// Spent while the guest waited for it, and not yet reported, ns.
    early_ns: f64,
}

#[derive(Debug)]
enum How {
    Slots(Vec<Box<dyn Tracker>>),
    Protected(Vec<Mprotect>),
    Whole(Box<KvmRing<'static>>),
}

/// What telling took, ns.
#[derive(Debug, Clone, Default)]
pub(crate) struct Collected {
    pub(crate) total_ns: f64,
    pub(crate) slot_ns: Option<Vec<f64>>,
}

impl Source {
    /// A tracker for these slots of a VM.
    ///
    /// # Errors
    /// This host has not got it.
    ///
    /// # Safety
    /// The slots are the VM's, and both the VM and `vcpu` outlive the source. For a ring,
    /// [`TrackerKind::capability`] was enabled with `ring_entries`.
    pub(crate) unsafe fn new(
        kind: TrackerKind,
        vm: &Vm,
        vcpu: &Vcpu,
        slots: &[TrackedSlot],
        ring_entries: usize,
    ) -> Result<Self, TrackError> {
        // SAFETY: promised by the caller.
        let fd: BorrowedFd<'static> = unsafe { BorrowedFd::borrow_raw(vm.fd().as_raw_fd()) };
        let log = |mode| {
            let new = |&slot: &TrackedSlot| {
                // SAFETY: promised by the caller.
                unsafe { KvmLog::new(fd, mode, vec![slot]) }
                    .map(|log| Box::new(log) as Box<dyn Tracker>)
            };
            slots.iter().map(new).collect::<Result<_, _>>().map(How::Slots)
        };
        let how = match kind {
            TrackerKind::Legacy => log(KvmLogMode::Legacy),
            TrackerKind::ManualProtect => log(KvmLogMode::ManualProtect),
            TrackerKind::InitiallySet => log(KvmLogMode::InitiallySet),
            TrackerKind::PagemapScan => {
                let new = |&slot: &TrackedSlot| {
                    PagemapScan::new(vec![slot]).map(|scan| Box::new(scan) as Box<dyn Tracker>)
                };
                slots.iter().map(new).collect::<Result<_, _>>().map(How::Slots)
            }
            TrackerKind::Mprotect => {
                // SAFETY: promised by the caller.
                let new = |&slot: &TrackedSlot| unsafe { Mprotect::new(vec![slot]) };
                slots.iter().map(new).collect::<Result<_, _>>().map(How::Protected)
            }
            TrackerKind::Ring => {
                // SAFETY: promised by the caller.
                let ring = unsafe {
                    VcpuRing::map(BorrowedFd::borrow_raw(vcpu.as_raw_fd()), ring_entries)
                }?;
                // SAFETY: promised by the caller.
                let ring = unsafe { KvmRing::new(fd, slots.to_vec(), vec![ring]) }?;
                Ok(How::Whole(Box::new(ring)))
            }
        };
        Ok(Self { kind, how: how?, early_ns: 0.0 })
    }

    fn failed(&self) -> impl Fn(TrackError) -> DirtyError {
        let tracker = self.kind.word();
        move |source| DirtyError::Track { tracker, source }
    }

    fn each(
        &mut self,
        mut f: impl FnMut(&mut dyn Tracker) -> Result<(), TrackError>,
    ) -> Result<(), DirtyError> {
        let failed = self.failed();
        let done = match &mut self.how {
            How::Slots(all) => all.iter_mut().try_for_each(|one| f(&mut **one)),
            How::Protected(all) => all.iter_mut().try_for_each(|one| f(one)),
            How::Whole(ring) => f(&mut **ring),
        };
        done.map_err(failed)
    }

    /// Switches it on; returns ns.
    pub(crate) fn start(&mut self) -> Result<f64, DirtyError> {
        let begin = Instant::now();
        self.each(|tracker| tracker.start())?;
        Ok(begin.elapsed().as_nanos() as f64)
    }

    /// Adds what was written to the slots' sets.
    pub(crate) fn collect(&mut self, sets: &mut [PageSet]) -> Result<Collected, DirtyError> {
        let failed = self.failed();
        let ns = |begin: Instant| begin.elapsed().as_nanos() as f64;
        if let How::Whole(ring) = &mut self.how {
            let begin = Instant::now();
            ring.collect(sets).map_err(failed)?;
            let early_ns = std::mem::take(&mut self.early_ns);
            return Ok(Collected { total_ns: ns(begin) + early_ns, slot_ns: None });
        }
        let mut sets = sets.iter_mut();
        let mut slot_ns = Vec::new();
        self.each(|tracker| {
            let Some(set) = sets.next() else { return Ok(()) };
            let begin = Instant::now();
            tracker.collect(std::slice::from_mut(set))?;
            slot_ns.push(ns(begin));
            Ok(())
        })?;
        Ok(Collected { total_ns: slot_ns.iter().sum(), slot_ns: Some(slot_ns) })
    }

    /// Helps a guest that can't go on; false if this tracker knows of no help.
    pub(crate) fn help(
        &mut self,
        why: Interruption,
        sets: &mut [PageSet],
    ) -> Result<bool, DirtyError> {
        match (&self.how, why) {
            (How::Whole(_), Interruption::RingFull) => {
                self.early_ns = self.collect(sets)?.total_ns;
                Ok(true)
            }
            (How::Protected(all), Interruption::Fault(gpa)) => {
                Ok(all.iter().any(|one| one.resolve(gpa)))
            }
            _ => Ok(false),
        }
    }
}
