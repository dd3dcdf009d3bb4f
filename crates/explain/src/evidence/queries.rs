//! What detectors ask of the evidence, and counts in it.

use super::groups::GroupId;
use super::Evidence;
use crate::moment::Tid;
use std::collections::{BTreeMap, BTreeSet};
use vmeter_trace::hash::FastMap;
use vmeter_trace::walk::Seen;

/// The kernel's priority of a nice value of 0; lower goes first.
const NORMAL_PRIO: i16 = 120;

impl Evidence {
    /// Takes out what began before all CPUs are recorded and is too long to be true.
    pub(super) fn drop_implausible(&mut self, file: u16, complete: u64) {
        let subjects = self.subjects.iter_mut().filter(|(key, _)| key.file == file);
        let dropped = subjects.flat_map(|(_, subject)| subject.drop_implausible(complete));
        for (tid, ticks) in dropped {
            if let Some(thread) = self.threads.get_mut(&tid) {
                thread.forget(ticks);
            }
        }
    }

    /// Which kinds of events a file has.
    pub fn seen(&self, file: u16) -> Seen {
        self.seen.get(&file).copied().unwrap_or_default()
    }

    /// Which kinds of events the files have together.
    pub fn seen_anywhere(&self) -> Seen {
        let mut all = Seen::default();
        self.seen.values().for_each(|seen| all.absorb(*seen));
        all
    }

    /// False if programs sleep in calls that are not recorded.
    pub fn all_calls(&self) -> bool {
        self.chosen.is_empty()
    }

    /// How often threads of one name woke those of another.
    pub fn asked(&self, by: GroupId, woken: GroupId) -> u64 {
        let is = |tid: &Tid, group| self.groups.group_of(*tid) == Some(group);
        let pairs = self.wakes.iter().filter(|((a, b), _)| is(a, by) && is(b, woken));
        pairs.map(|(_, count)| count).sum()
    }

    /// Whose thread made the first of a group, where that is recorded.
    pub fn maker(&self, group: GroupId) -> Option<GroupId> {
        self.groups.maker(group).or_else(|| self.maker_now(group))
    }

    /// The same, by the name that it has had last.
    pub fn maker_now(&self, group: GroupId) -> Option<GroupId> {
        self.groups.group_of(self.started.maker(self.groups.get(group)?.first)?)
    }

    /// Long waits for a CPU by their threads' names.
    pub(super) fn late(&self) -> BTreeMap<GroupId, Vec<(u64, u64)>> {
        let mut late: BTreeMap<GroupId, Vec<(u64, u64)>> = BTreeMap::new();
        for (tid, thread) in self.threads.iter().filter(|(_, thread)| !thread.late.is_empty()) {
            if let Some(group) = self.groups.group_of(*tid) {
                late.entry(group).or_default().extend(&thread.late);
            }
        }
        late
    }

    /// All groups of threads that run vCPUs.
    pub fn vcpu_groups(&self) -> BTreeSet<GroupId> {
        let vcpus = self.threads.iter().filter(|(_, thread)| thread.is_vcpu);
        vcpus.filter_map(|(tid, _)| self.groups.group_of(*tid)).collect()
    }

    /// Threads that all have a nice value above 0, where others have not. Those of a VM are none: their
    /// guest is asked about.
    pub fn niced(&self) -> BTreeSet<GroupId> {
        let known = self.threads.iter().filter_map(|(tid, thread)| {
            let group =
                self.groups.group_of(*tid).filter(|group| !self.groups.is_kernel(*group))?;
            Some((group, thread.prio? > NORMAL_PRIO && !thread.is_vcpu))
        });
        let (niced, others): (Vec<_>, Vec<_>) = known.partition(|(_, niced)| *niced);
        let others: BTreeSet<GroupId> = others.into_iter().map(|(group, _)| group).collect();
        let niced =
            niced.into_iter().map(|(group, _)| group).filter(|group| !others.contains(group));
        match others.is_empty() {
            true => BTreeSet::new(),
            false => niced.collect(),
        }
    }

    /// Threads that run vCPUs.
    pub fn vcpu_group(&self) -> Option<GroupId> {
        let vcpus = self.threads.iter().filter(|(_, thread)| thread.is_vcpu);
        vcpus.map(|(tid, _)| tid).min().and_then(|tid| self.groups.group_of(*tid))
    }
}

/// Counts one of a name, if there is room for the name.
pub(super) fn count<K: std::hash::Hash + Eq>(counts: &mut FastMap<K, u64>, key: K, room: usize) {
    if counts.len() < room || counts.contains_key(&key) {
        *counts.entry(key).or_default() += 1;
    }
}
