//! Who seems to wake somebody where nothing tells a thread's wake-up from that of an interrupt
//! that came while it had the CPU.
//!
//! Text of perf has no flags of the context. Without the events of interrupts and without system
//! calls, whoever has the CPU when a timer fires looks like the waker. A thread is believed to
//! have woken another if that one wakes it, too, if it has made the other, or if it does so far
//! more often than it would by having the CPU.

use super::groups::GroupId;
use super::thread::State;
use super::Evidence;
use std::collections::BTreeMap;

/// Wake-ups there for one back from which two belong together.
const BACK: u64 = 3;
/// Wake-ups from which their number says something.
const LEAST: u64 = 5;
/// The part of all that wake somebody, and how many times the waker's part of the CPUs that is,
/// from which it is no chance.
const MOST: f64 = 0.5;
const BEYOND: f64 = 1.5;

impl Evidence {
    /// Takes wakers that nothing speaks for out of the tree: who wakes is not known then.
    pub(super) fn doubt(&mut self) {
        let doubted = |file: &u16| {
            let seen = self.seen(*file);
            !seen.interrupts && !seen.syscalls && !self.flags.contains(file)
        };
        if !self.seen.keys().any(doubted) {
            return;
        }
        let group = |tid| self.groups.group_of(tid);
        let mut pairs: BTreeMap<(GroupId, GroupId), u64> = BTreeMap::new();
        let mut all: BTreeMap<GroupId, u64> = BTreeMap::new();
        for ((by, woken), count) in &self.wakes {
            if let (true, Some(by), Some(woken)) = (doubted(&by.file), group(*by), group(*woken)) {
                *pairs.entry((by, woken)).or_default() += count;
                *all.entry(woken).or_default() += count;
            }
        }
        let mut ran: BTreeMap<GroupId, u64> = BTreeMap::new();
        for (tid, thread) in &self.threads {
            let states = [State::Guest, State::Kvm, State::Kernel, State::User];
            let ticks = crate::sum(states.iter().map(|state| thread.times[*state as usize]));
            if let Some(group) = group(*tid) {
                let sum = ran.entry(group).or_default();
                *sum = ticks.saturating_add(*sum);
            }
        }
        let capacity = (self.span().max(1) as f64) * self.cpus_seen.len().max(1) as f64;
        let count = |by, woken| pairs.get(&(by, woken)).copied().unwrap_or(0);
        let believed = |by: GroupId, woken: GroupId| {
            let (there, back) = (count(by, woken), count(woken, by));
            let of_all = there as f64 / all.get(&woken).copied().unwrap_or(0).max(1) as f64;
            let has = ran.get(&by).copied().unwrap_or(0) as f64 / capacity;
            there == 0
                || back * BACK >= there
                || self.groups.is_kernel(by)
                || self.groups.is_kernel(woken)
                || self.maker(by) == Some(woken)
                || self.maker(woken) == Some(by)
                || there >= LEAST && of_all >= MOST && of_all >= BEYOND * has
        };
        let unknown: Vec<(GroupId, GroupId)> =
            pairs.keys().copied().filter(|(by, woken)| !believed(*by, *woken)).collect();
        self.tree.forget(|by, woken| unknown.binary_search(&(by, woken)).is_ok());
    }
}
