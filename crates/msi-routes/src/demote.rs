// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Gates' routes give up their entries: the way back from `promote.rs`.
//!
//! A gate is closed, its irqfd is detached (which waits until KVM has injected what it had), and the
//! gate is opened again with its message. What is raised in between waits in the gate.

use crate::error::RouteError;
use crate::on_panic::on_panic;
use crate::report::{Failure, Report, Step};
use crate::route::{Phase, Route};
use crate::shared::Shared;
use std::sync::Arc;

pub(crate) fn demote(shared: &Arc<Shared>, routes: &[&Route]) -> Result<Report, RouteError> {
    if let Some(other) = routes.iter().find(|route| !route.is_of(shared)) {
        return Err(RouteError::OtherVm { gsi: other.gsi() });
    }
    if !shared.may_signal() {
        return Err(RouteError::NoSignals);
    }
    // No commit is under way.
    let locked = shared.lock();
    let mut report = Report::default();
    report.counts.routes = locked.table.len();
    for &route in routes {
        let in_table =
            matches!(route.phase(), Phase::Live | Phase::Masked) && !route.is_signalled();
        if !in_table || !route.source().is_gate() {
            continue;
        }
        match give_up(shared, route) {
            Ok(given) => report.counts.detached += usize::from(given),
            Err(failure) => report.failures.push(failure),
        }
    }
    Ok(report)
}

/// False if there are as many signalled routes as there can be.
fn give_up(shared: &Shared, route: &Route) -> Result<bool, Failure> {
    let failed = |step| move |e| Failure::of(route.clone(), step, Some(e));
    let message = route.message();
    let message = shared.translate(message).map_err(failed(Step::Message(message)))?;
    let Some(number) = shared.pool().reserve_signalled() else { return Ok(false) };
    let was_live = route.phase() == Phase::Live;
    route.close();
    let detached = on_panic(|| shared.give_back(number), || route.detach(&*shared.kernel));
    if let Err(e) = detached {
        if was_live {
            route.open();
        }
        shared.give_back(number);
        return Err(failed(Step::Detach)(e));
    }
    let gsi = route.gsi();
    route.demoted(number);
    shared.note_again(route);
    shared.give_back(gsi);
    if was_live {
        route.open_signalled(message);
    }
    Ok(true)
}
