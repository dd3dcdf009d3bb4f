// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Both halves of the asymmetric fence, as loom can be told of them, and what a model has of them.

use loom::sync::atomic::{fence, AtomicUsize, Ordering};
use std::cell::{Cell, RefCell};

std::thread_local! {
    /// Models run on one OS thread.
    pub(crate) static NO_FENCES: Cell<bool> = const { Cell::new(false) };
    /// Writers have no fence: what the heavy one would do to them is not to be had, so a
    /// harvest that uses it waits for the writer to end. Counts those that have.
    pub(crate) static ENDED: RefCell<Option<std::sync::Arc<AtomicUsize>>> = const { RefCell::new(None) };
    pub(crate) static HEAVY: Cell<usize> = const { Cell::new(0) };
    /// Executions whose first harvest did without.
    pub(crate) static WITHOUT: Cell<usize> = const { Cell::new(0) };
}

fn unless_broken() {
    if !NO_FENCES.get() {
        fence(Ordering::SeqCst);
    }
}

pub(crate) type WritersFence = bool;

pub(crate) fn writers_fence() -> WritersFence {
    false
}

pub(crate) fn light(_: WritersFence) {
    if ENDED.with_borrow(Option::is_none) {
        unless_broken();
    }
}

pub(crate) fn heavy() {
    HEAVY.set(HEAVY.get() + 1);
    if let Some(ended) = ENDED.with_borrow(Clone::clone) {
        while ended.load(Ordering::Acquire) == 0 {
            loom::thread::yield_now();
        }
    }
    unless_broken();
}

pub(crate) fn full() {
    unless_broken();
}
