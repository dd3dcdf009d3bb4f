//! What detectors ask of the evidence, and counts in it.

use super::groups::GroupId;
use super::Evidence;
use crate::moment::Tid;
use std::collections::BTreeSet;
use vmeter_trace::hash::FastMap;
use vmeter_trace::walk::Seen;

impl Evidence {
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

    /// How often threads of one name woke those of another.
    pub fn asked(&self, by: GroupId, woken: GroupId) -> u64 {
        let is = |tid: &Tid, group| self.groups.group_of(*tid) == Some(group);
        let pairs = self.wakes.iter().filter(|((a, b), _)| is(a, by) && is(b, woken));
        pairs.map(|(_, count)| count).sum()
    }

    /// All groups of threads that run vCPUs.
    pub fn vcpu_groups(&self) -> BTreeSet<GroupId> {
        let vcpus = self.threads.iter().filter(|(_, thread)| thread.is_vcpu);
        vcpus.filter_map(|(tid, _)| self.groups.group_of(*tid)).collect()
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
