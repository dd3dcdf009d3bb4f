// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The commit: masks, one ioctl, irqfds, in the order in which no interrupt is lost.
//!
//! 1. Vectors to be masked or removed are closed first: what they raise from now on waits
//!    in the source. Their routes are still there for what is under way. Eventfds of others
//!    are detached before the table is locked, as each of those waits for a grace period.
//! 2. The table is edited and handed to the kernel. Refused, it is rolled back, and what
//!    was closed is opened again.
//! 3. Vectors that are to be live are opened: only now may their eventfds be attached,
//!    because KVM drops what arrives for a GSI without a committed route. What waited is
//!    delivered.
//! 4. A vector that could not be attached is as before: masked, or out of the table.
//!
//! Of a table that is refused for what a guest wrote, `isolate.rs` finds what.

use crate::ahead::Ahead;
use crate::fixed::FixedPlan;
use crate::foreign::Errno;
use crate::message::MsiMessage;
use crate::ops::{Op, Ops};
use crate::plan::{Closed, Plan};
use crate::report::{CommitError, Failure, Report, Step};
use crate::route::{Phase, Route};
use crate::shared::{Locked, Shared};
use crate::source::Source;
use std::sync::{Arc, MutexGuard};

pub(crate) struct Commit<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) locked: MutexGuard<'a, Locked>,
    pub(crate) fixed: Vec<FixedPlan>,
    retired: Vec<u32>,
    pub(crate) report: Report,
    /// Plans of a large batch, after their commit: they go when the table is held no more.
    done: Vec<Plan>,
}

/// Forgets staged changes: GSIs go back to the pool.
pub(crate) fn forget(shared: &Shared, ops: impl Iterator<Item = Op>) {
    for op in ops {
        match op {
            Op::Add(route, ..) => route.retire(),
            Op::Fixed(op) => op.forget(&mut shared.pool()),
            _ => {}
        }
    }
}

/// `ahead`: what became of the routes that these changes close.
pub(crate) fn commit(shared: &Arc<Shared>, ahead: &Ahead, ops: Ops) -> Result<Report, CommitError> {
    let mut commit = Commit::new(shared);
    commit.plan(ops);
    commit.leave_failed(ahead);
    commit.close(ahead);
    commit.edit();
    commit.run()
}

pub(crate) fn sweep(shared: &Arc<Shared>) -> Result<Report, CommitError> {
    let mut commit = Commit::new(shared);
    commit.sweep();
    commit.run()
}

impl Drop for Commit<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.abandon();
        }
        self.done = self.locked.workspace.clear();
    }
}

impl<'a> Commit<'a> {
    fn new(shared: &'a Shared) -> Self {
        Self {
            shared,
            locked: shared.lock(),
            fixed: Vec::new(),
            retired: Vec::new(),
            report: Report::default(),
            done: Vec::new(),
        }
    }

    fn run(mut self) -> Result<Report, CommitError> {
        if self.locked.table.is_changed() {
            let routes = self.locked.table.len();
            if let Err(source) = self.set_routing().or_else(|e| self.isolate(e)) {
                return Err(self.undo(routes, source));
            }
        }
        self.settle_removed();
        self.open();
        self.take_out_failed();
        self.report.counts.routes = self.locked.table.len();
        Ok(std::mem::take(&mut self.report))
    }

    /// The kernel panicked: routes say what the kernel has of them.
    fn abandon(&mut self) {
        let Locked { table, workspace } = &mut *self.locked;
        table.doubt();
        self.shared.put_back(&self.retired);
        for plan in &self.fixed {
            plan.abandon(&mut self.shared.pool());
        }
        for plan in &workspace.plans {
            let (route, gsi) = (&plan.route, plan.route.gsi());
            if !plan.new && route.phase() == Phase::Staged {
                continue; // another batch's
            }
            let unborn = route.phase() == Phase::Staged;
            if unborn || !route.is_signalled() && !table.is_routed(gsi) {
                route.retire();
            } else if plan.closed.is_some() {
                route.mask_live();
            }
            let message = plan.message.filter(|_| table.has(gsi, &plan.translated));
            message.into_iter().for_each(|message| route.set_message(message));
        }
    }

    pub(crate) fn set_routing(&mut self) -> Result<(), Errno> {
        self.report.counts.commits += 1;
        self.shared.kernel.set_routing(self.locked.table.routes())?;
        self.locked.table.keep();
        self.fixed.iter_mut().for_each(FixedPlan::keep);
        Ok(())
    }

    pub(crate) fn fail(report: &mut Report, plan: &mut Plan, step: Step, source: Option<Errno>) {
        plan.failed = true;
        report.failures.push(Failure::of(plan.route.clone(), step, source));
    }

    /// Merges the changes to each route, in order.
    fn plan(&mut self, ops: Ops) {
        self.locked.workspace.plans.reserve(ops.len());
        for op in ops {
            let (route, change): (Route, fn(&mut Plan)) = match op {
                Op::Add(route, message, live) => {
                    let plan = self.locked.workspace.plan_of(route);
                    (plan.new, plan.message, plan.live) = (true, Some(message), Some(live));
                    continue;
                }
                Op::Message(route, message) => {
                    let plan = self.locked.workspace.plan_of(route);
                    (plan.message, plan.remove) = (Some(message), false);
                    continue;
                }
                Op::Exchange(route, source) => {
                    let plan = self.locked.workspace.plan_of(route);
                    (plan.source, plan.remove) = (Some(source), false);
                    continue;
                }
                Op::Mask(route) => (route, |p| (p.live, p.remove) = (Some(false), false)),
                Op::Unmask(route) => (route, |p| (p.live, p.remove) = (Some(true), false)),
                Op::Remove(route) => (route, |p| p.remove = true),
                Op::Fixed(op) => {
                    FixedPlan::plan(&mut self.fixed, *op);
                    continue;
                }
            };
            change(self.locked.workspace.plan_of(route));
        }
        self.locked.workspace.close();
        for plan in &mut self.locked.workspace.plans {
            let known = match plan.route.phase() {
                Phase::Staged => plan.new,
                Phase::Masked | Phase::Live => true,
                Phase::Gone => plan.remove,
            };
            if !known {
                Self::fail(&mut self.report, plan, Step::Find, None);
            }
            if plan.new && plan.remove {
                plan.route.retire();
            }
        }
        self.translate();
    }

    /// What failed already stays as it was: attached again, if it was detached ahead.
    fn leave_failed(&mut self, ahead: &Ahead) {
        for plan in self.locked.workspace.plans.iter_mut().filter(|plan| plan.failed) {
            if let Some(Ok(())) = ahead.take(&plan.route) {
                plan.closed = Some(Closed::Irqfd);
                self.report.failures.extend(Self::reopen(self.shared, plan).err());
            }
        }
        let idle = |plan: &Plan| plan.failed || plan.route.phase() == Phase::Gone;
        if self.locked.workspace.plans.iter().any(idle) {
            self.locked.workspace.plans.retain(|plan| !idle(plan));
        }
    }

    /// What the table gets for each message.
    fn translate(&mut self) {
        for plan in &mut self.locked.workspace.plans {
            let Some(message) = plan.message.filter(|_| !plan.remove && !plan.failed) else {
                continue;
            };
            match self.shared.translate(message) {
                Ok(translated) => plan.translated = translated,
                Err(e) => {
                    if plan.new {
                        plan.route.retire();
                    }
                    Self::fail(&mut self.report, plan, Step::Message(message), Some(e));
                }
            }
        }
        for plan in &mut self.fixed {
            if let Err(e) = plan.translate(self.shared) {
                self.report.failures.push(plan.fail(&mut self.shared.pool(), e));
            }
        }
    }

    /// Step 1.
    fn close(&mut self, ahead: &Ahead) {
        for plan in &mut self.locked.workspace.plans {
            let route = &plan.route;
            let closes = plan.remove
                || plan.live == Some(false) && route.may_deliver()
                || plan.source.is_some() && route.may_be_attached();
            if !closes {
                continue;
            }
            let was_live = route.phase() == Phase::Live;
            route.close();
            if route.source().is_gate() && (!plan.remove || route.is_signalled()) {
                plan.closed = Some(Closed::Gate);
                continue;
            }
            // Most often done ahead; another batch may have attached it again since.
            let ahead = ahead.take(route);
            let detached = match ahead {
                Some(Err(e)) => Err(e),
                Some(Ok(())) => route.detach(&*self.shared.kernel).map(|_| true),
                None => route.detach(&*self.shared.kernel),
            };
            match detached {
                Ok(true) => {
                    plan.closed = Some(Closed::Irqfd);
                    self.report.counts.detached += 1;
                }
                Ok(false) => {}
                Err(e) => {
                    if was_live {
                        route.open();
                    }
                    Self::fail(&mut self.report, plan, Step::Detach, Some(e));
                }
            }
        }
    }

    /// Step 2, in the library's table.
    fn edit(&mut self) {
        if !self.fixed.is_empty() {
            // Room first: entries of routes that are no more do not count as taken.
            self.sweep();
        }
        self.edit_with(|_| true);
        if self.locked.table.is_changed() && self.fixed.is_empty() {
            self.sweep();
        }
    }

    /// The edits, with the messages of those plans only that `take` names by their place;
    /// those of fixed routes come after the others.
    pub(crate) fn edit_with(&mut self, take: impl Fn(usize) -> bool) {
        let Locked { table, workspace } = &mut *self.locked;
        self.retired.iter().for_each(|gsi| table.remove(*gsi));
        for (n, plan) in workspace.plans.iter().enumerate().filter(|(_, plan)| !plan.failed) {
            let gsi = plan.route.gsi();
            match plan.message {
                _ if plan.remove => table.remove(gsi),
                // The kernel has it already; compared with the table, which is locked anyway.
                Some(_) if !plan.new && table.has(gsi, &plan.translated) => {}
                Some(_) if take(n) => table.put(gsi, plan.translated.entry(gsi)),
                _ => {}
            }
        }
        let first = workspace.plans.len();
        for (n, plan) in self.fixed.iter_mut().enumerate() {
            plan.edit(table, take(first + n));
        }
    }

    /// Entries of routes that are no more, now that the table is committed anyway.
    fn sweep(&mut self) {
        self.retired = self.shared.take_waste();
        for &gsi in &self.retired {
            self.locked.table.remove(gsi);
        }
    }

    /// The kernel refused the table: all is as before.
    fn undo(mut self, routes: usize, source: Errno) -> CommitError {
        self.locked.table.roll_back();
        let mut not_restored = Vec::new();
        self.shared.put_back(&self.retired);
        self.fixed.iter().for_each(|plan| plan.forget(&mut self.shared.pool()));
        for plan in &mut self.locked.workspace.plans {
            if plan.new {
                plan.route.retire();
            }
            not_restored.extend(Self::reopen(self.shared, plan).err());
        }
        CommitError { routes, source, not_restored }
    }

    /// A vector that was closed is as it was.
    pub(crate) fn reopen(shared: &Shared, plan: &mut Plan) -> Result<(), Failure> {
        let (route, Some(closed)) = (&plan.route, plan.closed) else { return Ok(()) };
        let was_live = route.phase() == Phase::Live;
        // Another batch may have masked it since it was detached ahead of this one.
        if matches!(closed, Closed::Irqfd) && (was_live || route.source().is_gate()) {
            if let Err(e) = route.attach(&*shared.kernel) {
                route.set_phase(Phase::Masked);
                return Err(Failure::of(route.clone(), Step::Attach, Some(e)));
            }
        }
        if was_live {
            Self::let_through(shared, route, route.message());
        }
        plan.closed = None;
        Ok(())
    }

    /// A vector whose new eventfd could not be attached has its old one again. What waits comes by
    /// that if it is attached; else it waits on in the new one, which the device writes to.
    fn put_back(shared: &Shared, plan: &mut Plan, old: Source) -> Result<(), Failure> {
        let new = plan.route.set_source(old);
        Self::reopen(shared, plan)?;
        if plan.route.is_attached() {
            new.hand_over(&plan.route.source());
        }
        Ok(())
    }

    /// Opens a route's source. What can't be translated was told by its plan.
    fn let_through(shared: &Shared, route: &Route, message: MsiMessage) {
        if !route.is_signalled() {
            return route.open();
        }
        if let Ok(message) = shared.translate(message) {
            route.open_signalled(message);
        }
    }

    /// The kernel has the table: what was removed gives its GSIs back.
    fn settle_removed(&mut self) {
        let fixed = std::mem::take(&mut self.fixed);
        fixed.iter().for_each(|plan| plan.settle(&mut self.shared.pool()));
        let plans = &mut self.locked.workspace.plans;
        for plan in plans.iter_mut().filter(|plan| plan.remove && !plan.failed) {
            // What waits goes to the new eventfd all the same: another route comes to have it.
            plan.source.take().map(|new| plan.route.exchange(new));
        }
        let removed = plans.iter().filter(|plan| plan.remove && !plan.failed);
        self.shared.retire(removed.map(|plan| &plan.route));
    }

    /// Step 3.
    fn open(&mut self) {
        for plan in
            self.locked.workspace.plans.iter_mut().filter(|plan| !plan.failed && !plan.remove)
        {
            let route = plan.route.clone();
            let old = plan.source.take().map(|new| route.exchange(new));
            let live = plan.live.unwrap_or(route.phase() == Phase::Live);
            if (live || route.source().is_gate()) && !route.is_signalled() {
                match route.attach(&*self.shared.kernel) {
                    Ok(new) => self.report.counts.attached += usize::from(new),
                    Err(e) => {
                        Self::fail(&mut self.report, plan, Step::Attach, Some(e));
                        // A route that never was has no eventfd to go back to.
                        if let Some(old) = old.filter(|_| !plan.new) {
                            let restored = Self::put_back(self.shared, plan, old);
                            self.report.failures.extend(restored.err());
                        }
                        continue;
                    }
                }
            }
            let message = plan.message.unwrap_or_else(|| route.message());
            if live {
                Self::let_through(self.shared, &route, message);
            }
            route.set_message(message);
            route.set_phase(if live { Phase::Live } else { Phase::Masked });
        }
    }

    /// Step 4. Should the kernel refuse this table, the entries wait for the next commit:
    /// no irqfd leads to them.
    fn take_out_failed(&mut self) {
        let Locked { table, workspace } = &mut *self.locked;
        for plan in workspace.plans.iter().filter(|plan| plan.failed) {
            let route = &plan.route;
            if plan.new {
                route.retire();
                table.remove(route.gsi());
            } else if plan.message.is_some() {
                // What the table had was asked of the kernel before, and it may say no now.
                let before = self.shared.translate(route.message());
                if let Some(before) = before.ok().filter(|b| !table.has(route.gsi(), b)) {
                    table.put(route.gsi(), before.entry(route.gsi()));
                }
            }
        }
        if self.locked.table.is_changed() && self.set_routing().is_err() {
            self.locked.table.roll_back();
            let kept = |plan: &&Plan| plan.failed && !plan.new;
            for plan in self.locked.workspace.plans.iter().filter(kept) {
                plan.message.into_iter().for_each(|message| plan.route.set_message(message));
            }
        }
    }
}
