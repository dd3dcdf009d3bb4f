// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Every tracker by one test: the same random workload in a real guest, every bit checked.
//!
//! Where /dev/kvm or a tracker is missing, a line says so.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use dirty_log::PageSet;
use dirty_trackers::page_size;
use dirty_trackers::{
    KvmLog, KvmLogMode, KvmRing, Mprotect, PagemapScan, TrackError, TrackedSlot, Tracker, VcpuRing,
};
use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};
use vmeter_kvm_probe::kvm_bindings::kvm_regs;
use vmeter_kvm_probe::{code, probe, GuestSlot, Ring, SlotSpec, Stop, Vcpu, VcpuExit, Vm};

const DONE: u8 = 0xf4;
const PAGE: u64 = 4096;
/// Of the two slots tracked: neither a whole number of words, one of a chunk.
const PAGES: [u64; 2] = [1000, 20_011];
const RING: usize = 1024;

/// Pages for each of the two slots.
type Pages = [BTreeSet<usize>; 2];

struct Guest {
    vm: Vm,
    vcpu: Option<Vcpu>,
}

impl Guest {
    fn new() -> Self {
        let vm = Vm::builder()
            .code(code::touch_listed(DONE))
            .slot(SlotSpec::new(Vm::FIRST_FREE_GPA, PAGES[0] * PAGE))
            .slot(SlotSpec::new(5 << 30, PAGES[1] * PAGE))
            .slot(SlotSpec::new(1 << 30, 64 * PAGE));
        Self { vm: vm.build().unwrap(), vcpu: None }
    }

    fn fd(&self) -> BorrowedFd<'static> {
        // SAFETY: the guest outlives its tracker in every test.
        unsafe { BorrowedFd::borrow_raw(self.vm.fd().as_raw_fd()) }
    }

    fn slots(&self) -> Vec<TrackedSlot> {
        self.vm.slots()[..2].iter().map(tracked).collect()
    }

    /// Lets the guest write to the pages; `resolve` is what to do about a memory fault at
    /// an address. False if the guest can't go on.
    fn write(&mut self, pages: &Pages, mut resolve: impl FnMut(u64) -> bool) -> bool {
        let slots = self.vm.slots();
        let gpas = |i: usize| pages[i].iter().map(move |&page| slots[i].gpa() + page as u64 * PAGE);
        let table: Vec<u8> = gpas(0).chain(gpas(1)).flat_map(u64::to_le_bytes).collect();
        if table.is_empty() {
            return true;
        }
        slots[2].write(0, &table).unwrap();
        let (rsi, rcx) = (slots[2].gpa(), table.len() as u64 / 8);
        let vcpu = self.vcpu.get_or_insert_with(|| self.vm.vcpu(0).unwrap());
        vcpu.enter(Ring::Three, kvm_regs { rsi, rcx, ..Default::default() }).unwrap();
        let soon = Some(Instant::now() + Duration::from_secs(60));
        loop {
            let done = vcpu.run(soon, |exit| match exit {
                VcpuExit::IoOut(port, _) if port == u16::from(DONE) => true.into_break(),
                VcpuExit::Unsupported(_) => false.into_break(),
                other => panic!("{other:?}"),
            });
            match done {
                Ok(Stop::Done(true)) => return true,
                // The ring is full.
                Ok(Stop::Done(false)) if resolve(0) => {}
                Ok(other) => panic!("{other:?}"),
                Err(_) => {
                    let run = vcpu.fd_mut().get_kvm_run();
                    // SAFETY: KVM_EXIT_MEMORY_FAULT's part of the union is plain data.
                    let gpa = unsafe { run.__bindgen_anon_1.memory_fault.gpa };
                    const KVM_EXIT_MEMORY_FAULT: u32 = 39;
                    if run.exit_reason != KVM_EXIT_MEMORY_FAULT || !resolve(gpa) {
                        return false;
                    }
                }
            }
        }
    }
}

trait IntoBreak: Sized {
    fn into_break(self) -> std::ops::ControlFlow<Self> {
        std::ops::ControlFlow::Break(self)
    }
}

impl IntoBreak for bool {}

fn tracked(slot: &GuestSlot) -> TrackedSlot {
    let bytes = slot.bytes() as usize;
    TrackedSlot::new(slot.id(), slot.gpa(), slot.host(), bytes)
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn pages(&mut self, count: usize) -> Pages {
        PAGES.map(|pages| (0..count).map(|_| (self.next() % pages) as usize).collect())
    }
}

fn collect(tracker: &mut dyn Tracker) -> Pages {
    let mut sets = PAGES.map(|pages| PageSet::with_len(pages as usize * page_size()));
    let found = tracker.collect(&mut sets).unwrap();
    assert_eq!(found, sets[0].count() + sets[1].count(), "{}", tracker.name());
    sets.map(|set| set.iter().collect())
}

fn host_writes(guest: &Guest, pages: &Pages) {
    for (slot, pages) in guest.vm.slots().iter().zip(pages) {
        pages.iter().for_each(|&page| slot.write(page as u64 * PAGE + 8, &[1]).unwrap());
    }
}

/// The shared test: rounds of guest writes (and host writes, where they are seen), each
/// reported once and exactly.
fn exact(guest: &mut Guest, tracker: &mut dyn Tracker) {
    let name = tracker.name();
    let mut random = Random(0x1234_5678_9abc_def1);
    tracker.start().unwrap();
    if tracker.starts_full() {
        let all = PAGES.map(|pages| (0..pages as usize).collect::<BTreeSet<_>>());
        assert!(collect(tracker) == all, "{name}: not all pages are set at first");
    }
    assert_eq!(collect(tracker), Pages::default(), "{name}: clean at first");
    for count in [0, 1, 10, 400, 7, 0] {
        let mut expected = random.pages(count);
        assert!(guest.write(&expected, |_| false), "{name}");
        if tracker.sees_host_writes() {
            let own = random.pages(count / 3);
            host_writes(guest, &own);
            expected.iter_mut().zip(own).for_each(|(all, own)| all.extend(own));
        }
        assert_eq!(collect(tracker), expected, "{name}: what was written");
        assert_eq!(collect(tracker), Pages::default(), "{name}: seen twice");
    }
    tracker.stop().unwrap();
    println!("{name}: exact");
}

fn with_kvm(body: impl FnOnce()) {
    match probe(Duration::from_secs(2)) {
        Ok(found) if found.ring3.is_native() => body(),
        Ok(found) => println!("skipped: ring 3 is {}", found.ring3),
        Err(error) => println!("skipped: {error}"),
    }
}

fn kvm_log(mode: KvmLogMode) {
    with_kvm(|| {
        let mut guest = Guest::new();
        if !KvmLog::is_supported(guest.fd(), mode) {
            return println!("skipped: this KVM has no {mode:?} dirty log");
        }
        // SAFETY: the guest's own slots, which outlive the tracker.
        let log = unsafe { KvmLog::new(guest.fd(), mode, guest.slots()) };
        exact(&mut guest, &mut log.unwrap());
    });
}

#[test]
fn kvm_legacy() {
    kvm_log(KvmLogMode::Legacy);
}

#[test]
fn kvm_manual_protect() {
    kvm_log(KvmLogMode::ManualProtect);
}

#[test]
fn kvm_initially_set() {
    kvm_log(KvmLogMode::InitiallySet);
}

/// A guest with a ring of `RING` entries.
fn with_ring(test: impl FnOnce(&mut Guest, KvmRing<'_>)) {
    with_kvm(|| {
        let mut guest = Guest::new();
        if KvmRing::max_entries(guest.fd()) < RING {
            return println!("skipped: this KVM has no dirty rings of {RING} entries");
        }
        KvmRing::enable(guest.fd(), RING).unwrap();
        let vcpu = guest.vm.vcpu(0).unwrap();
        // SAFETY: a vCPU of a VM with rings of this size.
        let ring = unsafe { VcpuRing::map(BorrowedFd::borrow_raw(vcpu.as_raw_fd()), RING) };
        guest.vcpu = Some(vcpu);
        // SAFETY: the guest's own slots, which outlive the tracker.
        let tracker = unsafe { KvmRing::new(guest.fd(), guest.slots(), vec![ring.unwrap()]) };
        test(&mut guest, tracker.unwrap());
    });
}

#[test]
fn kvm_ring() {
    with_ring(|guest, mut tracker| exact(guest, &mut tracker));
}

#[test]
fn a_ring_that_is_full_loses_nothing() {
    with_ring(|guest, mut tracker| {
        tracker.start().unwrap();
        let written = [(0..1000).collect(), (0..3000).map(|page| page * 5).collect()];
        let mut seen = Pages::default();
        let mut full = 0;
        assert!(guest.write(&written, |_| {
            full += 1;
            let now = collect(&mut tracker);
            seen.iter_mut().zip(now).for_each(|(all, now)| all.extend(now));
            true
        }));
        let rest = collect(&mut tracker);
        // KVM on x86 writes nothing without a vCPU.
        let slots = guest.slots();
        let mut last: Vec<_> = slots.iter().map(|s| PageSet::with_len(s.bytes)).collect();
        assert_eq!(tracker.collect_last(&mut last).unwrap(), 0);
        seen.iter_mut().zip(rest).for_each(|(all, rest)| all.extend(rest));
        assert!(full >= 3, "4000 pages fit {full} times into a ring of {RING}");
        assert!(seen == written);
    });
}

#[test]
fn pagemap_scan() {
    with_kvm(|| {
        let mut guest = Guest::new();
        match PagemapScan::new(guest.slots()) {
            Ok(mut tracker) => exact(&mut guest, &mut tracker),
            Err(error) => println!("skipped: {error}"),
        }
    });
}

/// Memory without a guest.
struct Memory(*mut u8, usize);

impl Memory {
    fn new(pages: usize) -> Self {
        let bytes = pages * PAGE as usize;
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self(at.cast(), bytes)
    }

    fn slot(&self) -> TrackedSlot {
        TrackedSlot::new(0, 0, self.0, self.1)
    }

    fn write(&self, page: usize) {
        // SAFETY: inside the mapping, which nobody refers to.
        unsafe { self.0.add(page * PAGE as usize).write_volatile(1) };
    }
}

// SAFETY: a mapping is bound to no thread.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `new`.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

/// Threads write while pages are collected and protected again: each page of a round is
/// reported, and none that was not written.
#[test]
fn mprotect_sees_writes_of_threads() {
    let memory = Memory::new(512);
    // SAFETY: mapped longer than the tracker lives.
    let mut tracker = unsafe { Mprotect::new(vec![memory.slot()]) }.unwrap();
    tracker.start().unwrap();
    for round in 0..20 {
        let mut set = [PageSet::with_len(512 * page_size())];
        std::thread::scope(|scope| {
            let writers = [0, 1].map(|w| {
                let memory = &memory;
                scope.spawn(move || (round..512).step_by(3 + w).for_each(|page| memory.write(page)))
            });
            while !writers.iter().all(|writer| writer.is_finished()) {
                tracker.collect(&mut set).unwrap();
            }
        });
        tracker.collect(&mut set).unwrap();
        let written: BTreeSet<usize> =
            (round..512).step_by(3).chain((round..512).step_by(4)).collect();
        assert_eq!(set[0].iter().collect::<BTreeSet<_>>(), written);
        assert_eq!(tracker.collect(&mut set).unwrap(), 0, "something is seen twice");
    }
    tracker.stop().unwrap();
    memory.write(3);
}

#[test]
fn mprotect_resolves_the_memory_faults_of_kvm() {
    with_kvm(|| {
        let mut guest = Guest::new();
        // SAFETY: mapped longer than the tracker lives.
        let mut tracker = unsafe { Mprotect::new(guest.slots()) }.unwrap();
        tracker.start().unwrap();
        let written = Random(99).pages(30);
        if guest.write(&written, |gpa| tracker.resolve(gpa)) {
            assert_eq!(collect(&mut tracker), written);
        } else {
            println!("skipped: this KVM does not tell the address of a memory fault");
        }
        host_writes(&guest, &written);
        assert_eq!(collect(&mut tracker).map(|pages| pages.len()), written.map(|p| p.len()));
    });
}

#[test]
fn slots_that_cannot_be_tracked_are_refused() {
    let memory = Memory::new(2);
    let slot = memory.slot();
    let bad = [
        TrackedSlot::new(0, 0, slot.host, 5000),
        TrackedSlot::new(0, 0, slot.host, 0),
        TrackedSlot::new(0, 1, slot.host, slot.bytes),
        TrackedSlot::new(0, 0, slot.host.wrapping_add(8), slot.bytes),
        slot.with_flags(1 << 2),
    ];
    for slot in bad {
        let refused = PagemapScan::new(vec![slot]).unwrap_err();
        assert!(matches!(refused, TrackError::Slot { .. }), "{refused}");
    }
    // SAFETY: mapped longer than the tracker lives.
    let mut tracker = unsafe { Mprotect::new(vec![slot]) }.unwrap();
    tracker.start().unwrap();
    let wrong = tracker.collect(&mut []).unwrap_err();
    assert!(wrong.to_string().contains("0 page sets for 1 slots"), "{wrong}");
    // A set of another size would lose what is beyond its end.
    for pages in [1, 3] {
        let wrong = tracker.collect(&mut [PageSet::with_len(pages * page_size())]).unwrap_err();
        assert!(wrong.to_string().contains("pages for slot 0, but the slot has 2"), "{wrong}");
    }
    let again = tracker.start().unwrap_err();
    assert!(matches!(again, TrackError::Started), "{again}");
    tracker.stop().unwrap();
    tracker.start().unwrap();
}

/// A slot that the guest can't write to keeps its flags when its log is switched.
#[test]
fn a_slots_flags_are_kept() {
    const KVM_MEM_READONLY: u32 = 1 << 1;
    with_kvm(|| {
        let slot = SlotSpec::new(5 << 30, 64 * PAGE).flags(KVM_MEM_READONLY);
        let vm = Vm::builder().slot(slot).build().unwrap();
        // SAFETY: the VM outlives the tracker.
        let fd = unsafe { BorrowedFd::borrow_raw(vm.fd().as_raw_fd()) };
        let slots = vec![tracked(&vm.slots()[0]).with_flags(KVM_MEM_READONLY)];
        // SAFETY: the VM's own slot, which outlives the tracker.
        let mut log = unsafe { KvmLog::new(fd, KvmLogMode::Legacy, slots) }.unwrap();
        log.start().unwrap();
        assert_eq!(log.collect(&mut [PageSet::with_len(64 * page_size())]).unwrap(), 0);
        log.stop().unwrap();
    });
}

/// What is reported is reported again until it is protected, piece by piece.
fn apart(guest: &mut Guest, tracker: &mut dyn Tracker) {
    assert!(tracker.is_apart());
    tracker.start().unwrap();
    if tracker.starts_full() {
        collect(tracker);
    }
    let mut random = Random(0xfeed_f00d_dead_beef);
    let written = random.pages(300);
    let mut sets = PAGES.map(|pages| PageSet::with_len(pages as usize * page_size()));
    let mut report = |tracker: &mut dyn Tracker| {
        sets.iter_mut().for_each(PageSet::clear);
        let found = tracker.report(&mut sets).unwrap();
        assert_eq!(found, sets[0].count() + sets[1].count());
        sets.each_ref().map(|set| set.iter().collect::<BTreeSet<_>>())
    };
    assert!(guest.write(&written, |_| false));
    for _ in 0..2 {
        assert_eq!(report(tracker), written);
    }
    // The second slot from page 333 on; what is written again before stays one page.
    assert!(guest.write(&written, |_| false));
    let late = |pages: &BTreeSet<usize>| pages.range(333..).copied().collect::<BTreeSet<_>>();
    let left = [written[0].clone(), &written[1] - &late(&written[1])];
    let count = tracker.protect(1, 333..usize::MAX).unwrap();
    assert_eq!(count, late(&written[1]).len());
    assert_eq!(report(tracker), left);
    let again = random.pages(50);
    assert!(guest.write(&again, |_| false));
    let both = [&left[0] | &again[0], &left[1] | &again[1]];
    assert_eq!(report(tracker), both);
    for (slot, pages) in PAGES.iter().enumerate() {
        tracker.protect(slot, 0..*pages as usize).unwrap();
    }
    assert_eq!(report(tracker), Pages::default());
    tracker.stop().unwrap();
}

#[test]
fn report_and_protect_are_apart() {
    with_kvm(|| {
        for mode in [KvmLogMode::ManualProtect, KvmLogMode::InitiallySet] {
            let mut guest = Guest::new();
            if KvmLog::is_supported(guest.fd(), mode) {
                // SAFETY: the guest's own slots, which outlive the tracker.
                let log = unsafe { KvmLog::new(guest.fd(), mode, guest.slots()) };
                apart(&mut guest, &mut log.unwrap());
            } else {
                println!("skipped: this KVM has no {mode:?} dirty log");
            }
        }
        let mut guest = Guest::new();
        match PagemapScan::new(guest.slots()) {
            Ok(mut tracker) => apart(&mut guest, &mut tracker),
            Err(error) => println!("skipped: {error}"),
        }
        // SAFETY: the guest's own slots, which outlive the tracker.
        let log = unsafe { KvmLog::new(guest.fd(), KvmLogMode::Legacy, guest.slots()) };
        let refused = log.unwrap().protect(0, 0..1).unwrap_err();
        assert!(matches!(refused, TrackError::AtOnce { tracker: "kvm-legacy" }), "{refused}");
    });
}

/// PAGEMAP_SCAN needs no privilege, whatever vm.unprivileged_userfaultfd says: in a thread
/// that has given up its capabilities.
#[test]
fn pagemap_scan_needs_no_privilege() {
    if let Err(error) = PagemapScan::new(Vec::new()) {
        return println!("skipped: {error}");
    }
    let memory = Memory::new(16);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // _LINUX_CAPABILITY_VERSION_3, this thread; none of 64 capabilities.
            let (header, none) = ([0x2008_0522u32, 0], [0u32; 6]);
            // SAFETY: capset reads both, of the sizes that the version says.
            let set = unsafe { libc::syscall(libc::SYS_capset, &header, &none) };
            assert_eq!(set, 0);
            let mut tracker = PagemapScan::new(vec![memory.slot()]).unwrap();
            tracker.start().unwrap();
            memory.write(7);
            let mut set = [PageSet::with_len(16 * page_size())];
            tracker.collect(&mut set).unwrap();
            assert!(set[0].iter().eq([7]));
        });
    });
}
