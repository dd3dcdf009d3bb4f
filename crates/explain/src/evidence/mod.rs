//! What happened to every request of a vCPU, from one pass over the events.
//!
//! The trace's [`Walk`] interprets; this is its visitor, and keeps what detectors need: for
//! each kind of request what its time went into, for each thread what it did lately.

pub mod calls;
pub(crate) mod collect;
pub mod features;
pub mod groups;
mod inferred;
pub mod model;
pub mod name_traits;
mod queries;
mod recorded_processes;
pub mod series;
pub mod subject;
pub mod thread;
mod thread_exits;
mod thread_states;
pub mod threads;
pub mod tree;
mod uncertain_wakers;
pub mod wait_for;
pub mod work;
pub mod xen;

use crate::merge::Merge;
use crate::moment::{Moment, Place, Sym, Tid};
use calls::CallStats;
use features::Feature;
use groups::{GroupId, Groups};
use name_traits::Traits;
use queries::count;
use std::collections::{BTreeMap, BTreeSet};
use subject::{Breakdown, Key, Subject, SubjectKind};
use thread::{State, Waker};
use threads::Threads;
use tree::Tree;
use vmeter_trace::hash::FastMap;
use vmeter_trace::ops::{Access, Lock, NameId, Op, Sign, Sleep};
use vmeter_trace::walk::vcpu as vcpus;
use vmeter_trace::walk::{
    self, At, By, Call, End, Ended, Interrupt, Open, Request, Seen, Took, Visitor, Walk,
};
use vmeter_trace::Context;
use wait_for::{Budget, Runs};
pub use work::Work;
use xen::Xen;

/// Most threads of which something is remembered.
const MAX_THREADS: usize = 1 << 15;
/// Most subjects that are told apart.
const MAX_SUBJECTS: usize = 1 << 13;
/// Most names in a table of counts.
const MAX_COUNTED: usize = 1 << 12;
/// Most CPUs.
const MAX_CPUS: usize = 1 << 14;
/// Sleeps of a program outside of any system call from which not all calls are recorded: the first may
/// have begun before the recording.
const OUTSIDE: u32 = 3;

/// What detectors look at.
#[derive(Debug, Default)]
pub struct Evidence {
    /// Requests by kind.
    pub subjects: FastMap<Key, Subject>,
    /// Threads.
    pub threads: Threads,
    /// Work functions.
    pub works: FastMap<Sym, Work>,
    /// Xen's vCPUs.
    pub xen: Xen,
    /// Who woke whom how often.
    pub wakes: FastMap<(Tid, Tid), u64>,
    /// CPUs seen, by file.
    pub cpus_seen: BTreeSet<(u16, u32)>,
    /// Which kinds of events a file has.
    pub seen: BTreeMap<u16, Seen>,
    /// Interrupts, by number and name.
    pub irqs: FastMap<Sym, u64>,
    /// Threads by name.
    pub groups: Groups,
    /// Where the time of threads and requests went.
    pub tree: Tree,
    /// What threads call, and whom they wake.
    pub ledger: CallStats,
    /// The longest wait of each root of the tree that somebody ended.
    pub waits: FastMap<u32, wait_for::Wait>,
    /// The caller knows which program was recorded: the trace is about that one and no other.
    pub named: bool,
    /// Groups of threads that the recording's maker started.
    pub own: BTreeSet<GroupId>,
    /// When threads of a name got a CPU after they had waited long for one, and how long.
    pub late: BTreeMap<GroupId, Vec<(u64, u64)>>,
    /// Sleeps of threads of a name for a device in which the kernel let requests go that a cgroup's
    /// I/O limit held back: how often, and ticks.
    pub held_back: FastMap<GroupId, (u64, u64)>,
    /// When it last did.
    let_go: Option<u64>,
    /// Sleeps of threads of a name that a thread's end has ended, which the first waited for: by
    /// the name of both, how often, and ticks.
    pub joined: FastMap<(GroupId, GroupId), (u64, u64)>,
    /// Files whose events say what the CPU did.
    flags: BTreeSet<u16>,
    flagged: Option<u16>,
    /// Files in which programs sleep outside of system calls: not all calls are recorded.
    chosen: BTreeSet<u16>,
    /// Files in which calls are recorded.
    called: BTreeSet<u16>,
    /// Which threads have ended.
    pub ends: thread_exits::Ends,
    started: recorded_processes::Started,
    pub(crate) runs: Runs,
    inferred: inferred::Inferred,
    budget: Budget,
    /// Requests whose time is known and what they were for not yet, with their reason.
    served: FastMap<Tid, (Sym, Breakdown)>,
    first: Option<u64>,
    last: u64,
}

/// The evidence, while events come.
pub struct Gather {
    evidence: Evidence,
    /// By file, with its last stamp.
    walks: Vec<(Walk, u64)>,
}

impl Gather {
    /// Before the first event of all files.
    pub fn new(merge: &Merge) -> Gather {
        let walks = merge.infos().map(|info| (Walk::new(info), 0)).collect();
        let mut evidence = Evidence::default();
        // So far only those that the caller knows.
        for thread in merge.launched() {
            evidence.named = true;
            evidence.started.launched(thread);
            evidence.groups.owns(thread);
        }
        Gather { evidence, walks }
    }

    /// Takes the next event.
    pub fn add(&mut self, moment: &Moment, merge: &Merge) {
        let evidence = &mut self.evidence;
        evidence.first.get_or_insert(moment.ts);
        evidence.last = evidence.last.max(moment.ts);
        evidence.budget.earn();
        if moment.context != Context::Unknown && evidence.flagged != Some(moment.file) {
            evidence.flags.insert(moment.file);
            evidence.flagged = Some(moment.file);
        }
        evidence.started.begins(moment, merge);
        evidence.ends.takes(moment, merge, &mut evidence.groups);
        let Some((walk, last)) = self.walks.get_mut(moment.file as usize) else { return };
        *last = moment.stamp.max(*last);
        let Moment { stamp, cpu, tid, context, .. } = *moment;
        let at = At { ts: stamp, cpu, tid, context };
        walk.add(&at, moment.op, &mut Collector { evidence, moment, merge, over: false });
    }

    /// Closes the books.
    pub fn finish(self, merge: &Merge) -> Evidence {
        let Gather { mut evidence, walks } = self;
        for (file, (mut walk, last)) in walks.into_iter().enumerate() {
            let file = file as u16;
            let ts = evidence.last;
            let moment = Moment {
                ts,
                stamp: last,
                file,
                cpu: vmeter_trace::NO_CPU,
                tid: 0,
                context: Context::Unknown,
                op: Op::Other,
            };
            let evidence = &mut evidence;
            Collector { evidence, moment: &moment, merge, over: true }.finish(&mut walk);
            evidence.seen.insert(file, walk.seen);
            if walk.overwritten() {
                evidence.drop_implausible(file, merge.common(file, walk.complete()));
            }
        }
        merge.launched().for_each(|thread| evidence.started.launched(thread));
        evidence.own = evidence.started.groups(&evidence.groups);
        evidence.late = evidence.late();
        evidence.xen.finish(evidence.last);
        evidence.doubt();
        evidence.gather_lives();
        evidence.tree.sum();
        evidence
    }
}

impl Evidence {
    /// First event to last, ticks.
    pub fn span(&self) -> u64 {
        self.last.saturating_sub(self.first.unwrap_or(self.last))
    }

    /// Ticks from the first event to a moment.
    pub fn age(&self, at: u64) -> u64 {
        at.saturating_sub(self.first.unwrap_or(at))
    }

    /// True if switches are recorded.
    pub fn runs_seen(&self) -> bool {
        !self.cpus_seen.is_empty()
    }

    fn subject(&mut self, file: u16, what: SubjectKind) -> Option<&mut Subject> {
        let key = Key { file, what };
        if self.subjects.len() >= MAX_SUBJECTS && !self.subjects.contains_key(&key) {
            return None;
        }
        Some(self.subjects.entry(key).or_default())
    }

    fn settle(&mut self, file: u16, what: SubjectKind, anatomy: &Breakdown) {
        if let Some(subject) = self.subject(file, what) {
            subject.add(anatomy);
        }
    }
}

/// The visitor: evidence about one event, on the common time base.
struct Collector<'a> {
    evidence: &'a mut Evidence,
    moment: &'a Moment,
    merge: &'a Merge,
    /// The file is over: what still waits was woken by nobody.
    over: bool,
}

impl Visitor for Collector<'_> {
    const WAKERS: bool = true;

    fn span(&mut self, thread: &walk::Thread, ended: &Ended) {
        let sym = |id: NameId| self.moment.sym(id);
        let (now, room) = (self.moment.ts, self.evidence.threads.room());
        let cpu = self.moment.cpu;
        let mut segment = self.segment(thread.tid, ended);
        let (file, tid) = (self.moment.file, self.tid(thread));
        if segment.state == State::Runnable {
            if let Some(since) = self.evidence.threads.or_begin(tid, now).map(|own| own.since()) {
                let Evidence { runs, groups, .. } = &*self.evidence;
                let name = |tid| groups.group_of(Tid { file, tid });
                segment.rival = runs.rival((file, cpu), thread.tid, (since, now), name);
            }
        }
        let call = thread.in_call().map(sym);
        let work = thread.work.map(|(function, _)| sym(function));
        let (mut ended_call, mut in_vain, mut ran) = (None, false, None);
        let mut outside = false;
        let mut ended_call_since = (now, (0, 0));
        let mut marks = features::Open::default();
        if let Some(own) = self.evidence.threads.or_begin(tid, now) {
            own.is_vcpu = thread.is_vcpu;
            let since = own.since();
            let entered = own.entered;
            ended_call = segment.call.filter(|_| segment.ends_call);
            ended_call_since = (entered, own.off);
            own.was_off(segment.state, now.saturating_sub(since));
            if segment.state == State::Runnable {
                own.gets_cpu(cpu, now, now.saturating_sub(since));
            }
            let sleeps = thread.state() == State::Blocked && segment.state != State::Blocked;
            ran = sleeps.then(|| own.ran_now());
            if segment.state == State::Blocked {
                // Woken before in the same call, it has gone back to sleep in it.
                match segment.waker {
                    Waker::Timer => own.marks.note(Feature::Timer),
                    Waker::Irq(irq) => own.marks.note(Feature::Irq(irq)),
                    _ => {}
                }
                own.outside += u32::from(segment.sleep == Sleep::Light && segment.call.is_none());
                outside = own.outside == OUTSIDE;
                in_vain = own.slept_in && segment.call.is_some();
                own.slept_in = true;
            }
            if ended_call.is_some() && !own.marks.is_empty() {
                marks = own.marks;
            }
            segment.start = own.ends(segment, room);
            own.begins(thread.state(), call, work);
        }
        if call.is_some() && !self.evidence.called.contains(&file) {
            self.evidence.called.insert(file);
        }
        if let Some(group) = outside.then(|| self.group(tid)).flatten() {
            if !self.evidence.groups.is_kernel(group) {
                self.evidence.chosen.insert(tid.file);
            }
        }
        self.live(thread, &segment, ended.returned);
        if let Some(group) = in_vain.then(|| self.group(tid)).flatten() {
            self.evidence.ledger.in_vain(group);
        }
        if let (Some(ran), Some(group)) = (ran, self.group(tid)) {
            self.evidence.ledger.active(group, ran);
        }
        if let Some(call) = ended_call {
            let (entered, off) = ended_call_since;
            let ticks = (now.saturating_sub(entered), off);
            self.called(tid, (call, ended.returned), ticks, &marks);
        }
    }

    fn incomplete(&mut self, thread: &walk::Thread) {
        if let Some(own) = self.own(thread) {
            own.incomplete();
        }
    }

    fn request(&mut self, _at: &At, thread: &walk::Thread, request: &Request<'_>) {
        let (file, reason) = (self.moment.file, self.moment.sym(request.reason));
        match request.end {
            End::OfTrace => return,
            End::Missing => {
                // What happened meanwhile is missing.
                let ticks = self.moment.ts.saturating_sub(self.common(request.open.start));
                return self.own(thread).map_or((), |own| own.forget(ticks));
            }
            End::Resumed => {}
        }
        let mut anatomy = self.anatomy(thread, request);
        let mut what = request.accesses.iter().filter_map(|access| self.what(*access));
        let (first, others) = (what.next(), what.collect::<Vec<_>>());
        match first {
            Some(first) => self.grow(thread, first, &mut anatomy),
            None if request.by == By::UserspaceExit && request.accesses.is_empty() => {
                if self.evidence.served.len() < MAX_THREADS {
                    self.evidence.served.insert(self.tid(thread), (reason, anatomy));
                }
            }
            None => self.grow(thread, SubjectKind::Exit(reason), &mut anatomy),
        }
        for other in others {
            if let Some(subject) = self.evidence.subject(file, other) {
                subject.count();
            }
        }
    }

    fn late(&mut self, _at: &At, thread: &walk::Thread, access: Access, _took: Took) {
        if let Some((reason, mut anatomy)) = self.evidence.served.remove(&self.tid(thread)) {
            let what = self.what(access).unwrap_or(SubjectKind::Exit(reason));
            self.grow(thread, what, &mut anatomy);
        }
    }

    fn unclaimed(&mut self, thread: &walk::Thread) {
        if let Some((reason, mut anatomy)) = self.evidence.served.remove(&self.tid(thread)) {
            self.grow(thread, SubjectKind::Exit(reason), &mut anatomy);
        }
    }

    fn whole_call(&mut self, at: &At, call: &Call, took: Took, returned: Option<i64>) {
        let name = self.moment.sym(call.what());
        let tid = Tid { file: self.moment.file, tid: at.tid };
        let ends = self.merge.traits(name).has(Traits::EXITS);
        if let Some(own) = self.evidence.threads.or_begin(tid, self.moment.ts) {
            own.gone = ends;
        }
        let Took::Ticks(ticks) = took else { return };
        let end = self.common(at.ts.saturating_add(ticks));
        self.evidence.last = self.evidence.last.max(end);
        let anatomy = Breakdown {
            total: end.saturating_sub(self.moment.ts),
            calls: 1,
            start: self.moment.ts,
            place: self.place("system call"),
            ..Breakdown::default()
        };
        self.evidence.settle(self.moment.file, SubjectKind::Call(name), &anatomy);
        if self.evidence.threads.or_begin(tid, self.moment.ts).is_some() {
            self.infer(tid, name, (anatomy.start, end), returned);
            let ticks = (anatomy.total, (0, 0));
            self.called(tid, (name, returned), ticks, &features::Open::default());
        }
    }

    fn logged(&mut self, _at: &At, _thread: &walk::Thread, access: Access, open: walk::Open) {
        let Some(what) = SubjectKind::logged(access) else { return };
        let start = self.common(open.start);
        let place = Place { stamp: open.start, cpu: open.cpu, ..self.place("line of the log") };
        let total = self.moment.ts.saturating_sub(start);
        let anatomy = Breakdown { total, start, place, ..Breakdown::default() };
        self.evidence.settle(self.moment.file, what, &anatomy);
    }

    fn softirq(&mut self, _at: &At, thread: &walk::Thread, action: NameId, since: u64) {
        self.ran_in(thread, self.moment.sym(action), self.common(since));
    }

    fn interrupted(&mut self, interrupt: Interrupt) {
        if let Interrupt::Irq(irq) = interrupt {
            count(&mut self.evidence.irqs, self.moment.sym(irq), MAX_COUNTED);
        }
    }

    fn queued(&mut self, _at: &At, thread: &walk::Thread, function: NameId) {
        let (function, now) = (self.moment.sym(function), self.moment.ts);
        let (room, tid) = (self.evidence.threads.room(), self.tid(thread));
        let place = self.place("workqueue_queue_work");
        let call = self.own(thread).and_then(|own| {
            own.queues(now, function, room);
            own.has(Feature::Work(function));
            own.call()
        });
        if let Some(group) = self.group(tid) {
            self.evidence.ledger.queued((group, call, function), place);
        }
    }

    fn forked(&mut self, at: &At, child: i32) {
        self.makes(Tid { file: self.moment.file, tid: at.tid }, child);
    }

    fn calls_cpu(&mut self, _at: &At, thread: &walk::Thread, function: NameId) {
        let function = self.moment.sym(function);
        if let Some(own) = self.own(thread) {
            own.has(Feature::OnCpu(function));
        }
    }

    fn sign(&mut self, _at: &At, thread: Option<&walk::Thread>, sign: Sign) {
        self.sees(thread, sign);
    }

    fn lock_waited(&mut self, _at: &At, thread: &walk::Thread, kind: Lock, open: Open) {
        self.contended(thread, kind, open);
    }

    fn page_fault(&mut self, _at: &At, thread: &walk::Thread) {
        self.touches(thread);
    }

    fn work_begins(&mut self, at: &At, item: u64, function: NameId) {
        let function = self.moment.sym(function);
        self.lets_go(function);
        let (worker, place) =
            (Tid { file: self.moment.file, tid: at.tid }, self.place("workqueue_execute_start"));
        if let Some((waker, number)) = self.evidence.ledger.works(worker, function, place) {
            if let Some(own) = self.evidence.threads.get_mut(&waker) {
                own.had(number, Feature::Work(function));
            }
        }
        let works = &mut self.evidence.works;
        if works.len() < MAX_COUNTED || works.contains_key(&function) {
            let work = works.entry(function).or_default();
            work.runs += 1;
            if work.cpus.len() < MAX_COUNTED {
                work.cpus.insert(at.cpu);
            }
            work.ran(item, at.cpu);
        }
    }

    fn switched(&mut self, at: &At, prev: i32, next: Option<&walk::Thread>) {
        let (file, now) = (self.moment.file, self.moment.ts);
        self.evidence.cpus_seen.insert((file, at.cpu.min(MAX_CPUS as u32)));
        let to = next.map_or(0, |next| next.tid);
        self.evidence.runs.switched((file, at.cpu), to, now);
        if let Op::Switch { prio: Some(prio), .. } = self.moment.op {
            if let Some(prev) = self.evidence.threads.get_mut(&Tid { file, tid: prev }) {
                prev.prio = Some(prio);
            }
        }
        let Some(next) = next else { return };
        let Some(own) = self.own(next) else { return };
        own.from_idle += u64::from(prev == 0);
    }

    fn woken(&mut self, _at: &At, thread: &walk::Thread, waker: walk::Waker) {
        let (woken, now) = (self.tid(thread), self.moment.ts);
        let call = thread.in_call().map(|call| self.moment.sym(call));
        let waker = self.waker(waker, (thread.tid, call));
        match waker {
            Waker::Thread(by) => {
                count(&mut self.evidence.wakes, (by, woken), MAX_THREADS);
                if thread.state() == State::Blocked {
                    self.wakes(by, woken);
                }
            }
            Waker::Irq(_) => self.evidence.xen.woken(woken),
            Waker::Timer | Waker::Interrupt | Waker::Unknown => {}
        }
        if let Some(open) = thread.request() {
            let (start, place) = (self.common(open.start), self.place("sched_waking"));
            if let Some(own) = self.own(thread) {
                own.slept(now, waker, place, start);
            }
        }
    }

    fn vcpu_span(&mut self, vcpu: vcpus::VcpuId, ended: &vcpus::VcpuSpan) {
        let span = (self.common(ended.start), self.common(ended.end));
        self.evidence.xen.changes(self.vcpu(vcpu), ended, span);
    }

    fn vcpu_left(&mut self, _at: &At, vcpu: vcpus::VcpuId) {
        let (now, place) = (self.moment.ts, self.place("VMEXIT"));
        self.evidence.xen.left(self.vcpu(vcpu), now, place);
    }

    fn vcpu_request(&mut self, _at: &At, vcpu: vcpus::VcpuId, request: &vcpus::VcpuRequest) {
        self.xen_request(vcpu, request);
    }
}
