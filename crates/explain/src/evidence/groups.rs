//! Threads by name: what is told of many threads alike is told of their name.

use crate::merge::Merge;
use crate::moment::Tid;
use std::collections::{BTreeSet, HashMap};
use vmeter_trace::hash::FastMap;

/// Most groups that are told apart.
const MAX_GROUPS: usize = 1 << 12;
/// Most threads whose group is remembered.
const MAX_MEMBERS: usize = 1 << 16;

/// Threads made while it was recorded, from which they are made again and again.
pub const BORN: u32 = 8;
/// Begin of the name of threads that have no name but their maker's.
const CHILD: &str = "child of ";

/// Number of a group.
pub type GroupId = u32;

/// Threads of one name, numbers in it left out.
#[derive(Debug)]
pub struct Group {
    /// The name that all have, or the common one: `io-*`.
    name: Box<str>,
    /// With numbers left out.
    common: Box<str>,
    /// First member.
    pub first: Tid,
    /// It has others.
    pub many: bool,
    /// Members, and those of them that began while it was recorded.
    pub members: u32,
    /// See above.
    pub born: u32,
    /// Of those that began while it was recorded, those that have ended or are called otherwise
    /// now, and those that began when one had.
    ended: u32,
    again: u32,
    /// The recording's maker has started them.
    pub own: bool,
}

/// A thread's group.
#[derive(Debug)]
struct Member {
    name: Box<str>,
    group: GroupId,
    /// How often threads had got other names when it was called so.
    renamed: u64,
}

/// All groups.
#[derive(Debug, Default)]
pub struct Groups {
    list: Vec<Group>,
    by_name: HashMap<(u16, Box<str>, bool), GroupId>,
    members: FastMap<Tid, Member>,
    /// Threads that the recording's maker has started, and those that these did.
    own: FastMap<Tid, ()>,
    /// Threads that began while it was recorded, with their maker's group.
    made: FastMap<Tid, Made>,
    /// Ends of threads are recorded.
    ends: bool,
    /// Groups of which a thread was before it was of another, and that one.
    renamed: BTreeSet<(GroupId, GroupId)>,
}

/// A thread that began while it was recorded.
#[derive(Debug, Clone, Copy)]
struct Made {
    by: GroupId,
    ended: bool,
}

impl Groups {
    /// The group of a thread, by the name that it has now.
    pub fn now(&mut self, thread: Tid, merge: &Merge) -> GroupId {
        let renamed = merge.renamed(thread.file);
        match self.members.get_mut(&thread) {
            Some(member) if member.renamed == renamed => member.group,
            Some(member) if *member.name == *merge.thread_name(thread) => {
                member.renamed = renamed;
                member.group
            }
            _ => self.called(thread, (merge.thread_name(thread), renamed)),
        }
    }

    /// The group of a thread that is called so, the names having changed so often.
    fn called(&mut self, thread: Tid, (name, renamed): (&str, u64)) -> GroupId {
        let made = self.made.get(&thread).map(|made| made.by);
        let group = match made {
            // It has its maker's name until it gets one of its own.
            Some(maker) if self.is_called(maker, name) => self.children(thread, maker),
            _ => self.find(thread, &common(name, thread.tid), name),
        };
        let before = self.group_of(thread).filter(|before| made.is_some() && *before != group);
        if let Some(before) = before.and_then(|before| self.list.get_mut(before as usize)) {
            before.ended += 1;
        }
        if let Some(own) = self.list.get_mut(group as usize) {
            own.members += 1;
            own.born += u32::from(made.is_some());
            own.again += u32::from(made.is_some() && own.ended > 0);
        }
        if self.members.len() < MAX_MEMBERS || self.members.contains_key(&thread) {
            let before = self.members.insert(thread, Member { name: name.into(), group, renamed });
            let before = before.filter(|before| before.group != group);
            if let Some(before) = before.filter(|_| self.renamed.len() < MAX_MEMBERS) {
                self.renamed.insert((before.group, group));
            }
        }
        group
    }

    /// Groups of threads that were of one of these before.
    pub fn once_of<'a>(
        &'a self,
        these: &'a BTreeSet<GroupId>,
    ) -> impl Iterator<Item = GroupId> + 'a {
        self.renamed.iter().filter(|(was, _)| these.contains(was)).map(|(_, is)| *is)
    }

    /// The recording's maker has started a thread, or one that did start it: others that are
    /// called so are not of its group.
    pub fn owns(&mut self, thread: Tid) {
        if self.own.len() < MAX_MEMBERS && self.own.insert(thread, ()).is_none() {
            self.members.remove(&thread);
        }
    }

    /// A thread of that group makes another.
    pub fn makes(&mut self, maker: GroupId, child: Tid) {
        if self.made.len() < MAX_MEMBERS {
            self.made.insert(child, Made { by: maker, ended: false });
        }
    }

    /// A thread has ended.
    pub fn ends(&mut self, thread: Tid) {
        self.ends = true;
        let group = self.group_of(thread);
        let Some(made) = self.made.get_mut(&thread).filter(|made| !made.ended) else { return };
        made.ended = true;
        if let Some(own) = group.and_then(|group| self.list.get_mut(group as usize)) {
            own.ended += 1;
        }
    }

    fn children(&mut self, thread: Tid, maker: GroupId) -> GroupId {
        let Some(own) = self.get(maker) else { return 0 };
        if own.common.starts_with(CHILD) {
            return maker;
        }
        let name = format!("{CHILD}{}", own.common);
        self.find(thread, &name, &name)
    }

    fn find(&mut self, thread: Tid, common: &str, name: &str) -> GroupId {
        let own = self.own.contains_key(&thread);
        // Each vCPU is a machine of its own; another VM's is called the same.
        let vcpu = is_vcpu_name(name);
        let common = if vcpu { name } else { common };
        let alone = if vcpu { format!("{name} {}", thread.tid) } else { common.to_string() };
        let key = (thread.file, Box::<str>::from(alone), own);
        if let Some(&group) = self.by_name.get(&key) {
            if let Some(known) = self.list.get_mut(group as usize) {
                known.many |= known.first != thread;
                if *known.name != *name && !name.is_empty() {
                    known.name.clone_from(&known.common);
                }
            }
            return group;
        }
        if self.list.len() >= MAX_GROUPS {
            return 0;
        }
        let group = self.list.len() as GroupId;
        let name = if name.is_empty() { common } else { name };
        let (name, common) = (name.into(), common.into());
        let fresh = Group {
            name,
            common,
            first: thread,
            many: false,
            members: 0,
            born: 0,
            ended: 0,
            again: 0,
            own,
        };
        self.list.push(fresh);
        self.by_name.insert(key, group);
        group
    }

    /// The group that a thread was in last.
    pub fn group_of(&self, thread: Tid) -> Option<GroupId> {
        self.members.get(&thread).map(|member| member.group)
    }

    /// A group.
    pub fn get(&self, group: GroupId) -> Option<&Group> {
        self.list.get(group as usize)
    }

    /// A group's name: the one that all have, or the common one.
    pub fn name(&self, group: GroupId) -> &str {
        self.get(group).map_or("other threads", |group| &group.name)
    }

    /// A group's name with numbers left out, which it has in another trace as well.
    pub fn common(&self, group: GroupId) -> &str {
        self.get(group).map_or("other threads", |group| &group.common)
    }

    /// Whose thread made the first of a group, if it began while it was recorded.
    pub fn maker(&self, group: GroupId) -> Option<GroupId> {
        let made = self.made.get(&self.get(group)?.first)?;
        Some(made.by)
    }

    /// True if its threads are made again and again, and do not last: not those that are made
    /// once, side by side.
    pub fn comes_and_goes(&self, group: GroupId) -> bool {
        let again = |own: &Group| !self.ends || own.again * 3 >= own.born;
        self.get(group)
            .is_some_and(|own| own.born >= BORN && own.born * 2 >= own.members && again(own))
    }

    /// True if a thread is called so, or all are but for their numbers.
    pub fn is_called(&self, group: GroupId, comm: &str) -> bool {
        let own = self.get(group);
        own.is_some_and(|own| *own.name == *comm || *own.common == *common(comm, 0))
    }

    /// The same, with those that have its name as their maker has it.
    pub fn has_name(&self, group: GroupId, comm: &str) -> bool {
        let own = self.get(group).and_then(|own| own.common.strip_prefix(CHILD));
        let made = |maker: &str| maker == comm || *maker == *common(comm, 0);
        self.is_called(group, comm) || own.is_some_and(made)
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = GroupId> {
        0..self.list.len() as GroupId
    }

    /// True for the kernel's own threads, as far as their names tell.
    pub fn is_kernel(&self, group: GroupId) -> bool {
        let name = self.name(group);
        is_kernel_name(name.strip_prefix(CHILD).unwrap_or(name))
    }
}

/// True for what VMMs call the threads that run a guest: `CPU 0/TCG`, `CPU 0/KVM`, `vcpu0`,
/// `fc_vcpu 0`, `kvm-vcpu-0`, `VCPU-0`.
pub fn is_vcpu_name(name: &str) -> bool {
    let digit = |text: &str| {
        let text = text.trim_start_matches(['-', '_', ' ']);
        text.starts_with(|c: char| c.is_ascii_digit() || c == '*')
    };
    let emulator = |text: &str| text.ends_with("/TCG") || text.ends_with("/KVM");
    name.strip_prefix("CPU ").is_some_and(|rest| digit(rest) && emulator(rest))
        || name.to_ascii_lowercase().split_once("vcpu").is_some_and(|(_, rest)| digit(rest))
}

/// True for the name of one of the kernel's own threads.
pub fn is_kernel_name(name: &str) -> bool {
    const OWN: [&str; 25] = [
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
        "kdamond",
        "xenwatch",
        "xenbus",
    ];
    // vhost-PID is the kernel's; a back end of vhost-user is a program.
    let digit = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit() || c == '*');
    let vhost = name.strip_prefix("vhost-").is_some_and(digit);
    vhost || OWN.iter().any(|own| name.starts_with(own))
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
    fn those_that_were_started_are_not_others_of_the_same_name() {
        let mut groups = Groups::default();
        let tid = |tid| Tid { file: 0, tid };
        let other = groups.called(tid(1), ("bash", 0));
        assert_eq!(groups.called(tid(2), ("bash", 0)), other);
        groups.owns(tid(2));
        let own = groups.called(tid(2), ("bash", 0));
        assert_ne!(own, other);
        assert_eq!((groups.name(own), groups.common(own)), ("bash", "bash"));
        assert!(groups.get(own).is_some_and(|own| own.own));
        assert_eq!(groups.called(tid(1), ("bash", 0)), other);
    }

    #[test]
    fn threads_that_differ_by_a_number_are_one() {
        let mut groups = Groups::default();
        let tid = |tid| Tid { file: 0, tid };
        let io = groups.called(tid(1), ("io-0", 0));
        assert_eq!(groups.name(io), "io-0");
        assert_eq!(groups.called(tid(2), ("io-1", 0)), io);
        assert_eq!(groups.name(io), "io-*");
        assert_ne!(groups.called(tid(2), ("true", 0)), io);
        let worker = groups.called(tid(7), ("kworker/0:1H-kblockd", 0));
        assert_eq!(groups.called(tid(8), ("kworker/u8:2", 0)), worker);
        assert!(groups.is_kernel(worker));
        assert_ne!(groups.called(tid(9), ("", 0)), groups.called(tid(10), ("", 0)));
    }

    #[test]
    fn a_name_that_all_have_is_shown_whole_and_each_vcpu_is_its_own() {
        let mut groups = Groups::default();
        let tid = |tid| Tid { file: 0, tid };
        let qemu = groups.called(tid(1), ("qemu-system-x86", 0));
        assert_eq!(groups.called(tid(2), ("qemu-system-x86", 0)), qemu);
        assert_eq!(groups.name(qemu), "qemu-system-x86");
        let vcpus = [3, 4].map(|number| groups.called(tid(number), ("CPU 0/KVM", 0)));
        assert_ne!(vcpus[0], vcpus[1]);
        assert_eq!(vcpus.map(|vcpu| groups.common(vcpu)), ["CPU 0/KVM"; 2]);
    }
}
