//! What detectors ask of the evidence, and counts in it.

use super::groups::{is_vcpu_name, GroupId};
use super::thread::State;
use super::Evidence;
use crate::moment::Tid;
use std::collections::{BTreeMap, BTreeSet};
use vmeter_trace::hash::FastMap;
use vmeter_trace::walk::Seen;

/// Wake-ups there and back from which two belong together.
const PARTNERS: u64 = 20;

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

    /// How often threads of one name woke those of another.
    pub fn asked(&self, by: GroupId, woken: GroupId) -> u64 {
        let is = |tid: &Tid, group| self.groups.group_of(*tid) == Some(group);
        let pairs = self.wakes.iter().filter(|((a, b), _)| is(a, by) && is(b, woken));
        pairs.map(|(_, count)| count).sum()
    }

    /// Those that one of our own and they wake each other often, most of their wake-ups: what is
    /// not recorded to have been started belongs to it all the same.
    pub(super) fn partners(&self) -> BTreeSet<GroupId> {
        let mut pairs: BTreeMap<(GroupId, GroupId), u64> = BTreeMap::new();
        let mut woken: BTreeMap<GroupId, u64> = BTreeMap::new();
        let group = |tid: &Tid| self.groups.group_of(*tid);
        for ((by, to), count) in &self.wakes {
            let (Some(by), Some(to)) = (group(by), group(to)) else { continue };
            *pairs.entry((by, to)).or_default() += count;
            *woken.entry(to).or_default() += count;
        }
        let often = |own: GroupId, other: GroupId, to_own: u64| {
            let asked = pairs.get(&(own, other)).copied().unwrap_or(0);
            let all = woken.get(&other).copied().unwrap_or(0);
            asked >= PARTNERS && to_own >= PARTNERS && asked * 2 >= all
        };
        let both = pairs.iter().filter(|((other, own), to_own)| {
            let stranger = self.own.contains(own) && !self.own.contains(other);
            stranger && !self.groups.is_kernel(*other) && often(*own, *other, **to_own)
        });
        both.map(|((other, _), _)| *other).collect()
    }

    /// Whose thread made the first of a group, where that is recorded.
    pub fn maker(&self, group: GroupId) -> Option<GroupId> {
        let first = self.groups.get(group)?.first;
        let known = || self.started.maker(first).and_then(|maker| self.groups.group_of(maker));
        self.groups.maker(group).or_else(known)
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

    /// CPUs that threads of each name have run on, as bits.
    pub fn cpus(&self) -> BTreeMap<GroupId, u64> {
        let mut cpus: BTreeMap<GroupId, u64> = BTreeMap::new();
        for (tid, thread) in &self.threads {
            if let Some(group) = self.groups.group_of(*tid) {
                *cpus.entry(group).or_default() |= thread.cpus;
            }
        }
        cpus
    }

    /// The share of its time on a CPU that a vCPU's group is in KVM or its guest; 0 of others.
    pub fn in_guest(&self, group: GroupId) -> f64 {
        let of_group = |tid: &Tid| self.groups.group_of(*tid) == Some(group);
        let vcpus = self.threads.iter().filter(|(tid, thread)| thread.is_vcpu && of_group(tid));
        let (inside, all) = vcpus.fold((0, 0), |(inside, all), (_, thread)| {
            let own = thread.times[State::Guest as usize] + thread.times[State::Kvm as usize];
            (inside + own, all + thread.ran())
        });
        inside as f64 / all.max(1) as f64
    }

    /// All groups of threads that run vCPUs.
    pub fn vcpu_groups(&self) -> BTreeSet<GroupId> {
        let vcpus = self.threads.iter().filter(|(_, thread)| thread.is_vcpu);
        vcpus.filter_map(|(tid, _)| self.groups.group_of(*tid)).collect()
    }

    /// The guest's own, where nothing tells of its requests: threads that run vCPUs, by their
    /// names as well, and those that these and they wake often.
    pub fn guests(&self) -> BTreeSet<GroupId> {
        let named = |group: &GroupId| is_vcpu_name(self.groups.name(*group));
        let mut guests = self.vcpu_groups();
        guests.extend(self.groups.all().filter(named));
        let vcpus = guests.clone();
        let of = |tid: &Tid| self.groups.group_of(*tid);
        let mut pairs: BTreeMap<GroupId, (u64, u64)> = BTreeMap::new();
        for ((by, to), count) in &self.wakes {
            match (of(by), of(to)) {
                (Some(by), Some(to)) if vcpus.contains(&by) => {
                    pairs.entry(to).or_default().0 += count;
                }
                (Some(by), Some(to)) if vcpus.contains(&to) => {
                    pairs.entry(by).or_default().1 += count;
                }
                _ => {}
            }
        }
        let both = |(there, back): &(u64, u64)| *there.min(back) >= PARTNERS;
        let serve =
            pairs.into_iter().filter(|(group, pair)| both(pair) && !self.groups.is_kernel(*group));
        guests.extend(serve.map(|(group, _)| group));
        guests
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
