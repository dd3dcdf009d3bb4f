// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A dirty ring that is reset by a thread which signals interrupt, while vCPUs write: since
//! Linux 6.16 KVM_RESET_DIRTY_RINGS stops short when a signal is pending, and counts entries
//! that it has not protected. Every page that was
//! reported is copied then; at the end the copy is the guest's memory, or a write was lost.
//!
//! `DIRTY_LOG_RING_WRITES` sets how many writes the guest makes for each rate of signals
//! (default 20,000, and 200,000 with `VMETER_LONG=1`), `DIRTY_LOG_RING_HERTZ` the only rate (default 1000, then 10,000).

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use dirty_log::PageSet;
use dirty_trackers::{page_size, KvmRing, TrackedSlot, Tracker, VcpuRing};
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use vmeter_kvm_probe::kvm_bindings::{kvm_regs, KVM_CAP_DIRTY_LOG_RING};
use vmeter_kvm_probe::{code, probe, GuestSlot, Ring, SlotSpec, Vcpu, VcpuExit, Vm};

const DONE: u8 = 0xf4;
const PAGE: usize = 4096;
const VCPUS: usize = 4;
/// Pages that each vCPU writes to.
const PAGES: usize = 4096;
const RING: usize = 65_536;
/// A hang ends here: with 10^8 writes in the background of a busy host, a vCPU waits for minutes.
const PATIENCE: Duration = Duration::from_secs(1800);

static SIGNALS: AtomicUsize = AtomicUsize::new(0);
/// Times that the timer expired while its signal was pending still.
static OVERRUNS: AtomicUsize = AtomicUsize::new(0);
static TIMER: AtomicPtr<libc::c_void> = AtomicPtr::new(std::ptr::null_mut());

extern "C" fn count(_: libc::c_int) {
    // SAFETY: the timer whose signal this is.
    let overruns = unsafe { libc::timer_getoverrun(TIMER.load(Ordering::Relaxed)) };
    OVERRUNS.fetch_add(usize::try_from(overruns).unwrap_or(0), Ordering::Relaxed);
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// A timer that signals the calling thread until it is dropped.
struct Timer(libc::timer_t);

impl Timer {
    fn start(hertz: i64) -> Self {
        // SAFETY: plain structures, for which zeroes are valid, and valid pointers to them;
        // the handler only counts.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = count as *const () as usize;
            libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut());
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = libc::SIGUSR2;
            event.sigev_notify_thread_id = libc::gettid();
            let mut timer = std::ptr::null_mut();
            assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer), 0);
            TIMER.store(timer, Ordering::Relaxed);
            let each = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000_000 / hertz };
            let spec = libc::itimerspec { it_interval: each, it_value: each };
            assert_eq!(libc::timer_settime(timer, 0, &spec, std::ptr::null_mut()), 0);
            Self(timer)
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: made by `start`.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// One vCPU writes ever other values to pages of its own, in runs, until it has written so
/// much.
fn write(vcpu: &mut Vcpu, gpa: u64, mut left: usize, seed: u64) {
    let mut random = seed;
    while left > 0 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let first = random as usize % PAGES;
        let count = (random >> 20) as usize % (PAGES - first) + 1;
        let regs = kvm_regs {
            rdi: gpa + (first * PAGE) as u64,
            rsi: PAGE as u64,
            rcx: count as u64,
            ..Default::default()
        };
        vcpu.enter(Ring::Three, regs).unwrap();
        let soon = Some(Instant::now() + PATIENCE);
        let done = vcpu.run(soon, |exit| match exit {
            VcpuExit::IoOut(port, _) if port == u16::from(DONE) => ControlFlow::Break(()),
            // The ring is full.
            VcpuExit::Unsupported(_) => {
                std::thread::yield_now();
                ControlFlow::Continue(())
            }
            other => panic!("{other:?}"),
        });
        assert!(matches!(done, Ok(vmeter_kvm_probe::Stop::Done(()))), "{done:?}");
        left = left.saturating_sub(count);
    }
}

fn word(slot: &GuestSlot, page: usize) -> u64 {
    // SAFETY: inside the slot, which is mapped; the guest may write to it meanwhile.
    unsafe { slot.host().add(page * PAGE).cast::<u64>().read_volatile() }
}

/// Copies what is reported.
fn collect(ring: &mut KvmRing<'_>, set: &mut PageSet, slot: &GuestSlot, copy: &mut [u64]) -> usize {
    set.clear();
    ring.collect(std::slice::from_mut(set)).unwrap();
    set.iter().for_each(|page| copy[page] = word(slot, page));
    set.count()
}

fn nothing_is_lost(hertz: i64, writes: usize) {
    let slot = SlotSpec::new(5 << 30, (VCPUS * PAGES * PAGE) as u64);
    let cap = (KVM_CAP_DIRTY_LOG_RING, [(RING * 16) as u64, 0, 0, 0]);
    let builder = Vm::builder().code(code::touch_strided(DONE)).slot(slot);
    let vm = builder.enable_cap(cap.0, cap.1).build().unwrap();
    // SAFETY: the VM outlives the tracker.
    let fd = unsafe { BorrowedFd::borrow_raw(vm.fd().as_raw_fd()) };
    let mut vcpus: Vec<Vcpu> = (0..VCPUS as u64).map(|id| vm.vcpu(id).unwrap()).collect();
    // SAFETY: vCPUs of a VM with rings of this size.
    let map = |v: &Vcpu| unsafe { VcpuRing::map(BorrowedFd::borrow_raw(v.as_raw_fd()), RING) };
    let rings = vcpus.iter().map(|vcpu| map(vcpu).unwrap()).collect();
    let slot = &vm.slots()[0];
    let tracked = TrackedSlot::new(slot.id(), slot.gpa(), slot.host(), slot.bytes() as usize);
    // SAFETY: the VM's own slot, which outlives the tracker.
    let mut ring = unsafe { KvmRing::new(fd, vec![tracked], rings) }.unwrap();
    ring.start().unwrap();
    let (mut copy, mut set) =
        (vec![0; VCPUS * PAGES], PageSet::with_len(VCPUS * PAGES * page_size()));
    let (mut collects, mut pages) = (0, 0);
    SIGNALS.store(0, Ordering::Relaxed);
    OVERRUNS.store(0, Ordering::Relaxed);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let running: Vec<_> = vcpus
            .iter_mut()
            .enumerate()
            .map(|(n, vcpu)| {
                let gpa = slot.gpa() + (n * PAGES * PAGE) as u64;
                scope.spawn(move || write(vcpu, gpa, writes / VCPUS, 0x9e37_79b9 + n as u64))
            })
            .collect();
        let timer = Timer::start(hertz);
        while !running.iter().all(|vcpu| vcpu.is_finished()) {
            pages += collect(&mut ring, &mut set, slot, &mut copy);
            collects += 1;
        }
        drop(timer);
    });
    while collect(&mut ring, &mut set, slot, &mut copy) > 0 {}
    let lost = (0..VCPUS * PAGES).filter(|&page| word(slot, page) != copy[page]).count();
    let signals = SIGNALS.load(Ordering::Relaxed);
    println!(
        "{hertz} Hz, {writes} writes: {collects} collects of {pages} pages in {:.0?}, {signals} signals \
         and {} while one was pending, {lost} lost",
        began.elapsed(),
        OVERRUNS.load(Ordering::Relaxed)
    );
    assert_eq!(lost, 0, "pages whose last write was not reported");
    ring.stop().unwrap();
}

#[test]
fn signals_on_the_collecting_thread_lose_no_page() {
    match probe(Duration::from_secs(2)) {
        Ok(found) if found.ring3.is_native() => {}
        Ok(found) => return println!("skipped: ring 3 is {}", found.ring3),
        Err(error) => return println!("skipped: {error}"),
    }
    let vm = Vm::builder().build().unwrap();
    // SAFETY: the VM lives meanwhile.
    let fd = unsafe { BorrowedFd::borrow_raw(vm.fd().as_raw_fd()) };
    if KvmRing::max_entries(fd) < RING {
        return println!("skipped: this KVM has no dirty rings of {RING} entries");
    }
    let writes = std::env::var("DIRTY_LOG_RING_WRITES");
    let is_long = std::env::var_os("VMETER_LONG").is_some_and(|value| value == "1");
    let few = if is_long { 200_000 } else { 20_000 };
    let writes = writes.map_or(few, |n| n.parse().unwrap());
    let only = std::env::var("DIRTY_LOG_RING_HERTZ").map(|hertz| vec![hertz.parse().unwrap()]);
    for hertz in only.unwrap_or(vec![1_000, 10_000]) {
        nothing_is_lost(hertz, writes);
    }
}
