//! Calls by the thread's name: how their time and their number develop, whom they wake.

use super::features::{Open, Split};
use super::groups::GroupId;
use super::name_traits::Traits;
use super::series::Series;
use crate::moment::{Place, Sym, Tid};
use std::hash::Hash;
use vmeter_trace::hash::FastMap;
use vmeter_trace::ops::{Lock, Sign};

/// Most calls of threads that are told apart.
const MAX_CALLS: usize = 1 << 13;
/// Most different calls in a turn.
const MAX_TURN: usize = 16;

/// What a call returns that a signal has ended.
const EINTR: i64 = -4;
/// Bytes from which a call moves some.
const PAGE: u64 = 4096;

/// Threads of a name, and the call that they are in.
pub type Caller = (GroupId, Option<Sym>);

/// A call of threads of a name.
#[derive(Debug, Default)]
pub struct Calls {
    /// Ticks in all.
    pub ticks: u64,
    /// Calls.
    pub count: u64,
    /// Time by number of the call, without waiting for a CPU; in place of calls the ticks that it
    /// had one.
    pub times: Series,
    /// Calls by number of the turn.
    pub turns: Series,
    /// The longest.
    pub worst: Option<(u64, Place)>,
    /// Those that have others do something, or wait for something known, against the others.
    pub split: Split,
    /// Those that a signal has ended (-EINTR).
    pub interrupted: u64,
    /// Sum of what they returned.
    pub returned: u64,
    /// Bytes by number of the call, if it moves some: in place of ticks.
    pub bytes: Option<Box<Series>>,
}

/// A work function that threads of a name had run.
#[derive(Debug, Default, Clone)]
pub struct Provoked {
    /// Runs, or items queued.
    pub count: u64,
    /// The first.
    pub first: Option<Place>,
}

/// Threads of a name that those of another wake.
#[derive(Debug, Default, Clone, Copy)]
pub struct Wakes {
    /// Wake-ups.
    pub wakes: u64,
    /// Calls, or stretches on a CPU, that they came from.
    pub instances: u64,
    last: u64,
}

impl Wakes {
    /// Wake-ups of one instance.
    pub fn each(&self) -> f64 {
        self.wakes as f64 / self.instances.max(1) as f64
    }
}

/// Waits for a kind of lock of the kernel.
#[derive(Debug, Default, Clone, Copy)]
pub struct Contended {
    /// Waits.
    pub count: u64,
    /// Ticks in all.
    pub ticks: u64,
    /// The longest.
    pub worst: Option<(u64, Place)>,
}

/// Whose waits, in what call, for what kind of lock, and who let them go on.
pub type Contention = (GroupId, Option<Sym>, Lock, Option<GroupId>);

/// Who did something, in what call.
pub type By = (GroupId, Option<Sym>);

/// What threads of a name call.
#[derive(Debug, Default)]
pub struct CallStats {
    /// Waits for locks of the kernel.
    pub locks: FastMap<Contention, Contended>,
    /// By thread's name and call.
    pub calls: FastMap<(GroupId, Sym), Calls>,
    /// By who wakes, in what call, and whom.
    pub wakes: FastMap<(GroupId, Option<Sym>, GroupId), Wakes>,
    /// Turns (from one wait to the next) of threads of a name, and those without a call.
    pub turns: FastMap<GroupId, (u64, u64)>,
    /// Work functions by who had them run, in what call: what was queued, or else what a worker
    /// ran that was woken by a thread.
    pub provoked: FastMap<(GroupId, Option<Sym>, Sym), Provoked>,
    /// What the kernel does on the way, by whom for and in what call; in an interrupt for nobody.
    pub signs: FastMap<(Option<Caller>, Sign), Provoked>,
    /// Handlers of signals that threads of a name returned from, and ticks since the signals were
    /// delivered.
    pub handlers: FastMap<GroupId, (u64, u64)>,
    /// Ticks on a CPU from one sleep to the next, of threads of a name.
    pub active: FastMap<GroupId, Series>,
    /// Workers that were woken by a thread and have not begun to run anything: by whom.
    pending: FastMap<Tid, (By, (Tid, u32))>,
    /// Items are recorded when they are queued.
    queues: bool,
}

/// What a thread has called since it waited last.
#[derive(Debug, Default)]
pub struct Turn(Vec<(Sym, u64)>);

impl Turn {
    /// It calls something that does not wait.
    pub fn add(&mut self, call: Sym) {
        if let Some((_, count)) = self.0.iter_mut().find(|(known, _)| *known == call) {
            *count += 1;
        } else if self.0.len() < MAX_TURN {
            self.0.push((call, 1));
        }
    }
}

fn note<K: Hash + Eq>(all: &mut FastMap<K, Provoked>, key: K, place: Place) {
    if all.len() < MAX_CALLS || all.contains_key(&key) {
        let provoked = all.entry(key).or_default();
        provoked.count += 1;
        provoked.first.get_or_insert(place);
    }
}

impl CallStats {
    /// A call is over; `traits` is what its name says.
    pub fn called(
        &mut self,
        (who, call): (GroupId, Sym),
        (ticks, (ready, asleep)): (u64, (u64, u64)),
        (place, marks): (Place, &Open),
        returned: Option<i64>,
        traits: Traits,
    ) {
        let room = self.calls.len() < MAX_CALLS;
        let calls = match self.calls.get_mut(&(who, call)) {
            Some(calls) => calls,
            None if room => self.calls.entry((who, call)).or_default(),
            None => return,
        };
        calls.ticks = calls.ticks.saturating_add(ticks);
        calls.count += 1;
        let net = ticks.saturating_sub(ready);
        calls.times.add(net, net.saturating_sub(asleep));
        calls.split.all.add(net);
        if !marks.is_empty() {
            marks.list().for_each(|feature| calls.split.has(feature, net));
        }
        if calls.worst.is_none_or(|(most, _)| most < ticks) {
            calls.worst = Some((ticks, place));
        }
        calls.interrupted += u64::from(returned == Some(EINTR));
        if let Some(returned) = returned {
            let returned = returned.max(0) as u64;
            calls.returned = calls.returned.saturating_add(returned);
            if traits.has(Traits::MOVES) && (returned >= PAGE || calls.bytes.is_some()) {
                calls.bytes.get_or_insert_default().add(returned, 0);
            }
        }
    }

    /// A thread of a name goes to sleep; it had a CPU for so long since it slept last.
    pub fn active(&mut self, who: GroupId, ticks: u64) {
        if self.active.len() < MAX_CALLS || self.active.contains_key(&who) {
            self.active.entry(who).or_default().add(ticks, 0);
        }
    }

    /// A thread has waited for a lock of the kernel.
    pub fn locked(&mut self, key: Contention, ticks: u64, place: Place) {
        if self.locks.len() < MAX_CALLS || self.locks.contains_key(&key) {
            let waits = self.locks.entry(key).or_default();
            waits.count += 1;
            waits.ticks = waits.ticks.saturating_add(ticks);
            if waits.worst.is_none_or(|(most, _)| most < ticks) {
                waits.worst = Some((ticks, place));
            }
        }
    }

    /// A thread queues a work item.
    pub fn queued(&mut self, key: (GroupId, Option<Sym>, Sym), place: Place) {
        if !self.queues {
            // Until now, wake-ups stood for it.
            self.queues = true;
            self.pending.clear();
            self.provoked.clear();
        }
        self.provoke(key, place);
    }

    fn provoke(&mut self, key: (GroupId, Option<Sym>, Sym), place: Place) {
        note(&mut self.provoked, key, place);
    }

    /// The call, among those wanted, in which threads of a name let those of another go on most;
    /// none if that is none.
    pub fn let_go(
        &self,
        by: GroupId,
        whom: GroupId,
        want: impl Fn(Option<Sym>) -> bool,
    ) -> Option<Sym> {
        let own = self
            .wakes
            .iter()
            .filter(|((waker, call, woken), _)| *waker == by && *woken == whom && want(*call));
        let most = own.max_by_key(|((_, call, _), wakes)| (wakes.wakes, *call));
        most.and_then(|((_, call, _), _)| *call)
    }

    /// The kernel does something that says why somebody waits.
    pub fn sign(&mut self, who: Option<Caller>, sign: Sign, place: Place) {
        note(&mut self.signs, (who, sign), place);
    }

    /// A worker begins to run a function; gives the thread that woke it, and that one's
    /// activation.
    pub fn works(&mut self, worker: Tid, function: Sym, place: Place) -> Option<(Tid, u32)> {
        let ((who, call), waker) = self.pending.remove(&worker)?;
        self.provoke((who, call, function), place);
        Some(waker)
    }

    /// A worker is woken by a thread, in an activation of that one's.
    pub fn pends(&mut self, worker: Tid, by: By, waker: (Tid, u32)) {
        if !self.queues && (self.pending.len() < MAX_CALLS || self.pending.contains_key(&worker)) {
            self.pending.insert(worker, (by, waker));
        }
    }

    /// A thread waits again: its turn is over.
    pub fn turned(&mut self, who: GroupId, turn: &mut Turn) {
        if self.turns.len() < MAX_CALLS || self.turns.contains_key(&who) {
            let (turns, vain) = self.turns.entry(who).or_default();
            *turns += 1;
            *vain += u64::from(turn.0.is_empty());
        }
        for (call, count) in turn.0.drain(..) {
            if let Some(calls) = self.calls.get_mut(&(who, call)) {
                calls.turns.add(0, count);
            }
        }
    }

    /// A thread slept twice in one call.
    pub fn in_vain(&mut self, who: GroupId) {
        if self.turns.len() < MAX_CALLS || self.turns.contains_key(&who) {
            let (turns, vain) = self.turns.entry(who).or_default();
            (*turns, *vain) = (*turns + 1, *vain + 1);
        }
    }

    /// Somebody wakes somebody; `instance` tells this call from the next.
    pub fn woke(&mut self, key: (GroupId, Option<Sym>, GroupId), instance: u64) {
        if self.wakes.len() >= MAX_CALLS && !self.wakes.contains_key(&key) {
            return;
        }
        let wakes = self.wakes.entry(key).or_default();
        wakes.wakes += 1;
        wakes.instances += u64::from(wakes.last != instance || wakes.instances == 0);
        wakes.last = instance;
    }
}
