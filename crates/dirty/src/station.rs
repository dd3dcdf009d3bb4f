//! A guest under one tracker, and what was measured of it.

use crate::bitmaps::{words, Bitmaps, DirtyWords, Harvested};
use crate::guest::{program, Guest, Wrote};
use crate::layout::{Layout, PAGE};
use crate::memory;
use crate::source::{label, Collected, Source, TrackerKind};
use crate::workload::Page;
use crate::DirtyError;
use dirty_log::PageSet;
use dirty_trackers::{KvmLog, KvmLogMode, KvmRing, TrackedSlot};
use rustix::thread::CpuSet;
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use vmeter_dirty_switch::StrategyKind;
use vmeter_kvm_probe::{Backing, GuestSlot, Ring, SlotSpec, Vm};
use vmeter_session::Interrupt;
use vmeter_stats::rng::Rng;

/// What all guests of a session have in common.
#[derive(Clone, Copy)]
pub(crate) struct Setting<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) files: &'a [File],
    pub(crate) strategies: &'a [StrategyKind],
    pub(crate) ring: Ring,
    pub(crate) ring_entries: usize,
    /// Where vCPUs run; none for anywhere.
    pub(crate) cpus: Option<CpuSet>,
    /// Pages that the guest is told to write to at once, at most.
    pub(crate) most_pages: usize,
    /// Ends what a guest writes.
    pub(crate) interrupt: &'a Interrupt,
}

/// What one pass was.
#[derive(Debug)]
pub(crate) struct Pass {
    pub(crate) wrote: Wrote,
    pub(crate) collected: Option<Collected>,
    /// What the tracker told, by slot.
    pub(crate) told: DirtyWords,
    pub(crate) harvested: Vec<Harvested>,
    /// The same pages were found each time that they were marked.
    pub(crate) same: bool,
}

/// Times that the pages of a pass are marked and harvested.
const DIRTY_SAMPLES: usize = 9;

/// A guest, tracked or not.
#[derive(Debug)]
pub(crate) struct TrackedGuest {
    // Dropped before the guest, whose slots it protects.
    source: Option<Source>,
    bitmaps: Option<Arc<Bitmaps>>,
    sets: Vec<PageSet>,
    places: Vec<u64>,
    pub(crate) guest: Guest,
    pub(crate) tracker: &'static str,
    pub(crate) start_ns: f64,
}

/// A VM with the layout's slots and one more for the guest's tables.
fn machine(setting: Setting<'_>, kind: Option<TrackerKind>) -> Result<Vm, DirtyError> {
    let copy = |file: &File| {
        file.try_clone().map_err(|source| DirtyError::System { step: "dup of a memfd", source })
    };
    let mut builder = Vm::builder().code(program());
    let places = setting.layout.places();
    for ((slot, gpa), file) in setting.layout.slots.iter().zip(places).zip(setting.files) {
        let spec = SlotSpec::new(gpa, slot.bytes).backing(Backing::File(copy(file)?));
        builder = builder.slot(spec);
    }
    let table = (setting.most_pages as u64 * 8).next_multiple_of(PAGE).max(PAGE);
    let mut gpa = setting.layout.end().next_multiple_of(2 << 20);
    if gpa + table > 3 << 30 {
        gpa = gpa.max(4 << 30);
    }
    builder = builder.slot(SlotSpec::new(gpa, table).populate());
    if let Some((cap, args)) = kind.and_then(|kind| kind.capability(setting.ring_entries)) {
        builder = builder.enable_cap(cap, args);
    }
    Ok(builder.build()?)
}

fn tracked(slot: &GuestSlot) -> TrackedSlot {
    let bytes = slot.bytes() as usize;
    TrackedSlot::new(slot.id(), slot.gpa(), slot.host(), bytes)
}

/// Why this host has not got a tracker, as far as that can be asked.
pub(crate) fn missing(
    kind: TrackerKind,
    ring_entries: usize,
) -> Result<Option<String>, DirtyError> {
    let vm = Vm::builder().build()?;
    // SAFETY: the VM is open until the end of this function.
    let fd = unsafe { BorrowedFd::borrow_raw(vm.fd().as_raw_fd()) };
    let log = |mode| {
        (!KvmLog::is_supported(fd, mode)).then(|| format!("this KVM has no {mode:?} dirty log"))
    };
    Ok(match kind {
        TrackerKind::Legacy => log(KvmLogMode::Legacy),
        TrackerKind::ManualProtect => log(KvmLogMode::ManualProtect),
        TrackerKind::InitiallySet => log(KvmLogMode::InitiallySet),
        TrackerKind::Ring => match KvmRing::max_entries(fd) {
            0 => Some("this KVM has no dirty rings".into()),
            most if most < ring_entries => Some(format!(
                "this host's KVM allows at most {most} entries in a dirty ring: \
                    lower --ring-entries"
            )),
            _ => None,
        },
        TrackerKind::PagemapScan | TrackerKind::Mprotect => None,
    })
}

impl TrackedGuest {
    /// Makes the guest and lets it write to `warm` once, so that each of its pages was
    /// touched before; then switches tracking on. A tracker that can't be had is an error.
    pub(crate) fn new(
        setting: Setting<'_>,
        kind: Option<TrackerKind>,
        warm: &[Page],
        generation: u64,
    ) -> Result<Self, DirtyError> {
        let go_on = || {
            if setting.interrupt.is_raised() {
                return Err(DirtyError::Interrupted);
            }
            Ok(())
        };
        let vm = machine(setting, kind)?;
        go_on()?;
        let vcpu = vm.vcpu(0)?;
        let count = setting.layout.slots.len();
        vm.slots()[..count].iter().try_for_each(|slot| memory::populate(slot, go_on))?;
        let slots: Vec<TrackedSlot> = vm.slots()[..count].iter().map(tracked).collect();
        let source = kind.map(|kind| {
            // SAFETY: the VM's own slots; the guest, which has both, is dropped after it.
            unsafe { Source::new(kind, &vm, &vcpu, &slots, setting.ring_entries) }
                .map_err(|source| DirtyError::Track { tracker: kind.word(), source })
        });
        let source = source.transpose()?;
        let bitmaps = kind.map(|_| Bitmaps::new(setting.layout, setting.strategies)).transpose()?;
        let mut station = Self {
            source: None,
            bitmaps: bitmaps.map(Arc::new),
            sets: slots.iter().map(|slot| PageSet::with_len(slot.bytes)).collect(),
            places: setting.layout.places(),
            guest: Guest::start(vm, vcpu, setting.ring, setting.cpus, setting.interrupt)?,
            tracker: label(kind),
            start_ns: 0.0,
        };
        station.write(warm, generation)?;
        go_on()?;
        if let Some(mut source) = source {
            station.start_ns = source.start()?;
            station.source = Some(source);
            station.collect()?;
            station.warm_up(warm, generation)?;
        }
        Ok(station)
    }

    /// One pass that nobody measures: a tracker that does not work here fails now, and
    /// every bitmap was marked and harvested once.
    fn warm_up(&mut self, warm: &[Page], generation: u64) -> Result<(), DirtyError> {
        let few: Vec<Page> = warm.iter().take(64).copied().collect();
        self.write(&few, generation)?;
        self.collect()?;
        if let Some(bitmaps) = self.bitmaps.clone() {
            let first: DirtyWords = self.sets.iter().map(|_| vec![(0, 1)]).collect();
            let marked = bitmaps.clone();
            self.guest.call(move || marked.mark(&first))?;
            bitmaps.harvest(&mut Rng::new(generation));
        }
        Ok(())
    }

    /// Lets the guest write to pages.
    pub(crate) fn write(&mut self, pages: &[Page], generation: u64) -> Result<Wrote, DirtyError> {
        let address = |page: &Page| self.places[page.slot] + page.page * PAGE;
        let addresses: Vec<u64> = pages.iter().map(address).collect();
        self.write_to(&addresses, generation)
    }

    /// Lets the guest write to addresses; a full ring is emptied into the next collection.
    pub(crate) fn write_to(
        &mut self,
        addresses: &[u64],
        generation: u64,
    ) -> Result<Wrote, DirtyError> {
        let (source, sets) = (&mut self.source, &mut self.sets);
        self.guest.write(addresses, generation, |why| match source {
            Some(source) => source.help(why, sets),
            None => Ok(false),
        })
    }

    /// What was written since the last time, by slot.
    pub(crate) fn collect(&mut self) -> Result<(Collected, DirtyWords), DirtyError> {
        let Some(source) = &mut self.source else { return Ok(Default::default()) };
        let collected = source.collect(&mut self.sets)?;
        let told = words(&self.sets);
        self.sets.iter_mut().for_each(PageSet::clear);
        Ok((collected, told))
    }

    /// Writes, collects.
    pub(crate) fn measure(&mut self, pages: &[Page], generation: u64) -> Result<Pass, DirtyError> {
        let wrote = self.write(pages, generation)?;
        if self.source.is_none() {
            let (told, harvested) = (DirtyWords::new(), Vec::new());
            return Ok(Pass { wrote, collected: None, told, harvested, same: true });
        }
        let (collected, told) = self.collect()?;
        let harvested = Vec::new();
        Ok(Pass { wrote, collected: Some(collected), told, harvested, same: true })
    }

    /// Writes, collects, marks what was told, and harvests it every way while the guest runs.
    pub(crate) fn pass(
        &mut self,
        pages: &[Page],
        generation: u64,
        rng: &mut Rng,
    ) -> Result<Pass, DirtyError> {
        let mut pass = self.measure(pages, generation)?;
        let Some(bitmaps) = self.bitmaps.clone() else { return Ok(pass) };
        let told = Arc::new(pass.told.clone());
        for sample in 0..DIRTY_SAMPLES {
            let (marked, told) = (bitmaps.clone(), told.clone());
            self.guest.call(move || marked.mark(&told))?;
            self.guest.spin()?;
            if sample == 0 {
                pass.harvested = bitmaps.harvest(rng);
            } else {
                pass.same &= bitmaps.harvest_again(&mut pass.harvested, rng);
            }
            self.guest.rest()?;
        }
        Ok(pass)
    }

    /// Marks what was told and harvests it every way, once, while the guest runs.
    pub(crate) fn harvest(
        &mut self,
        told: &DirtyWords,
        rng: &mut Rng,
    ) -> Result<Vec<Harvested>, DirtyError> {
        let Some(bitmaps) = self.bitmaps.clone() else { return Ok(Vec::new()) };
        let (marked, told) = (bitmaps.clone(), told.clone());
        self.guest.call(move || marked.mark(&told))?;
        self.guest.spin()?;
        let harvested = bitmaps.harvest(rng);
        self.guest.rest()?;
        Ok(harvested)
    }

    /// Takes a slot away from the VM.
    #[cfg(test)]
    pub(crate) fn remove_slot(&self, slot: usize) -> Result<(), DirtyError> {
        self.remover(slot).set(0);
        Ok(())
    }

    /// Takes a slot away, and gives it back, from any thread.
    #[cfg(test)]
    pub(crate) fn remover(&self, slot: usize) -> Remover {
        let slot = &self.guest.slots()[slot];
        let (vm, host) = (self.guest.vm().clone(), slot.host() as u64);
        Remover { vm, id: slot.id(), gpa: slot.gpa(), bytes: slot.bytes(), host }
    }

    /// Forgets what was collected by a collection that failed.
    #[cfg(test)]
    pub(crate) fn discard(&mut self) {
        self.sets.iter_mut().for_each(PageSet::clear);
    }

    pub(crate) fn slots(&self) -> &[GuestSlot] {
        self.guest.slots()
    }
}

#[cfg(test)]
pub(crate) struct Remover {
    vm: Vm,
    id: u32,
    gpa: u64,
    bytes: u64,
    host: u64,
}

#[cfg(test)]
impl Remover {
    fn set(&self, memory_size: u64) {
        let region = vmeter_kvm_probe::kvm_bindings::kvm_userspace_memory_region {
            slot: self.id,
            flags: u32::from(memory_size > 0),
            guest_phys_addr: self.gpa,
            memory_size,
            userspace_addr: self.host,
        };
        // SAFETY: as the VM has it, or nothing at all.
        unsafe { self.vm.fd().set_user_memory_region(region) }.unwrap();
    }

    pub(crate) fn away_and_back(&self) {
        self.set(0);
        self.set(self.bytes);
    }
}
