//! What a way ends at.

use super::super::levels::{levels, Level, Sum};
use super::super::throttled::by_quota;
use super::super::waits::{syncs, waits};
use super::super::View;
use super::locks::by_signals;
use super::whose::by_turns;
use super::{Cause, Story, CLOSED, FAULT_S, LEAST_WAITS, SHARE};
use crate::evidence::groups::{GroupId, BORN};
use crate::evidence::tree::Frame;
use crate::moment::Sym;
use std::collections::BTreeMap;

/// Share of the time of one whose calls are not recorded that waiting for the kernel's workers or
/// a device takes, from which that is what it does.
const BLIND: f64 = 0.15;

/// Computing of a process, s, beside which it is nothing to make it: some ten times fork, exec
/// and exit.
const CHILD_S: f64 = 10e-3;
/// The same of its sleeping: its program may have to be read first.
const CHILD_WAITS_S: f64 = 50e-3;

/// Calls that wait for a child.
const CHILD: [&str; 6] = ["wait4", "waitid", "vfork", "clone", "clone3", "fork"];

/// Threads that a call of the one that is waited for lets go on, from which it is no lock.
const ALL_GO: f64 = 1.3;

/// Page faults that may be worth a word beside what else a thread computes.
const MANY_FAULTS: u64 = 1000;

impl Story {
    /// What the way ends at, and how much of the time.
    pub(super) fn cause(&self, view: &View<'_>) -> (Cause, u64) {
        let last = self.last();
        let (cause, most) = self.state(view);
        if let Some(inside) = self.inside(view).filter(|_| cause != Cause::NoCpu) {
            return inside;
        }
        if let Some(told) = self.by_whom(view, cause, most) {
            return told;
        }
        if let Some(held) = self.held(view) {
            return held;
        }
        let net = |s| matches!(s, Frame::Irq(irq) if view.name(irq) == "NET_RX");
        let network = last.ticks(|_, s| net(s));
        let futex = || is_futex(view, last.most_in(|s| s == Frame::Asleep).and_then(|(c, _)| c));
        let request = matches!(self.root, Frame::Request(_)) && self.levels.len() == 1;
        match cause {
            Cause::Device if network * 2 >= most => (Cause::Network, network),
            Cause::Computes => match self.blind(view) {
                Some(told) => told,
                None => self.computes(view, most),
            },
            Cause::Asleep if request && futex() => (Cause::Lock, most),
            cause => (cause, most),
        }
    }

    /// What the last one on the way does most of the time.
    fn state(&self, view: &View<'_>) -> (Cause, u64) {
        let last = self.last();
        let by_design = |call: Option<Frame>| call.is_none_or(|c| waits(view.frame_name(c)));
        let hops = self.levels.len() > 1 || matches!(self.root, Frame::Request(_));
        let interrupt = |state| matches!(state, Frame::Irq(_) | Frame::Interrupt | Frame::Deep);
        // Outside calls: a page of a mapped file.
        let disk = |s| matches!(s, Frame::Irq(irq) if view.name(irq) == "BLOCK");
        let asked = self.is_asked_for(view);
        let timed = |c: Option<Frame>| asked && self.times_out(view, c);
        let timer = last.ticks(|c, s| {
            if !hops && matches!(s, Frame::Interrupt | Frame::Asleep) && timed(c) {
                return true;
            }
            if !hops {
                let sleeps = c.is_some_and(|c| view.frame_name(c).contains("nanosleep"));
                return s == Frame::Timer && sleeps;
            }
            s == Frame::Timer
                || s == Frame::Interrupt && by_design(c)
                || matches!(s, Frame::Irq(i) if view.name(i).to_ascii_lowercase().contains("timer"))
        });
        let device = last.ticks(|c, s| match hops {
            true => interrupt(s) && !(s == Frame::Interrupt && by_design(c)),
            false => s == Frame::Deep || disk(s) || interrupt(s) && !by_design(c),
        });
        // Waiting for a CPU that now this has and now that is the host's business.
        let no_cpu = last.ticks(|_, s| s == Frame::NoCpu);
        let no_cpu = match self.rival() {
            _ if self.throttled(view) => no_cpu,
            Some((_, ticks)) if ticks * 5 >= no_cpu * 4 => no_cpu,
            Some((_, ticks)) if ticks * 2 >= no_cpu && self.starves(view) => no_cpu,
            _ => no_cpu / 4,
        };
        // Those of its own name have it: they compute.
        let own = last.who.or(self.subject_group(view));
        let theirs = last.rivals.iter().filter(|((who, _), _)| Some(*who) == own);
        let theirs = crate::sum(theirs.map(|(_, sum)| sum.ticks));
        let (no_cpu, theirs) = match self.throttled(view) || self.levels.len() == 1 {
            true => (no_cpu, 0),
            false => (no_cpu.saturating_sub(theirs), theirs),
        };
        let all = [
            (timer, Cause::Timer),
            (device, Cause::Device),
            (no_cpu, Cause::NoCpu),
            (last.ticks(|_, s| matches!(s, Frame::Stopped(_))), Cause::Stopped),
            (last.ticks(|c, s| s == Frame::Asleep && (hops || !by_design(c))), Cause::Asleep),
            (last.ticks(|_, s| matches!(s, Frame::Runs | Frame::Guest)) + theirs, Cause::Computes),
            (crate::sum(last.wakers().iter().map(|(_, sum)| sum.ticks)), Cause::HandOver),
        ];
        let most = all.into_iter().max_by_key(|(ticks, _)| *ticks);
        most.map_or((Cause::Computes, 0), |(ticks, cause)| (cause, ticks))
    }

    /// What a subject that computes for the most part does besides: a disk, naps, a call.
    pub(super) fn beside(&self, view: &View<'_>) -> Option<(Cause, u64)> {
        let last = self.last();
        let by_design = |call: Option<Frame>| call.is_none_or(|c| waits(view.frame_name(c)));
        let disk = |s| matches!(s, Frame::Irq(irq) if view.name(irq) == "BLOCK");
        let device = last.ticks(|c, s| {
            s == Frame::Deep
                || disk(s)
                || matches!(s, Frame::Irq(_) | Frame::Interrupt) && !by_design(c)
        });
        let naps = last.ticks(|c, s| {
            s == Frame::Timer && c.is_some_and(|c| view.frame_name(c).contains("nanosleep"))
        });
        let call = self.in_calls(view).map_or(0, |(.., sum)| sum.ticks);
        let user = last.ticks(|c, s| s == Frame::Runs && c.is_none());
        let tick = view.seconds(1).unwrap_or(0.0).max(f64::MIN_POSITIVE);
        let faults = ((self.faults() as f64 * FAULT_S / 2.0 / tick) as u64).min(user);
        let faults = if self.faults() >= MANY_FAULTS { faults } else { 0 };
        let all = [
            (faults, Cause::Faults),
            (call, Cause::InCall),
            (device, Cause::Device),
            (naps, Cause::Timer),
        ];
        let (ticks, cause) = all.into_iter().max_by_key(|(ticks, _)| *ticks)?;
        Some((cause, ticks.min(self.busy)))
    }

    /// What it is by whom is waited for at the end, in what call.
    fn by_whom(&self, view: &View<'_>, cause: Cause, most: u64) -> Option<(Cause, u64)> {
        let (last, groups) = (self.last(), &view.evidence.groups);
        let via = self.levels.len().checked_sub(2).and_then(|at| self.levels.get(at));
        let all = last.all.ticks;
        let kernel = last.who.is_some_and(|who| groups.is_kernel(who));
        // What a loop device's worker waits for is the program that has its file.
        let loops = |(work, _): (Sym, Sum)| view.name(work).starts_with("loop");
        let through = !kernel && last.who.is_some() && self.work().is_some_and(loops);
        // Whoever is waited for, one other has its CPU.
        let no_cpu = last.ticks(|_, s| s == Frame::NoCpu);
        let other = |(rival, ticks): (GroupId, u64)| {
            Some(rival) != last.who && ticks.saturating_mul(5) >= no_cpu.saturating_mul(4)
        };
        if via.is_some() && cause == Cause::NoCpu && self.rival().is_some_and(other) {
            return Some((cause, most));
        }
        if via.is_some() && !through && (kernel || self.work().is_some()) {
            // Workers that wait for workers: all of it is for the first.
            let works = |level: &&Level| level.who.is_some_and(|who| groups.is_kernel(who));
            let first = self.levels.iter().find(works);
            return Some((Cause::Work, first.map_or(all, |level| level.all.ticks)));
        }
        if self.child(view).is_some() {
            return Some((Cause::Child, all));
        }
        if cause == Cause::NoCpu && self.starves(view) {
            return Some((cause, most));
        }
        if let Some((_, ticks)) = self.hog.filter(|(_, ticks)| *ticks * 5 >= self.busy * 2) {
            return Some((Cause::NoCpu, ticks.min(self.busy)));
        }
        let via = via?;
        if cause == Cause::Stopped {
            return Some((cause, most));
        }
        let goes = last.who.is_some_and(|who| groups.comes_and_goes(who));
        let child = goes || in_call(view, via, &CHILD);
        if child && self.children_compute(view) {
            return Some((Cause::Computes, all));
        }
        if child && self.children_wait(view, cause, most) {
            return None;
        }
        if child {
            // Made a few times: what it does itself is the cause.
            let again = goes || self.started(view) >= u64::from(BORN);
            // It has its parent's CPU as well.
            let rivals = via.rivals.iter().filter(|((who, _), _)| Some(*who) == last.who);
            let all = all.saturating_add(crate::sum(rivals.map(|(_, sum)| sum.ticks)));
            return again.then_some((Cause::Child, all.min(self.busy)));
        }
        if cause != Cause::Timer && self.is_lock(view, via, last) {
            // Their own kind, one behind the other: all of it is for the lock.
            let own = last.who == self.subject_group(view);
            let first = self.levels.get(1).filter(|level| own && level.who == last.who);
            return Some((Cause::Lock, first.map_or(all, |level| level.all.ticks)));
        }
        None
    }

    /// The child that is waited for or has the CPU meanwhile, where the way ends in a call that
    /// waits for one.
    pub(super) fn child(&self, view: &View<'_>) -> Option<GroupId> {
        let last = self.last();
        let (call, sum) = Level::sorted(&last.calls).into_iter().next()?;
        let makes = CHILD.contains(&view.frame_name(call?));
        if !makes || sum.ticks * 2 < last.all.ticks || self.partial {
            return None;
        }
        let mut by: BTreeMap<GroupId, u64> = BTreeMap::new();
        last.wakers().iter().for_each(|(who, sum)| *by.entry(*who).or_default() += sum.ticks);
        last.rivals.iter().for_each(|((who, _), sum)| *by.entry(*who).or_default() += sum.ticks);
        let (child, ticks) = by.into_iter().max_by_key(|(_, ticks)| *ticks)?;
        let most = ticks as f64 >= CLOSED * sum.ticks as f64;
        let groups = &view.evidence.groups;
        // Where who is made is not recorded: one of them for each call.
        let members = groups.get(child).map_or(0, |group| u64::from(group.members));
        let each = members >= u64::from(BORN) && members * 2 >= sum.count;
        (most && (each || groups.comes_and_goes(child))).then_some(child)
    }

    /// How often whom is waited for at the end was started; where that is not recorded, how often
    /// it was waited for as a child.
    pub(super) fn started(&self, view: &View<'_>) -> u64 {
        let (child, groups) = (self.child(view), &view.evidence.groups);
        let Some(who) = child.or(self.last().who) else { return 0 };
        let group = groups.get(who).filter(|_| child.is_some());
        let members = group.map_or(0, |group| u64::from(group.members));
        let born = groups.get(who).map_or(0, |group| u64::from(group.born)).max(members);
        let via = self.levels.iter().rev().nth(1);
        let parts = via.into_iter().flat_map(|via| &via.parts);
        let child =
            |call: &Option<Frame>| call.is_some_and(|call| CHILD.contains(&view.frame_name(call)));
        let waits = parts.filter(|((call, s), _)| *s == Frame::Waker(who) && child(call));
        match born {
            0 => waits.map(|(_, sum)| sum.count).sum(),
            born => born,
        }
    }

    /// Whom is waited for at the end is a process, until it has ended.
    pub(super) fn by_child(&self, view: &View<'_>) -> bool {
        let via = self.levels.iter().rev().nth(1);
        via.is_some_and(|via| in_call(view, via, &CHILD))
    }

    /// Whom is waited for at the end waits itself for so long each time that making it is nothing:
    /// a script that runs a program waits for what this waits for.
    fn children_wait(&self, view: &View<'_>, cause: Cause, most: u64) -> bool {
        let last = self.last();
        let born = last.who.and_then(|who| view.evidence.groups.get(who)).map_or(0, |g| g.born);
        let waits = matches!(cause, Cause::Timer | Cause::Device);
        let each = view.seconds(most / u64::from(born.max(1)));
        let known = last.all.ticks.saturating_sub(last.noise());
        waits && most * 2 >= known && each.is_some_and(|each| each >= CHILD_WAITS_S)
    }

    /// Whom is waited for at the end computes for so long each time that making it is nothing.
    fn children_compute(&self, view: &View<'_>) -> bool {
        let last = self.last();
        let Some(who) = last.who else { return false };
        let born = view.evidence.groups.get(who).map_or(0, |group| group.born);
        let own = levels(view, Frame::Life(who)).into_iter().next();
        let user = own.map_or(0, |own| own.ticks(|c, s| s == Frame::Runs && c.is_none()));
        let each = view.seconds(user / u64::from(born.max(1)));
        let computes = last.ticks(|c, s| c.is_none() && matches!(s, Frame::Runs | Frame::NoCpu));
        let known = last.all.ticks.saturating_sub(last.noise());
        born > 0 && computes * 2 >= known && each.is_some_and(|each| each >= CHILD_S)
    }

    /// Without system calls, time on a CPU may be in a call: what else it does tells which.
    fn blind(&self, view: &View<'_>) -> Option<(Cause, u64)> {
        if view.evidence.seen(self.file(view)).syscalls {
            return None;
        }
        let last = self.last();
        let kernel = |group| view.evidence.groups.is_kernel(group);
        let works = last.ticks(|_, s| matches!(s, Frame::Waker(group) if kernel(group)));
        let device = last.ticks(|_, s| matches!(s, Frame::Irq(_) | Frame::Deep));
        let known = last.all.ticks.saturating_sub(last.noise());
        let (ticks, cause) =
            if works >= device { (works, Cause::Work) } else { (device, Cause::Device) };
        let much = (works.saturating_add(device)) as f64 >= BLIND * known as f64;
        much.then_some((cause, ticks.max(last.all.ticks / 2)))
    }

    /// Ready, and the CPU had nothing to do, for longer than a wake-up takes: it may not run.
    pub(super) fn throttled(&self, view: &View<'_>) -> bool {
        !self.partial && (self.last().idles(view) || self.by_quota(view))
    }

    /// The last one on the way gets a CPU at multiples of a period only.
    pub(super) fn by_quota(&self, view: &View<'_>) -> bool {
        self.last()
            .who
            .or(self.subject_group(view))
            .is_some_and(|who| by_quota(view, who).is_some())
    }

    /// Who had the CPU most of the time that the last one on the way had none.
    pub(super) fn rival(&self) -> Option<(GroupId, u64)> {
        if self.partial {
            return None;
        }
        let mut by: BTreeMap<GroupId, u64> = BTreeMap::new();
        for ((group, _), sum) in &self.last().rivals {
            *by.entry(*group).or_default() += sum.ticks;
        }
        by.into_iter().max_by_key(|(_, ticks)| *ticks)
    }

    /// In a call that has data on a disk before it returns: whatever it does there.
    pub(super) fn inside(&self, view: &View<'_>) -> Option<(Cause, u64)> {
        let (_, call, sum) = self.call(view)?;
        let share = sum.ticks as f64 / self.busy.max(1) as f64;
        (syncs(view.name(call)) && share >= SHARE).then_some((Cause::Device, sum.ticks))
    }

    /// On a CPU: page faults, a call, or its own computing.
    pub(super) fn computes(&self, view: &View<'_>, runs: u64) -> (Cause, u64) {
        let last = self.last();
        if let Some(waits) = self.spins(view) {
            return (Cause::Lock, waits.all.ticks.min(runs));
        }
        let state = |s| matches!(s, Frame::Runs);
        let faults = self.faults();
        let user = last.ticks(|c, s| state(s) && c.is_none());
        let each = view.seconds(user).map(|s| s / faults.max(1) as f64);
        if faults >= 100 && user * 2 >= runs && each.is_some_and(|each| each <= FAULT_S) {
            return (Cause::Faults, user);
        }
        let in_calls = last.ticks(|c, s| state(s) && c.is_some());
        if in_calls * 2 >= runs {
            return (Cause::Call, runs);
        }
        (Cause::Computes, runs)
    }

    /// How often the last one on the way sleeps until a timer fires; one sleep that many wait
    /// for is one.
    pub(super) fn naps(&self, view: &View<'_>) -> u64 {
        let of = |level: &Level| -> u64 {
            let nap = |s| matches!(s, Frame::Timer | Frame::Interrupt | Frame::Irq(_));
            level.parts.iter().filter(|((_, s), _)| nap(*s)).map(|(_, sum)| sum.count).sum()
        };
        let own = self.last().who.and_then(|who| levels(view, Frame::Life(who)).into_iter().next());
        let waited = of(self.last());
        own.map_or(waited, |own| of(&own).min(waited))
    }

    pub(super) fn faults(&self) -> u64 {
        self.last()
            .parts
            .iter()
            .filter(|((_, s), _)| *s == Frame::Faults)
            .map(|(_, s)| s.count)
            .sum()
    }

    /// Waited for in a futex, or in a call that does not wait by design, and not asked to do
    /// something by the one that waits.
    pub(super) fn is_lock(&self, view: &View<'_>, via: &Level, last: &Level) -> bool {
        let Some(who) = last.who else { return false };
        if self.known_lock(view, via, who).is_some() {
            return true;
        }
        if !view.evidence.seen(self.file(view)).syscalls {
            return self.is_lock_by_wakes(view, via, who);
        }
        let wants = |state| state == Frame::Waker(who);
        let own_kind = via.who.or(self.subject_group(view)) == Some(who);
        if own_kind && via.calls.keys().all(Option::is_none) {
            return by_turns(view, who);
        }
        if let (Frame::Thread(group, _), true, true) = (self.root, own_kind, self.levels.len() == 2)
        {
            // Of one of them that says less: it may be asked, and ask in turn.
            let all = Story::of(view, Frame::Life(group));
            if !all.is_some_and(|all| all.cause(view).0 == Cause::Lock) {
                return false;
            }
        }
        let Some((Some(call), sum)) = via.most_in(wants) else { return false };
        if self.joins(view, via, who) || self.waits_for_work(view, via) {
            return false;
        }
        let waiting = crate::sum(via.wakers().iter().map(|(_, waiting)| waiting.ticks));
        if sum.ticks * 2 < waiting {
            return false;
        }
        let name = view.frame_name(call);
        if own_kind && waits(name) && by_signals(view, who) {
            return true;
        }
        let top = last.most_in(|_| true).is_some_and(|(top, _)| top == Some(call));
        let kernel = may_lock_inside(name, own_kind && top);
        if !kernel && !is_lock_call(name) || self.lets_all_go(view, who, name) {
            return false;
        }
        if kernel {
            // In the kernel: the one that lets it go on is in a call, too.
            let inside = last.ticks(|call, _| call.is_some_and(|c| !waits(view.frame_name(c))));
            return inside * 2 >= last.all.ticks;
        }
        if !does_something(view, last) {
            return false;
        }
        let asked = match via.who.or(self.subject_group(view)) {
            // Their own kind: whoever has it lets the next one go on.
            Some(waiting) if waiting == who => 0,
            Some(waiting) => view.evidence.asked(waiting, who),
            None => 0,
        };
        asked * 2 < sum.count
    }

    /// Who lets go of a lock lets one go on; of a barrier, or of a condition that holds for all,
    /// all that wait.
    fn lets_all_go(&self, view: &View<'_>, who: GroupId, call: &str) -> bool {
        let ledger = &view.evidence.ledger;
        let same = |sym: Sym| view.name(sym) == call;
        let wakes = ledger
            .wakes
            .iter()
            .filter(|((by, inside, _), _)| *by == who && inside.is_some_and(same));
        let woken: u64 = wakes.map(|(_, wakes)| wakes.wakes).sum();
        let own = ledger.calls.iter().filter(|((by, inside), _)| *by == who && same(*inside));
        let calls: u64 = own.map(|(_, calls)| calls.count).sum();
        woken as f64 >= ALL_GO * calls.max(LEAST_WAITS) as f64
    }

    /// Without calls: their own kind lets a guest's request go on, or one that it did not ask. Of
    /// a thread's whole life that says less: who serves others and never sleeps is not woken.
    fn is_lock_by_wakes(&self, view: &View<'_>, via: &Level, who: GroupId) -> bool {
        let wakers = via.wakers();
        let Some((_, sum)) = wakers.iter().find(|(waker, _)| *waker == who) else { return false };
        let Some(waiting) = via.who.or(self.subject_group(view)) else { return false };
        let request = matches!(self.root, Frame::Request(_));
        waiting == who && by_turns(view, who)
            || request && waiting != who && view.evidence.asked(waiting, who) * 2 < sum.count
    }

    pub(super) fn subject_group(&self, view: &View<'_>) -> Option<GroupId> {
        match self.root {
            Frame::Life(group) | Frame::Thread(group, _) => Some(group),
            Frame::Request(_) => view.evidence.vcpu_group(),
            _ => None,
        }
    }
}

/// True for calls that wait for a lock of the kernel, if they wait; `same` says that the one that
/// lets go is of the same name, and in the same call.
fn may_lock_inside(name: &str, same: bool) -> bool {
    // Who makes room in a pipe reads; another that writes has the file's lock.
    let makes_room = matches!(name, "write" | "writev" | "sendto" | "sendmsg");
    !waits(name) && !is_lock_call(name) && !name.starts_with("_IO") && (!makes_room || same)
}

/// True unless it sleeps in a wait of its own: then it holds nothing that it could let go.
fn does_something(view: &View<'_>, last: &Level) -> bool {
    let idle = |call: Option<Frame>| {
        call.is_some_and(|call| {
            let name = view.frame_name(call);
            waits(name) && !is_lock_call(name)
        })
    };
    let works = last.ticks(|call, state| {
        !idle(call)
            && match state {
                Frame::Runs => true,
                Frame::NoCpu | Frame::Unknown => false,
                _ => call.is_some_and(|call| !waits(view.frame_name(call))),
            }
    });
    let known = last.all.ticks.saturating_sub(last.noise());
    // What is not recorded is in no call that is known.
    let top = last.most_in(|state| state != Frame::Unknown).and_then(|(call, _)| call);
    let said = Level::sorted(&last.calls).into_iter().find(|(call, _)| call.is_some());
    let idles = said.is_some_and(|(call, sum)| idle(call) && sum.ticks * 3 >= known);
    works * 3 >= known && works * 5 >= last.all.ticks && !idle(top) && !idles
}

/// True for calls that wait for locks.
fn is_lock_call(name: &str) -> bool {
    ["futex", "sem", "flock", "fcntl"].iter().any(|begin| name.starts_with(begin))
}

pub(super) fn is_futex(view: &View<'_>, call: Option<Frame>) -> bool {
    call.is_some_and(|call| view.frame_name(call).starts_with("futex"))
}

fn in_call(view: &View<'_>, level: &Level, names: &[&str]) -> bool {
    let waits = level.most_in(|s| matches!(s, Frame::Waker(_)));
    waits.and_then(|(call, _)| call).is_some_and(|call| names.contains(&view.frame_name(call)))
}
