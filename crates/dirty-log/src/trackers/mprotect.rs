//! Page protection: works wherever there is mprotect(2) and SIGSEGV, at a signal for each
//! first write.
//!
//! Sees what this process's threads write with their own instructions. A system call or
//! KVM that writes on their behalf gets EFAULT instead of a signal: KVM_RUN then returns
//! EFAULT, with the address in the exit (KVM_EXIT_MEMORY_FAULT) where KVM tells it; the
//! VMM passes that to [`Mprotect::resolve`] and runs the vCPU again.
//!
//! A page is writable only while it is marked, or while a collection that has its mark is
//! about to protect it: the handler marks first, and unprotects while it still has hold of
//! the bitmap that it marked, for which a harvest waits.

use super::{check_sets, TrackError, TrackedSlot, Tracker, PAGE_SIZE};
use crate::page_set::PageSet;
use crate::strategy::{DirtyBitmap, SwitchOpt};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::Once;

const WRITABLE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;
/// Slots that can be tracked at once in a process: a handler can't take a lock.
const MAX_SLOTS: usize = 64;

/// One slot under protection, as the handler needs it.
#[derive(Debug)]
struct Protected {
    memory: Range<usize>,
    log: DirtyBitmap<SwitchOpt>,
}

/// What the handler looks through.
static TABLE: [AtomicPtr<Protected>; MAX_SLOTS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; MAX_SLOTS];
/// Threads that may be looking through it.
static LOOKING: AtomicUsize = AtomicUsize::new(0);

impl Protected {
    /// Marks the page at an address of this slot and makes it writable.
    fn resolve(&self, address: usize) {
        let page = (address - self.memory.start) / PAGE_SIZE;
        let at = self.memory.start + page * PAGE_SIZE;
        let pages = page..page + 1;
        if self.log.mark_pages_then(pages, || protect(at, PAGE_SIZE, WRITABLE)) {
            return;
        }
        // ENOMEM, most likely: more mappings than vm.max_map_count. One for the whole slot
        // is always to be had, at the price of all its pages being dirty.
        let all = || protect(self.memory.start, self.memory.len(), WRITABLE);
        self.log.mark_pages_then(0..self.log.pages(), all);
    }
}

fn protect(at: usize, bytes: usize, access: libc::c_int) -> bool {
    // SAFETY: changes the access to memory that `Mprotect::new` was promised; what this
    // process writes there meanwhile ends up in the handler.
    unsafe { libc::mprotect(ptr::with_exposed_provenance_mut(at), bytes, access) == 0 }
}

/// What was installed before.
struct Previous(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: written once, by `install`, before the handler that reads it is there.
unsafe impl Sync for Previous {}

static PREVIOUS: Previous = Previous(UnsafeCell::new(MaybeUninit::uninit()));

extern "C" fn on_fault(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a valid siginfo_t to an SA_SIGINFO handler.
    let address = unsafe { (*info).si_addr() }.addr();
    LOOKING.fetch_add(1, Ordering::SeqCst);
    let found = TABLE.iter().find_map(|entry| {
        // SAFETY: null, or published, and not freed while a thread is looking.
        let slot = unsafe { entry.load(Ordering::SeqCst).as_ref() }?;
        slot.memory.contains(&address).then(|| slot.resolve(address))
    });
    LOOKING.fetch_sub(1, Ordering::SeqCst);
    if found.is_some() {
        return;
    }
    // SAFETY: initialised before this handler was installed.
    let previous = unsafe { (*PREVIOUS.0.get()).assume_init_ref() };
    match previous.sa_sigaction {
        // The instruction faults again, and then takes the process down as it would have.
        // SAFETY: restores what was there.
        libc::SIG_DFL | libc::SIG_IGN => unsafe {
            libc::sigaction(signal, previous, ptr::null_mut());
        },
        handler => {
            type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: a handler that someone installed; one without SA_SIGINFO ignores the
            // arguments that it does not know.
            let handler: Handler = unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
    }
}

fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: sigaction is plain data, for which zeroes are valid.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        let previous = PREVIOUS.0.get().cast();
        // SAFETY: valid pointers; the first call fetches what the second replaces.
        unsafe {
            libc::sigaction(libc::SIGSEGV, ptr::null(), previous);
            libc::sigaction(libc::SIGSEGV, &action, ptr::null_mut());
        }
    });
}

/// Which pages were written, by their protection.
#[derive(Debug)]
pub struct Mprotect {
    slots: Vec<TrackedSlot>,
    /// Entries of TABLE, in the slots' order; empty while not tracking.
    entries: Vec<&'static AtomicPtr<Protected>>,
}

impl Mprotect {
    /// For mappings of this process. While tracking, it handles SIGSEGV for them, and
    /// passes what is not theirs to the handler that was there before.
    ///
    /// # Errors
    /// A slot is not made of whole pages.
    ///
    /// # Safety
    /// The slots are mapped, readable and writable, as long as this lives, and nobody else
    /// changes that.
    pub unsafe fn new(slots: Vec<TrackedSlot>) -> Result<Self, TrackError> {
        slots.iter().try_for_each(TrackedSlot::check)?;
        Ok(Self { slots, entries: Vec::new() })
    }

    /// Makes the page at a guest-physical address writable and counts it as written: what
    /// to do on KVM's memory faults. False if no slot has it.
    pub fn resolve(&self, gpa: u64) -> bool {
        for (slot, entry) in self.slots.iter().zip(&self.entries) {
            let Some(offset) = gpa.checked_sub(slot.gpa) else { continue };
            // SAFETY: published by `start`, and freed by `stop`, which has `&mut self`.
            let protected = unsafe { entry.load(Ordering::Acquire).as_ref() };
            if let (true, Some(protected)) = (offset < slot.bytes as u64, protected) {
                protected.resolve(protected.memory.start + offset as usize);
                return true;
            }
        }
        false
    }

    fn publish(&mut self, slot: &TrackedSlot) -> Result<(), TrackError> {
        let unknown = |_| TrackError::Slot { slot: slot.id, what: "no page size" };
        let start = slot.host.expose_provenance();
        let log = DirtyBitmap::new(slot.bytes, PAGE_SIZE).map_err(unknown)?;
        let new = Box::new(Protected { memory: start..start + slot.bytes, log });
        let new = Box::into_raw(new);
        let free = |entry: &&AtomicPtr<Protected>| {
            let (null, set) = (ptr::null_mut(), Ordering::AcqRel);
            entry.compare_exchange(null, new, set, Ordering::Relaxed).is_ok()
        };
        let Some(entry) = TABLE.iter().find(free) else {
            // SAFETY: from the Box above, and published nowhere.
            drop(unsafe { Box::from_raw(new) });
            return Err(TrackError::Slot { slot: slot.id, what: "64 slots are tracked already" });
        };
        self.entries.push(entry);
        Ok(())
    }
}

impl Tracker for Mprotect {
    fn name(&self) -> &'static str {
        "mprotect"
    }

    fn sees_host_writes(&self) -> bool {
        true
    }

    fn start(&mut self) -> Result<(), TrackError> {
        install();
        for slot in self.slots.clone() {
            self.publish(&slot)?;
            if !protect(slot.host.addr(), slot.bytes, libc::PROT_READ) {
                return Err(TrackError::last("mprotect of a slot"));
            }
        }
        Ok(())
    }

    fn collect(&mut self, sets: &mut [PageSet]) -> Result<usize, TrackError> {
        check_sets(&self.slots, sets)?;
        let mut found = 0;
        for (entry, set) in self.entries.iter().zip(sets) {
            // SAFETY: as in `resolve`.
            let Some(slot) = (unsafe { entry.load(Ordering::Acquire).as_ref() }) else { continue };
            let dirty = slot.log.harvest();
            let mut protected = true;
            dirty.for_each_run(|run| {
                let at = slot.memory.start + run.start * PAGE_SIZE;
                protected &= protect(at, run.len() * PAGE_SIZE, libc::PROT_READ);
                found += run.len();
            });
            set.merge(&dirty);
            if !protected {
                return Err(TrackError::last("mprotect of pages that were written"));
            }
        }
        Ok(found)
    }

    fn stop(&mut self) -> Result<(), TrackError> {
        let mut writable = true;
        for slot in &self.slots[..self.entries.len()] {
            writable &= protect(slot.host.addr(), slot.bytes, WRITABLE);
        }
        if !writable {
            return Err(TrackError::last("mprotect of a slot"));
        }
        for entry in self.entries.drain(..) {
            let old = entry.swap(ptr::null_mut(), Ordering::SeqCst);
            // Handlers take no lock; each that has seen it is counted.
            while LOOKING.load(Ordering::SeqCst) != 0 {
                std::thread::yield_now();
            }
            // SAFETY: published by `publish` from a Box, and no handler can get at it.
            drop(unsafe { Box::from_raw(old) });
        }
        Ok(())
    }
}

impl Drop for Mprotect {
    fn drop(&mut self) {
        // Nothing is to be done if the memory can't be made writable: it stays tracked.
        let _ = self.stop();
    }
}
