// SPDX-License-Identifier: Apache-2.0 OR MIT

//! As `loom.rs`: two switches that are noted in the same place, a bitmap that is freed, a table
//! of slots that is replaced.

#![allow(dead_code, clippy::modulo_one)]

#[path = "../src/bits.rs"]
mod bits;
#[path = "loom_parts/fence.rs"]
mod fence;
#[path = "../src/hazard.rs"]
mod hazard;
#[path = "../src/last.rs"]
mod last;
#[path = "../src/shape.rs"]
mod shape;
#[path = "loom_parts/slot.rs"]
mod slot;
#[path = "loom_parts/sync.rs"]
mod sync;
#[path = "../src/words.rs"]
mod words;

use bits::Bits;
use fence::{ENDED, HEAVY, WITHOUT};
use hazard::{Switch, Whom};
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::Arc;
use loom::thread;
use slot::{check, memory, new_registry, Mine, Slot};

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
