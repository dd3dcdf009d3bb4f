// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Routes that deliver by messages of their own get entries in the table, all in one commit.
//!
//! A gate need not have a route: `KVM_SIGNAL_MSI` injects its message, with as many system calls
//! as a write to its eventfd is. So a vector costs nothing until it is worth an entry, and one
//! for which the table has no room works all the same. What an entry is for is the commit
//! once instead of a lookup of the destination each time, and sources that are not gates.

use crate::foreign::Errno;
use crate::isolate::{isolate, Bringer, Candidate};
use crate::message::MsiMessage;
use crate::on_panic::on_panic;
use crate::report::{CommitError, Failure, Report, Step};
use crate::route::{Home, Phase, Route};
use crate::shared::{Locked, Shared};
use std::sync::MutexGuard;

/// A signalled route that is to have a GSI.
struct Chosen {
    route: Route,
    gsi: u32,
    /// As the table gets it.
    message: MsiMessage,
    failed: bool,
}

struct Promotion<'a> {
    shared: &'a Shared,
    locked: MutexGuard<'a, Locked>,
    chosen: Vec<Chosen>,
    report: Report,
}

pub(crate) fn promote(shared: &Shared) -> Result<Report, CommitError> {
    let locked = shared.lock();
    let mut promotion = Promotion { shared, locked, chosen: Vec::new(), report: Report::default() };
    // An eventfd is attached once only.
    shared.detach_stuck();
    promotion.choose();
    promotion.run()
}

impl Drop for Promotion<'_> {
    /// The kernel panicked: those that have no irqfd yet are signalled as before.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let left = self.chosen.iter().filter(|chosen| !chosen.failed);
            left.for_each(|chosen| self.shared.give_back(chosen.gsi));
        }
    }
}

impl Promotion<'_> {
    fn run(mut self) -> Result<Report, CommitError> {
        if self.chosen.is_empty() {
            return Ok(std::mem::take(&mut self.report));
        }
        self.edit(&vec![true; self.chosen.len()]);
        let routes = self.locked.table.len();
        if let Err(source) = self.offer().or_else(|e| self.isolate(e)) {
            let given = self.chosen.iter().filter(|chosen| !chosen.failed);
            given.for_each(|chosen| self.shared.give_back(chosen.gsi));
            return Err(CommitError { routes, source, not_restored: Vec::new() });
        }
        self.attach();
        if self.locked.table.is_changed() && self.offer().is_err() {
            // No irqfd leads to the entries; they go with the next commit.
        }
        self.report.counts.routes = self.locked.table.len();
        Ok(std::mem::take(&mut self.report))
    }

    fn isolate(&mut self, first: Errno) -> Result<(), Errno> {
        let candidate =
            |(at, chosen): (usize, &Chosen)| Candidate { at, message: Some(chosen.message) };
        let candidates = self.chosen.iter().enumerate().map(candidate).collect();
        isolate(self, candidates, first)
    }

    /// Those that there is room for in the table.
    fn choose(&mut self) {
        for route in self.shared.signalled() {
            if !route.is_signalled() || !matches!(route.phase(), Phase::Live | Phase::Masked) {
                continue;
            }
            let message = match self.shared.translate(route.message()) {
                Ok(message) => message,
                Err(e) => {
                    let step = Step::Message(route.message());
                    self.report.failures.push(Failure::of(route, step, Some(e)));
                    continue;
                }
            };
            let reserved = self.shared.pool().reserve();
            // No room for more.
            let Ok(gsi) = reserved else { break };
            self.chosen.push(Chosen { route, gsi, message, failed: false });
        }
    }

    /// The kernel has the entries: irqfds, and the gates deliver by them.
    fn attach(&mut self) {
        self.chosen.reverse();
        while let Some(Chosen { route, gsi, failed, .. }) = self.chosen.pop() {
            if failed {
                continue;
            }
            // Nobody writes to its eventfd before the gate is told to.
            let lost = || self.shared.detach_later(&route.source(), gsi);
            let kernel = &self.shared.kernel;
            match on_panic(lost, || kernel.attach(route.source().eventfd(), gsi)) {
                Ok(()) => {
                    let number = route.gsi();
                    route.promoted(gsi);
                    self.shared.give_back(number);
                    self.report.counts.attached += 1;
                    if route.phase() == Phase::Live {
                        route.open();
                    }
                }
                Err(e) => {
                    self.locked.table.remove(gsi);
                    self.shared.give_back(gsi);
                    self.report.failures.push(Failure::of(route, Step::Attach, Some(e)));
                }
            }
        }
    }
}

impl Bringer for Promotion<'_> {
    fn edit(&mut self, taken: &[bool]) -> bool {
        let table = &mut self.locked.table;
        for (chosen, _) in self.chosen.iter().zip(taken).filter(|(c, &taken)| taken && !c.failed) {
            if !table.has(chosen.gsi, &chosen.message) {
                table.put(chosen.gsi, chosen.message.entry(chosen.gsi));
            }
        }
        table.is_changed()
    }

    fn offer(&mut self) -> Result<(), Errno> {
        self.report.counts.commits += 1;
        let offered = self.shared.kernel.set_routing(self.locked.table.routes());
        match offered {
            Ok(()) => self.locked.table.keep(),
            Err(_) => self.locked.table.roll_back(),
        }
        offered
    }

    /// It delivers by its own messages, as before.
    fn blame(&mut self, candidate: usize, why: Errno) {
        let chosen = &mut self.chosen[candidate];
        chosen.failed = true;
        self.shared.give_back(chosen.gsi);
        let step = Step::Message(chosen.route.message());
        self.report.failures.push(Failure::of(chosen.route.clone(), step, Some(why)));
    }
}
