//! What happened to every request of a vCPU, from one pass over the events.

pub mod path;
pub mod series;
pub mod subject;
pub mod thread;
pub mod xen;

use crate::merge::{Extra, Moment, Sym, Tid};
use path::{Naming, Walk};
use std::collections::{BTreeSet, HashMap};
use subject::{Anatomy, Key, Place, Subject, What};
use thread::{Thread, Waker};
use vmeter_trace::ops::Op;
use xen::Xen;

/// Most threads that are told apart.
const MAX_THREADS: usize = 1 << 16;
/// Segments kept of all threads together.
const MAX_SEGMENTS: usize = 1 << 19;
/// Most and fewest of one thread.
const ROOM: (usize, usize) = (16, 4096);
/// Most subjects that are told apart.
const MAX_SUBJECTS: usize = 1 << 13;
/// Most names in a table of counts.
const MAX_COUNTED: usize = 1 << 12;
/// Most CPUs.
const MAX_CPUS: usize = 1 << 14;

/// What a CPU is in.
#[derive(Debug, Clone, Copy, Default)]
struct Cpu {
    timer: bool,
    irq: Option<Sym>,
    ipi: bool,
}

/// A request that a vCPU waits for.
#[derive(Debug, Default)]
struct Request {
    /// Since when, and where that is.
    open: Option<(u64, Place)>,
    /// It began with a VMEXIT, not with an exit to user space.
    by_exit: bool,
    reason: Option<Sym>,
    accesses: Vec<What>,
    /// Served; what for will be told by the event of a read.
    served: Option<Anatomy>,
}

/// A work function.
#[derive(Debug, Default)]
pub struct Work {
    /// Times that it ran.
    pub runs: u64,
    /// CPUs it ran on.
    pub cpus: BTreeSet<u32>,
}

/// The index.
#[derive(Debug, Default)]
pub struct Index {
    /// Requests by kind.
    pub subjects: HashMap<Key, Subject>,
    /// Threads.
    pub threads: HashMap<Tid, Thread>,
    /// Work functions.
    pub works: HashMap<Sym, Work>,
    /// IPIs sent, by what for.
    pub ipis: HashMap<Sym, u64>,
    /// Xen's vCPUs.
    pub xen: Xen,
    /// Who woke whom how often.
    pub wakes: HashMap<(Tid, Tid), u64>,
    /// CPUs seen, by file.
    pub cpus_seen: BTreeSet<(u16, u32)>,
    /// Files whose VMEXITs are recorded.
    pub exits_seen: BTreeSet<u16>,
    /// Files whose system calls are recorded.
    pub calls_seen: BTreeSet<u16>,
    /// Interrupts, by number and name.
    pub irqs: HashMap<Sym, u64>,
    /// Ticks that a vCPU's thread waited for a CPU, by the thread that had it at the end.
    pub competitors: HashMap<(Tid, Tid), u64>,
    /// First event of each CPU, by file.
    cpu_first: HashMap<(u16, u32), u64>,
    requests: HashMap<Tid, Request>,
    cpus: HashMap<(u16, u32), Cpu>,
    first: Option<u64>,
    last: u64,
    lost: Option<u64>,
}

impl Index {
    /// An empty one.
    pub fn new() -> Index {
        Index::default()
    }

    /// First event to last, ticks.
    pub fn span(&self) -> u64 {
        self.last.saturating_sub(self.first.unwrap_or(self.last))
    }

    /// Ticks from the first event to a moment.
    pub fn age(&self, at: u64) -> u64 {
        at.saturating_sub(self.first.unwrap_or(at))
    }

    /// Segments kept of a thread.
    fn room(&self) -> usize {
        (MAX_SEGMENTS / self.threads.len().max(1)).clamp(ROOM.0, ROOM.1)
    }

    /// A thread to change; none for the idle thread and beyond the limit.
    fn thread(&mut self, tid: Tid, now: u64) -> Option<&mut Thread> {
        if tid.tid <= 0 {
            return None;
        }
        if self.threads.len() >= MAX_THREADS && !self.threads.contains_key(&tid) {
            return None;
        }
        Some(self.threads.entry(tid).or_insert_with(|| Thread::new(now)))
    }

    /// Takes the next event.
    pub fn add<N: Naming>(&mut self, moment: &Moment, names: &N) {
        self.first.get_or_insert(moment.ts);
        self.last = self.last.max(moment.ts);
        if self.cpu_first.len() < MAX_CPUS {
            self.cpu_first.entry((moment.file, moment.cpu)).or_insert(moment.ts);
        }
        match moment.op {
            Op::Other => self.other(moment),
            Op::Lost => self.lost = Some(moment.ts),
            Op::Xen(op) => self.xen_op(moment, op, names),
            Op::SyscallEnter { .. } | Op::SyscallExit { .. } => self.call(moment, names),
            Op::VmExit { .. } | Op::VmEntry | Op::UserspaceExit { .. } => self.kvm(moment, names),
            Op::Pio { port, write } => self.access(moment, What::Port { port, write }, !write),
            Op::Mmio { address, write } => {
                self.access(moment, What::Mmio { address, write }, !write);
            }
            Op::Switch { .. } | Op::Wake { .. } => self.sched(moment, names),
            Op::WorkQueue { .. } | Op::WorkStart { .. } | Op::WorkEnd { .. } => self.work(moment),
            Op::IrqEntry { .. } | Op::IrqExit | Op::VectorEntry { .. } | Op::VectorExit { .. } => {
                self.interrupt(moment, names);
            }
            Op::IpiSend { name } => {
                let name = moment.sym(name);
                if self.ipis.len() < MAX_COUNTED || self.ipis.contains_key(&name) {
                    *self.ipis.entry(name).or_default() += 1;
                }
            }
            _ => {}
        }
    }

    fn cpu(&mut self, moment: &Moment) -> Option<&mut Cpu> {
        let key = (moment.file, moment.cpu);
        if self.cpus.len() >= MAX_CPUS && !self.cpus.contains_key(&key) {
            return None;
        }
        Some(self.cpus.entry(key).or_default())
    }

    fn other(&mut self, moment: &Moment) {
        match moment.extra {
            Extra::TimerFires => {
                self.cpu(moment).into_iter().for_each(|cpu| cpu.timer = true);
            }
            Extra::TimerDone => {
                self.cpu(moment).into_iter().for_each(|cpu| cpu.timer = false);
            }
            _ => {}
        }
    }

    fn interrupt<N: Naming>(&mut self, moment: &Moment, names: &N) {
        if let Op::IrqEntry { irq } = moment.op {
            let irq = moment.sym(irq);
            if self.irqs.len() < MAX_COUNTED || self.irqs.contains_key(&irq) {
                *self.irqs.entry(irq).or_default() += 1;
            }
        }
        let change = |cpu: &mut Cpu| match moment.op {
            Op::IrqEntry { irq } => cpu.irq = Some(moment.sym(irq)),
            Op::VectorEntry { ipi: true, .. } => cpu.ipi = true,
            Op::VectorExit { .. } => (cpu.ipi, cpu.timer) = (false, false),
            Op::VectorEntry { name, .. } => {
                cpu.timer |= names.sym(moment.sym(name)) == "local_timer";
            }
            _ => cpu.irq = None,
        };
        self.cpu(moment).into_iter().for_each(change);
    }

    /// The CPU does a thread's work again: interrupts whose end is not recorded are over.
    fn task(&mut self, moment: &Moment) {
        if let Some(cpu) = self.cpus.get_mut(&(moment.file, moment.cpu)) {
            *cpu = Cpu::default();
        }
    }

    fn call<N: Naming>(&mut self, moment: &Moment, names: &N) {
        self.task(moment);
        self.calls_seen.insert(moment.file);
        let (tid, now, room) = (moment.thread(), moment.ts, self.room());
        match moment.op {
            Op::SyscallEnter { name, request, kvm_run } => {
                let call = moment.sym(request.unwrap_or(name));
                let Some(thread) = self.thread(tid, now) else { return };
                thread.change(now, room, |thread| {
                    thread.is_vcpu |= kvm_run;
                    (thread.in_kvm, thread.in_guest) = (kvm_run, false);
                    thread.call = (!kvm_run).then_some(call);
                });
                if kvm_run {
                    self.resume(moment, names, false);
                }
            }
            _ => {
                let returned = match moment.extra {
                    Extra::Returned(value) => Some(value),
                    _ => None,
                };
                if let Some(thread) = self.thread(tid, now) {
                    thread.returns(now, returned, room);
                }
            }
        }
    }

    fn place(moment: &Moment, event: &'static str) -> Place {
        let Moment { file, stamp, cpu, tid, .. } = *moment;
        Place { file, stamp, cpu, tid, event }
    }

    fn kvm<N: Naming>(&mut self, moment: &Moment, names: &N) {
        self.task(moment);
        let (tid, now, room) = (moment.thread(), moment.ts, self.room());
        let guest = moment.op == Op::VmEntry;
        if guest {
            self.resume(moment, names, true);
        }
        let Some(thread) = self.thread(tid, now) else { return };
        thread.is_vcpu = true;
        // Where system calls are not recorded, this is the last that is heard of KVM.
        let leaves = matches!(moment.op, Op::UserspaceExit { .. });
        thread.change(now, room, |thread| (thread.in_kvm, thread.in_guest) = (!leaves, guest));
        let request = self.requests.entry(tid).or_default();
        match moment.op {
            Op::VmExit { reason } => {
                self.exits_seen.insert(moment.file);
                // Two exits without an entry between: what happened meanwhile is missing.
                let missing = request.open.filter(|_| request.by_exit);
                if let (Some((start, _)), Some(thread)) = (missing, self.threads.get_mut(&tid)) {
                    thread.forget(now.saturating_sub(start));
                }
                *request = Request {
                    open: Some((now, Index::place(moment, "kvm_exit"))),
                    by_exit: true,
                    reason: Some(moment.sym(reason)),
                    ..Request::default()
                };
            }
            Op::UserspaceExit { reason } if request.open.is_none() => {
                let unclaimed = request.served.take();
                let reason_before = request.reason.replace(moment.sym(reason));
                request.open = Some((now, Index::place(moment, "kvm_userspace_exit")));
                request.by_exit = false;
                if let (Some(anatomy), Some(reason)) = (unclaimed, reason_before) {
                    self.settle(moment.file, What::Exit(reason), &anatomy);
                }
            }
            _ => {}
        }
    }

    /// The guest goes on: the request is served.
    fn resume<N: Naming>(&mut self, moment: &Moment, names: &N, entry: bool) {
        let (tid, now, room) = (moment.thread(), moment.ts, self.room());
        let Some(request) = self.requests.get_mut(&tid) else { return };
        if request.by_exit && !entry {
            // KVM_RUN again within one VMEXIT: the guest goes on with kvm_entry.
            return;
        }
        let Some((start, place)) = request.open.take() else { return };
        let accesses = std::mem::take(&mut request.accesses);
        let (reason, by_exit) = (request.reason, request.by_exit);
        let mut anatomy = Anatomy {
            total: now.saturating_sub(start),
            place,
            torn: self.torn(moment, start, place),
            start,
            ..Anatomy::default()
        };
        let walk = Walk { threads: &self.threads, names, now };
        walk.own(tid, start, now, &mut anatomy);
        let sleep = self.threads.get(&tid).and_then(|thread| thread.sleep);
        anatomy.sleep = sleep.filter(|sleep| sleep.start >= start);
        anatomy.ended = Some(Index::place(moment, if entry { "kvm_entry" } else { "KVM_RUN" }));
        if let (true, Some(thread)) = (anatomy.torn, self.threads.get_mut(&tid)) {
            thread.change(now, room, |_| {});
            thread.forget(anatomy.total);
        }
        match (accesses.split_first(), by_exit, reason) {
            (Some((first, others)), ..) => {
                self.settle(moment.file, *first, &anatomy);
                for other in others {
                    self.subject(moment.file, *other).into_iter().for_each(Subject::count);
                }
            }
            (None, true, Some(reason)) => self.settle(moment.file, What::Exit(reason), &anatomy),
            (None, false, _) => {
                self.requests.entry(tid).or_default().served = Some(anatomy);
            }
            _ => {}
        }
    }

    /// True if events of the request may be missing: some were lost meanwhile, or it came to
    /// a CPU whose events begin later than the request.
    fn torn(&self, moment: &Moment, start: u64, place: Place) -> bool {
        let moved = || {
            let first = self.cpu_first.get(&(moment.file, moment.cpu));
            moment.cpu != place.cpu && first.is_some_and(|first| *first > start)
        };
        self.lost.is_some_and(|lost| lost >= start) || moved()
    }

    fn access(&mut self, moment: &Moment, what: What, read: bool) {
        let Some(request) = self.requests.get_mut(&moment.thread()) else {
            if moment.tid > 0 && self.requests.len() < MAX_THREADS {
                let request = Request { accesses: vec![what], ..Request::default() };
                self.requests.insert(moment.thread(), request);
            }
            return;
        };
        if let (true, Some(anatomy)) = (read, request.served.take()) {
            return self.settle(moment.file, what, &anatomy);
        }
        if request.accesses.len() < 16 {
            request.accesses.push(what);
        }
    }

    fn subject(&mut self, file: u16, what: What) -> Option<&mut Subject> {
        let key = Key { file, what };
        if self.subjects.len() >= MAX_SUBJECTS && !self.subjects.contains_key(&key) {
            return None;
        }
        Some(self.subjects.entry(key).or_default())
    }

    fn settle(&mut self, file: u16, what: What, anatomy: &Anatomy) {
        if let Some(subject) = self.subject(file, what) {
            subject.add(anatomy);
        }
    }

    fn sched<N: Naming>(&mut self, moment: &Moment, names: &N) {
        let (now, room, file) = (moment.ts, self.room(), moment.file);
        match moment.op {
            Op::Switch { prev, runnable, next } => {
                self.task(moment);
                self.cpus_seen.insert((file, moment.cpu.min(MAX_CPUS as u32)));
                if let Some(thread) = self.thread(Tid { file, tid: prev }, now) {
                    thread.switched_from(now, runnable, room);
                }
                if let Some(thread) = self.thread(Tid { file, tid: next }, now) {
                    thread.from_idle += u64::from(prev == 0);
                    let waited = thread.waited(now).filter(|_| thread.is_vcpu && prev > 0);
                    thread.switched_to(now, room);
                    let pair = (Tid { file, tid: next }, Tid { file, tid: prev });
                    let full = self.competitors.len() >= MAX_THREADS;
                    if let (Some(waited), false) = (waited, full) {
                        let sum = self.competitors.entry(pair).or_default();
                        *sum = waited.saturating_add(*sum);
                    }
                }
            }
            Op::Wake { tid } => {
                let cpu = self.cpus.get(&(file, moment.cpu)).copied().unwrap_or_default();
                let waker = match cpu {
                    Cpu { timer: true, .. } => Waker::Timer,
                    Cpu { irq: Some(irq), .. } if names.sym(irq).contains("timer") => Waker::Timer,
                    Cpu { irq: Some(irq), .. } => Waker::Irq(irq),
                    Cpu { ipi: true, .. } => Waker::Unknown,
                    _ if moment.tid > 0 => Waker::Thread(moment.thread()),
                    _ => Waker::Unknown,
                };
                let woken = Tid { file, tid };
                if let Waker::Thread(by) = waker {
                    let room = self.wakes.len() < MAX_THREADS;
                    if room || self.wakes.contains_key(&(by, woken)) {
                        *self.wakes.entry((by, woken)).or_default() += 1;
                    }
                }
                if let Waker::Irq(_) = waker {
                    self.xen.woken(woken);
                }
                let request = self.requests.get(&woken).and_then(|request| request.open);
                if let Some(thread) = self.thread(woken, now) {
                    if let Some((start, _)) = request {
                        let woken = Index::place(moment, "sched_waking");
                        thread.slept(now, waker, woken, start);
                    }
                    thread.woken(now, waker, room);
                }
            }
            _ => {}
        }
    }

    fn work(&mut self, moment: &Moment) {
        let (tid, now, room) = (moment.thread(), moment.ts, self.room());
        match moment.op {
            Op::WorkQueue { function, .. } => {
                let function = moment.sym(function);
                // Queued by an interrupt: not by the thread it interrupted.
                let cpu = self.cpus.get(&(moment.file, moment.cpu)).copied().unwrap_or_default();
                if cpu.timer || cpu.ipi || cpu.irq.is_some() {
                    return;
                }
                if let Some(thread) = self.thread(tid, now) {
                    thread.queues(now, function, room);
                }
            }
            Op::WorkStart { function, .. } => {
                self.task(moment);
                let function = moment.sym(function);
                if let Some(thread) = self.thread(tid, now) {
                    thread.change(now, room, |thread| thread.work = Some(function));
                }
                if self.works.len() < MAX_COUNTED || self.works.contains_key(&function) {
                    let work = self.works.entry(function).or_default();
                    work.runs += 1;
                    if work.cpus.len() < MAX_COUNTED {
                        work.cpus.insert(moment.cpu);
                    }
                }
            }
            _ => {
                if let Some(thread) = self.thread(tid, now) {
                    thread.change(now, room, |thread| thread.work = None);
                }
            }
        }
    }

    /// Closes the books. `overwritten`: files whose beginning was overwritten.
    pub fn finish(&mut self, overwritten: &[u16]) {
        let last = self.last;
        for file in overwritten {
            // Until then, what happened on some CPU is not known.
            let firsts = self.cpu_first.iter().filter(|((f, _), _)| f == file);
            let complete = firsts.map(|(_, first)| *first).max().unwrap_or(0);
            let subjects = self.subjects.iter_mut().filter(|(key, _)| key.file == *file);
            let dropped = subjects.flat_map(|(_, subject)| subject.drop_implausible(complete));
            for (tid, ticks) in dropped {
                if let Some(thread) = self.threads.get_mut(&tid) {
                    thread.forget(ticks);
                }
            }
        }
        self.threads.values_mut().for_each(|thread| thread.finish(last));
        self.xen.finish(last);
    }
}
