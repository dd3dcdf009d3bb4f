//! The protocol, in the orders of execution that the memory model allows.
//!
//! The library's own `hazard.rs` and `bits.rs` are compiled here against loom's atomics.
//! membarrier(2) gives the harvest's fence the strength of one in every running thread, so
//! both halves of the asymmetric fence are sequentially consistent fences here. That a
//! harvest may do without is shown with writers that have no fence at all.
//!
//! Each property is also checked to fail when the protocol is broken on purpose: a model
//! that cannot fail proves nothing.

#![allow(dead_code, clippy::modulo_one)]

use std::cell::{Cell, RefCell};

std::thread_local! {
    /// Models run on one OS thread.
    static NO_FENCES: Cell<bool> = const { Cell::new(false) };
    /// Writers have no fence: what the heavy one would do to them is not to be had, so a
    /// harvest that uses it waits for the writer to end. Counts those that have.
    static ENDED: RefCell<Option<std::sync::Arc<AtomicUsize>>> = const { RefCell::new(None) };
    static HEAVY: Cell<usize> = const { Cell::new(0) };
    /// Executions whose first harvest did without.
    static WITHOUT: Cell<usize> = const { Cell::new(0) };
}

mod sync {
    pub(crate) use loom::hint::spin_loop;
    pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU64, AtomicU8, AtomicUsize, Ordering};
    pub(crate) use loom::sync::{RwLock, RwLockReadGuard};
    pub(crate) use loom::thread::yield_now;

    pub(crate) const ZERO_IS_NEW: bool = false;
    /// Every two switches collide.
    pub(crate) const KNOWN: usize = 1;

    /// Not a load as loom counts them: it remembers but one last access to a cell, and a
    /// thread's load of its own would hide that another thread looked at it before.
    pub(crate) fn own(cell: &AtomicUsize) -> usize {
        // SAFETY: loom fails the model if another thread wrote to it meanwhile.
        unsafe { cell.unsync_load() }
    }

    /// loom fails the model if another thread's access is not ordered before this one.
    pub(crate) fn put64(cell: &mut AtomicU64, value: u64) {
        cell.with_mut(|v| *v = value);
    }

    pub(crate) fn put8(cell: &mut AtomicU8, value: u8) {
        cell.with_mut(|v| *v = value);
    }

    pub(crate) fn first_set(flags: &[AtomicU8]) -> Option<usize> {
        // SAFETY: loom fails the model if a thread may still write to it.
        flags.iter().position(|flag| unsafe { flag.unsync_load() } != 0)
    }
}

mod fence {
    use loom::sync::atomic::{fence, Ordering};

    fn unless_broken() {
        if !super::NO_FENCES.get() {
            fence(Ordering::SeqCst);
        }
    }

    pub(crate) type WritersFence = bool;

    pub(crate) fn writers_fence() -> WritersFence {
        false
    }

    pub(crate) fn light(_: WritersFence) {
        if super::ENDED.with_borrow(Option::is_none) {
            unless_broken();
        }
    }

    pub(crate) fn heavy() {
        super::HEAVY.set(super::HEAVY.get() + 1);
        if let Some(ended) = super::ENDED.with_borrow(Clone::clone) {
            while ended.load(Ordering::Acquire) == 0 {
                loom::thread::yield_now();
            }
        }
        unless_broken();
    }

    pub(crate) fn full() {
        unless_broken();
    }
}

#[path = "../src/bits.rs"]
mod bits;
#[path = "../src/hazard.rs"]
mod hazard;

use bits::{Bits, BitsRef, Shape};
use hazard::{HazardCell, Last, Record, Registry, Switch, Whom, UNREGISTERED};
use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use loom::sync::Arc;
use loom::thread;

/// A slot as the library has it, with records by hand instead of thread-local ones.
struct Slot {
    switch: Switch<AtomicU64>,
    shape: Shape,
    registry: Arc<Registry>,
}

impl Slot {
    fn new(pages: usize) -> Arc<Self> {
        Self::of(pages, &Arc::new(new_registry()))
    }

    fn of(pages: usize, registry: &Arc<Registry>) -> Arc<Self> {
        let shape = Shape::new(pages);
        let switch = Switch::new(Bits::new(shape).into_raw());
        Arc::new(Self { switch, shape, registry: registry.clone() })
    }

    fn mark(&self, record: &Record, page: usize) {
        let cell = &record.cells[0];
        // SAFETY: the record is this thread's and registered; holds, of this shape.
        unsafe {
            if let Some(hold) = self.switch.hold_quick(cell) {
                return BitsRef::new(hold.target(), &self.shape).mark_unseen(page);
            }
            let mut hold = self.switch.hold(cell).unwrap();
            BitsRef::new(hold.target(), &self.shape).mark(page, hold.last());
        }
    }

    fn mark_counted(&self, page: usize) {
        let hold = self.switch.hold_counted();
        // SAFETY: held, and of this shape.
        unsafe { BitsRef::new(hold.target(), &self.shape) }.mark(page, &mut Last::default());
    }

    /// As `switch_opt`: returns at once if clean. `see` is called with each dirty page.
    fn harvest(
        &self,
        record: &Record,
        spare: Bits,
        registry: &Registry,
        mut see: impl FnMut(usize),
    ) -> Bits {
        // SAFETY: of this shape, and no bitmap is freed before the slot.
        if unsafe { BitsRef::new(self.switch.peek(), &self.shape) }.is_clean() {
            return spare;
        }
        let old = self.switch.exchange(spare.into_raw());
        registry.wait(std::iter::once(&self.switch), Whom::KnownBut(record));
        // SAFETY: no writer has it any more.
        let mut old = unsafe { Bits::from_raw(old, self.shape) };
        old.for_each_dirty_word(|i, word| {
            (0..64).filter(|bit| word >> bit & 1 == 1).for_each(|bit| see(i * 64 + bit));
        });
        old.clear();
        old
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // SAFETY: nobody else has the slot.
        drop(unsafe { Bits::from_raw(self.switch.last(), self.shape) });
    }
}

fn new_registry() -> Registry {
    Registry { threads: loom::sync::RwLock::new(Vec::new()) }
}

fn new_cell() -> HazardCell {
    HazardCell {
        inside: AtomicUsize::new(UNREGISTERED),
        last: AtomicUsize::new(0),
        known: std::array::from_fn(|_| AtomicUsize::new(0)),
    }
}

/// A thread's record. It is removed when the thread ends, as the library does it.
struct Mine {
    slot: Arc<Slot>,
    record: Box<Record>,
}

impl Mine {
    fn new(slot: &Arc<Slot>) -> Self {
        let record = Box::new(Record { cells: [new_cell(), new_cell()] });
        // SAFETY: it stays in its box until it is removed.
        assert!(unsafe { slot.registry.add(&record, true) });
        Self { slot: slot.clone(), record }
    }

    fn get(&self) -> &Record {
        &self.record
    }
}

impl Drop for Mine {
    fn drop(&mut self) {
        self.slot.registry.remove(&self.record);
    }
}

/// All orders with at most so many preemptions, which is where nearly all bugs show
/// (Musuvathi and Qadeer 2007); `LOOM_MAX_PREEMPTIONS` asks for more.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(2));
    builder.check(model);
}

/// What guest memory holds: one cell a writer and page.
type Memory = Arc<Vec<AtomicUsize>>;

fn memory(cells: usize) -> Memory {
    Arc::new((0..cells).map(|_| AtomicUsize::new(0)).collect())
}

#[derive(Clone, Copy)]
enum Way {
    Cell,
    /// As [`Way::Cell`], and no harvest needs to know of the first writer afterwards.
    Rests,
    Counted,
}

/// What a harvest saw: page, and both writers' memory then.
type Seen = Vec<(usize, [usize; 2])>;

/// Two writers write and mark `pages`; a harvest goes on meanwhile, and one follows.
fn two_writers(pages: [usize; 2], way: Way, wait_for_writers: bool) -> (Seen, Seen) {
    let slot = Slot::new(1024);
    let written = memory(2);
    let writers: Vec<_> = pages
        .into_iter()
        .enumerate()
        .map(|(i, page)| {
            let (slot, written) = (slot.clone(), written.clone());
            let record = Mine::new(&slot);
            thread::spawn(move || {
                written[i].store(1, Ordering::Relaxed);
                match way {
                    Way::Cell => slot.mark(record.get(), page),
                    Way::Rests => {
                        slot.mark(record.get(), page);
                        if i == 0 {
                            record.get().rest();
                        }
                    }
                    Way::Counted => slot.mark_counted(page),
                }
            })
        })
        .collect();
    let nobody = new_registry();
    let registry = if wait_for_writers { &slot.registry } else { &nobody };
    let record = Mine::new(&slot);
    let look = |page| (page, [0, 1].map(|i: usize| written[i].load(Ordering::Relaxed)));
    let mut during = Vec::new();
    let spare = Bits::new(slot.shape);
    let spare = slot.harvest(record.get(), spare, registry, |page| during.push(look(page)));
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    let mut after = Vec::new();
    let spare = slot.harvest(record.get(), spare, registry, |page| after.push(look(page)));
    slot.harvest(record.get(), spare, registry, |page| panic!("page {page} is seen again"));
    (during, after)
}

fn different_pages(way: Way, wait_for_writers: bool) {
    let pages = [3, 700];
    let (during, after) = two_writers(pages, way, wait_for_writers);
    for (i, page) in pages.into_iter().enumerate() {
        let seen: Vec<_> = during.iter().chain(&after).filter(|seen| seen.0 == page).collect();
        assert_eq!(seen.len(), 1, "page {page} is in {during:?} and {after:?}");
        assert_eq!(seen[0].1[i], 1, "page {page} is seen before what was written to it");
    }
}

fn same_page(way: Way) {
    let (during, after) = two_writers([5, 5], way, true);
    assert!(during.len() <= 1 && after.len() <= 1, "{during:?} {after:?}");
    let last = after.last().or(during.last()).expect("the page is lost");
    assert_eq!(*last, (5, [1, 1]), "a write is lost: {during:?} {after:?}");
}

#[test]
fn no_mark_is_lost_or_seen_twice() {
    check(|| different_pages(Way::Cell, true));
}

#[test]
fn no_mark_is_lost_or_seen_twice_without_a_cell() {
    check(|| different_pages(Way::Counted, true));
}

#[test]
fn a_mark_that_writes_nothing_loses_nothing() {
    check(|| same_page(Way::Cell));
}

#[test]
fn a_mark_that_writes_nothing_loses_nothing_without_a_cell() {
    check(|| same_page(Way::Counted));
}

/// One writer marks the same page twice across two harvests
/// that bring the same bitmap back.
#[test]
fn a_bitmap_that_comes_back_is_clean() {
    check(|| {
        let slot = Slot::new(64);
        let written = memory(1);
        let writer = {
            let (slot, written) = (slot.clone(), written.clone());
            let record = Mine::new(&slot);
            thread::spawn(move || {
                for version in 1..=2 {
                    written[0].store(version, Ordering::Relaxed);
                    slot.mark(record.get(), 0);
                }
            })
        };
        let record = Mine::new(&slot);
        let mut seen = Vec::new();
        let mut spare = Bits::new(slot.shape);
        for _ in 0..2 {
            spare = slot.harvest(record.get(), spare, &slot.registry, |_| {
                seen.push(written[0].load(Ordering::Relaxed));
            });
        }
        writer.join().unwrap();
        slot.harvest(record.get(), spare, &slot.registry, |_| {
            seen.push(written[0].load(Ordering::Relaxed));
        });
        assert_eq!(seen.last(), Some(&2), "a write is lost: {seen:?}");
        assert!(seen.len() <= 2, "two marks are seen more than twice: {seen:?}");
    });
}

/// A thread that registers while a harvest looks for writers; and a mark that happened
/// before the harvest began is in it, also if it wrote nothing
/// because another writer's mark had set the bit and was not done.
#[test]
fn a_mark_that_is_done_is_in_the_next_harvest() {
    check(|| {
        let slot = Slot::new(64);
        let slow = {
            let slot = slot.clone();
            thread::spawn(move || {
                let record = Mine::new(&slot);
                slot.mark(record.get(), 0);
            })
        };
        let record = Mine::new(&slot);
        slot.mark(record.get(), 0);
        let mut seen = 0;
        slot.harvest(record.get(), Bits::new(slot.shape), &slot.registry, |_| seen += 1);
        assert_eq!(seen, 1, "a mark that was done is not in the harvest");
        slow.join().unwrap();
    });
}

/// What a new thread does while the harvesting thread, which has marked page 9 itself,
/// harvests: marks these pages one after the other, and rests in between.
fn new_thread(pages: &'static [usize]) {
    ENDED.set(Some(std::sync::Arc::new(AtomicUsize::new(0))));
    HEAVY.set(0);
    let slot = Slot::new(1024);
    let written = memory(pages.len());
    let record = Mine::new(&slot);
    slot.mark(record.get(), 9);
    let writer = {
        let (slot, written) = (slot.clone(), written.clone());
        let record = Mine::new(&slot);
        thread::spawn(move || {
            for (i, &page) in pages.iter().enumerate() {
                if i > 0 {
                    record.get().rest();
                }
                written[i].store(1, Ordering::Relaxed);
                slot.mark(record.get(), page);
            }
            let ended = ENDED.with_borrow(Clone::clone).unwrap();
            ended.fetch_add(1, Ordering::AcqRel);
        })
    };
    let look = |page| (page, written.iter().map(|w| w.load(Ordering::Relaxed)).collect());
    let mut seen: Vec<(usize, Vec<usize>)> = Vec::new();
    let spare = Bits::new(slot.shape);
    let spare = slot.harvest(record.get(), spare, &slot.registry, |page| seen.push(look(page)));
    let heavy = HEAVY.get();
    writer.join().unwrap();
    let spare = slot.harvest(record.get(), spare, &slot.registry, |page| seen.push(look(page)));
    slot.harvest(record.get(), spare, &slot.registry, |page| panic!("page {page} is seen again"));
    ENDED.set(None);
    if heavy == 0 {
        WITHOUT.set(WITHOUT.get() + 1);
    }
    for (i, &page) in pages.iter().enumerate() {
        let sights: Vec<_> = seen.iter().filter(|sight| sight.0 == page).collect();
        let last = sights.last().expect("the page is lost");
        assert_eq!(last.1[i], 1, "a write to page {page} is lost: {seen:?}");
        assert!(sights.len() == 1 || page == 9, "page {page} is seen twice: {seen:?}");
    }
}

/// A new page; the page that is dirty already, which a mark only looks at; and what comes
/// after a rest. Writers have no fence here but the one with which they become known.
fn new_threads() -> usize {
    WITHOUT.set(0);
    check(|| new_thread(&[700]));
    check(|| new_thread(&[9]));
    check(|| new_thread(&[700, 9]));
    WITHOUT.get()
}

#[test]
fn a_harvest_needs_no_heavy_fence_for_threads_that_are_not_known() {
    assert!(new_threads() > 0, "every harvest used the heavy fence");
}

/// A thread that makes itself known without a fence.
#[test]
#[should_panic]
fn without_a_fence_of_its_own_a_new_thread_breaks_it() {
    NO_FENCES.set(true);
    new_threads();
}

#[test]
fn a_thread_that_rests_loses_nothing() {
    check(|| different_pages(Way::Rests, true));
    check(|| same_page(Way::Rests));
}

#[test]
#[should_panic]
fn without_fences_it_breaks() {
    NO_FENCES.set(true);
    check(|| different_pages(Way::Cell, true));
}

#[test]
#[should_panic]
fn without_waiting_it_breaks() {
    check(|| different_pages(Way::Cell, false));
}

/// One thread marks in two slots in turn, which are noted in the same place: each mark in one
/// takes the note of the other away. A harvest of the first that does without the heavy fence
/// because of that loses nothing, and neither does one of both. Writers have no fence but
/// the one with which they become known.
fn two_switches(rests: bool) {
    ENDED.set(Some(std::sync::Arc::new(AtomicUsize::new(0))));
    HEAVY.set(0);
    let registry = Arc::new(new_registry());
    let slots = [Slot::of(64, &registry), Slot::of(64, &registry)];
    let written = memory(3);
    let record = Mine::new(&slots[0]);
    let writer = {
        let (slots, written) = (slots.clone(), written.clone());
        let record = Mine::new(&slots[0]);
        thread::spawn(move || {
            for (i, slot) in [0, 1, 0].into_iter().enumerate() {
                written[i].store(1, Ordering::Relaxed);
                slots[slot].mark(record.get(), i);
                if rests {
                    record.get().rest();
                }
            }
            let ended = ENDED.with_borrow(Clone::clone).unwrap();
            ended.fetch_add(1, Ordering::AcqRel);
        })
    };
    let mut seen = Vec::new();
    let mut harvest = |slot: &Slot, spare| {
        slot.harvest(record.get(), spare, &slot.registry, |page| {
            seen.push((page, written[page].load(Ordering::Relaxed)));
        })
    };
    let spares = slots.each_ref().map(|slot| harvest(slot, Bits::new(slot.shape)));
    if HEAVY.get() == 0 {
        WITHOUT.set(WITHOUT.get() + 1);
    }
    writer.join().unwrap();
    for (slot, spare) in slots.iter().zip(spares) {
        drop(harvest(slot, spare));
    }
    ENDED.set(None);
    seen.sort_unstable();
    assert_eq!(seen, [(0, 1), (1, 1), (2, 1)]);
}

#[test]
fn two_switches_that_are_noted_in_the_same_place_lose_nothing() {
    WITHOUT.set(0);
    check(|| two_switches(false));
    assert!(WITHOUT.get() > 0, "every harvest used the heavy fence");
    check(|| two_switches(true));
}

/// As `get_org`: the retired bitmap is freed once it was waited for. Each word of it is
/// written to first without an atomic operation, which loom allows to a sole owner only.
fn freed(wait_for_writers: bool) {
    let slot = Slot::new(64);
    let writer = {
        let slot = slot.clone();
        let record = Mine::new(&slot);
        thread::spawn(move || (0..2).for_each(|page| slot.mark(record.get(), page)))
    };
    let record = Mine::new(&slot);
    let nobody = new_registry();
    let registry = if wait_for_writers { &*slot.registry } else { &nobody };
    let mut seen = 0;
    let mut harvest = || {
        let old = slot.switch.exchange(Bits::new(slot.shape).into_raw());
        registry.wait(std::iter::once(&slot.switch), Whom::Anybody);
        // SAFETY: no writer has it any more.
        let mut old = unsafe { Bits::from_raw(old, slot.shape) };
        old.for_each_dirty_word(|_, word| seen += word.count_ones());
        old.words_mut().iter_mut().for_each(|word| sync::put64(word, u64::MAX));
        drop(old);
    };
    harvest();
    writer.join().unwrap();
    harvest();
    drop(record);
    assert_eq!(seen, 2);
}

#[test]
fn what_get_org_frees_is_nobodys() {
    check(|| freed(true));
}

#[test]
#[should_panic]
fn what_is_freed_without_waiting_is_somebodys() {
    check(|| freed(false));
}

/// As `MemoryLog`: a table is held by a thread's second cell while it marks in the slot that
/// it found there by its first; the slot is taken out of the table, and from then on its last
/// harvest is complete. The old table is written to as its owner would free it.
#[test]
fn a_slot_that_was_taken_out_is_marked_no_more() {
    type Table = loom::cell::UnsafeCell<bool>;
    struct Log {
        table: Switch<Table>,
        slot: Arc<Slot>,
    }
    // SAFETY: the cell is what loom checks.
    unsafe impl Send for Log {}
    // SAFETY: as above.
    unsafe impl Sync for Log {}
    let leak = |has: bool| std::ptr::NonNull::from(Box::leak(Box::new(Table::new(has))));
    check(move || {
        let slot = Slot::new(64);
        let log = Arc::new(Log { table: Switch::new(leak(true)), slot: slot.clone() });
        let writer = {
            let log = log.clone();
            let record = Mine::new(&log.slot);
            thread::spawn(move || {
                let cells = &record.get().cells;
                let mut marked = 0;
                for page in 0..2 {
                    // SAFETY: this thread's record; what is held is not freed.
                    let has = unsafe {
                        let hold = log.table.hold(&cells[1]).unwrap();
                        let has = hold.target().as_ref().with(|has| *has);
                        if has {
                            log.slot.mark(record.get(), page);
                        }
                        has
                    };
                    marked += usize::from(has);
                }
                marked
            })
        };
        let record = Mine::new(&slot);
        let old = log.table.exchange(leak(false));
        slot.registry.wait(std::iter::once(&log.table), Whom::KnownBut(record.get()));
        // SAFETY: nobody has it any more, which loom checks.
        unsafe {
            old.as_ref().with_mut(|has| *has = false);
            drop(Box::from_raw(old.as_ptr()));
        }
        let mut seen = 0;
        let spare = Bits::new(slot.shape);
        let spare = slot.harvest(record.get(), spare, &slot.registry, |_| seen += 1);
        assert_eq!(writer.join().unwrap(), seen, "a mark came after the last harvest");
        drop(spare);
        // SAFETY: nobody has the log but this thread.
        unsafe { drop(Box::from_raw(log.table.exchange(leak(false)).as_ptr())) };
    });
}
