//! Threads by name: what is told of many threads alike is told of their name.

use crate::moment::Tid;
use std::collections::HashMap;
use vmeter_trace::hash::FastMap;

/// Most groups that are told apart.
const MAX_GROUPS: usize = 1 << 12;
/// Most threads whose group is remembered.
const MAX_MEMBERS: usize = 1 << 16;

/// Number of a group.
pub type GroupId = u32;

/// Threads of one name, numbers in it left out.
#[derive(Debug)]
pub struct Group {
    /// The name of the only member, or the common one: `io-*`.
    name: Box<str>,
    /// With numbers left out.
    common: Box<str>,
    /// First member.
    pub first: Tid,
    /// It has others.
    pub many: bool,
}

/// All groups.
#[derive(Debug, Default)]
pub struct Groups {
    list: Vec<Group>,
    by_name: HashMap<(u16, Box<str>), GroupId>,
    members: FastMap<Tid, (Box<str>, GroupId)>,
}

impl Groups {
    /// The group of a thread that is called so now.
    pub fn of(&mut self, thread: Tid, name: &str) -> GroupId {
        if let Some((known, group)) = self.members.get(&thread) {
            if **known == *name {
                return *group;
            }
        }
        let group = self.find(thread, name);
        if self.members.len() < MAX_MEMBERS || self.members.contains_key(&thread) {
            self.members.insert(thread, (name.into(), group));
        }
        group
    }

    fn find(&mut self, thread: Tid, name: &str) -> GroupId {
        let common = common(name, thread.tid);
        let key = (thread.file, common.clone().into_boxed_str());
        if let Some(&group) = self.by_name.get(&key) {
            if let Some(known) = self.list.get_mut(group as usize) {
                known.many |= known.first != thread;
            }
            return group;
        }
        if self.list.len() >= MAX_GROUPS {
            return 0;
        }
        let group = self.list.len() as GroupId;
        let name = if name.is_empty() { common.clone() } else { name.to_string() };
        let common = common.into_boxed_str();
        self.list.push(Group { name: name.into(), common, first: thread, many: false });
        self.by_name.insert(key, group);
        group
    }

    /// The group that a thread was in last.
    pub fn group_of(&self, thread: Tid) -> Option<GroupId> {
        self.members.get(&thread).map(|(_, group)| *group)
    }

    /// A group.
    pub fn get(&self, group: GroupId) -> Option<&Group> {
        self.list.get(group as usize)
    }

    /// A group's name: of its only thread, or the common one.
    pub fn name(&self, group: GroupId) -> &str {
        match self.get(group) {
            Some(group) if group.many => &group.common,
            Some(group) => &group.name,
            None => "other threads",
        }
    }

    /// True if a thread is called so, or all are but for their numbers.
    pub fn is_called(&self, group: GroupId, comm: &str) -> bool {
        let own = self.get(group);
        own.is_some_and(|own| *own.name == *comm || *own.common == *common(comm, 0))
    }

    /// True for the kernel's own threads, as far as their names tell.
    pub fn is_kernel(&self, group: GroupId) -> bool {
        const OWN: [&str; 26] = [
            "kworker",
            "ksoftirqd/",
            "rcu_",
            "rcuc/",
            "rcuog/",
            "rcuop/",
            "rcub/",
            "migration/",
            "jbd2/",
            "kswapd",
            "kcompactd",
            "khugepaged",
            "swapper/",
            "<idle>",
            "irq/",
            "cpuhp/",
            "kthreadd",
            "ksmd",
            "kauditd",
            "watchdog/",
            "xfsaild/",
            "oom_reaper",
            "vhost-",
            "kdamond",
            "xenwatch",
            "xenbus",
        ];
        let name = self.name(group);
        OWN.iter().any(|own| name.starts_with(own))
    }
}

/// A name without its numbers; all of the kernel's workers are one.
fn common(name: &str, tid: i32) -> String {
    if name.is_empty() {
        return format!("thread {tid}");
    }
    if name.starts_with("kworker") {
        return "kworker".into();
    }
    let mut out = String::with_capacity(name.len());
    let mut digits = false;
    for c in name.chars() {
        match c.is_ascii_digit() {
            true if !digits => out.push('*'),
            true => {}
            false => out.push(c),
        }
        digits = c.is_ascii_digit();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_differ_by_a_number_are_one() {
        let mut groups = Groups::default();
        let tid = |tid| Tid { file: 0, tid };
        let io = groups.of(tid(1), "io-0");
        assert_eq!(groups.name(io), "io-0");
        assert_eq!(groups.of(tid(2), "io-1"), io);
        assert_eq!(groups.name(io), "io-*");
        assert_ne!(groups.of(tid(2), "true"), io);
        let worker = groups.of(tid(7), "kworker/0:1H-kblockd");
        assert_eq!(groups.of(tid(8), "kworker/u8:2"), worker);
        assert!(groups.is_kernel(worker));
        assert_ne!(groups.of(tid(9), ""), groups.of(tid(10), ""));
    }
}
