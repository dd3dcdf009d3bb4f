// SPDX-License-Identifier: Apache-2.0 OR MIT

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
use fence::{ENDED, HEAVY, NO_FENCES, WITHOUT};
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use slot::{check, memory, new_registry, Mine, Slot};

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
