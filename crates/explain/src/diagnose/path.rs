//! The critical path from a subject: whom it waits for, in what call, and how that wait is meant.

use super::end::{ending, End, Ending};
use super::locks;
use crate::detect::levels::{levels, Start};
use crate::detect::segments::PathSegment;
use crate::detect::{waits, View, LEAST_SHARE};
use crate::evidence::groups::{is_vcpu_name, GroupId, BORN};
use crate::evidence::tree::Frame;
use crate::moment::Sym;

/// Calls that wait until a child has ended or has begun its own program.
const CHILD: [&str; 6] = ["wait4", "waitid", "vfork", "clone", "clone3", "fork"];
/// Calls that wait for a lock of user space or of a file.
const LOCKS: [&str; 4] = ["futex", "sem", "flock", "fcntl"];
/// Part of a thread's time, without its pauses, from which it is told beside the largest.
pub const OTHER: f64 = 0.2;
/// Share of the wake-ups in an edge that the waiter must have asked for, to be a request and its answer.
const ASKED: f64 = 0.5;
/// Threads that one call lets go on, from which it is a barrier or a condition and not a lock.
const BARRIER: f64 = 1.3;

/// What a wait for another thread is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edge {
    /// The waiter has asked the other for something: a request and its answer.
    CommFilter,
    /// The other holds a lock.
    Lock,
    /// Until a process that was started for it has ended.
    Child,
    /// Until a thread has ended that runs for as long as the program does.
    Join,
    /// The other hands out work that the waiter did not ask for.
    Idle,
}

/// A hop of the path.
#[derive(Debug, Clone, Copy)]
pub struct Hop {
    /// The call that the waiter sleeps in.
    pub call: Option<Sym>,
    /// Waits.
    pub count: u64,
    /// Ticks.
    pub ticks: u64,
    /// What it is.
    pub edge: Edge,
}

/// The critical path of a subject.
pub struct Path {
    /// The subject.
    pub root: Frame,
    /// The subject and those it waits for, one after the other.
    pub levels: Vec<PathSegment>,
    /// The last level that is no thread of the kernel.
    pub doer: usize,
    /// How each level waits for the next.
    hops: Vec<Option<Hop>>,
}

impl Path {
    /// The path from a root of the tree; none if nothing is known of it.
    pub fn of(view: &View<'_>, root: Frame) -> Option<Path> {
        Path::from(view, root, Start::Most)
    }

    /// What else a thread's time goes into: whom it waits for besides, and what it does itself.
    pub fn others(&self, view: &View<'_>) -> Vec<Path> {
        // Beside a twin, what is beyond that one's is told as one path.
        let lives = self.root.life().is_some() && !view.is_beyond();
        let Some(first) = self.levels.first().filter(|_| lives) else { return Vec::new() };
        let least = (OTHER * self.active(view) as f64) as u64;
        let much = |ticks: u64| ticks >= least && view.share(ticks) >= LEAST_SHARE;
        let from = |start| Path::from(view, self.root, start);
        let next = self.levels.get(1).and_then(|level| level.who);
        let waits = first.waited_for(view).into_iter().filter(|(_, sum)| much(sum.ticks));
        let waits = waits.filter_map(|(who, _)| who.first().copied().filter(|w| Some(*w) != next));
        let mut all: Vec<Path> = waits.filter_map(|who| from(Start::At(who))).collect();
        let alone = next.and_then(|_| from(Start::Alone)).filter(|own| much(own.active(view)));
        let own = alone.as_ref().or(Some(self).filter(|_| next.is_none()));
        // What it does besides its pauses, and besides computing where that can be told from the rest.
        let told = |ending: &Ending| match ending.end {
            End::Timer | End::Idle | End::Interrupt => true,
            End::User => !view.evidence.only_calls(),
            _ => false,
        };
        let does = own.map(|own| ending(view, own)).filter(told);
        let besides = does.and_then(|does| from(Start::Besides(does.call.map(Frame::Call))));
        let besides = besides.filter(|own| much(own.active(view)));
        all.extend(alone);
        all.extend(besides);
        all
    }

    /// The path that goes on from its root as that says.
    pub fn from(view: &View<'_>, root: Frame, start: Start) -> Option<Path> {
        let levels = levels(view, root, start);
        let kernel =
            |level: &PathSegment| level.who.is_some_and(|w| view.evidence.groups.is_kernel(w));
        let doer = levels.iter().rposition(|level| !kernel(level))?;
        let mut path = Path { root, levels, doer, hops: Vec::new() };
        path.hops = (1..path.levels.len()).map(|at| path.judged(view, at)).collect();
        Some(path)
    }

    /// The level of the last thread that is not the kernel's.
    pub fn doing(&self) -> &PathSegment {
        &self.levels[self.doer]
    }

    /// The last level.
    pub fn last(&self) -> &PathSegment {
        self.levels.last().unwrap_or(&self.levels[self.doer])
    }

    /// Threads of the kernel that the doer waits for.
    pub fn workers(&self) -> Option<GroupId> {
        self.levels.get(self.doer + 1).and_then(|level| level.who)
    }

    /// Ticks of the subject that are recorded, and not spent idle or because of the host's other load.
    pub fn total(&self) -> u64 {
        self.levels.first().map_or(0, |first| first.all.ticks.saturating_sub(first.noise()))
    }

    /// Ticks in which those that it waits for have no CPU because of the host's other load.
    pub fn load(&self) -> u64 {
        crate::sum(self.levels.iter().skip(1).map(PathSegment::load))
    }

    /// The same without what a thread sleeps of its own accord.
    pub fn active(&self, view: &View<'_>) -> u64 {
        let first = self.levels.first().filter(|_| self.root.life().is_some());
        self.total().saturating_sub(first.map_or(0, |first| first.pauses(view)))
    }

    /// Threads whose time it is: the subject's, or those waited for at a level.
    pub fn group_at(&self, view: &View<'_>, at: usize) -> Option<GroupId> {
        self.levels.get(at).and_then(|level| level.who).or_else(|| subject_group(view, self.root))
    }

    /// How the level before `at` waits for it.
    pub fn hop(&self, at: usize) -> Option<Hop> {
        self.hops.get(at.checked_sub(1)?).copied().flatten()
    }

    fn judged(&self, view: &View<'_>, at: usize) -> Option<Hop> {
        let via = self.levels.get(at.checked_sub(1)?)?;
        let who = self.levels.get(at)?.who?;
        let (call, sum) = via.most_in(|state| state == Frame::Waker(who))?;
        let call = match call {
            Some(Frame::Call(call)) => Some(call),
            _ => None,
        };
        let waker = via.wakers().into_iter().find(|(group, _)| *group == who);
        let (count, ticks) = waker.map_or((sum.count, sum.ticks), |(_, s)| (s.count, s.ticks));
        let edge = self.edge(view, at, call, count);
        Some(Hop { call, count, ticks, edge })
    }

    fn edge(&self, view: &View<'_>, at: usize, call: Option<Sym>, count: u64) -> Edge {
        let (Some(waiter), Some(who)) = (self.group_at(view, at - 1), self.group_at(view, at))
        else {
            return Edge::CommFilter;
        };
        let evidence = view.evidence;
        let name = call.map_or("", |call| view.name(call));
        let joined = evidence.joined.get(&(waiter, who)).map_or(0, |(count, _)| *count);
        // A server's next client has not been asked for anything.
        if name.starts_with("accept") {
            return Edge::Idle;
        }
        let lock = LOCKS.iter().any(|lock| name.starts_with(lock));
        if CHILD.contains(&name) || evidence.groups.comes_and_goes(who) && !lock {
            let made = evidence.groups.get(who).map_or(0, |group| group.born);
            let again = made >= BORN || evidence.groups.comes_and_goes(who) || count >= 10;
            return if again { Edge::Child } else { Edge::Join };
        }
        if joined > 0 && joined * 2 >= count {
            return Edge::Join;
        }
        let asked = evidence.asked(waiter, who) as f64 >= ASKED * count as f64 && waiter != who;
        if self.is_lock(view, at, (waiter, who), name) && !asked {
            return Edge::Lock;
        }
        if asked || evidence.groups.is_kernel(who) || !waits(name) && call.is_some() {
            return Edge::CommFilter;
        }
        // A guest's request asks by itself.
        let guest = is_vcpu_name(evidence.groups.name(waiter));
        match self.root {
            Frame::Request(_) => Edge::CommFilter,
            _ if guest => Edge::CommFilter,
            _ => Edge::Idle,
        }
    }

    /// A lock of user space, of a file or of the kernel: the one that lets go does something else
    /// than to wait for work, and lets one go on at a time.
    fn is_lock(
        &self,
        view: &View<'_>,
        at: usize,
        (waiter, who): (GroupId, GroupId),
        name: &str,
    ) -> bool {
        let (via, level) = (&self.levels[at - 1], &self.levels[at]);
        if !waits(name) && locks::known(view, via, (waiter, who)).is_some() {
            return true;
        }
        if view.evidence.groups.is_kernel(who) {
            return false;
        }
        match name {
            "futex(lock)" => return true,
            "futex(wait)" => return false,
            _ => {}
        }
        let lock = LOCKS.iter().any(|lock| name.starts_with(lock));
        let own = level.most_in(|_| true).and_then(|(call, _)| call);
        let same = own.is_some_and(|call| view.frame_name(call) == name);
        // Outside of its calls it is in a page fault, if all of these are recorded.
        let known =
            !name.is_empty() || via.system_calls().next().is_some() && view.evidence.all_calls();
        let kernel = !lock && known && !waits(name) && !name.starts_with("_IO");
        let makes_room = ["write", "send"].iter().any(|call| name.starts_with(call));
        if kernel {
            let busy = level.ticks(|call, _| call.is_some_and(|c| !waits(view.frame_name(c))));
            return (!makes_room || waiter == who && same) && busy * 2 >= level.all.ticks;
        }
        lock && lets_go(view, (waiter, who), name)
            && !self.is_barrier(view, who, name)
            && does_something(view, level)
    }

    /// The waits of a level for others of its own name, if they are for a lock.
    pub fn own_lock(&self, view: &View<'_>, at: usize) -> Option<(Option<Sym>, u64, u64)> {
        let level = self.levels.get(at)?;
        let own = self.group_at(view, at)?;
        let (call, sum) = PathSegment::sorted(&level.own_waits).into_iter().next()?;
        let name = call.map_or("", |call| view.frame_name(call));
        let user = LOCKS.iter().any(|lock| name.starts_with(lock)) && name != "futex(wait)";
        let kernel = !name.is_empty() && !waits(name);
        let lock = name == "futex(lock)"
            || user && lets_go(view, (own, own), name) && !self.is_barrier(view, own, name)
            || kernel;
        let call = match call {
            Some(Frame::Call(call)) => Some(call),
            _ => None,
        };
        lock.then_some((call, sum.ticks, sum.count))
    }

    fn is_barrier(&self, view: &View<'_>, who: GroupId, name: &str) -> bool {
        let ledger = &view.evidence.ledger;
        let same = |sym: Sym| view.name(sym) == name;
        let wakes =
            ledger.wakes.iter().filter(|((by, call, _), _)| *by == who && call.is_some_and(same));
        let woken: u64 = wakes.map(|(_, wakes)| wakes.wakes).sum();
        let own = ledger.calls.iter().filter(|((by, call), _)| *by == who && same(*call));
        let calls: u64 = own.map(|(_, calls)| calls.count).sum();
        woken as f64 >= BARRIER * calls.max(10) as f64
    }
}

/// Threads whose life it is, or that make the requests.
pub fn subject_group(view: &View<'_>, root: Frame) -> Option<GroupId> {
    root.life().or_else(|| match root {
        Frame::Request(_) => view.evidence.vcpu_group(),
        _ => None,
    })
}

/// Who holds a lock of user space lets it go by a call of the same kind.
fn lets_go(view: &View<'_>, (waiter, who): (GroupId, GroupId), name: &str) -> bool {
    let call = view.evidence.ledger.let_go(who, waiter, |_| true);
    let by = call.map_or("", |call| view.name(call));
    match LOCKS.iter().find(|lock| name.starts_with(*lock)) {
        Some(&"futex") => by.starts_with("futex"),
        Some(_) => !by.is_empty(),
        None => false,
    }
}

/// True unless it sleeps in a wait of its own meanwhile: then it holds nothing.
fn does_something(view: &View<'_>, level: &PathSegment) -> bool {
    let idle = |call: Option<Frame>| {
        call.is_some_and(|call| {
            let name = view.frame_name(call);
            waits(name)
                && !LOCKS.iter().any(|lock| name.starts_with(lock))
                && !name.contains("nanosleep")
        })
    };
    let idles =
        level.ticks(|call, state| idle(call) && !matches!(state, Frame::Runs | Frame::NoCpu));
    let known = level.all.ticks.saturating_sub(level.noise());
    idles * 2 < known.max(1)
}

/// The call, not one that waits by design, that the doer of a request is in most.
pub fn grown_call(view: &View<'_>, root: Frame) -> Option<Sym> {
    let path = Path::of(view, root)?;
    let mut calls = path.doing().system_calls();
    calls.find(|(call, _)| !waits(view.name(*call))).map(|(call, _)| call)
}
