// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What a commit wants of each route, and memory for it that is kept between commits.

use crate::message::MsiMessage;
use crate::route::Route;
use crate::source::Source;
use std::sync::Arc;

const NOWHERE: u32 = u32::MAX;

/// What a batch wants of one route, all its changes taken together.
pub(crate) struct Plan {
    pub(crate) route: Route,
    /// Added by this batch.
    pub(crate) new: bool,
    pub(crate) message: Option<MsiMessage>,
    /// The same as the table gets it.
    pub(crate) translated: MsiMessage,
    pub(crate) live: Option<bool>,
    pub(crate) remove: bool,
    /// Its new source.
    pub(crate) source: Option<Source>,
    /// Closed by this commit, so to be opened again should it fail.
    pub(crate) closed: Option<Closed>,
    /// It stays as it was.
    pub(crate) failed: bool,
}

/// How a vector was closed.
#[derive(Clone, Copy)]
pub(crate) enum Closed {
    Gate,
    Irqfd,
}

/// Plans whose memory is kept between commits.
const PLANS_KEPT: usize = 256;

/// The plans of the commit under way; empty between commits.
pub(crate) struct Workspace {
    pub(crate) plans: Vec<Plan>,
    /// Where a GSI's plan is.
    slots: Vec<u32>,
}

impl Workspace {
    /// For GSIs below `limit`.
    pub(crate) fn new(limit: usize) -> Self {
        Workspace { plans: Vec::new(), slots: vec![NOWHERE; limit] }
    }

    /// The plan of a route, made if there is none.
    pub(crate) fn plan_of(&mut self, route: Route) -> &mut Plan {
        let slot = &mut self.slots[route.gsi() as usize];
        let same = |plan: &&Plan| Arc::ptr_eq(&plan.route.0, &route.0);
        // A GSI may have changed hands since an operation on its former owner was staged.
        if self.plans.get(*slot as usize).filter(same).is_none() {
            *slot = self.plans.len() as u32;
            self.plans.push(Plan {
                route,
                new: false,
                message: None,
                translated: MsiMessage::default(),
                live: None,
                remove: false,
                source: None,
                closed: None,
                failed: false,
            });
        }
        let slot = *slot as usize;
        &mut self.plans[slot]
    }

    /// All changes are planned: from here on plans may move.
    pub(crate) fn close(&mut self) {
        for plan in &self.plans {
            self.slots[plan.route.gsi() as usize] = NOWHERE;
        }
    }

    /// Forgets the plans and keeps memory for the next ones. Of a large batch they are
    /// returned instead, for the caller to drop where nobody waits for it.
    pub(crate) fn clear(&mut self) -> Vec<Plan> {
        if self.plans.capacity() > PLANS_KEPT {
            return std::mem::take(&mut self.plans);
        }
        self.plans.clear();
        Vec::new()
    }
}
