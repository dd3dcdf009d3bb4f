// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The library's slot and thread, as models have them.

use crate::bits::{Bits, BitsRef};
use crate::hazard::{HazardCell, Record, Registry, Switch, Whom, UNREGISTERED};
use crate::last::Last;
use crate::shape::Shape;
use loom::sync::atomic::{AtomicU64, AtomicUsize};
use loom::sync::Arc;

/// A slot as the library has it, with records by hand instead of thread-local ones.
pub(crate) struct Slot {
    pub(crate) switch: Switch<AtomicU64>,
    pub(crate) shape: Shape,
    pub(crate) registry: Arc<Registry>,
}

impl Slot {
    pub(crate) fn new(pages: usize) -> Arc<Self> {
        Self::of(pages, &Arc::new(new_registry()))
    }

    pub(crate) fn of(pages: usize, registry: &Arc<Registry>) -> Arc<Self> {
        let shape = Shape::new(pages);
        let switch = Switch::new(Bits::new(shape).into_raw());
        Arc::new(Self { switch, shape, registry: registry.clone() })
    }

    pub(crate) fn mark(&self, record: &Record, page: usize) {
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

    pub(crate) fn mark_counted(&self, page: usize) {
        let hold = self.switch.hold_counted();
        // SAFETY: held, and of this shape.
        unsafe { BitsRef::new(hold.target(), &self.shape) }.mark(page, &mut Last::default());
    }

    /// As `switch_opt`: returns at once if clean. `see` is called with each dirty page.
    pub(crate) fn harvest(
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

pub(crate) fn new_registry() -> Registry {
    Registry { threads: loom::sync::RwLock::new(Vec::new()) }
}

pub(crate) fn new_cell() -> HazardCell {
    HazardCell {
        inside: AtomicUsize::new(UNREGISTERED),
        last: AtomicUsize::new(0),
        known: std::array::from_fn(|_| AtomicUsize::new(0)),
    }
}

/// A thread's record. It is removed when the thread ends, as the library does it.
pub(crate) struct Mine {
    pub(crate) slot: Arc<Slot>,
    pub(crate) record: Box<Record>,
}

impl Mine {
    pub(crate) fn new(slot: &Arc<Slot>) -> Self {
        let record = Box::new(Record { cells: [new_cell(), new_cell()] });
        // SAFETY: it stays in its box until it is removed.
        assert!(unsafe { slot.registry.add(&record, true) });
        Self { slot: slot.clone(), record }
    }

    pub(crate) fn get(&self) -> &Record {
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
pub(crate) fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(2));
    builder.check(model);
}

/// What guest memory holds: one cell a writer and page.
pub(crate) type Memory = Arc<Vec<AtomicUsize>>;

pub(crate) fn memory(cells: usize) -> Memory {
    Arc::new((0..cells).map(|_| AtomicUsize::new(0)).collect())
}
