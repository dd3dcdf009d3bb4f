//! What a thread did lately: the segments that a critical path is made of.

use super::subject::Place;
use crate::merge::{Sym, Tid};
use std::collections::VecDeque;

/// What a thread did for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(usize)]
pub enum Doing {
    /// Not known: before its first event, or where events were lost.
    Unknown,
    /// Ran guest code.
    Guest,
    /// In KVM, for the guest.
    Kvm,
    /// In a system call other than `KVM_RUN`, on a CPU.
    Kernel,
    /// In user space, or a kernel thread at its work.
    User,
    /// Could run, no CPU did.
    Runnable,
    /// Slept.
    Blocked,
}

/// Number of [`Doing`]s.
pub const DOINGS: usize = 7;

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

/// A stretch of one doing, or a mark of no length.
#[derive(Debug, Clone, Copy)]
pub struct Segment {
    /// From.
    pub start: u64,
    /// To.
    pub end: u64,
    /// What.
    pub doing: Doing,
    /// The system call it was in.
    pub call: Option<Sym>,
    /// The work item it ran; for a mark, the one it queued.
    pub work: Option<Sym>,
    /// Who ended it, if it is [`Doing::Blocked`].
    pub waker: Waker,
    /// What the call returned, if it ended with this.
    pub returned: Option<i64>,
    /// True if the call ended with this.
    pub ends_call: bool,
    /// True for the mark that a work item was queued.
    pub queued: bool,
}

/// A thread.
#[derive(Debug)]
pub struct Thread {
    /// True for one that runs a vCPU.
    pub is_vcpu: bool,
    /// Time by [`Doing`].
    pub times: [u64; DOINGS],
    /// First event.
    pub first: u64,
    /// Switches to it from the idle thread.
    pub from_idle: u64,
    /// The call it is in.
    pub call: Option<Sym>,
    /// The work item it runs.
    pub work: Option<Sym>,
    /// In `ioctl(KVM_RUN)`.
    pub in_kvm: bool,
    /// In guest code.
    pub in_guest: bool,
    /// Its longest sleep since the last request began.
    pub sleep: Option<Sleep>,
    past: VecDeque<Segment>,
    doing: Doing,
    since: u64,
    waker: Waker,
}

impl Thread {
    /// One that nothing is known about.
    pub fn new(now: u64) -> Thread {
        Thread {
            is_vcpu: false,
            times: [0; DOINGS],
            first: now,
            from_idle: 0,
            call: None,
            work: None,
            in_kvm: false,
            in_guest: false,
            sleep: None,
            past: VecDeque::new(),
            doing: Doing::Unknown,
            since: now,
            waker: Waker::Unknown,
        }
    }

    /// What it does now.
    pub fn doing(&self) -> Doing {
        self.doing
    }

    /// What it does when it has a CPU.
    fn running(&self) -> Doing {
        match (self.in_guest, self.in_kvm, self.call) {
            (true, ..) => Doing::Guest,
            (_, true, _) => Doing::Kvm,
            (.., Some(_)) => Doing::Kernel,
            _ => Doing::User,
        }
    }

    /// How long it has been waiting for a CPU, if it is.
    pub fn waited(&self, now: u64) -> Option<u64> {
        (self.doing == Doing::Runnable).then(|| now.saturating_sub(self.since))
    }

    /// True while it has a CPU, as far as is known.
    pub fn on_cpu(&self) -> bool {
        matches!(self.doing, Doing::Guest | Doing::Kvm | Doing::Kernel | Doing::User)
    }

    fn current(&self, now: u64) -> Segment {
        Segment {
            start: self.since,
            end: now,
            doing: self.doing,
            call: self.call,
            work: self.work,
            waker: self.waker,
            returned: None,
            ends_call: false,
            queued: false,
        }
    }

    /// Ends what it does; `room` segments are kept.
    fn close(&mut self, now: u64, room: usize) {
        let segment = self.current(now);
        let time = &mut self.times[self.doing as usize];
        *time = time.saturating_add(now.saturating_sub(self.since));
        self.push(segment, room);
        self.since = now;
        self.waker = Waker::Unknown;
    }

    fn push(&mut self, segment: Segment, room: usize) {
        while self.past.len() >= room.max(1) {
            self.past.pop_front();
        }
        self.past.push_back(segment);
    }

    /// An event says that it has a CPU.
    pub fn runs(&mut self, now: u64, room: usize) {
        let doing = self.running();
        if doing != self.doing {
            self.close(now, room);
            self.doing = doing;
        }
    }

    /// It is switched to. If it seemed to run, its last switch away was not recorded, so
    /// nobody knows what the time since then was.
    pub fn switched_to(&mut self, now: u64, room: usize) {
        if self.on_cpu() {
            self.doing = Doing::Unknown;
        }
        self.runs(now, room);
    }

    /// It leaves its CPU.
    pub fn switched_from(&mut self, now: u64, runnable: bool, room: usize) {
        self.close(now, room);
        self.doing = if runnable { Doing::Runnable } else { Doing::Blocked };
    }

    /// It is made runnable.
    pub fn woken(&mut self, now: u64, waker: Waker, room: usize) {
        if self.doing == Doing::Blocked {
            self.waker = waker;
            self.close(now, room);
            self.doing = Doing::Runnable;
        }
    }

    /// Notes the sleep that a wake-up ends, if it is the longest since `request` began.
    pub fn slept(&mut self, now: u64, waker: Waker, woken: Place, request: u64) {
        let (start, call) = (self.since.max(request), self.call);
        let longest = self.sleep.filter(|sleep| sleep.start >= request);
        let longest = longest.map_or(0, |sleep| sleep.end.saturating_sub(sleep.start));
        if self.doing == Doing::Blocked && now.saturating_sub(start) > longest {
            self.sleep = Some(Sleep { start, end: now, call, waker, woken });
        }
    }

    /// Changes the layers it is in, by `change`.
    pub fn change(&mut self, now: u64, room: usize, change: impl FnOnce(&mut Thread)) {
        self.close(now, room);
        change(self);
        self.doing = self.running();
    }

    /// Its call returns.
    pub fn returns(&mut self, now: u64, returned: Option<i64>, room: usize) {
        self.close(now, room);
        if let Some(last) = self.past.back_mut() {
            last.ends_call = last.call.is_some();
            last.returned = returned;
        }
        (self.call, self.in_kvm, self.in_guest) = (None, false, false);
        self.doing = self.running();
    }

    /// Marks that it queued a work item.
    pub fn queues(&mut self, now: u64, work: Sym, room: usize) {
        self.close(now, room);
        let mark = Segment { work: Some(work), queued: true, ..self.current(now) };
        self.push(mark, room);
    }

    /// Time in user space that turns out not to be known.
    pub fn forget(&mut self, ticks: u64) {
        let ticks = ticks.min(self.times[Doing::User as usize]);
        self.times[Doing::User as usize] -= ticks;
        let unknown = &mut self.times[Doing::Unknown as usize];
        *unknown = ticks.saturating_add(*unknown);
    }

    /// Gives the time until the end to what it does.
    pub fn finish(&mut self, now: u64) {
        self.close(now, 1);
    }

    /// Segments kept.
    pub fn kept(&self) -> usize {
        self.past.len()
    }

    /// What it did, newest first, what it does now included.
    pub fn back(&self, now: u64) -> impl Iterator<Item = Segment> + '_ {
        std::iter::once(self.current(now)).chain(self.past.iter().rev().copied())
    }
}
