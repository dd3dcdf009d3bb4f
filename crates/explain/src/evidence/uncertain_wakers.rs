//! Who seems to wake somebody where nothing tells a thread's wake-up from that of an interrupt
//! that came while it had the CPU.
//!
//! Text of perf has no flags of the context. Without the events of interrupts and without system
//! calls, whoever has the CPU when a timer fires looks like the waker. A thread is believed to
//! have woken another if that one wakes it, too, if it has made the other, or if it does so far
//! more often than it would by having the CPU. With system calls, those who never make one let no
//! grace period go on.

use super::groups::GroupId;
use super::Evidence;
use std::collections::{BTreeMap, BTreeSet};

/// Wake-ups there for one back from which two belong together.
const BACK: u64 = 3;
/// Wake-ups from which their number says something.
const LEAST: u64 = 5;
/// The part of all that wake somebody, and how many times the waker's part of the CPUs that is,
/// from which it is no chance.
const MOST: f64 = 0.5;
const BEYOND: f64 = 1.5;

/// The kernel's threads that grace periods are left to: rcu_preempt, rcu_sched, rcu_tasks_…. A timer
/// or the end of a grace period wakes them, whoever has the CPU then.
pub(super) const GRACE: &str = "rcu_";

impl Evidence {
    /// Takes wakers that nothing speaks for out of the tree: who wakes is not known then.
    pub(super) fn doubt(&mut self) {
        // Where no wake-ups are recorded, who wakes is inferred from calls.
        let doubted = |file: &u16| {
            let seen = self.seen(*file);
            seen.wakes && !seen.interrupts && !seen.syscalls && !self.flags.contains(file)
        };
        let mut unknown = self.silent();
        self.doubt_by_chance(doubted, &mut unknown);
        if !unknown.is_empty() {
            self.tree.forget(|by, woken| unknown.contains(&(by, woken)));
        }
    }

    /// Threads of user space that make no system call, though these are recorded, and seem to wake
    /// those that grace periods are left to.
    fn silent(&self) -> BTreeSet<(GroupId, GroupId)> {
        let blind = |file: u16| {
            let seen = self.seen(file);
            seen.syscalls && !seen.interrupts && !self.flags.contains(&file)
        };
        let group = |tid| self.groups.group_of(tid);
        let calling = self.threads.iter().filter(|(_, thread)| thread.calls || thread.is_vcpu);
        let calling: BTreeSet<GroupId> = calling.filter_map(|(tid, _)| group(*tid)).collect();
        let pairs = self.wakes.keys().filter(|(by, _)| blind(by.file));
        let pairs = pairs.filter_map(|(by, woken)| Some((group(*by)?, group(*woken)?)));
        pairs
            .filter(|(by, woken)| {
                let grace = self.groups.name(*woken).starts_with(GRACE);
                grace && !calling.contains(by) && !self.groups.is_kernel(*by)
            })
            .collect()
    }

    /// Adds those whose wake-ups are no more than chance.
    fn doubt_by_chance(
        &self,
        doubted: impl Fn(&u16) -> bool,
        unknown: &mut BTreeSet<(GroupId, GroupId)>,
    ) {
        if !self.seen.keys().any(&doubted) {
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
        for (tid, thread) in self.threads.iter() {
            if let Some(group) = group(*tid) {
                let sum = ran.entry(group).or_default();
                *sum = thread.ran().saturating_add(*sum);
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
                || self.groups.is_kernel(woken) && !self.groups.name(woken).starts_with(GRACE)
                || self.maker(by) == Some(woken)
                || self.maker(woken) == Some(by)
                || there >= LEAST && of_all >= MOST && of_all >= BEYOND * has
        };
        unknown.extend(pairs.keys().filter(|(by, woken)| !believed(*by, *woken)));
    }
}
