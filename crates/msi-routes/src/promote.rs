//! Routes that deliver by messages of their own get entries in the table, all in one commit.
//!
//! A gate need not have a route: `KVM_SIGNAL_MSI` injects its message, with as many system calls
//! as a write to its eventfd is. So a vector costs nothing until it is worth an entry, and one
//! for which the table has no room works all the same. What an entry is for is the commit
//! once instead of a lookup of the destination each time, and sources that are not gates.

use crate::foreign::Errno;
use crate::report::{CommitError, Counts, Failure, Report, Step};
use crate::route::{Phase, Route};
use crate::shared::{Locked, Shared};

/// A signalled route that is to have a GSI.
struct Chosen {
    route: Route,
    gsi: u32,
}

pub(crate) fn promote(shared: &Shared) -> Result<Report, CommitError> {
    let mut locked = shared.lock();
    let mut report = Report::default();
    let chosen = choose(shared, &mut locked, &mut report);
    if chosen.is_empty() {
        return Ok(report);
    }
    let routes = locked.table.len();
    let commit = |locked: &mut Locked, counts: &mut Counts| -> Result<(), Errno> {
        counts.commits += 1;
        shared.kernel.set_routing(locked.table.routes())?;
        locked.table.keep();
        Ok(())
    };
    if let Err(source) = commit(&mut locked, &mut report.counts) {
        locked.table.roll_back();
        chosen.iter().for_each(|chosen| shared.give_back(chosen.gsi));
        return Err(CommitError { routes, source, not_restored: Vec::new() });
    }
    for Chosen { route, gsi } in chosen {
        // Nobody writes to its eventfd before the gate is told to.
        match shared.kernel.attach(route.source().eventfd(), gsi) {
            Ok(()) => {
                let number = route.gsi();
                route.promoted(gsi);
                shared.give_back(number);
                report.counts.attached += 1;
                if route.phase() == Phase::Live {
                    route.open();
                }
            }
            Err(e) => {
                locked.table.remove(gsi);
                shared.give_back(gsi);
                report.failures.push(Failure { route, step: Step::Attach, source: Some(e) });
            }
        }
    }
    if locked.table.is_changed() && commit(&mut locked, &mut report.counts).is_err() {
        // No irqfd leads to the entries; they go with the next commit.
        locked.table.roll_back();
    }
    report.counts.routes = locked.table.len();
    Ok(report)
}

/// Those that there is room for, in the table.
fn choose(shared: &Shared, locked: &mut Locked, report: &mut Report) -> Vec<Chosen> {
    let mut chosen = Vec::new();
    for route in shared.signalled() {
        if !route.is_signalled() || !matches!(route.phase(), Phase::Live | Phase::Masked) {
            continue;
        }
        let message = match shared.kernel.translate(route.message()) {
            Ok(message) => message,
            Err(e) => {
                let step = Step::Message(route.message());
                report.failures.push(Failure { route, step, source: Some(e) });
                continue;
            }
        };
        let reserved = shared.pool().reserve();
        match reserved {
            Ok(gsi) => {
                locked.table.put(gsi, message.entry(gsi));
                chosen.push(Chosen { route, gsi });
            }
            // No room for more.
            Err(_) => break,
        }
    }
    chosen
}
