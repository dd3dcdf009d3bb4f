// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Changes of fixed routes, each of which may fail alone.

use crate::foreign::Errno;
use crate::message::{FixedRoute, MsiMessage};
use crate::pool::Pool;
use crate::report::{Failure, Step};
use crate::shared::Shared;
use crate::table::Table;

/// What a batch wants of a GSI's fixed routes.
#[derive(Debug, Clone)]
pub(crate) enum FixedOp {
    /// One more.
    Add(FixedRoute),
    /// They become these.
    Set(u32, Vec<FixedRoute>),
}

impl FixedOp {
    fn gsi(&self) -> u32 {
        match self {
            Self::Add(route) => route.gsi(),
            Self::Set(gsi, _) => *gsi,
        }
    }

    fn routes(&self) -> &[FixedRoute] {
        match self {
            Self::Add(route) => std::slice::from_ref(route),
            Self::Set(_, routes) => routes,
        }
    }

    /// It is not to be: what was reserved for it goes back to the pool.
    pub(crate) fn forget(&self, pool: &mut Pool) {
        match self {
            Self::Add(route) => pool.forget_fixed(route),
            Self::Set(gsi, routes) => pool.forget_change(*gsi, routes.len()),
        }
    }
}

/// What a commit wants of the fixed routes of a GSI, all its changes taken together.
pub(crate) struct FixedPlan {
    gsi: u32,
    /// In their order.
    ops: Vec<FixedOp>,
    /// In the place of those that there are.
    replaces: bool,
    /// What the table gets, as it was staged and then as it is translated.
    routes: Vec<FixedRoute>,
    /// The table that is handed to the kernel has it.
    offered: bool,
    /// The kernel's table has it.
    kept: bool,
    failed: bool,
}

impl FixedPlan {
    /// Adds a change to what is planned of its GSI.
    pub(crate) fn plan(plans: &mut Vec<Self>, op: FixedOp) {
        let gsi = op.gsi();
        let at = plans.iter().position(|plan| plan.gsi == gsi).unwrap_or_else(|| {
            plans.push(Self {
                gsi,
                ops: Vec::new(),
                replaces: false,
                routes: Vec::new(),
                offered: false,
                kept: false,
                failed: false,
            });
            plans.len() - 1
        });
        let plan = &mut plans[at];
        if matches!(op, FixedOp::Set(..)) {
            plan.replaces = true;
            plan.routes.clear();
        }
        plan.routes.extend_from_slice(op.routes());
        plan.ops.push(op);
    }

    /// Has its messages translated.
    pub(crate) fn translate(&mut self, shared: &Shared) -> Result<(), Errno> {
        let translated = self.routes.iter().map(|route| route.translated(shared));
        self.routes = translated.collect::<Result<_, _>>()?;
        Ok(())
    }

    /// KVM may refuse it: it brings routes.
    pub(crate) fn is_candidate(&self) -> bool {
        !self.failed && !self.routes.is_empty()
    }

    /// What it brings into the table, if that is a message.
    pub(crate) fn message(&self) -> Option<MsiMessage> {
        self.routes.first().and_then(FixedRoute::message)
    }

    /// Edits the table, if it is taken: what takes routes out always is.
    pub(crate) fn edit(&mut self, table: &mut Table, taken: bool) {
        self.offered = !self.failed && (taken || self.routes.is_empty());
        if !self.offered || self.kept {
            return;
        }
        if self.replaces {
            table.remove_fixed(self.gsi);
        }
        self.routes.iter().for_each(|route| table.push_fixed(route));
    }

    /// The kernel has the table.
    pub(crate) fn keep(&mut self) {
        self.kept |= self.offered;
    }

    /// It is not to be, alone.
    pub(crate) fn fail(&mut self, pool: &mut Pool, why: Errno) -> Failure {
        self.failed = true;
        self.ops.iter().for_each(|op| op.forget(pool));
        // As it was staged: what a guest wrote.
        let staged = self.ops.last().and_then(|op| op.routes().last());
        let message = staged.and_then(FixedRoute::message);
        Failure::of_fixed(self.gsi, message.map_or(Step::Entry, Step::Message), why)
    }

    /// All of the commit is undone.
    pub(crate) fn forget(&self, pool: &mut Pool) {
        if !self.failed {
            self.ops.iter().for_each(|op| op.forget(pool));
        }
    }

    /// The kernel panicked.
    pub(crate) fn abandon(&self, pool: &mut Pool) {
        if self.kept {
            self.settle(pool);
        } else {
            self.forget(pool);
        }
    }

    /// The commit is done.
    pub(crate) fn settle(&self, pool: &mut Pool) {
        for op in self.ops.iter().filter(|_| !self.failed) {
            match op {
                FixedOp::Add(route) => pool.settle_fixed(route),
                FixedOp::Set(gsi, routes) => pool.settle_change(*gsi, routes),
            }
        }
    }
}
