//! What a thread did lately: the segments that a critical path is made of.

use super::calls::Turn;
use super::features::{Feature, Open, Split};
use super::groups::GroupId;
use super::tree::Frame;
use crate::moment::{Place, Sym, Tid};
use std::collections::VecDeque;
use vmeter_trace::ops::Sleep as Slept;
pub use vmeter_trace::walk::{State, STATES};

/// How far back [`Thread::doing`] looks.
const RECENT: usize = 8;

/// Ticks of a long wait for a CPU: 8 ms where they are nanoseconds, and never above 10 ms.
const LONG: u64 = 1 << 23;
/// Most of them that are kept of a thread.
const MAX_LATE: usize = 64;

/// Root, call and work; the nodes of the call and of being on a CPU in it.
type NodesOf = ((u32, Option<Sym>, Option<Sym>), (u32, u32));

/// Who made a sleeping thread runnable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Waker {
    /// Not known.
    #[default]
    Unknown,
    /// A thread.
    Thread(Tid),
    /// A timer's handler.
    Timer,
    /// A device's interrupt, by name.
    Irq(Sym),
    /// An interrupt; which one is not recorded.
    Interrupt,
}

/// A thread's sleep, and the event that ended it.
#[derive(Debug, Clone, Copy)]
pub struct Sleep {
    /// Since when, ticks of the common base.
    pub start: u64,
    /// Until when.
    pub end: u64,
    /// The system call it slept in.
    pub call: Option<Sym>,
    /// Who woke it.
    pub waker: Waker,
    /// The wake-up.
    pub woken: Place,
}

/// A stretch of one state, or a mark of no length.
#[derive(Debug, Clone, Copy)]
pub struct Segment {
    /// From.
    pub start: u64,
    /// To.
    pub end: u64,
    /// What the thread did.
    pub state: State,
    /// The system call it was in.
    pub call: Option<Sym>,
    /// The work item it ran; for a mark, the one it queued.
    pub work: Option<Sym>,
    /// Who ended it, if it is [`State::Blocked`].
    pub waker: Waker,
    /// True if the call ended with this.
    pub ends_call: bool,
    /// True for the mark that a work item was queued.
    pub queued: bool,
    /// For [`State::Runnable`]: the thread that had the CPU meanwhile, most of the time.
    pub rival: i32,
    /// For [`State::Blocked`]: how it slept.
    pub sleep: Slept,
    /// For the mark of page faults: how many.
    pub faults: u32,
}

/// From a wake-up to the next sleep: what a thread does at a time, where no call tells.
#[derive(Debug, Default)]
pub struct Activation {
    /// Which one it is.
    number: u32,
    since: Option<u64>,
    marks: Open,
    /// Length of the one before.
    before: u64,
    /// All that are over.
    pub split: Split,
    /// Ticks on a CPU in it.
    ran: u64,
}

impl Activation {
    fn begins(&mut self, now: u64) {
        self.number = self.number.wrapping_add(1);
        (self.since, self.marks, self.ran) = (Some(now), Open::default(), 0);
    }

    fn ends(&mut self, now: u64) {
        let Some(since) = self.since.take() else { return };
        self.before = now.saturating_sub(since);
        self.split.all.add(self.before);
        for feature in self.marks.list() {
            self.split.has(feature, self.before);
        }
    }

    /// One, by its number, has a feature; it may be over meanwhile.
    fn note(&mut self, number: u32, feature: Feature) {
        match self.since {
            Some(_) if number == self.number => self.marks.note(feature),
            None if number == self.number && !self.marks.list().any(|known| known == feature) => {
                self.marks.note(feature);
                self.split.has(feature, self.before);
            }
            _ => {}
        }
    }
}

/// Most handlers of signals that a thread is in at a time.
const MAX_HANDLERS: usize = 8;

/// A thread.
#[derive(Debug)]
pub struct Thread {
    /// What its open call has others do.
    pub marks: Open,
    /// Its activations.
    pub active: Activation,
    /// When it got a CPU after it had waited long for one, and how long.
    pub late: Vec<(u64, u64)>,
    /// Its priority when it left a CPU last, as the kernel counts it.
    pub prio: Option<i16>,
    /// True for one that runs a vCPU.
    pub is_vcpu: bool,
    /// It has made system calls that are recorded.
    pub calls: bool,
    /// Its last call was its end.
    pub gone: bool,
    /// How often it has slept outside of any: in a call that is not recorded.
    pub outside: u32,
    /// Time by [`State`].
    pub times: [u64; STATES],
    /// Switches to it from the idle thread.
    pub from_idle: u64,
    /// Its longest sleep since the last request began.
    pub sleep: Option<Sleep>,
    /// Its threads by name, and how often it has been switched to since that was looked up.
    pub group: Option<(GroupId, u32)>,
    /// The root of the tree for those.
    pub root: Option<(GroupId, u32)>,
    /// What it has called since it waited last.
    pub turn: Turn,
    /// It has slept in its call.
    pub slept_in: bool,
    /// A sleep that a timer has ended, and that may go on.
    pub held: Option<Segment>,
    /// It has done something since.
    pub looked: bool,
    /// A sleep that may have ended since its time was up: what its call returns tells.
    pub asleep: Option<Segment>,
    /// Ticks without a CPU since its call began, ready and asleep.
    pub off: (u64, u64),
    /// When its call began; else when it began to do what it does.
    pub entered: u64,
    /// Nodes of the tree that its time on a CPU went to lately, by root, call and work.
    pub nodes: [Option<NodesOf>; 4],
    /// When the handlers began that it is in, the innermost last.
    handlers: Vec<u64>,
    past: VecDeque<Segment>,
    state: State,
    since: u64,
    call: Option<Sym>,
    work: Option<Sym>,
}

impl Thread {
    /// One that nothing is known about.
    pub fn new(now: u64) -> Thread {
        Thread {
            marks: Open::default(),
            active: Activation::default(),
            late: Vec::new(),
            prio: None,
            is_vcpu: false,
            calls: false,
            outside: 0,
            gone: false,
            times: [0; STATES],
            from_idle: 0,
            sleep: None,
            group: None,
            root: None,
            turn: Turn::default(),
            nodes: [None; 4],
            slept_in: false,
            off: (0, 0),
            held: None,
            looked: false,
            asleep: None,
            entered: now,
            handlers: Vec::new(),
            past: VecDeque::new(),
            state: State::Unknown,
            since: now,
            call: None,
            work: None,
        }
    }

    /// What it does.
    pub fn state(&self) -> State {
        self.state
    }

    /// The call that it is in.
    pub fn call(&self) -> Option<Sym> {
        self.call
    }

    /// The work function that it runs.
    pub fn work(&self) -> Option<Sym> {
        self.work
    }

    /// Since when it does what it does.
    pub fn since(&self) -> u64 {
        self.since
    }

    /// What it does now.
    pub fn current(&self, now: u64) -> Segment {
        Segment {
            start: self.since,
            end: now,
            state: self.state,
            call: self.call,
            work: self.work,
            waker: Waker::Unknown,
            ends_call: false,
            queued: false,
            rival: 0,
            sleep: Slept::Light,
            faults: 0,
        }
    }

    fn push(&mut self, segment: Segment, room: usize) {
        while self.past.len() >= room.max(1) {
            self.past.pop_front();
        }
        self.past.push_back(segment);
    }

    /// What it did is over: `segment`, from when it began, which is given; `room` segments are
    /// kept.
    pub fn ends(&mut self, segment: Segment, room: usize) -> u64 {
        let time = &mut self.times[segment.state as usize];
        *time = time.saturating_add(segment.end.saturating_sub(self.since));
        self.push(Segment { start: self.since, ..segment }, room);
        std::mem::replace(&mut self.since, segment.end)
    }

    /// It does something else.
    pub fn begins(&mut self, state: State, call: Option<Sym>, work: Option<Sym>) {
        if self.call != call || call.is_none() {
            self.entered = self.since;
            self.off = (0, 0);
            self.marks = Open::default();
        }
        match (self.state, state) {
            (State::Blocked, State::Blocked) => {}
            (State::Blocked, _) => self.active.begins(self.since),
            (_, State::Blocked) => self.active.ends(self.since),
            _ => {}
        }
        self.calls |= call.is_some();
        (self.state, self.call, self.work) = (state, call, work);
    }

    /// Ticks that it had a CPU.
    pub fn ran(&self) -> u64 {
        let states = [State::Guest, State::Kvm, State::Kernel, State::User];
        crate::sum(states.iter().map(|state| self.times[*state as usize]))
    }

    /// A signal is delivered to it.
    pub fn handles(&mut self, now: u64) {
        if self.handlers.len() == MAX_HANDLERS {
            // It never came back from that one.
            self.handlers.remove(0);
        }
        self.handlers.push(now);
    }

    /// It returns from a handler: ticks since the signal was delivered, if that is known.
    pub fn handled(&mut self, now: u64) -> Option<u64> {
        self.handlers.pop().map(|since| now.saturating_sub(since))
    }

    /// Events are missing: what it did lately is not known.
    pub fn incomplete(&mut self) {
        self.state = State::Unknown;
    }

    /// Notes the sleep that a wake-up ends, if it is the longest since `request` began.
    pub fn slept(&mut self, now: u64, waker: Waker, woken: Place, request: u64) {
        let (start, call) = (self.since.max(request), self.call);
        let longest = self.sleep.filter(|sleep| sleep.start >= request);
        let longest = longest.map_or(0, |sleep| sleep.end.saturating_sub(sleep.start));
        if self.state == State::Blocked && now.saturating_sub(start) > longest {
            self.sleep = Some(Sleep { start, end: now, call, waker, woken });
        }
    }

    /// The call or the work function that it was in until a moment not long ago.
    pub fn doing(&self, now: u64, until: u64) -> Option<Frame> {
        let mut recent = self.back(now).take(RECENT).filter(|segment| !segment.queued);
        let segment = recent.find(|segment| segment.start < until)?;
        let work = segment.work.map(Frame::Work);
        segment.call.map(Frame::Call).or(work)
    }

    /// Ticks that it had a CPU in the activation that ends now.
    pub fn ran_now(&self) -> u64 {
        self.active.ran
    }

    /// Which activation it is in, or was in last.
    pub fn activation(&self) -> u32 {
        self.active.number
    }

    /// It has been in a state for so long.
    pub fn was_off(&mut self, state: State, ticks: u64) {
        if matches!(state, State::Kernel | State::User) {
            self.active.ran = self.active.ran.saturating_add(ticks);
        }
        match state {
            State::Runnable => self.off.0 = self.off.0.saturating_add(ticks),
            State::Blocked => self.off.1 = self.off.1.saturating_add(ticks),
            _ => {}
        }
    }

    /// It gets a CPU, having waited for one; at the trace's end it gets none.
    pub fn gets_cpu(&mut self, cpu: u32, now: u64, waited: u64) {
        if cpu != vmeter_trace::NO_CPU && waited >= LONG && self.late.len() < MAX_LATE {
            self.late.push((now, waited));
        }
    }

    /// What it does has a feature.
    pub fn has(&mut self, feature: Feature) {
        self.marks.note(feature);
        self.active.note(self.active.number, feature);
    }

    /// What it did in an activation turns out to have a feature.
    pub fn had(&mut self, activation: u32, feature: Feature) {
        if self.active.number == activation {
            self.has(feature);
        }
    }

    /// Its sleeps in a call since then turn out to have been for that.
    pub fn slept_for(&mut self, since: u64, call: Option<Sym>, waker: Waker) {
        let lately = self.past.iter_mut().rev().take_while(|own| own.end > since);
        let slept = lately.filter(|own| own.state == State::Blocked && own.call == call);
        slept.for_each(|own| own.waker = waker);
    }

    /// Marks that it queued a work item.
    pub fn queues(&mut self, now: u64, work: Sym, room: usize) {
        let mark = Segment { start: now, work: Some(work), queued: true, ..self.current(now) };
        self.push(mark, room);
    }

    /// Marks that it touched a page that was not there; faults in a row are one mark.
    pub fn faults(&mut self, now: u64, room: usize) {
        match self.past.back_mut() {
            Some(last) if last.faults > 0 => last.faults = last.faults.saturating_add(1),
            _ => {
                let mark = Segment { start: now, faults: 1, queued: true, ..self.current(now) };
                self.push(mark, room);
            }
        }
    }

    /// Time in user space that turns out not to be known.
    pub fn forget(&mut self, ticks: u64) {
        let ticks = ticks.min(self.times[State::User as usize]);
        self.times[State::User as usize] -= ticks;
        let unknown = &mut self.times[State::Unknown as usize];
        *unknown = ticks.saturating_add(*unknown);
    }

    /// What it did, newest first, what it does now included.
    pub fn back(&self, now: u64) -> impl Iterator<Item = Segment> + '_ {
        std::iter::once(self.current(now)).chain(self.past().copied())
    }

    /// What it did, newest first.
    pub fn past(&self) -> impl Iterator<Item = &Segment> {
        self.past.iter().rev()
    }
}
