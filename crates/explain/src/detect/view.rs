//! The evidence as detectors see it: with names, seconds and the thresholds they share.

use super::comm_filter::CommFilter;
use super::waits::waits;
use crate::diagnose::{is_asked, rounds, Rounds};
use crate::evidence::collect::records;
use crate::evidence::groups::{is_vcpu_name, GroupId};
use crate::evidence::subject::{Amount, Key, Part, Subject, SubjectKind, Who};
use crate::evidence::tree::Tree;
use crate::evidence::Evidence;
use crate::log_gaps::LogGaps;
use crate::moment::{Place, Sym, Tid};
use crate::read::Read;
use crate::result::{self, EventRef, Link};
use crate::Options;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use vmeter_render::quantity::{brief_seconds, three_digits};
use vmeter_timebase::Clocks;
use vmeter_trace::names::{port, DeviceMap};
use vmeter_trace::peers;
use vmeter_trace::NO_CPU;

/// Below this share of the traced time nothing is said: runs of one machine differ by more.
pub const LEAST_SHARE: f64 = 0.02;
/// A request this many times as slow as its peers stands out: device models' handlers
/// of one device differ by less than that.
pub const OUTLIER: f64 = 3.0;
/// Fewer instances than this are no pattern.
pub const LEAST_COUNT: u64 = 20;
/// Share of the traced time from which a request that is not slower than its peers is told.
pub const SHARE_ALONE: f64 = 0.1;

/// Threads of a name that have a vCPU's CPU in turn, from which they are the host's load.
const FEW: u32 = 8;

/// How a request compares with its peers.
#[derive(Debug, Clone, Copy)]
pub struct Peers {
    /// Requests it is compared with.
    pub count: usize,
    /// Median of their medians, ticks.
    pub typical: f64,
    /// Own median over that.
    pub ratio: f64,
    /// Ticks beyond what as many typical requests take.
    pub excess: u64,
    /// True if it stands out.
    pub slow: bool,
}

/// What is alike enough to be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Requests,
    Logged,
    Calls,
}

/// Mean time that an access of the others waits for a CPU.
fn waiting(all: &[(Key, &Subject)], key: Key) -> f64 {
    let (mut ticks, mut count) = (0_u64, 0);
    for (_, subject) in all.iter().filter(|(other, _)| *other != key) {
        ticks = subject.total.saturating_sub(subject.net_total).saturating_add(ticks);
        count += subject.timed;
    }
    ticks as f64 / count.max(1) as f64
}

/// The evidence with names.
pub struct View<'a> {
    /// The evidence.
    pub evidence: &'a Evidence,
    sources: &'a [Read],
    devices: Option<&'a DeviceMap>,
    comm: Option<&'a str>,
    clocks: &'a Clocks,
    tick_s: Option<f64>,
    peers: BTreeMap<Key, Peers>,
    tree: Cow<'a, Tree>,
    minus_baseline: bool,
    /// How often each thread goes round.
    pub rounds: Rounds,
    /// Threads that run vCPUs.
    vcpus: BTreeSet<GroupId>,
    /// Threads that the trace was made for, if that is known.
    own: BTreeSet<GroupId>,
    /// Threads whose user gave them a nice value above 0.
    niced: BTreeSet<GroupId>,
    /// Those asked about by name, and those that are near them.
    asked: CommFilter,
}

impl<'a> View<'a> {
    /// A view of finished evidence.
    pub fn new(
        evidence: &'a Evidence,
        sources: &'a [Read],
        options: &'a Options,
        clocks: &'a Clocks,
    ) -> View<'a> {
        let tick_s = clocks.tick_s();
        let devices = options.devices.as_ref();
        let comm = options.comm.as_deref();
        let peers = BTreeMap::new();
        let tree = Cow::Borrowed(&evidence.tree);
        let (minus_baseline, own, asked) = (false, BTreeSet::new(), CommFilter::default());
        let niced = evidence.niced();
        let (rounds, vcpus) = (rounds(&evidence.tree), evidence.vcpu_groups());
        let mut view = View {
            evidence,
            sources,
            devices,
            comm,
            clocks,
            tick_s,
            peers,
            tree,
            minus_baseline,
            rounds,
            vcpus,
            own,
            niced,
            asked,
        };
        view.peers = view.compare();
        view.own = match comm {
            Some(comm) => {
                view.asked = CommFilter::by_name(&view, comm);
                view.asked.own.clone()
            }
            None if evidence.named => evidence.own.clone(),
            // strace shows nobody but whom it was made for.
            None if evidence.only_calls() => BTreeSet::new(),
            None if is_asked(&view) => evidence.own.clone(),
            None => BTreeSet::new(),
        };
        view
    }

    /// The same, but for where the time went: only what is beyond that of a twin.
    /// `same` are the threads that do the same work in both.
    pub fn minus_baseline(mut self, tree: Tree, same: BTreeSet<GroupId>) -> View<'a> {
        (self.tree, self.minus_baseline) = (Cow::Owned(tree), true);
        if self.own.is_empty() && self.comm.is_none() {
            self.own = &same | &self.evidence.own;
        }
        self
    }

    /// Threads that the trace was made for, if that is known.
    pub fn own(&self) -> Option<&BTreeSet<GroupId>> {
        (!self.own.is_empty()).then_some(&self.own)
    }

    /// True where a name was asked about, or the recorded program is known: what others do is not
    /// told, but as what these wait for.
    pub fn is_about_one(&self) -> bool {
        self.comm.is_some() || self.evidence.named
    }

    /// True for threads whose names were asked about, and those of their processes.
    pub fn is_named(&self, group: GroupId) -> bool {
        self.comm.is_some() && self.own.contains(&group)
    }

    /// True for threads that are called as was asked.
    pub fn is_called(&self, group: GroupId) -> bool {
        self.asked.called.contains(&group)
    }

    /// True for threads whose time may be told: all, or those asked about and those near them.
    pub fn is_subject(&self, group: GroupId) -> bool {
        !self.is_about_one() || self.own.contains(&group) || self.asked.near.contains(&group)
    }

    /// True for threads that run a vCPU, as their events or their name tell.
    pub fn is_vcpu(&self, group: GroupId) -> bool {
        self.vcpus.contains(&group) || is_vcpu_name(self.evidence.groups.name(group))
    }

    /// True for threads of the kernel and of what records: nobody's program.
    pub fn is_aside(&self, group: GroupId) -> bool {
        let groups = &self.evidence.groups;
        groups.is_kernel(group) || records(groups.name(group))
    }

    /// True for threads that the trace was not made for; where that is not known, for those that
    /// their user lets wait for all others: builds, backups.
    pub fn is_foreign(&self, group: GroupId) -> bool {
        self.own().map_or(self.niced.contains(&group), |own| !own.contains(&group))
    }

    /// True for one that has to do with threads of a name: of the same program, by who wakes whom; or
    /// a single thread that never leaves, where it takes `most` of their time.
    pub fn belongs(&self, own: Option<GroupId>, rival: GroupId, most: bool) -> bool {
        let evidence = self.evidence;
        if evidence.groups.is_kernel(rival) {
            return true;
        }
        let program = |group: &GroupId| evidence.own.contains(group);
        let both = own.is_some_and(|own| program(&own)) && program(&rival);
        let stays = evidence.groups.get(rival).is_some_and(|group| group.born == 0);
        let single = evidence.groups.get(rival).is_some_and(|group| !group.many);
        let vcpu = own.is_some_and(|own| is_vcpu_name(evidence.groups.name(own)));
        let few = evidence.groups.get(rival).is_some_and(|group| group.members <= FEW);
        both || stays && most && (single || vcpu && few)
    }

    /// True if the tree holds what is beyond a twin's only.
    pub fn is_beyond(&self) -> bool {
        self.minus_baseline
    }

    /// Where the time went.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The thread's name that was asked about.
    pub fn comm(&self) -> Option<&'a str> {
        self.comm
    }

    /// Requests of devices, in a fixed order.
    pub fn requests(&self) -> Vec<(Key, &'a Subject)> {
        self.subjects(SubjectKind::is_request)
    }

    /// True if a trace has the times of a guest's requests, as KVM's own events do.
    pub fn times_requests(&self) -> bool {
        self.requests().iter().any(|(_, subject)| subject.timed > 0)
    }

    fn compare(&self) -> BTreeMap<Key, Peers> {
        // A preemption now and then does not move a median.
        let median = |subject: &Subject| subject.length.quantile(0.5).unwrap_or(0.0);
        let mut groups: BTreeMap<(u16, Group), Vec<(Key, &Subject)>> = BTreeMap::new();
        for (key, subject) in &self.evidence.subjects {
            if let Some(group) = self.group(*key).filter(|_| subject.timed >= LEAST_COUNT) {
                groups.entry((key.file, group)).or_default().push((*key, subject));
            }
        }
        let mut peers = BTreeMap::new();
        for all in groups.values() {
            let medians = peers::Peers::of(all.iter().map(|(_, subject)| median(subject)));
            for (key, subject) in all {
                let Some(typical) = medians.typical(median(subject)) else { continue };
                let typical = typical.max(1.0);
                // Waiting for a CPU as long as peers do is the host's load; more of it comes
                // from giving the CPU up, or from using it for longer.
                let expected = (typical + waiting(all, *key)) * subject.timed as f64;
                let excess = subject.total as f64 - expected;
                let ratio = median(subject) / typical;
                let mean = subject.net_total as f64 / subject.timed as f64 / typical;
                let upper = subject.net.quantile(0.9).unwrap_or(0.0) / typical;
                // Slow as a rule, or one time in ten and then by far.
                let slow = ratio >= OUTLIER || mean >= OUTLIER && upper >= 3.0 * OUTLIER;
                let excess = excess.max(0.0) as u64;
                let slow = slow && self.share(excess) >= LEAST_SHARE;
                let (count, ratio) = (medians.others(), ratio.max(mean));
                peers.insert(*key, Peers { count, typical, ratio, excess, slow });
            }
        }
        peers
    }

    /// What a subject is compared among; none if with nothing.
    fn group(&self, key: Key) -> Option<Group> {
        match key.what {
            SubjectKind::Port { .. } | SubjectKind::Mmio { .. } => Some(Group::Requests),
            SubjectKind::LoggedPort { .. } | SubjectKind::LoggedMmio { .. } => Some(Group::Logged),
            SubjectKind::Call(call) => (!waits(self.name(call))).then_some(Group::Calls),
            SubjectKind::Exit(_) | SubjectKind::Hypercall(_) => None,
        }
    }

    /// How a request compares with its peers, if it has enough.
    pub fn peers(&self, key: Key) -> Option<&Peers> {
        self.peers.get(&key)
    }

    /// Ticks as a share of the traced time.
    pub fn share(&self, ticks: u64) -> f64 {
        (ticks as f64 / self.evidence.span().max(1) as f64).min(1.0)
    }

    /// Ticks in seconds, where the clock's rate is known.
    pub fn seconds(&self, ticks: u64) -> Option<f64> {
        self.tick_s.map(|tick| tick * ticks as f64)
    }

    /// Ticks in words.
    pub fn time(&self, ticks: f64) -> String {
        match self.tick_s {
            Some(tick) => brief_seconds(ticks * tick),
            None => format!("{} cycles", three_digits(ticks)),
        }
    }

    /// A file's name without its folders.
    pub fn file(&self, file: u16) -> &str {
        let path = self.sources.get(file as usize).map_or("", |source| source.file.as_str());
        path.rsplit('/').next().unwrap_or(path)
    }

    /// Between which events time goes by, of device models' logs.
    pub fn logs(&self) -> impl Iterator<Item = (u16, &'a LogGaps)> {
        let sources: &'a [Read] = self.sources;
        (0..).zip(sources).filter_map(|(file, source)| Some((file, source.stands.as_ref()?)))
    }

    /// A name.
    pub fn name(&self, sym: Sym) -> &str {
        self.sources.get(sym.file() as usize).map_or("other", |source| source.name(sym.id()))
    }

    /// A thread: name and id.
    pub fn thread(&self, thread: Tid) -> String {
        let source = self.sources.get(thread.file as usize);
        match source.map_or("", |source| source.thread_name(thread.tid)) {
            "" => format!("thread {}", thread.tid),
            name => format!("{name} ({})", thread.tid),
        }
    }

    /// In whom time went by.
    pub fn who(&self, who: Who) -> String {
        match who {
            Who::Own => "the vCPU's thread".into(),
            Who::Thread(thread) => self.thread(thread),
        }
    }

    /// A request, as that of the vCPU that makes it.
    pub fn subject(&self, key: Key) -> String {
        let request = self.request(key);
        let own = self.evidence.subjects.get(&key).filter(|own| !own.shared);
        let tid = own.and_then(|own| own.first).map(|at| Tid { file: at.file, tid: at.tid });
        let threads = &self.evidence.threads;
        let vcpu = tid.filter(|tid| threads.get(tid).is_some_and(|thread| thread.is_vcpu));
        match vcpu.and_then(|tid| self.evidence.groups.group_of(tid)) {
            Some(group) => format!("{}'s {request}", self.evidence.groups.name(group)),
            None => request,
        }
    }

    /// A request by itself.
    pub fn request(&self, key: Key) -> String {
        let way = |write: bool| if write { "write" } else { "read" };
        let device = |own: Option<&'a str>| own.map(|d| format!(" ({d})")).unwrap_or_default();
        match key.what {
            SubjectKind::Port { port: number, write }
            | SubjectKind::LoggedPort { port: number, write } => {
                let mapped = self.devices.and_then(|d| d.port(number));
                let name = mapped.or(Some(port(number)).filter(|name| !name.is_empty()));
                format!("port {number:#x} {}{}", way(write), device(name))
            }
            SubjectKind::Mmio { address, write } | SubjectKind::LoggedMmio { address, write } => {
                let mapped = self.devices.and_then(|d| d.address(address));
                format!("MMIO {address:#x} {}{}", way(write), device(mapped))
            }
            SubjectKind::Call(call) => self.name(call).to_string(),
            SubjectKind::Exit(reason) => format!("exit {}", self.name(reason)),
            SubjectKind::Hypercall(name) => format!("hypercall {}", self.name(name)),
        }
    }

    /// What its instances are called.
    pub fn instances(&self, key: Key) -> &'static str {
        match key.what {
            SubjectKind::Call(_) => "calls",
            SubjectKind::Exit(_) => "exits",
            SubjectKind::Hypercall(_) => "hypercalls",
            SubjectKind::Port { .. } | SubjectKind::Mmio { .. } => "accesses",
            SubjectKind::LoggedPort { .. } | SubjectKind::LoggedMmio { .. } => "accesses",
        }
    }

    /// The subjects of some kinds, in a fixed order.
    pub fn subjects(&self, want: impl Fn(SubjectKind) -> bool) -> Vec<(Key, &'a Subject)> {
        let all = self.evidence.subjects.iter().filter(|(key, _)| want(key.what));
        let mut all: Vec<(Key, &Subject)> = all.map(|(key, subject)| (*key, subject)).collect();
        all.sort_by_key(|(key, _)| *key);
        all
    }

    /// Events lost in a file, if any.
    pub fn lost(&self, file: u16) -> Option<u64> {
        let lost = self.sources.get(file as usize).map_or(0, Read::lost);
        (lost > 0).then_some(lost)
    }

    /// A reference to an event.
    pub fn event(&self, place: Place) -> EventRef {
        EventRef {
            file: self.sources.get(place.file as usize).map_or(String::new(), |s| s.file.clone()),
            timestamp: place.stamp,
            age_s: self.seconds(self.evidence.age(self.clocks.common(place.file, place.stamp))),
            cpu: (place.cpu != NO_CPU).then_some(place.cpu),
            tid: (place.tid > 0).then_some(place.tid),
            event: place.event.into(),
        }
    }

    /// A link about something in a file, with its figures.
    pub fn link(
        &self,
        file: u16,
        claim: String,
        (count, ticks): (u64, u64),
        figures: &[(&str, f64)],
        places: &[Option<(u64, Place)>],
    ) -> Link {
        let figures = figures.iter().filter(|(_, value)| value.is_finite());
        Link {
            claim,
            evidence: result::Evidence {
                count: Some(count),
                total_s: self.seconds(ticks),
                figures: figures.map(|(name, value)| (name.to_string(), *value)).collect(),
                events: places.iter().flatten().map(|(_, place)| self.event(*place)).collect(),
                lost_events: self.lost(file),
            },
        }
    }

    /// The parts of a request, largest first, in words: `name 61 %`.
    pub fn parts<'p>(
        &self,
        all: impl IntoIterator<Item = (&'p (Who, Part), &'p Amount)>,
    ) -> Vec<(String, u64)> {
        let mut parts: BTreeMap<String, u64> = BTreeMap::new();
        for ((who, part), amount) in all {
            let sum = parts.entry(self.part(*who, *part)).or_default();
            *sum = amount.ticks.saturating_add(*sum);
        }
        let mut parts: Vec<(String, u64)> = parts.into_iter().collect();
        parts.sort_by_key(|(_, ticks)| std::cmp::Reverse(*ticks));
        parts
    }

    fn calls_recorded(&self, who: Who) -> bool {
        match who {
            Who::Thread(thread) => self.evidence.seen(thread.file).syscalls,
            _ => self.evidence.seen_anywhere().syscalls,
        }
    }

    fn part(&self, who: Who, part: Part) -> String {
        let whose = match who {
            Who::Own => String::new(),
            other => format!("{}: ", self.who(other)),
        };
        let what = match part {
            Part::User if self.calls_recorded(who) => "user space".into(),
            Part::User => "on a CPU (its system calls are not in the trace)".into(),
            Part::Kernel(call) => format!("in {}", self.name(call)),
            Part::Kvm => "KVM".into(),
            Part::Work(work) => format!("running {}", self.name(work)),
            Part::Runnable => "waiting for a CPU".into(),
            Part::Blocked(call) => format!("asleep{}", self.called(call)),
            Part::XenRunning => "in Xen".into(),
            Part::XenRunnable => "runnable, waiting for a physical CPU".into(),
            Part::Delivery => "asleep until the event channel woke it".into(),
            Part::Return => "asleep again until the vCPU went on".into(),
            Part::Paused => "paused".into(),
            Part::Unknown => "not recorded".into(),
        };
        format!("{whose}{what}")
    }

    fn called(&self, call: Option<Sym>) -> String {
        call.map(|call| format!(" in {}", self.name(call))).unwrap_or_default()
    }
}
