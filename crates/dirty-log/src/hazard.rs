//! Replacing what writers have hold of, and waiting for exactly those that still do.
//!
//! Writer, with a cell of its own (a hazard pointer, Michael 2004):
//!
//! 1. load the current pointer, store it in the cell;
//! 2. light fence;
//! 3. load the current pointer again; if it is another one, start over;
//! 4. use what it points to;
//! 5. store in the cell that it is free.
//!
//! Harvest, one at a time:
//!
//! 1. replace the current pointer;
//! 2. heavy fence;
//! 3. wait until no cell holds the old pointer: from here on the old one is owned.
//!
//! By the fences either the writer's step 3 sees the replacement, and it starts over, or
//! the harvest's step 3 sees the cell, and it waits. A writer that comes later takes the
//! new pointer, so a stream of marks never holds a harvest up, and writers to other slots
//! are not waited for. A writer never waits: it starts over only if a harvest came in
//! between. An old pointer that becomes current again between a writer's steps 1 and 3
//! does no harm: it is current then.
//!
//! Why cells and not counters: entering and leaving a counter are two locked
//! instructions, which is twice the cost of the mark itself. Why pointers and not epochs:
//! an epoch tells that a writer is somewhere inside, not in which slot.
//!
//! The heavy fence interrupts every CPU that runs a thread of this process, so a harvest
//! does without where it can: a thread that marks in a switch for the first time says so
//! beside its cell, with a full fence of its own. Where nobody but the harvesting thread
//! has said so, steps 1 and 3 of each writer to come are after that fence, and it sees the
//! replacement. A thread that says so for another switch in the same place does it after
//! its last hold of this one, and a harvest that reads that sees what the hold was for.
//!
//! A thread may take back what it said, between two marks: to whoever sees that, its holds
//! are visible as well. A vCPU's thread does so before it enters the guest, where to
//! interrupt it is dearest.
//!
//! Threads without a cell (a signal handler that interrupted a mark; a thread whose
//! thread-local storage is gone) are counted in the switch instead. That is slower, and
//! a harvest waits for all of them.

use crate::fence::{self, WritersFence};
use crate::sync::{own, spin_loop, yield_now, AtomicBool, AtomicPtr, AtomicUsize, Ordering, KNOWN};
use std::ptr::{self, NonNull};

/// What one writer has hold of: an even number is its address. An odd one is a [`Free`].
#[derive(Debug)]
pub(crate) struct HazardCell {
    held: AtomicUsize,
    /// Switches (by address) whose harvests use the heavy fence for this cell's sake.
    known: [AtomicUsize; KNOWN],
}

impl Default for HazardCell {
    fn default() -> Self {
        let known = std::array::from_fn(|_| AtomicUsize::new(0));
        Self { held: AtomicUsize::new(Free::NOT_KNOWN.0), known }
    }
}

/// What is in a free cell: the switch that it was last used for, if that knows it, and a
/// number of its owner's, in one word: a mark can afford to write to two.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Free(usize);

impl Default for Free {
    fn default() -> Self {
        Self::NOT_KNOWN
    }
}

impl Free {
    /// So far apart are switches, which leaves room beside their addresses.
    const APART: usize = align_of::<Switch<()>>();
    const NOT_KNOWN: Self = Self(1);
    /// The largest number.
    pub(crate) const MOST: usize = Self::APART / 2 - 1;

    /// The number alone.
    fn number(self) -> Self {
        Self(self.0 % Self::APART)
    }

    /// What is left in the cell is this switch's.
    #[inline]
    fn is_of(self, switch: usize) -> bool {
        // One comparison tells that the cell is free, too.
        self.0.wrapping_sub(switch | 1) < Self::APART
    }

    /// The number is 0. It is found again when the cell is next used, for whatever switch:
    /// a hint.
    #[inline]
    pub(crate) fn is_zero(self) -> bool {
        self.0 & (Self::APART - 2) == 0
    }

    /// Makes a number that was 0 as large as it can be.
    #[inline]
    pub(crate) fn fill(&mut self) {
        self.0 |= Self::MOST << 1;
    }

    /// Takes one from a number that is not 0.
    #[inline]
    pub(crate) fn count_down(&mut self) {
        self.0 -= 2;
    }
}

impl HazardCell {
    /// Where a switch is noted.
    fn known(&self, switch: usize) -> &AtomicUsize {
        &self.known[switch / Free::APART % KNOWN]
    }
}

/// A thread's cells. Two, as the table of slots is held while a slot in it is marked.
/// Alone on its cache lines: written with each mark.
#[repr(align(128))]
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) cells: [HazardCell; 2],
    taken: AtomicBool,
    next: AtomicPtr<Record>,
}

impl Record {
    /// No harvest needs the heavy fence for this thread's sake until it next marks
    /// something. To be called by the thread itself; does nothing to what it holds.
    pub(crate) fn rest(&self) {
        for cell in self.cells.iter().filter(|cell| own(&cell.held) & 1 == 1) {
            let number = Free(own(&cell.held)).number();
            // Release, as in `approach`.
            let known = cell.known.iter().filter(|known| own(known) != 0);
            known.for_each(|known| known.store(0, Ordering::Release));
            cell.held.store(number.0, Ordering::Release);
        }
    }

    /// Gives it back for another thread.
    pub(crate) fn release(&self) {
        self.rest();
        self.taken.store(false, Ordering::Release);
    }
}

/// Whose sake the heavy fence is for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Whom<'a> {
    /// Whoever there may be: the fence is used every time.
    Anybody,
    /// Those known to the switch, other than the calling thread, whose record this is; it
    /// holds nothing of the switch.
    Known(Option<&'a Record>),
}

/// All records: a list that only grows, as long as the most threads there ever were.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    pub(crate) head: AtomicPtr<Record>,
}

impl Registry {
    /// A record for one thread.
    pub(crate) fn acquire(&self) -> &Record {
        let free = |record: &&Record| {
            let taken = &record.taken;
            taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        if let Some(record) = self.records().find(free) {
            return record;
        }
        let record = Box::new(Record::default());
        record.taken.store(true, Ordering::Relaxed);
        let new = Box::into_raw(record);
        // SAFETY: `new` comes from the Box above; records are freed when the registry is
        // dropped, and then nobody borrows it.
        let record = unsafe { &*new };
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            record.next.store(head, Ordering::Relaxed);
            let push = self.head.compare_exchange(head, new, Ordering::AcqRel, Ordering::Acquire);
            match push {
                Ok(_) => return record,
                Err(now) => head = now,
            }
        }
    }

    fn records(&self) -> impl Iterator<Item = &Record> {
        let mut next = self.head.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            // SAFETY: null, or a record of this list, which lives as long as the registry.
            let record = unsafe { next.as_ref() }?;
            next = record.next.load(Ordering::Relaxed);
            Some(record)
        })
    }

    fn cells(&self) -> impl Iterator<Item = &HazardCell> {
        self.records().flat_map(|record| &record.cells)
    }

    /// Did a thread other than the owner of `own` take hold of this switch without a
    /// fence of its own, or may it yet?
    fn knows(&self, switch: usize, own: Option<&Record>) -> bool {
        let others = self.records().filter(|&record| !own.is_some_and(|own| ptr::eq(own, record)));
        let mut cells = others.flat_map(|record| &record.cells);
        cells.any(|cell| cell.known(switch).load(Ordering::Acquire) == switch)
    }

    fn wait_until_none_holds(&self, old: usize) {
        for cell in self.cells() {
            wait_while(|| cell.held.load(Ordering::Acquire) == old);
        }
    }

    /// The wait of a harvest: for those that have hold of what [`Switch::exchange`] gave
    /// back, of as many switches as there are, with one fence for all.
    pub(crate) fn wait<'a, T: 'a>(
        &self,
        retired: impl Iterator<Item = (&'a Switch<T>, NonNull<T>)> + Clone,
        whom: Whom<'_>,
    ) {
        // The exchange is before the look at who is known.
        fence::full();
        let needed = match whom {
            Whom::Anybody => true,
            Whom::Known(own) => retired.clone().any(|(switch, _)| self.knows(switch.id(), own)),
        };
        if needed {
            fence::heavy();
        }
        for (switch, old) in retired {
            self.wait_until_none_holds(old.as_ptr() as usize);
            wait_while(|| switch.counted.load(Ordering::Acquire) != 0);
        }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let mut next = self.head.load(Ordering::Acquire);
        while !next.is_null() {
            // SAFETY: each record was leaked by `acquire` once, and with `&mut self` nobody
            // borrows one.
            let record = unsafe { Box::from_raw(next) };
            next = record.next.load(Ordering::Relaxed);
        }
    }
}

/// A mark takes nanoseconds, unless its thread was preempted: then give it the CPU.
fn wait_while(mut held: impl FnMut() -> bool) {
    const SPINS: u32 = 200;
    let mut spins = 0;
    while held() {
        if spins < SPINS {
            spins += 1;
            spin_loop();
        } else {
            yield_now();
        }
    }
}

/// A pointer to what writers use at present, and its replacement. It owns nothing:
/// whoever has the switch frees what is current in the end.
#[repr(align(128))]
#[derive(Debug)]
pub(crate) struct Switch<T> {
    current: AtomicPtr<T>,
    /// Writers inside without a cell.
    counted: AtomicUsize,
    writers_fence: WritersFence,
}

impl<T> Switch<T> {
    /// To be called after `fence::init`.
    pub(crate) fn new(first: NonNull<T>) -> Self {
        Self {
            current: AtomicPtr::new(first.as_ptr()),
            counted: AtomicUsize::new(0),
            writers_fence: fence::writers_fence(),
        }
    }

    /// Gets hold of what is current: until the hold is dropped, [`Self::replace`] does not
    /// return it. None if the cell is in use.
    ///
    /// # Safety
    /// The cell belongs to the calling thread and is in the registry that [`Self::replace`]
    /// is called with.
    #[inline]
    pub(crate) unsafe fn hold<'a>(&'a self, cell: &'a HazardCell) -> Option<Hold<'a, T>> {
        let mut free = Free(own(&cell.held));
        let mut fenced = false;
        if !free.is_of(self.id()) {
            (free, fenced) = self.approach(cell, free)?;
        }
        let mut current = self.current.load(Ordering::Acquire);
        loop {
            // Release, so that a harvest that sees this store sees what this thread did
            // before: a later store is no part of an earlier one's release sequence.
            cell.held.store(current as usize, Ordering::Release);
            fence::light(fenced);
            let now = self.current.load(Ordering::Acquire);
            if now == current {
                break;
            }
            current = now;
        }
        Some(Hold { target: current, cell, free })
    }

    /// Its name among those that cells know.
    #[inline]
    fn id(&self) -> usize {
        ptr::from_ref(self) as usize
    }

    /// For a cell that was last used for another switch: what to leave in it, and whether
    /// each hold needs a full fence of its own. None if it is in use.
    #[inline(never)]
    fn approach(&self, cell: &HazardCell, free: Free) -> Option<(Free, WritersFence)> {
        if free.0 & 1 == 0 {
            return None;
        }
        let number = free.number();
        if self.writers_fence {
            return Some((number, true));
        }
        let known = cell.known(self.id());
        if own(known) != self.id() {
            // Release: who finds another switch's note gone sees what was held before.
            known.store(self.id(), Ordering::Release);
            fence::full();
        }
        Some((Free(self.id() | number.0), false))
    }

    /// What is current, without hold of it: it may be retired at any moment.
    #[inline]
    pub(crate) fn peek(&self) -> NonNull<T> {
        non_null(self.current.load(Ordering::Acquire))
    }

    /// Gets hold of what is current without a cell.
    pub(crate) fn hold_counted(&self) -> HoldCounted<'_, T> {
        self.counted.fetch_add(1, Ordering::AcqRel);
        fence::full();
        HoldCounted { target: self.current.load(Ordering::Acquire), counted: &self.counted }
    }

    /// Makes `next` current and returns what was: still in use, until [`Registry::wait`]
    /// has returned. One call at a time.
    pub(crate) fn exchange(&self, next: NonNull<T>) -> NonNull<T> {
        non_null(self.current.swap(next.as_ptr(), Ordering::AcqRel))
    }

    /// [`Self::exchange`] and [`Registry::wait`].
    pub(crate) fn replace(
        &self,
        next: NonNull<T>,
        registry: &Registry,
        whom: Whom<'_>,
    ) -> NonNull<T> {
        let old = self.exchange(next);
        registry.wait(std::iter::once((self, old)), whom);
        old
    }

    /// What is current, of a switch that nobody else has.
    pub(crate) fn last(&mut self) -> NonNull<T> {
        non_null(self.current.load(Ordering::Acquire))
    }
}

#[inline]
fn non_null<T>(pointer: *mut T) -> NonNull<T> {
    // SAFETY: a switch is made from, and replaced by, pointers that are not null.
    unsafe { NonNull::new_unchecked(pointer) }
}

/// What was current when it was taken.
#[derive(Debug)]
pub(crate) struct Hold<'a, T> {
    target: *mut T,
    cell: &'a HazardCell,
    free: Free,
}

impl<T> Hold<'_, T> {
    /// What the cell will have when this is dropped.
    #[inline]
    pub(crate) fn free(&mut self) -> &mut Free {
        &mut self.free
    }

    #[inline]
    pub(crate) fn target(&self) -> NonNull<T> {
        non_null(self.target)
    }
}

impl<T> Drop for Hold<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.cell.held.store(self.free.0, Ordering::Release);
    }
}

/// As [`Hold`], counted.
#[derive(Debug)]
pub(crate) struct HoldCounted<'a, T> {
    target: *mut T,
    counted: &'a AtomicUsize,
}

impl<T> HoldCounted<'_, T> {
    pub(crate) fn target(&self) -> NonNull<T> {
        non_null(self.target)
    }
}

impl<T> Drop for HoldCounted<'_, T> {
    fn drop(&mut self) {
        self.counted.fetch_sub(1, Ordering::AcqRel);
    }
}
