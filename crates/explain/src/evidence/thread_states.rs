//! Threads' lives and requests go into the tree; calls, turns and wake-ups into the ledger.

use super::features::Open;
use super::groups::GroupId;
use super::name_traits::Traits;
use super::subject::{Breakdown, Key, SubjectKind};
use super::thread::{Segment, State, Waker};
use super::tree::Frame;
use super::wait_for::{Life, Piece, Stack, Wait, MAX_WAITS};
use super::{Collector, Evidence};
use crate::moment::{Sym, Tid};
use vmeter_trace::ops::{Op, Sleep};
use vmeter_trace::walk;
use vmeter_trace::NO_CPU;

/// Stretches of a thread's life after which its name is looked up again.
const NAMED: u32 = 16;

/// So many times as long a thread sleeps as it runs, from which it has only looked about.
const LOOKS: u64 = 20;

/// Threads of a name, from which those that come later are not told apart.
const MAX_ALONE: u32 = 32;

impl Evidence {
    /// The lives of single threads are those of their names as well, and so are their longest waits.
    pub(super) fn gather_lives(&mut self) {
        for (one, all) in self.tree.gather() {
            let ticks = |wait: &Wait| wait.span.1.saturating_sub(wait.span.0);
            let most = self.waits.get(&all).map(ticks);
            let own = self.waits.get(&one).filter(|own| Some(ticks(own)) > most);
            if let Some(own) = own.cloned() {
                self.waits.insert(all, own);
            }
        }
    }
}

/// Ticks from which a soft interrupt is told apart from the thread whose CPU it has: 16 µs where they
/// are nanoseconds.
const SECTION: u64 = 1 << 14;

impl Collector<'_> {
    /// A thread touches a page that is not there.
    pub(super) fn touches(&mut self, thread: &walk::Thread) {
        let (now, room) = (self.moment.ts, self.evidence.threads.room());
        let Some(own) = self.own(thread) else { return };
        own.faults(now, room);
        if let Some((_, root)) = own.root {
            let tree = &mut self.evidence.tree;
            let at = tree.child(root, Frame::Faults);
            tree.count(at);
        }
    }

    /// A request is over: into the tree, and to those of its kind.
    pub(super) fn grow(
        &mut self,
        thread: &walk::Thread,
        what: SubjectKind,
        anatomy: &mut Breakdown,
    ) {
        let key = Key { file: self.moment.file, what };
        let root = self.evidence.tree.root(Frame::Request(key)).filter(|_| !anatomy.incomplete);
        if let Some(root) = root {
            self.evidence.tree.count(root);
            let tid = self.tid(thread);
            let span = (anatomy.start, anatomy.start.saturating_add(anatomy.total));
            let longest = self.is_longest(root, span);
            let mut life = self.life();
            life.place = anatomy.place;
            life.pieces = longest.then(Vec::new);
            life.walk(root, tid, span, &mut Stack::of(tid));
            (anatomy.waited, anatomy.calls) = (life.waited, life.calls);
            let pieces = life.pieces.take();
            self.keep(root, span, pieces);
        }
        self.evidence.settle(self.moment.file, what, anatomy);
    }

    /// True for the longest wait so far of a root of the tree.
    fn is_longest(&self, root: u32, (from, to): (u64, u64)) -> bool {
        let waits = &self.evidence.waits;
        match waits.get(&root) {
            Some(Wait { span, .. }) => span.1.saturating_sub(span.0) < to.saturating_sub(from),
            None => waits.len() < MAX_WAITS,
        }
    }

    fn keep(&mut self, root: u32, span: (u64, u64), pieces: Option<Vec<Piece>>) {
        if let Some(pieces) = pieces {
            self.evidence.waits.insert(root, Wait { span, pieces });
        }
    }

    /// Adds to the tree.
    pub(super) fn life(&mut self) -> Life<'_> {
        let place = self.place("end of the longest wait");
        let Evidence { threads, groups, tree, budget, .. } = &mut *self.evidence;
        let (merge, now) = (self.merge, self.moment.ts);
        Life { pieces: None, waited: 0, calls: 0, threads, merge, groups, tree, budget, now, place }
    }

    /// The group of a thread that events come from.
    pub(super) fn group(&mut self, tid: Tid) -> Option<GroupId> {
        let merge = self.merge;
        let Evidence { threads, groups, .. } = &mut *self.evidence;
        let own = threads.get_mut(&tid)?;
        Some(match own.group {
            Some((group, uses)) if uses < NAMED => {
                own.group = Some((group, uses + 1));
                group
            }
            _ => {
                if merge.is_launched(tid) {
                    groups.owns(tid);
                }
                let group = groups.now(tid, merge);
                own.group = Some((group, 0));
                group
            }
        })
    }

    /// The root of the tree for a thread's life.
    pub(super) fn root(&mut self, tid: Tid) -> Option<u32> {
        let own = self.evidence.threads.get_mut(&tid)?;
        if let (Some((group, uses)), Some((of, root))) = (own.group, own.root) {
            if uses < NAMED && of == group {
                own.group = Some((group, uses + 1));
                return Some(root);
            }
        }
        let group = self.group(tid)?;
        let Evidence { threads, tree, groups, .. } = &mut *self.evidence;
        let own = threads.get_mut(&tid)?;
        match own.root {
            Some((of, root)) if of == group => Some(root),
            _ => {
                let alone = groups.get(group).is_some_and(|own| own.members <= MAX_ALONE);
                let frame = if alone && !groups.is_kernel(group) {
                    Frame::Thread(group, tid.tid)
                } else {
                    Frame::Life(group)
                };
                let root = tree.root(frame)?;
                own.root = Some((group, root));
                Some(root)
            }
        }
    }

    /// A stretch of a thread's life is over, and what its call returned, if that ended with it.
    pub(super) fn live(&mut self, thread: &walk::Thread, segment: &Segment, returned: Option<i64>) {
        let tid = self.tid(thread);
        if tid.tid > 0 && (segment.ends_call || segment.state == State::Blocked) {
            self.woke_up(tid, segment, returned);
        }
        if tid.tid <= 0 || segment.start >= segment.end {
            return;
        }
        // Its switch away may not be recorded.
        let ends = self.moment.op == Op::Other && self.moment.cpu == NO_CPU;
        let traits = self.merge.traits_of(segment.call);
        if ends && traits.has(Traits::EXITS) {
            return;
        }
        if self.evidence.threads.get(&tid).is_some_and(|own| own.gone) {
            return;
        }
        let by_its_time = traits.has(Traits::POLLS | Traits::FUTEX);
        if segment.state == State::Blocked && segment.waker != Waker::Timer && by_its_time {
            if let Some(own) = self.evidence.threads.get_mut(&tid) {
                own.asleep = Some(*segment);
            }
            return;
        }
        self.lives(tid, segment);
    }

    /// A sleep in a call is over, since it goes back to sleep in it or the call returns: what that returns
    /// says whether its time was up.
    fn woke_up(&mut self, tid: Tid, now: &Segment, returned: Option<i64>) {
        let Some(own) = self.evidence.threads.get_mut(&tid) else { return };
        let Some(mut asleep) = own.asleep.take() else { return };
        let returned = returned.filter(|_| now.ends_call && now.call == asleep.call);
        let traits = self.merge.traits_of(asleep.call);
        if returned.is_some_and(|returned| traits.timed_out(returned)) {
            asleep.waker = Waker::Timer;
            own.slept_for(asleep.start, asleep.call, Waker::Timer);
        }
        self.lives(tid, &asleep);
    }

    fn lives(&mut self, tid: Tid, segment: &Segment) {
        let Some(root) = self.root(tid) else { return };
        if segment.state == State::Blocked && self.evidence.let_go >= Some(segment.start) {
            self.was_held_back(tid, segment);
        }
        if matches!(segment.state, State::Kvm | State::Kernel | State::User) {
            return self.runs(tid, root, segment);
        }
        if let (State::Blocked, Waker::Thread(by)) = (segment.state, segment.waker) {
            self.was_joined(tid, by, segment);
        }
        let Some(segment) = &self.goes_on(tid, root, segment) else { return };
        let span = (segment.start, segment.end);
        let somebody = segment.state == State::Blocked && matches!(segment.waker, Waker::Thread(_));
        let longest = somebody && self.is_longest(root, span);
        let mut life = self.life();
        life.pieces = longest.then(Vec::new);
        life.segment(root, tid, segment, span, &mut Stack::of(tid));
        let pieces = life.pieces.take();
        self.keep(root, span, pieces);
    }

    /// A soft interrupt has had a thread's CPU until now. What it does for a thread that sends is that
    /// one's own doing.
    pub(super) fn ran_in(&mut self, thread: &walk::Thread, action: Sym, since: u64) {
        let (now, room, tid) = (self.moment.ts, self.evidence.threads.room(), self.tid(thread));
        if now.saturating_sub(since) < SECTION || self.is_sending() {
            return;
        }
        let Some(own) = self.evidence.threads.or_begin(tid, now) else { return };
        if !matches!(own.state(), State::Kernel | State::User) {
            return;
        }
        let since = since.max(own.since());
        let before = Segment { end: since, ..own.current(now) };
        let inside = Segment { start: since, call: None, work: Some(action), ..own.current(now) };
        let start = own.ends(before, room);
        own.ends(inside, room);
        self.live(thread, &Segment { start, ..before }, None);
        self.live(thread, &inside, None);
    }

    /// A sleep that only a timer ends, in a call that does not wait by design, may go on at once:
    /// then all of it is for whoever ends it. None while that is not known.
    fn goes_on(&mut self, tid: Tid, root: u32, segment: &Segment) -> Option<Segment> {
        let merge = self.merge;
        let own = self.evidence.threads.get_mut(&tid)?;
        if segment.state != State::Blocked {
            return Some(*segment);
        }
        let held = own.held.take();
        let more = !std::mem::take(&mut own.looked);
        let same = held.filter(|held| more && held.call == segment.call);
        let traits = merge.traits_of(segment.call);
        // Who asks for a lock for a time only asks again.
        let timer = matches!(segment.waker, Waker::Timer | Waker::Interrupt)
            && segment.sleep != Sleep::Deep
            && segment.call.is_some()
            && (!traits.has(Traits::WAITS) || traits.has(Traits::FUTEX));
        let somebody = matches!(segment.waker, Waker::Thread(_));
        let whole = match same {
            Some(held) if timer || somebody => Segment { start: held.start, ..*segment },
            _ => *segment,
        };
        if whole.start != segment.start {
            own.slept_for(whole.start, whole.call, whole.waker);
        }
        if timer {
            own.held = Some(whole);
        }
        if let Some(held) = held.filter(|held| whole.start != held.start) {
            let mut life = self.life();
            life.segment(root, tid, &held, (held.start, held.end), &mut Stack::of(tid));
        }
        (!timer).then_some(whole)
    }

    /// A file ends: what was held back goes into the tree.
    pub(super) fn finish(&mut self, walk: &mut walk::Walk) {
        self.close(u64::MAX);
        walk.finish(self.moment.stamp, self);
        let threads = &mut self.evidence.threads;
        let asleep = threads.iter_mut().filter_map(|(tid, own)| Some((*tid, own.asleep.take()?)));
        let mut asleep: Vec<(Tid, Segment)> = asleep.collect();
        asleep.sort_by_key(|(tid, _)| *tid);
        asleep.iter().for_each(|(tid, asleep)| self.lives(*tid, asleep));
        let threads = &mut self.evidence.threads;
        let held = threads.iter_mut().filter_map(|(tid, own)| Some((*tid, own.held.take()?)));
        let mut held: Vec<(Tid, Segment)> = held.collect();
        held.sort_by_key(|(tid, _)| *tid);
        for (tid, held) in held {
            let Some(root) = self.root(tid) else { continue };
            let mut life = self.life();
            life.segment(root, tid, &held, (held.start, held.end), &mut Stack::of(tid));
        }
    }

    /// A work function that lets requests go that an I/O limit held back begins.
    pub(super) fn lets_go(&mut self, function: Sym) {
        if self.merge.traits(function).has(Traits::THROTTLE) {
            self.evidence.let_go = Some(self.moment.ts);
        }
    }

    /// Asleep, and requests that an I/O limit held back were let go meanwhile.
    fn was_held_back(&mut self, tid: Tid, segment: &Segment) {
        let device = matches!(segment.waker, Waker::Irq(_) | Waker::Interrupt | Waker::Unknown);
        let group = self.group(tid).filter(|_| device || segment.sleep == Sleep::Deep);
        let held = &mut self.evidence.held_back;
        let room = held.len() < MAX_WAITS;
        if let Some(group) = group.filter(|group| room || held.contains_key(group)) {
            let sum = held.entry(group).or_default();
            let ticks = segment.end.saturating_sub(segment.start);
            *sum = (sum.0 + 1, ticks.saturating_add(sum.1));
        }
    }

    /// Asleep until another thread ends, if it does: whoever joins it waits for that, and for no
    /// lock that it would hold.
    fn was_joined(&mut self, tid: Tid, by: Tid, segment: &Segment) {
        let call = self.evidence.threads.get(&by).and_then(|by| by.call());
        if !self.merge.traits_of(call).has(Traits::EXITS) {
            return;
        }
        let (Some(own), Some(by)) = (self.group(tid), self.group(by)) else { return };
        let joined = &mut self.evidence.joined;
        if joined.len() < MAX_WAITS || joined.contains_key(&(own, by)) {
            let sum = joined.entry((own, by)).or_default();
            let ticks = segment.end.saturating_sub(segment.start);
            *sum = (sum.0 + 1, ticks.saturating_add(sum.1));
        }
    }

    /// Adds a stretch on a CPU, which most are.
    pub(super) fn runs(&mut self, tid: Tid, root: u32, segment: &Segment) {
        let ticks = segment.end.saturating_sub(segment.start);
        let mut place = self.place("end of the longest run");
        place.stamp = self.moment.stamp;
        let merge = self.merge;
        let is_futex = |call| merge.traits_of(call).has(Traits::FUTEX);
        let Evidence { threads, tree, .. } = &mut *self.evidence;
        let Some(own) = threads.get_mut(&tid) else { return };
        if let Some(held) = own.held.as_ref() {
            // Who has looked whether what it waits for has come does not run for long.
            let waited = held.end.saturating_sub(held.start);
            let again = (segment.call.is_none() || is_futex(segment.call)) && is_futex(held.call);
            let elsewhere = segment.call != held.call && segment.work.is_none() && !again;
            own.looked |= elsewhere || ticks.saturating_mul(LOOKS) > waited;
        }
        let key = (root, segment.call, segment.work);
        let at = segment.call.map_or(0, |call| call.id().0 as usize + 1) % own.nodes.len();
        let Some(slot) = own.nodes.get_mut(at) else { return };
        let (call, leaf) = match *slot {
            Some((known, nodes)) if known == key => nodes,
            _ => {
                let call = match (segment.call, segment.work) {
                    (Some(call), _) => tree.child(root, Frame::Call(call)),
                    (None, Some(work)) => tree.child(root, Frame::Work(work)),
                    (None, None) => root,
                };
                let nodes = (call, tree.child(call, Frame::Runs));
                *slot = Some((key, nodes));
                nodes
            }
        };
        tree.add(leaf, ticks, place);
        if segment.ends_call {
            tree.count(call);
        }
    }

    /// A thread has woken another, as its calls tell.
    pub(super) fn wakes_in(&mut self, by: Tid, woken: Tid) {
        let (Some(waker), Some(sleeper)) = (self.group(by), self.group(woken)) else { return };
        let Evidence { threads, ledger, .. } = &mut *self.evidence;
        if let Some(own) = threads.get(&by) {
            let call = own.past().find_map(|segment| segment.call);
            ledger.woke((waker, call, sleeper), own.since());
        }
    }

    /// A thread wakes another.
    pub(super) fn wakes(&mut self, by: Tid, woken: Tid) {
        let (Some(waker), Some(sleeper)) = (self.group(by), self.group(woken)) else { return };
        let Evidence { threads, ledger, .. } = &mut *self.evidence;
        if let Some(own) = threads.get(&by) {
            ledger.woke((waker, own.call(), sleeper), own.entered);
            ledger.pends(woken, (waker, own.call()), (by, own.activation()));
        }
    }

    /// A thread makes another.
    pub(super) fn makes(&mut self, parent: Tid, child: i32) {
        let child = Tid { tid: child, ..parent };
        self.starts(parent, child);
        if let Some(maker) = self.group(parent) {
            self.evidence.groups.makes(maker, child);
        }
    }

    /// A thread's clone returns; in another namespace the number is not the one that events have.
    fn makes_by_return(&mut self, parent: Tid, child: i32) {
        self.starts(parent, Tid { tid: child, ..parent });
    }

    /// What the recording's maker has started is not of those that are called so besides.
    fn starts(&mut self, parent: Tid, child: Tid) {
        let launched = self.merge.is_launched(parent);
        let Evidence { started, groups, threads, .. } = &mut *self.evidence;
        for child in started.forked(parent, launched, child) {
            groups.owns(child);
            if let Some(child) = threads.get_mut(&child) {
                child.group = None;
            }
        }
    }

    /// A call of a thread is over; `ticks` are those in all, those ready without a CPU and those
    /// asleep.
    pub(super) fn called(
        &mut self,
        tid: Tid,
        (call, returned): (Sym, Option<i64>),
        ticks: (u64, (u64, u64)),
        marks: &Open,
    ) {
        let place = self.place("system call");
        let Some(group) = self.group(tid) else { return };
        let merge = self.merge;
        let Evidence { threads, ledger, cpus_seen: switches, .. } = &mut *self.evidence;
        let traits = merge.traits(call);
        ledger.called((group, call), ticks, (place, marks), returned, traits);
        let Some(own) = threads.get_mut(&tid) else { return };
        if traits.has(Traits::RETURNS) {
            if let Some(ticks) = own.handled(self.moment.ts) {
                let sum = ledger.handlers.entry(group).or_default();
                *sum = (sum.0 + 1, ticks.saturating_add(sum.1));
            }
        }
        let slept = std::mem::take(&mut own.slept_in);
        match traits.has(Traits::WAITS) {
            true if slept || switches.is_empty() => ledger.turned(group, &mut own.turn),
            // What might wait and did not is neither, but for what moves something.
            true if traits.has(Traits::MOVES) && returned.is_some_and(|bytes| bytes > 0) => {
                own.turn.add(call)
            }
            true => {}
            false => own.turn.add(call),
        }
        let tells = traits.has(Traits::FORKS | Traits::REAPS);
        let child = returned.filter(|child| tells && *child > 0);
        match child.map(i32::try_from) {
            Some(Ok(child)) if traits.has(Traits::REAPS) => {
                self.evidence.started.waited(tid, Tid { tid: child, ..tid });
            }
            Some(Ok(child)) => self.makes_by_return(tid, child),
            _ => {}
        }
    }
}
