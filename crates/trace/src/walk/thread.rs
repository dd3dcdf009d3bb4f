//! What each thread does with its time, and which intervals are open in it.

use super::cpu::Waker;
use super::interval::{Open, Took};
use crate::hash::FastMap;
use crate::ops::{Access, Lock, NameId, Sleep};

/// Where a thread's time goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(usize)]
pub enum State {
    /// Before anything is known.
    Unknown,
    /// Guest code runs.
    Guest,
    /// KVM works for the guest.
    Kvm,
    /// The kernel works for a system call other than `KVM_RUN`.
    Kernel,
    /// User space.
    User,
    /// Could run, no CPU does.
    Runnable,
    /// Sleeps.
    Blocked,
}

/// Number of [`State`]s.
pub const STATES: usize = 7;

/// Most threads that are told apart.
const MAX_THREADS: usize = 1 << 16;

/// Most accesses of one request that are told apart.
const MAX_ACCESSES: usize = 16;

/// An exit to user space that is over, while the access that it was for may still be reported.
#[derive(Debug, Clone, Copy)]
pub(super) struct Served {
    pub(super) took: Took,
    /// When user space returned to KVM.
    pub(super) at: u64,
    /// A write that was reported before the exit, and how long before.
    pub(super) write: Option<(Access, u64)>,
}

impl Served {
    /// True if a read that is reported now is what user space served: KVM reports it when user
    /// space returns, and a write just before the exit. The nearer one is of this exit.
    pub(super) fn is_read(&self, now: u64) -> bool {
        self.write.is_none_or(|(_, before)| now.saturating_sub(self.at) < before)
    }
}

/// A system call that a thread is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Its name.
    pub name: NameId,
    /// For ioctl: the request's name.
    pub request: Option<NameId>,
    /// True for `ioctl(KVM_RUN)`.
    pub kvm_run: bool,
    /// Its begin.
    pub open: Open,
}

impl Call {
    /// The most telling name: an ioctl's request.
    #[inline]
    pub fn what(&self) -> NameId {
        self.request.unwrap_or(self.name)
    }
}

/// A stretch of one state, until now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// From, ticks.
    pub start: u64,
    /// To.
    pub end: u64,
    /// What the thread did.
    pub state: State,
    /// The system call other than `KVM_RUN` that it was in.
    pub call: Option<NameId>,
    /// The work item that it ran.
    pub work: Option<NameId>,
    /// Who ended it, if the thread slept.
    pub waker: Waker,
    /// For [`State::Blocked`]: how it slept.
    pub sleep: Sleep,
    /// True if a call ended with it.
    pub ends_call: bool,
    /// What that returned.
    pub returned: Option<i64>,
}

/// What the open request is for, as far as that was reported.
#[derive(Debug, Clone, Copy)]
pub(super) struct Accesses {
    list: [Access; MAX_ACCESSES],
    count: usize,
}

impl Accesses {
    const NONE: Accesses =
        Accesses { list: [Access::Port { port: 0, write: false }; MAX_ACCESSES], count: 0 };

    pub(super) fn as_slice(&self) -> &[Access] {
        self.list.get(..self.count).unwrap_or(&[])
    }
}

/// One thread.
#[derive(Debug, Clone)]
pub struct Thread {
    /// Thread id.
    pub tid: i32,
    /// Name, where an event gave one.
    pub name: Option<Box<str>>,
    /// Ticks by [`State`].
    pub times: [u64; STATES],
    /// True for one that runs a vCPU.
    pub is_vcpu: bool,
    /// The system call it is in.
    pub call: Option<Call>,
    /// The VMEXIT it is in.
    pub exit: Option<(NameId, Open)>,
    /// The exit to user space it is in.
    pub user_exit: Option<(NameId, Open)>,
    /// The last request, if what it was for is not known yet.
    pub(super) served: Option<Served>,
    /// The work item it runs.
    pub work: Option<(NameId, Open)>,
    /// The last access that a device model's log reports of it.
    pub(super) logged: Option<(Access, Open)>,
    accesses: Accesses,
    /// When the last of them was reported.
    reported: u64,
    /// The kernel's lock that it waits for.
    pub(super) contended: Option<(u64, Lock, Open)>,
    /// How it sleeps, if it does.
    pub(super) sleep: Sleep,
    in_guest: bool,
    in_kvm: bool,
    state: State,
    since: u64,
    /// Where it was seen last, if events are missing.
    cpu: Option<u32>,
    /// Where it was switched to last.
    on: Option<u32>,
}

impl Thread {
    fn new(tid: i32, now: u64) -> Thread {
        Thread {
            tid,
            name: None,
            times: [0; STATES],
            is_vcpu: false,
            call: None,
            exit: None,
            user_exit: None,
            served: None,
            work: None,
            logged: None,
            accesses: Accesses::NONE,
            reported: 0,
            contended: None,
            sleep: Sleep::Light,
            in_guest: false,
            in_kvm: false,
            state: State::Unknown,
            since: now,
            cpu: None,
            on: None,
        }
    }

    /// The thread is seen on a CPU, and events are missing: `missing(since, cpu)` says whether
    /// some of that CPU are from a moment on. True if so, and it is not known what it did.
    pub(super) fn seen_on(&mut self, cpu: u32, missing: impl Fn(u64, u32) -> bool) -> bool {
        let before = self.cpu.replace(cpu).unwrap_or(cpu);
        let incomplete = self.on_cpu() && (missing(self.since, before) || missing(self.since, cpu));
        if incomplete {
            self.state = State::Unknown;
        }
        incomplete
    }

    /// Another has its CPU now, and nobody recorded when it left: it is not known what it did
    /// since it was seen last. False if it has left, or has gone to another CPU.
    fn lost(&mut self, cpu: u32) -> bool {
        let incomplete = self.on_cpu() && self.on == Some(cpu);
        if incomplete {
            self.state = State::Unknown;
        }
        incomplete
    }

    /// Time in user space that turns out not to be known.
    pub fn forget(&mut self, ticks: u64) {
        let ticks = ticks.min(self.times[State::User as usize]);
        self.times[State::User as usize] -= ticks;
        self.spends(State::Unknown, ticks);
    }

    /// Adds to the time in a state.
    #[inline]
    pub(super) fn spends(&mut self, state: State, ticks: u64) {
        let time = &mut self.times[state as usize];
        *time = time.saturating_add(ticks);
    }

    /// It has a CPU, as far as is known.
    fn on_cpu(&self) -> bool {
        matches!(self.state, State::Guest | State::Kvm | State::Kernel | State::User)
    }

    /// The state it is in.
    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    /// The request that its vCPU waits for.
    #[inline]
    pub fn request(&self) -> Option<Open> {
        self.exit.or(self.user_exit).map(|(_, open)| open)
    }

    /// The system call other than `KVM_RUN` that it is in.
    #[inline]
    pub fn in_call(&self) -> Option<NameId> {
        self.call.filter(|call| !call.kvm_run).map(|call| call.what())
    }

    #[inline]
    fn until(&self, now: u64) -> Ended {
        Ended {
            start: self.since,
            end: now,
            state: self.state,
            call: self.in_call(),
            work: self.work.map(|(function, _)| function),
            waker: Waker::Unknown,
            sleep: self.sleep,
            ends_call: false,
            returned: None,
        }
    }

    #[inline]
    fn moves(&mut self, state: State, ended: Ended) -> Ended {
        self.spends(self.state, ended.end.saturating_sub(self.since));
        self.state = state;
        self.since = ended.end;
        ended
    }

    /// Moves to a state, giving the time until now to the one before.
    #[inline]
    pub(super) fn enter(&mut self, state: State, now: u64) -> Ended {
        self.moves(state, self.until(now))
    }

    /// It leaves its CPU. If it was waiting for one as far as is known, nobody recorded when it got
    /// it.
    #[inline]
    pub(super) fn leaves(&mut self, state: State, now: u64) -> Ended {
        if self.state == State::Runnable {
            self.state = State::Unknown;
        }
        self.enter(state, now)
    }

    /// It sleeps, and is made runnable.
    #[inline]
    pub(super) fn wakes(&mut self, waker: Waker, now: u64) -> Ended {
        self.moves(State::Runnable, Ended { waker, ..self.until(now) })
    }

    /// The thread is switched to. If it was running as far as is known, its last switch
    /// from a CPU was not recorded (events lost, or a recording of other threads only), so
    /// nobody knows what the time since then was.
    #[inline]
    pub(super) fn switched_to(&mut self, now: u64) -> Ended {
        if self.on_cpu() {
            self.state = State::Unknown;
        }
        self.enter(self.runs(), now)
    }

    /// What it does when it has a CPU.
    fn runs(&self) -> State {
        match (self.in_guest, self.in_kvm, self.call) {
            (true, ..) => State::Guest,
            (_, true, _) => State::Kvm,
            (.., Some(_)) => State::Kernel,
            _ => State::User,
        }
    }

    /// An event of its own, which shows that it has a CPU, changes what it is in.
    #[inline]
    pub(super) fn change(&mut self, now: u64, change: impl FnOnce(&mut Thread)) -> Ended {
        let ended = self.until(now);
        change(self);
        self.moves(self.runs(), ended)
    }

    /// As [`Thread::change`], of a kernel worker: one that has not been seen on a CPU yet may
    /// never be, as nothing but a switch tells when it leaves.
    pub(super) fn works(&mut self, now: u64, change: impl FnOnce(&mut Thread)) -> Ended {
        let ended = self.until(now);
        change(self);
        let state = if self.state == State::Unknown { State::Unknown } else { self.runs() };
        self.moves(state, ended)
    }

    /// Its call returns; gives the call.
    #[inline]
    pub(super) fn returns(&mut self, now: u64, returned: Option<i64>) -> (Option<Call>, Ended) {
        let ended = self.until(now);
        let ended = Ended { ends_call: ended.call.is_some(), returned, ..ended };
        let call = self.call.take();
        self.contended = None;
        self.layers(false, false);
        (call, self.moves(self.runs(), ended))
    }

    /// Says where in the layers it is now.
    #[inline]
    pub(super) fn layers(&mut self, guest: bool, kvm: bool) {
        (self.in_guest, self.in_kvm) = (guest, kvm);
    }

    /// Remembers what the open request is for; false if there is no room.
    pub(super) fn remember(&mut self, access: Access, now: u64) -> bool {
        self.reported = now;
        let Accesses { list, count } = &mut self.accesses;
        let slot = list.get_mut(*count);
        let room = slot.is_some();
        if let Some(slot) = slot {
            *slot = access;
            *count += 1;
        }
        room
    }

    /// Takes the last write that was reported before the exit to user space, and how long before;
    /// those before it KVM has completed itself.
    pub(super) fn take_last_write(
        &mut self,
        exit: u64,
        own: impl FnMut(Access),
    ) -> Option<(Access, u64)> {
        let (write, before) = self.accesses.as_slice().split_last()?;
        if write.is_read() {
            return None;
        }
        let write = *write;
        before.iter().copied().for_each(own);
        self.accesses.count = 0;
        Some((write, exit.saturating_sub(self.reported)))
    }

    /// Takes what the request was for.
    pub(super) fn take_accesses(&mut self) -> Accesses {
        let taken = self.accesses;
        self.accesses.count = 0;
        taken
    }
}

/// The threads of a trace.
#[derive(Debug, Default)]
pub struct Threads {
    index: FastMap<i32, u32>,
    list: Vec<Thread>,
    /// By CPU: the thread seen there last, and its index.
    last: Vec<(i32, u32)>,
    /// By CPU: the thread switched to last, and its index.
    on: Vec<(i32, u32)>,
}

const MAX_CPUS: usize = 1 << 14;

impl Threads {
    /// Index of a thread that runs on a CPU now; none for the idle thread.
    #[inline]
    pub fn running(&mut self, tid: i32, cpu: u32, now: u64) -> Option<u32> {
        if tid <= 0 {
            return None;
        }
        if let Some(&(last, index)) = self.last.get(cpu as usize) {
            if last == tid {
                return Some(index);
            }
        }
        let index = self.find(tid, now)?;
        let cpu = cpu as usize;
        if cpu < MAX_CPUS {
            if self.last.len() <= cpu {
                self.last.resize(cpu + 1, (0, 0));
            }
            self.last[cpu] = (tid, index);
        }
        Some(index)
    }

    /// Index of a thread; none for the idle thread and beyond the limit.
    pub fn find(&mut self, tid: i32, now: u64) -> Option<u32> {
        if tid <= 0 {
            return None;
        }
        if let Some(&index) = self.index.get(&tid) {
            return Some(index);
        }
        if self.list.len() >= MAX_THREADS {
            return None;
        }
        let index = self.list.len() as u32;
        self.index.insert(tid, index);
        self.list.push(Thread::new(tid, now));
        Some(index)
    }

    /// A thread leaves a CPU: the one that was switched to there last, if that is another, which
    /// nobody saw leave, and of which it is no longer known what it does.
    #[inline]
    pub(super) fn leaves(&mut self, prev: i32, cpu: u32) -> Option<u32> {
        let (tid, index) = std::mem::take(self.on.get_mut(cpu as usize)?);
        let gone = tid > 0 && tid != prev && self.list.get_mut(index as usize)?.lost(cpu);
        gone.then_some(index)
    }

    /// A thread is switched to on a CPU.
    #[inline]
    pub(super) fn comes(&mut self, index: u32, cpu: u32) {
        let at = cpu as usize;
        if at >= MAX_CPUS {
            return;
        }
        if self.on.len() <= at {
            self.on.resize(at + 1, (0, 0));
        }
        let thread = &mut self.list[index as usize];
        thread.on = Some(cpu);
        self.on[at] = (thread.tid, index);
    }

    /// The thread that was seen last on a CPU; 0 if none was.
    pub(super) fn last_on(&self, cpu: u32) -> i32 {
        self.last.get(cpu as usize).map_or(0, |(tid, _)| *tid)
    }

    /// A thread by its index.
    #[inline]
    pub fn get(&mut self, index: u32) -> &mut Thread {
        &mut self.list[index as usize]
    }

    /// How many.
    pub fn len(&self) -> u32 {
        self.list.len() as u32
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Thread> {
        self.list.iter()
    }

    /// Adds other threads, finished like these, whose intervals are counted.
    pub(super) fn absorb(&mut self, other: Threads) {
        for mut thread in other.list {
            (thread.call, thread.exit, thread.user_exit, thread.work) = (None, None, None, None);
            self.list.push(thread);
        }
    }
}
