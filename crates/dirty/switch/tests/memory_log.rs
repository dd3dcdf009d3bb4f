// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Slots that come and go while threads mark.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use vmeter_dirty_switch::{GetOpt, GetOrg, MemoryLog, SlotError, Strategy, SwitchOpt};

const PAGE: u64 = 4096;

#[test]
fn addresses_lead_to_slots() {
    let log: MemoryLog = MemoryLog::new();
    log.add(3, 16 * PAGE, 4 * PAGE, 4096).unwrap();
    log.add(1, 0, 16 * PAGE, 4096).unwrap();
    log.add(2, 1 << 40, 2 << 21, 2 << 20).unwrap();
    assert_eq!(log.slots().iter().map(|slot| slot.id()).collect::<Vec<_>>(), [1, 3, 2]);
    log.mark(15 * PAGE + 4000, 200);
    log.mark((1 << 40) + (2 << 20), 1);
    log.mark(20 * PAGE, 1 << 20);
    log.mark(u64::MAX, u64::MAX);
    log.mark(5 * PAGE, 0);
    let dirty = |id| log.slot(id).unwrap().harvest().pages().collect::<Vec<_>>();
    assert_eq!((dirty(1), dirty(3), dirty(2)), (vec![15], vec![0], vec![1]));
    log.mark(0, u64::MAX);
    assert_eq!((dirty(1).len(), dirty(3).len(), dirty(2).len()), (16, 4, 2));
}

#[test]
fn slots_that_cannot_be_are_refused() {
    let log = MemoryLog::<GetOpt>::default();
    log.add(1, 4 * PAGE, 4 * PAGE, 4096).unwrap();
    assert_eq!(log.add(1, 0, PAGE, 4096).unwrap_err(), SlotError::InUse(1));
    let overlap = log.add(2, 7 * PAGE, PAGE, 4096).unwrap_err();
    assert!(matches!(overlap, SlotError::Overlap { other: 1, .. }), "{overlap}");
    assert!(matches!(log.add(2, 0, PAGE, 5000), Err(SlotError::PageSize(_))));
    assert!(matches!(log.add(2, u64::MAX, PAGE, 4096), Err(SlotError::TooHigh { .. })));
    assert!(log.remove(9).is_none() && log.slots().len() == 1);
}

/// A slot is added, marked, removed and harvested again and again; each mark that was done
/// before its removal is in a harvest of it.
fn come_and_go<S: Strategy>() {
    let log = MemoryLog::<S>::new();
    log.add(0, 0, 64 * PAGE, 4096).unwrap();
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut count = 0u64;
            while !stop.load(Ordering::Relaxed) {
                log.mark((64 + count % 64) * PAGE, 1);
                log.mark(count % 64 * PAGE, 1);
                count += 1;
                done.store(count, Ordering::Release);
            }
        });
        for _ in 0..if cfg!(miri) { 3 } else { 80 } {
            let slot = log.add(1, 64 * PAGE, 64 * PAGE, 4096).unwrap();
            let before = done.load(Ordering::Acquire);
            while done.load(Ordering::Acquire) < before + 3 {
                std::thread::yield_now();
            }
            let mut seen = slot.harvest().count();
            let removed = log.remove(1).unwrap();
            seen += removed.harvest().count();
            assert!(seen >= 2, "marks of a slot that was removed are lost");
            assert!(removed.harvest().is_clean() && log.slot(1).is_none());
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(format!("{log:?}").contains("id: 0"));
}

#[test]
fn a_slot_is_removed_while_it_is_marked() {
    come_and_go::<GetOrg>();
    come_and_go::<GetOpt>();
    come_and_go::<SwitchOpt>();
}
