//! Each instant of a thread's life: its call, whom it waited for, in what call or work
//! function, why.
//!
//! While a thread runs, the time is its own. While it has no CPU, it is of those who had that
//! one. While it sleeps, it is of whoever woke it: of what that thread did from the beginning
//! of the sleep to the wake-up, and so on. An interrupt ends the way.

use super::groups::{GroupId, Groups};
use super::name_traits::Traits;
use super::thread::{Segment, State, Waker};
use super::threads::Threads;
use super::tree::{Frame, Tree};
use crate::merge::Merge;
use crate::moment::{Place, Tid};
use std::collections::VecDeque;
use vmeter_trace::ops::Sleep;

/// Most threads that wait for each other in a row.
const MAX_HOPS: usize = 8;
/// LogGaps for the idle thread, where 0 is none.
pub const IDLE: i32 = -1;
/// Stretches of one CPU's past that are kept.
const MAX_RUNS: usize = 64;
/// Most CPUs.
const MAX_CPUS: usize = 1 << 12;
/// Segments that may be looked at for each event, on average: bounds the time.
const PER_EVENT: i64 = 4;
/// And at once.
const BURST: i64 = 1 << 16;

/// Who had the CPUs lately.
#[derive(Debug, Default)]
pub struct Runs {
    /// By file.
    files: Vec<Cpus>,
}

/// Who had a file's CPUs, by CPU.
#[derive(Debug, Default)]
struct Cpus {
    now: Vec<i32>,
    past: Vec<VecDeque<(i32, u64)>>,
}

impl Runs {
    /// A CPU goes over to a thread.
    pub fn switched(&mut self, (file, cpu): (u16, u32), next: i32, now: u64) {
        let (file, cpu) = (usize::from(file), cpu as usize);
        if cpu >= MAX_CPUS {
            return;
        }
        if self.files.len() <= file {
            self.files.resize_with(file + 1, Cpus::default);
        }
        let cpus = &mut self.files[file];
        if cpus.now.len() <= cpu {
            cpus.now.resize(cpu + 1, 0);
            cpus.past.resize_with(cpu + 1, VecDeque::new);
        }
        cpus.now[cpu] = next;
        let runs = &mut cpus.past[cpu];
        if runs.len() >= MAX_RUNS {
            runs.pop_front();
        }
        runs.push_back((next, now));
    }

    /// Who has the other CPUs of a file; 0 for the idle thread.
    pub fn now(&self, (file, cpu): (u16, u32)) -> impl Iterator<Item = i32> + '_ {
        let cpus = self.files.get(usize::from(file)).map_or(&[][..], |cpus| &cpus.now);
        let others = cpus.iter().enumerate().filter(move |(other, _)| *other != cpu as usize);
        others.map(|(_, tid)| *tid)
    }

    /// The thread that had a CPU for most of a stretch that another waited for it, or the first of
    /// those of one name (`name` says which) that had; 0 if none, and [`IDLE`] if the CPU had
    /// nothing to do.
    pub fn rival(
        &self,
        (file, cpu): (u16, u32),
        waits: i32,
        (from, to): (u64, u64),
        name: impl Fn(i32) -> Option<GroupId>,
    ) -> i32 {
        let runs = self.files.get(usize::from(file)).and_then(|cpus| cpus.past.get(cpu as usize));
        let runs = runs.into_iter().flat_map(|runs| runs.iter().rev());
        let mut end = to;
        let mut most = (to.saturating_sub(from) / 2, 0);
        let mut sums: [(i32, u64); 4] = [(0, 0); 4];
        for &(tid, start) in runs {
            let ticks = end.saturating_sub(start.max(from));
            end = end.min(start);
            let tid = if tid == 0 { IDLE } else { tid };
            if tid != waits {
                let same =
                    |known: i32| known == tid || name(tid).is_some_and(|n| name(known) == Some(n));
                let slot = sums.iter_mut().find(|(known, _)| *known == 0 || same(*known));
                if let Some(slot) = slot {
                    let first = if slot.0 == 0 { tid } else { slot.0 };
                    *slot = (first, slot.1.saturating_add(ticks));
                    if slot.1 > most.0 {
                        most = (slot.1, first);
                    }
                }
            }
            if start <= from {
                break;
            }
        }
        most.1
    }
}

/// How much may still be looked at.
#[derive(Debug)]
pub struct Budget(i64);

impl Default for Budget {
    fn default() -> Budget {
        Budget(BURST)
    }
}

impl Budget {
    /// An event came.
    #[inline]
    pub fn earn(&mut self) {
        self.0 = (self.0 + PER_EVENT).min(BURST);
    }

    fn spend(&mut self) -> bool {
        self.0 -= 1;
        self.0 > 0
    }
}

/// A stretch of a wait, or of what somebody did meanwhile.
#[derive(Debug, Clone, Copy)]
pub struct Piece {
    /// Who.
    pub thread: Tid,
    /// What it did.
    pub state: State,
    /// In which call or work function.
    pub doing: Option<Frame>,
    /// If it slept, who ended that.
    pub waker: Waker,
    /// From and to, ticks of the common base.
    pub span: (u64, u64),
}

/// A wait of a subject.
#[derive(Debug, Clone, Default)]
pub struct Wait {
    /// From and to, ticks of the common base.
    pub span: (u64, u64),
    /// It, and what those did meanwhile who were waited for.
    pub pieces: Vec<Piece>,
}

/// Most pieces of one wait.
const MAX_PIECES: usize = 512;
/// Most subjects whose longest wait is kept.
pub const MAX_WAITS: usize = 1 << 12;

/// Threads that wait for each other in a row.
#[derive(Debug)]
pub struct Stack {
    list: [Tid; MAX_HOPS],
    used: usize,
}

impl Stack {
    /// Of the first.
    pub fn of(thread: Tid) -> Stack {
        Stack { list: [thread; MAX_HOPS], used: 1 }
    }

    /// Adds one; false if it is among them, or there is no room.
    fn push(&mut self, thread: Tid) -> bool {
        let fresh = self.used < MAX_HOPS && !self.list[..self.used].contains(&thread);
        if fresh {
            self.list[self.used] = thread;
            self.used += 1;
        }
        fresh
    }

    fn pop(&mut self) {
        self.used = self.used.saturating_sub(1);
    }
}

/// Adds threads' time to the tree.
pub struct Life<'a> {
    /// What is found is noted here, if it is the longest wait so far.
    pub pieces: Option<Vec<Piece>>,
    /// Ticks without a CPU, of threads that are no kernel's workers.
    pub waited: u64,
    /// Calls that ended.
    pub calls: u64,
    /// All threads.
    pub threads: &'a Threads,
    /// Names.
    pub merge: &'a Merge,
    /// Threads by name.
    pub groups: &'a mut Groups,
    /// To be added to.
    pub tree: &'a mut Tree,
    /// What may still be looked at.
    pub budget: &'a mut Budget,
    /// Now.
    pub now: u64,
    /// Where that is.
    pub place: Place,
}

impl Life<'_> {
    /// Adds what a thread did from one moment to another below a node.
    pub fn walk(&mut self, at: u32, thread: Tid, span: (u64, u64), stack: &mut Stack) {
        let threads = self.threads;
        let Some(state) = threads.get(&thread) else {
            return self.leaf(at, Frame::Unknown, span.1.saturating_sub(span.0));
        };
        let mut covered = 0_u64;
        let current = state.current(self.now);
        for segment in std::iter::once(&current).chain(state.past()) {
            if segment.end < span.0 || !self.budget.spend() {
                break;
            }
            if segment.queued {
                if segment.faults > 0 && segment.start >= span.0 {
                    let at = self.tree.child(at, Frame::Faults);
                    self.tree.count_some(at, u64::from(segment.faults));
                }
                continue;
            }
            let (from, to) = (segment.start.max(span.0), segment.end.min(span.1));
            if from < to {
                covered = covered.saturating_add(to - from);
                self.segment(at, thread, segment, (from, to), stack);
            }
        }
        let rest = span.1.saturating_sub(span.0).saturating_sub(covered);
        if rest > 0 {
            self.leaf(at, Frame::Unknown, rest);
        }
    }

    /// Adds a stretch of one state.
    pub fn segment(
        &mut self,
        at: u32,
        thread: Tid,
        segment: &Segment,
        span: (u64, u64),
        stack: &mut Stack,
    ) {
        let ticks = span.1.saturating_sub(span.0);
        if let Some(pieces) = self.pieces.as_mut().filter(|pieces| pieces.len() < MAX_PIECES) {
            let work = segment.work.map(Frame::Work);
            let doing = segment.call.map(Frame::Call).or(work);
            let Segment { state, waker, .. } = *segment;
            pieces.push(Piece { thread, state, doing, waker, span });
        }
        let exits = || self.merge.traits_of(segment.call).has(Traits::EXITS);
        if segment.state == State::Blocked && (segment.sleep == Sleep::Dead || exits()) {
            return;
        }
        let at = match (segment.call, segment.work) {
            (Some(call), _) => {
                let at = self.tree.child(at, Frame::Call(call));
                if segment.ends_call {
                    self.tree.count(at);
                    self.calls += 1;
                }
                at
            }
            (None, Some(work)) => self.tree.child(at, Frame::Work(work)),
            (None, None) => at,
        };
        match segment.state {
            State::Unknown => self.leaf(at, Frame::Unknown, ticks),
            State::Guest => self.leaf(at, Frame::Guest, ticks),
            State::Kvm | State::Kernel | State::User => self.leaf(at, Frame::Runs, ticks),
            State::Runnable => self.ready(at, thread, segment, span),
            State::Blocked => self.asleep(at, segment, span, stack),
        }
    }

    fn leaf(&mut self, at: u32, frame: Frame, ticks: u64) {
        let at = self.tree.child(at, frame);
        self.tree.add(at, ticks, self.place);
    }

    /// Without a CPU: who had the one that it got.
    fn ready(&mut self, at: u32, thread: Tid, segment: &Segment, span: (u64, u64)) {
        let at = self.tree.child(at, Frame::NoCpu);
        let ticks = span.1.saturating_sub(span.0);
        if !self.merge.thread_name(thread).starts_with("kworker") {
            self.waited = self.waited.saturating_add(ticks);
        }
        if segment.rival == IDLE {
            let at = self.tree.child(at, Frame::Idle);
            return self.tree.add(at, ticks, self.place);
        }
        if segment.rival <= 0 {
            return self.tree.add(at, ticks, self.place);
        }
        self.tree.count(at);
        let other = Tid { tid: segment.rival, ..thread };
        let group = self.group(other);
        let prio = |tid| self.threads.get(&tid).and_then(|thread| thread.prio);
        let above = prio(other).zip(prio(thread)).is_some_and(|(its, own)| its < own);
        let has = if above { Frame::Preempts(group) } else { Frame::Has(group) };
        let mut below = self.tree.child(at, has);
        let doing = self.threads.get(&other).and_then(|other| other.doing(self.now, span.1));
        if let Some(frame) = doing {
            below = self.tree.child(below, frame);
        }
        self.tree.add(below, ticks, self.place);
    }

    fn asleep(&mut self, at: u32, segment: &Segment, span: (u64, u64), stack: &mut Stack) {
        let ticks = span.1.saturating_sub(span.0);
        let sleeps = self.merge.traits_of(segment.call).has(Traits::NANOSLEEP);
        let frame = match segment.waker {
            _ if sleeps => Frame::Timer,
            Waker::Timer => Frame::Timer,
            Waker::Irq(irq) => Frame::Irq(irq),
            Waker::Thread(by) if segment.sleep == Sleep::Stopped => Frame::Stopped(self.group(by)),
            Waker::Interrupt | Waker::Unknown if segment.sleep == Sleep::Deep => Frame::Deep,
            Waker::Interrupt => Frame::Interrupt,
            Waker::Unknown => Frame::Asleep,
            Waker::Thread(waker) => {
                let group = self.group(waker);
                let at = self.tree.child(at, Frame::Waker(group));
                self.tree.count(at);
                if !stack.push(waker) {
                    return self.tree.add(at, ticks, self.place);
                }
                self.walk(at, waker, span, stack);
                stack.pop();
                return;
            }
        };
        self.leaf(at, frame, ticks);
    }

    fn group(&mut self, thread: Tid) -> GroupId {
        self.groups.now(thread, self.merge)
    }
}
