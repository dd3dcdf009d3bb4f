//! Calls by the thread's name: how their time and their number develop, whom they wake.

use super::groups::GroupId;
use super::series::Series;
use crate::moment::{Place, Sym};
use vmeter_trace::hash::FastMap;

/// Most calls of threads that are told apart.
const MAX_CALLS: usize = 1 << 13;
/// Most different calls in a turn.
const MAX_TURN: usize = 16;

/// A call of threads of a name.
#[derive(Debug, Default)]
pub struct Calls {
    /// Ticks in all.
    pub ticks: u64,
    /// Calls.
    pub count: u64,
    /// Time by number of the call.
    pub times: Series,
    /// Calls by number of the turn.
    pub turns: Series,
    /// The longest.
    pub worst: Option<(u64, Place)>,
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

/// What threads of a name call.
#[derive(Debug, Default)]
pub struct Ledger {
    /// By thread's name and call.
    pub calls: FastMap<(GroupId, Sym), Calls>,
    /// By who wakes, in what call, and whom.
    pub wakes: FastMap<(GroupId, Option<Sym>, GroupId), Wakes>,
    /// Turns (from one wait to the next) of threads of a name, and those without a call.
    pub turns: FastMap<GroupId, (u64, u64)>,
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

impl Ledger {
    /// A call is over.
    pub fn called(&mut self, who: GroupId, call: Sym, ticks: u64, place: Place) {
        if let Some(calls) = self.entry(who, call) {
            calls.ticks = calls.ticks.saturating_add(ticks);
            calls.count += 1;
            calls.times.add(ticks, 1);
            if calls.worst.is_none_or(|(most, _)| most < ticks) {
                calls.worst = Some((ticks, place));
            }
        }
    }

    fn entry(&mut self, who: GroupId, call: Sym) -> Option<&mut Calls> {
        if self.calls.len() >= MAX_CALLS && !self.calls.contains_key(&(who, call)) {
            return None;
        }
        Some(self.calls.entry((who, call)).or_default())
    }

    /// A thread waits again: its turn is over.
    pub fn turned(&mut self, who: GroupId, turn: &mut Turn) {
        if self.turns.len() < MAX_CALLS || self.turns.contains_key(&who) {
            let (turns, vain) = self.turns.entry(who).or_default();
            *turns += 1;
            *vain += u64::from(turn.0.is_empty());
        }
        for (call, count) in turn.0.drain(..) {
            if let Some(calls) = self.entry(who, call) {
                calls.turns.add(0, count);
            }
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
