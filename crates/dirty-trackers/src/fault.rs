// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The handler of SIGSEGV behind [`crate::Mprotect`]: what it may look at, and whom it passes
//! other faults to.
//!
//! Nothing here takes a lock or allocates once a handler can run. A thread may have faulted
//! on a page that tracking has made writable since, and run its handler when its slot is
//! gone: so the memory of slots that were tracked is remembered, and such a fault is tried
//! again rather than passed on, where it would end the process, or the handler.

use crate::TrackError;
use dirty_log::{host_page_size, PageSet, SummaryBitmap};
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

pub(crate) const WRITABLE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;
/// Slots that can be tracked at once in a process: a handler can't take a lock.
const MAX_SLOTS: usize = 64;
/// SEGV_ACCERR: the page is there, and does not allow it (include/uapi/asm-generic/siginfo.h).
const ACCESS: libc::c_int = 2;
/// Faults in memory that was tracked once which are tried again, each time tracking of it has
/// ended: far more than threads can be late, and few enough to let a fault that is not ours
/// through.
const MOST_LATE: usize = 10_000;

/// One slot under protection, as the handler needs it.
#[derive(Debug)]
pub(crate) struct Protected {
    pub(crate) memory: Range<usize>,
    log: SummaryBitmap,
    page_size: usize,
    /// Threads that have marked, or are about to, and have not made their page writable yet.
    resolving: AtomicUsize,
}

impl Protected {
    pub(crate) fn new(memory: Range<usize>) -> Self {
        let page_size = host_page_size();
        let log = SummaryBitmap::new(memory.len(), page_size);
        Self { memory, log, page_size: page_size.get(), resolving: AtomicUsize::new(0) }
    }

    /// Marks the page at an address of this slot and makes it writable; false if that can't
    /// be done.
    pub(crate) fn resolve(&self, address: usize) -> bool {
        let page = (address - self.memory.start) / self.page_size;
        self.resolving.fetch_add(1, Ordering::SeqCst);
        // ENOMEM, most likely: more mappings than vm.max_map_count. One for the whole slot
        // is always to be had, at the price of all its pages being dirty.
        let done = self.open(page..page + 1) || self.open(0..self.log.len());
        self.resolving.fetch_sub(1, Ordering::SeqCst);
        done
    }

    /// Marks pages first, so that none is writable and not marked.
    fn open(&self, pages: Range<usize>) -> bool {
        self.log.mark_pages(pages.clone());
        self.set_access(pages, WRITABLE)
    }

    fn set_access(&self, pages: Range<usize>, access: libc::c_int) -> bool {
        protect(
            self.memory.start + pages.start * self.page_size,
            pages.len() * self.page_size,
            access,
        )
    }

    /// An empty set for [`Self::collect`].
    pub(crate) fn new_set(&self) -> PageSet {
        PageSet::like(&self.log)
    }

    /// Takes the marks into `taken`, which is empty, and protects those pages. What can't be
    /// protected stays marked.
    pub(crate) fn collect(&self, taken: &mut PageSet) -> Result<(), TrackError> {
        taken.harvest(&self.log).expect("`taken` must be a set that `new_set` created");
        // A thread whose mark was taken may be about to make its page writable: to protect the page
        // before that would be undone. A page that is writable faults no more, and only this protects
        // pages, so the wait ends.
        while self.resolving.load(Ordering::SeqCst) != 0 {
            std::thread::yield_now();
        }
        let mut result = Ok(());
        taken.for_each_run(|run| {
            if !self.set_access(run.clone(), libc::PROT_READ) {
                result = Err(TrackError::last("mprotect of pages that were written"));
                self.log.mark_pages(run);
            }
        });
        result
    }
}

/// What the handler looks through.
static TABLE: [AtomicPtr<Protected>; MAX_SLOTS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; MAX_SLOTS];
/// Threads that may be looking through it.
static LOOKING: AtomicUsize = AtomicUsize::new(0);

/// Memory that is tracked no more.
struct Past {
    start: AtomicUsize,
    end: AtomicUsize,
    /// Late faults that may still be tried again.
    left: AtomicUsize,
}

/// The last ones, in turn.
static PAST: [Past; MAX_SLOTS] = [const {
    Past { start: AtomicUsize::new(0), end: AtomicUsize::new(0), left: AtomicUsize::new(0) }
}; MAX_SLOTS];

impl Past {
    /// A fault that began before the memory was writable again.
    fn takes(&self, address: usize) -> bool {
        let memory = self.start.load(Ordering::SeqCst)..self.end.load(Ordering::SeqCst);
        let less = |left: usize| left.checked_sub(1);
        memory.contains(&address)
            && self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
    }

    fn remember(memory: &Range<usize>) {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let past = &PAST[NEXT.fetch_add(1, Ordering::SeqCst) % MAX_SLOTS];
        past.end.store(0, Ordering::SeqCst);
        past.start.store(memory.start, Ordering::SeqCst);
        past.left.store(MOST_LATE, Ordering::SeqCst);
        past.end.store(memory.end, Ordering::SeqCst);
    }
}

pub(crate) fn protect(at: usize, bytes: usize, access: libc::c_int) -> bool {
    // SAFETY: changes the access to memory that `Mprotect::new` was promised; what this
    // process writes there meanwhile ends up in the handler.
    unsafe { libc::mprotect(ptr::with_exposed_provenance_mut(at), bytes, access) == 0 }
}

/// Makes a slot known to the handler. None if there are too many.
pub(crate) fn publish(new: Box<Protected>) -> Option<&'static AtomicPtr<Protected>> {
    let new = Box::into_raw(new);
    let free = |entry: &&AtomicPtr<Protected>| {
        let (null, set) = (ptr::null_mut(), Ordering::SeqCst);
        entry.compare_exchange(null, new, set, Ordering::Relaxed).is_ok()
    };
    let found = TABLE.iter().find(free);
    if found.is_none() {
        // SAFETY: from the Box above, and published nowhere.
        drop(unsafe { Box::from_raw(new) });
    }
    found
}

/// Undoes [`publish`], for a slot whose memory is writable again.
pub(crate) fn withdraw(entry: &AtomicPtr<Protected>) {
    // SAFETY: published, and freed below only.
    if let Some(slot) = unsafe { entry.load(Ordering::SeqCst).as_ref() } {
        // Before it is out of the table: a handler finds it in one of the two.
        Past::remember(&slot.memory);
    }
    let old = entry.swap(ptr::null_mut(), Ordering::SeqCst);
    // Handlers take no lock; each that has seen it is counted.
    while LOOKING.load(Ordering::SeqCst) != 0 {
        std::thread::yield_now();
    }
    if !old.is_null() {
        // SAFETY: published by `publish` from a Box, and no handler can get at it.
        drop(unsafe { Box::from_raw(old) });
    }
}

/// Whom other faults are passed to: a `sa_sigaction`.
static PREVIOUS: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);

/// Is a fault one of a slot's, now or a moment ago? Then it is resolved.
fn is_ours(code: libc::c_int, address: usize) -> bool {
    if code != ACCESS {
        return false;
    }
    LOOKING.fetch_add(1, Ordering::SeqCst);
    let found = TABLE.iter().find_map(|entry| {
        // SAFETY: null, or published, and not freed while a thread is looking.
        let slot = unsafe { entry.load(Ordering::SeqCst).as_ref() }?;
        slot.memory.contains(&address).then(|| slot.resolve(address))
    });
    LOOKING.fetch_sub(1, Ordering::SeqCst);
    found.unwrap_or_else(|| PAST.iter().any(|past| past.takes(address)))
}

extern "C" fn on_fault(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: this thread's errno; what a handler interrupts may be about to read it.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel passes a valid siginfo_t to an SA_SIGINFO handler.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    let ours = is_ours(code, address);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    if ours {
        return;
    }
    match PREVIOUS.load(Ordering::SeqCst) {
        // The instruction faults again, and then takes the process down as it would have.
        // SAFETY: plain data, for which zeroes are valid: the default action.
        libc::SIG_DFL | libc::SIG_IGN => unsafe {
            let default: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, &default, ptr::null_mut());
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

/// Sees to it that the handler is there. One that was installed over it since, and is not the
/// one that was there before, is taken to pass on what it does not know.
pub(crate) fn install() -> Result<(), TrackError> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    let own = on_fault as *const () as usize;
    // SAFETY: sigaction is plain data, for which zeroes are valid.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a valid pointer to what is to be fetched.
    if unsafe { libc::sigaction(libc::SIGSEGV, ptr::null(), &mut now) } != 0 {
        return Err(TrackError::last("sigaction(SIGSEGV)"));
    }
    let found = now.sa_sigaction;
    let passes_on = *installed
        && found != libc::SIG_DFL
        && found != libc::SIG_IGN
        && found != PREVIOUS.load(Ordering::SeqCst);
    if found == own || passes_on {
        return Ok(());
    }
    PREVIOUS.store(found, Ordering::SeqCst);
    // SAFETY: as above.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = own;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: a valid pointer to what is to be installed.
    if unsafe { libc::sigaction(libc::SIGSEGV, &action, ptr::null_mut()) } != 0 {
        return Err(TrackError::last("sigaction(SIGSEGV)"));
    }
    *installed = true;
    Ok(())
}
