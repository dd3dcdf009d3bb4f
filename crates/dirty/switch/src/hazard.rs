// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Replacing what writers use, and waiting for exactly those that still do.
//!
//! Writer, with a cell of its own:
//!
//! 1. store in the cell which switch it is inside;
//! 2. light fence;
//! 3. load the switch's current pointer, and use what it points to;
//! 4. store in the cell that one more turn is done, and then that it is inside nothing.
//!
//! Harvest, one at a time:
//!
//! 1. replace the current pointer;
//! 2. heavy fence;
//! 3. for each cell: load its turn, and then wait until it is not inside this switch, or
//!    the turn is another one. From here on the old pointer is owned.
//!
//! By the fences either the writer's step 3 sees the replacement, or the harvest's step 3
//! sees the writer inside; and then it sees the turn before, too, so another one means
//! that the writer is done with what it had. Writers that enter after the switch
//! have the new pointer: a stream of marks never holds a harvest up, and writers to other slots are
//! not waited for. A writer never waits and never starts over.
//!
//! Why not counters of those inside: entering and leaving one are two locked instructions,
//! which is twice the cost of the mark itself. Why the switch and not the pointer, as
//! hazard pointers (Michael 2004) have it: the mark's own locked instruction waits for the
//! stores before it, and a pointer must have been loaded before it can be stored. For the
//! same reason cells are in thread-local storage itself and not behind a pointer there.
//!
//! The heavy fence interrupts every CPU that runs a thread of this process, so a harvest
//! does without where it can: a thread that marks in a switch for the first time says so
//! beside its cell, with a full fence of its own. Where nobody but the harvesting thread
//! has said so, the steps 1 to 3 of each writer to come are after that fence, and it sees
//! the replacement. A thread that says so for another switch in the same place does it
//! after it was last inside this one, and a harvest that reads that sees what it did.
//!
//! A thread may take back what it said, between two marks: to whoever sees that, what it
//! did is visible as well. A vCPU's thread does so before it enters the guest, where to
//! interrupt it is dearest.
//!
//! Threads without a cell (a signal handler that interrupted a mark; a thread whose
//! thread-local storage is gone; one that is new while a harvest looks) are counted in the
//! switch instead. That is slower, and a harvest waits for all of them. A fork's child has none
//! of those that its parent had, so the number says after which fork it was counted.

use crate::fence::{self, WritersFence};
use crate::last::Last;
use crate::sync::{
    forks, own, spin_loop, yield_now, AtomicPtr, AtomicUsize, Ordering, RwLock, RwLockReadGuard,
    KNOWN,
};
use std::ptr::{self, NonNull};
use std::sync::PoisonError;

/// What one writer is inside of.
#[derive(Debug)]
pub(crate) struct HazardCell {
    /// A switch by its address, or [`NOWHERE`], or [`UNREGISTERED`].
    pub(crate) inside: AtomicUsize,
    /// A [`Last`]: its turn.
    pub(crate) last: AtomicUsize,
    /// Switches (by address) whose harvests use the heavy fence for this cell's sake.
    pub(crate) known: [AtomicUsize; KNOWN],
}

const NOWHERE: usize = 0;
/// Of a cell that harvests do not look at: not to be used.
pub(crate) const UNREGISTERED: usize = 1;

impl HazardCell {
    /// Where a switch is noted.
    fn known(&self, switch: usize) -> &AtomicUsize {
        &self.known[switch / Last::APART % KNOWN]
    }

    /// Its turn, if its owner may be inside.
    fn turn_inside(&self, switch: usize) -> Option<usize> {
        let turn = self.last.load(Ordering::Acquire);
        (self.inside.load(Ordering::Acquire) == switch).then_some(turn)
    }
}

/// A thread's cells. Two, as the table of slots is held while a slot in it is marked.
/// Alone on its cache lines: written with each mark.
#[repr(align(128))]
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) cells: [HazardCell; 2],
}

impl Record {
    /// No harvest needs the heavy fence for this thread's sake until it next marks
    /// something. To be called by the thread itself; does nothing to what it is inside of.
    pub(crate) fn rest(&self) {
        for cell in self.cells.iter().filter(|cell| own(&cell.inside) == NOWHERE) {
            let number = Last(own(&cell.last)).number();
            // Release, as in `approach`.
            let known = cell.known.iter().filter(|known| own(known) != 0);
            known.for_each(|known| known.store(0, Ordering::Release));
            cell.last.store(number.0, Ordering::Release);
        }
    }

    /// It is in a registry. To be called by the thread itself.
    pub(crate) fn is_registered(&self) -> bool {
        own(&self.cells[0].inside) != UNREGISTERED
    }
}

/// Whose sake the heavy fence is for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Whom<'a> {
    /// Whoever there may be: the fence is used every time.
    Anybody,
    /// Those known to the switch, other than the calling thread, whose record this is; it
    /// is not inside the switch.
    KnownBut(&'a Record),
}

/// The records that harvests look at.
#[derive(Debug)]
pub(crate) struct Registry {
    pub(crate) threads: RwLock<Vec<Registered>>,
}

/// A record that is valid as long as it is in a registry.
#[derive(Debug)]
pub(crate) struct Registered(*const Record);

// SAFETY: a record is made of atomics.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl Registered {
    /// Is it this one's?
    pub(crate) fn is(&self, record: &Record) -> bool {
        ptr::eq(self.0, record)
    }
}

impl Registry {
    /// Has harvests look at a record from now on; nothing if they do. False if a harvest is
    /// under way and `may_wait` is not.
    ///
    /// # Safety
    /// The record is the calling thread's and stays where it is until [`Self::remove`].
    pub(crate) unsafe fn add(&self, record: &Record, may_wait: bool) -> bool {
        if record.is_registered() {
            return true;
        }
        let mut threads = match self.threads.try_write() {
            Ok(threads) => threads,
            Err(_) if may_wait => self.threads.write().unwrap_or_else(PoisonError::into_inner),
            Err(_) => return false,
        };
        threads.push(Registered(record));
        record.cells.iter().for_each(|cell| cell.inside.store(NOWHERE, Ordering::Release));
        true
    }

    /// No harvest looks at the calling thread's record any more.
    pub(crate) fn remove(&self, record: &Record) {
        record.rest();
        record.cells.iter().for_each(|cell| cell.inside.store(UNREGISTERED, Ordering::Release));
        let mut threads = self.threads.write().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|other| !other.is(record));
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<Registered>> {
        self.threads.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The wait of a harvest: for those that have hold of what [`Switch::exchange`] gave
    /// back, of as many switches as there are, with one fence for all.
    pub(crate) fn wait<'a, T: 'a>(
        &self,
        retired: impl Iterator<Item = &'a Switch<T>> + Clone,
        whom: Whom<'_>,
    ) {
        // The exchange is before the look at who is known.
        fence::full();
        let needed = match whom {
            Whom::Anybody => true,
            Whom::KnownBut(own) => {
                let threads = self.read();
                let mut others = records(&threads).filter(|&record| !ptr::eq(record, own));
                others.any(|record| knows(record, retired.clone()))
            }
        };
        if needed {
            fence::heavy();
        }
        for switch in retired {
            self.wait_until_all_are_out_of(switch.id());
            wait_while(|| switch.counted.any());
        }
    }

    /// Keeps no lock while it waits: who is waited for may be about to harvest.
    fn wait_until_all_are_out_of(&self, switch: usize) {
        let inside = |cell: &HazardCell| Some((ptr::from_ref(cell), cell.turn_inside(switch)?));
        let mut left: Vec<_> = cells(&self.read()).filter_map(inside).collect();
        wait_while(|| {
            if !left.is_empty() {
                let threads = self.read();
                // A cell that is not there any more belonged to a thread that has ended.
                left.retain(|&was| cells(&threads).any(|cell| inside(cell) == Some(was)));
            }
            !left.is_empty()
        });
    }
}

/// The records of a registry that is being read.
fn records(threads: &[Registered]) -> impl Iterator<Item = &Record> + Clone {
    // SAFETY: a record is valid while it is in a registry, and none is removed from one
    // that is being read.
    threads.iter().map(|record| unsafe { &*record.0 })
}

fn cells(threads: &[Registered]) -> impl Iterator<Item = &HazardCell> {
    records(threads).flat_map(|record| &record.cells)
}

/// Did the record's owner use one of these switches without a fence of its own, or may it
/// yet?
fn knows<'a, T: 'a>(record: &Record, mut switches: impl Iterator<Item = &'a Switch<T>>) -> bool {
    switches.any(|switch| {
        let mut cells = record.cells.iter();
        cells.any(|cell| cell.known(switch.id()).load(Ordering::Acquire) == switch.id())
    })
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

/// Writers inside without a cell, above them after how many forks they came.
#[derive(Debug)]
struct Counted(AtomicUsize);

impl Counted {
    const HALF: u32 = usize::BITS / 2;

    fn forks() -> usize {
        forks() << Self::HALF
    }

    /// How many of `counted` this process has.
    fn inside(counted: usize, forks: usize) -> Option<usize> {
        (counted >> Self::HALF << Self::HALF == forks).then(|| counted - forks)
    }

    fn any(&self) -> bool {
        let counted = self.0.load(Ordering::Acquire);
        Self::inside(counted, Self::forks()).is_some_and(|inside| inside != 0)
    }

    /// Returns what [`Self::leave`] asks for.
    fn enter(&self) -> usize {
        let forks = Self::forks();
        self.change(|counted| Some(forks + 1 + Self::inside(counted, forks).unwrap_or(0)));
        forks
    }

    fn leave(&self, forks: usize) {
        self.change(|counted| Self::inside(counted, forks).map(|inside| forks + inside - 1));
    }

    fn change(&self, next: impl FnMut(usize) -> Option<usize>) {
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
    }
}

/// A pointer to what writers use at present, and its replacement. It owns nothing:
/// whoever has the switch frees what is current in the end. Aligned for what [`Last`] keeps
/// beside its address.
#[repr(align(128))]
#[derive(Debug)]
pub(crate) struct Switch<T> {
    current: AtomicPtr<T>,
    counted: Counted,
    writers_fence: WritersFence,
}

const _: () = assert!(align_of::<Switch<()>>() == Last::APART);

impl<T> Switch<T> {
    /// To be called after `fence::init`.
    pub(crate) fn new(first: NonNull<T>) -> Self {
        Self {
            current: AtomicPtr::new(first.as_ptr()),
            counted: Counted(AtomicUsize::new(0)),
            writers_fence: fence::writers_fence(),
        }
    }

    /// Gets hold of what is current: until the hold is dropped, [`Registry::wait`] does not
    /// return. None if the cell is in use, or not to be used.
    ///
    /// # Safety
    /// The cell belongs to the calling thread, and to the registry that [`Registry::wait`] is
    /// called of, if to any. No signal handler interrupts this or the hold with one of the
    /// same cell.
    #[inline]
    pub(crate) unsafe fn hold<'a>(&'a self, cell: &'a HazardCell) -> Option<Hold<'a, T>> {
        if own(&cell.inside) != NOWHERE {
            return None;
        }
        let mut last = Last(own(&cell.last));
        let mut fenced = false;
        if !last.is_of(self.id()) {
            (last, fenced) = self.approach(cell, last);
        }
        Some(self.enter(cell, last, fenced))
    }

    /// As [`Self::hold`] for a mark that need not look, or None.
    ///
    /// # Safety
    /// As [`Self::hold`].
    #[inline]
    pub(crate) unsafe fn hold_quick<'a>(&'a self, cell: &'a HazardCell) -> Option<Hold<'a, T>> {
        // Not a look at `inside`, which costs a quarter of a mark. A cell that is not to be
        // used is not any switch's.
        let mut last = Last(own(&cell.last));
        if !last.is_quick_in(self.id()) {
            return None;
        }
        last.count_down();
        Some(self.enter(cell, last, false))
    }

    #[inline(always)]
    fn enter<'a>(&'a self, cell: &'a HazardCell, last: Last, fenced: WritersFence) -> Hold<'a, T> {
        // Release, so that a harvest that sees this store sees what this thread did
        // before: a later store is no part of an earlier one's release sequence.
        cell.inside.store(self.id(), Ordering::Release);
        fence::light(fenced);
        Hold { target: self.current.load(Ordering::Acquire), cell, last }
    }

    /// Its name among those that cells know.
    #[inline]
    fn id(&self) -> usize {
        ptr::from_ref(self) as usize
    }

    /// For a cell that was last used for another switch: what to leave in it, and whether
    /// this hold needs a full fence of its own.
    #[inline(never)]
    fn approach(&self, cell: &HazardCell, last: Last) -> (Last, WritersFence) {
        let number = last.number();
        if self.writers_fence {
            return (number, true);
        }
        let known = cell.known(self.id());
        if own(known) != self.id() {
            // Release: who finds another switch's note gone sees what was held before.
            known.store(self.id(), Ordering::Release);
            fence::full();
        }
        (Last(self.id() | number.0), false)
    }

    /// What is current, without hold of it: it may be retired at any moment.
    #[inline]
    pub(crate) fn peek(&self) -> NonNull<T> {
        non_null(self.current.load(Ordering::Acquire))
    }

    /// Gets hold of what is current without a cell.
    pub(crate) fn hold_counted(&self) -> HoldCounted<'_, T> {
        let forks = self.counted.enter();
        fence::full();
        let target = self.current.load(Ordering::Acquire);
        HoldCounted { target, counted: &self.counted, forks }
    }

    /// Makes `next` current and returns what was: still in use, until [`Registry::wait`]
    /// has returned. One call at a time.
    pub(crate) fn exchange(&self, next: NonNull<T>) -> NonNull<T> {
        non_null(self.current.swap(next.as_ptr(), Ordering::AcqRel))
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
    last: Last,
}

impl<T> Hold<'_, T> {
    /// What the cell will have when this is dropped: to be changed.
    #[inline]
    pub(crate) fn last(&mut self) -> &mut Last {
        &mut self.last
    }

    #[inline]
    pub(crate) fn target(&self) -> NonNull<T> {
        non_null(self.target)
    }
}

impl<T> Drop for Hold<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.cell.last.store(self.last.0, Ordering::Release);
        self.cell.inside.store(NOWHERE, Ordering::Release);
    }
}

/// As [`Hold`], counted.
#[derive(Debug)]
pub(crate) struct HoldCounted<'a, T> {
    target: *mut T,
    counted: &'a Counted,
    forks: usize,
}

impl<T> HoldCounted<'_, T> {
    pub(crate) fn target(&self) -> NonNull<T> {
        non_null(self.target)
    }
}

impl<T> Drop for HoldCounted<'_, T> {
    fn drop(&mut self) {
        self.counted.leave(self.forks);
    }
}
