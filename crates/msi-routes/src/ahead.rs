// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Detaching the irqfds of vectors that are to be masked or removed, before the table is
//! locked: `KVM_IRQFD` waits for a workqueue and an SRCU grace period each time, and nobody
//! else's commit is to wait for those of a device that is unplugged. Several threads at once
//! share grace periods, where the user allows them.

use crate::foreign::Errno;
use crate::ops::Op;
use crate::route::Route;
use crate::shared::Shared;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What became of each route that was to be detached. What the commit has not taken over when
/// this is dropped (the kernel panicked) is masked, as nothing delivers its interrupts.
#[derive(Default)]
pub(crate) struct Ahead(Mutex<Detached>);

/// By [`key`].
type Detached = HashMap<usize, (Route, Result<(), Errno>)>;

/// What a batch wants of a route in the end.
#[derive(Default)]
struct Want {
    remove: bool,
    mask: bool,
    exchange: bool,
}

fn key(route: &Route) -> usize {
    Arc::as_ptr(&route.0) as usize
}

impl Ahead {
    /// Detaches what these changes close, of sources that are not gates.
    pub(crate) fn of(shared: &Shared, ops: &[Op]) -> Self {
        let closes = |op: &Op| match op {
            Op::Mask(route) | Op::Remove(route) => !route.source().is_gate(),
            Op::Exchange(..) => true,
            _ => false,
        };
        if !ops.iter().any(closes) {
            return Self::default();
        }
        let routes = wanted(ops);
        let threads = shared.detach_threads.load(Ordering::Relaxed).clamp(1, routes.len().max(1));
        let ahead = Self(Mutex::new(HashMap::with_capacity(routes.len())));
        let detach = |route: &&Route| {
            let done = match route.detach(&*shared.kernel) {
                Ok(true) => Ok(()),
                // Another batch has done it; the commit looks again.
                Ok(false) => return,
                Err(e) => Err(e),
            };
            ahead.all().insert(key(route), ((*route).clone(), done));
        };
        let detach = &detach;
        let (own, others) = routes.split_at(routes.len().div_ceil(threads));
        std::thread::scope(|scope| {
            let mut left = Vec::new();
            let spawned: Vec<_> = others
                .chunks(routes.len().div_ceil(threads).max(1))
                .filter_map(|some| {
                    let work = move || some.iter().for_each(detach);
                    let thread = std::thread::Builder::new().spawn_scoped(scope, work);
                    thread.map_err(|_| left.push(some)).ok()
                })
                .collect();
            own.iter().for_each(detach);
            // For these no thread could be started.
            left.into_iter().flatten().for_each(detach);
            // A thread that panicked has detached some; the commit detaches the others.
            spawned.into_iter().for_each(|thread| drop(thread.join()));
        });
        ahead
    }

    fn all(&self) -> MutexGuard<'_, Detached> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What became of a route, if it was detached ahead. Told once.
    pub(crate) fn take(&self, route: &Route) -> Option<Result<(), Errno>> {
        self.all().remove(&key(route)).map(|(_, result)| result)
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        for (route, detached) in self.all().values() {
            if detached.is_ok() && !route.is_attached() {
                route.mask_live();
            }
        }
    }
}

/// Routes of eventfds that the changes, taken together, close.
fn wanted(ops: &[Op]) -> Vec<&Route> {
    let mut wants: HashMap<usize, (&Route, Want)> = HashMap::new();
    for op in ops {
        let (route, change): (&Route, fn(&mut Want)) = match op {
            Op::Mask(route) => (route, |want| (want.mask, want.remove) = (true, false)),
            Op::Unmask(route) => (route, |want| (want.mask, want.remove) = (false, false)),
            Op::Message(route, _) => (route, |want| want.remove = false),
            Op::Exchange(route, _) => (route, |want| (want.exchange, want.remove) = (true, false)),
            Op::Remove(route) => (route, |want| want.remove = true),
            _ => continue,
        };
        change(&mut wants.entry(key(route)).or_insert_with(|| (route, Want::default())).1);
    }
    let closed = |(route, want): &(&Route, Want)| {
        let closes = want.remove
            || want.mask && route.may_deliver()
            || want.exchange && route.may_be_attached();
        !route.source().is_gate() && closes
    };
    let mut routes: Vec<&Route> =
        wants.into_values().filter(closed).map(|(route, _)| route).collect();
    // In an order that does not depend on addresses.
    routes.sort_by_key(|route| route.gsi());
    routes
}
