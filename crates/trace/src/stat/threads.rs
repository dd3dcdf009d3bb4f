//! What each thread did with its time, and which intervals are open in it.

use super::table::{FastMap, Took};
use crate::ops::NameId;

/// Where a thread's time goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// Most accesses of one VMEXIT that share its time.
const MAX_ACCESSES: usize = 16;

/// An interval that has begun.
#[derive(Debug, Clone, Copy)]
pub struct Open {
    /// When.
    pub start: u64,
    /// CPU it began on.
    pub cpu: u32,
}

/// Something a VMEXIT was for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Port and direction, as the table's key.
    Port(u64),
    /// Address and direction.
    Mmio(u64, bool),
    /// Register and direction.
    Msr(u64),
    /// Hypercall.
    Hypercall(NameId),
}

impl Access {
    /// True for what KVM knows the value of only after user space gave it.
    pub fn is_read(self) -> bool {
        match self {
            Access::Port(key) | Access::Msr(key) => key & 1 == 0,
            Access::Mmio(_, write) => !write,
            Access::Hypercall(_) => false,
        }
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
    /// The system call it is in, with the request of an ioctl.
    pub call: Option<(NameId, Option<NameId>, Open)>,
    /// The VMEXIT it is in.
    pub exit: Option<(NameId, Open)>,
    /// The exit to user space it is in.
    pub user_exit: Option<(NameId, Open)>,
    /// Time of the last exit to user space whose guest has not gone on yet.
    pub served: Option<Took>,
    /// The work item it runs.
    pub work: Option<(NameId, Open)>,
    accesses: [Access; MAX_ACCESSES],
    access_count: usize,
    in_guest: bool,
    in_kvm: bool,
    in_call: bool,
    state: State,
    since: u64,
    /// Where it was seen last, if events are missing.
    cpu: Option<u32>,
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
            accesses: [Access::Port(0); MAX_ACCESSES],
            access_count: 0,
            in_guest: false,
            in_kvm: false,
            in_call: false,
            state: State::Unknown,
            since: now,
            cpu: None,
        }
    }

    /// The thread is seen on a CPU, and events are missing: `missing(since, cpu)` says whether
    /// some of that CPU are from a moment on. What it did since then is not known then.
    pub fn seen_on(&mut self, cpu: u32, missing: impl Fn(u64, u32) -> bool) {
        let before = self.cpu.replace(cpu).unwrap_or(cpu);
        if self.on_cpu() && (missing(self.since, before) || missing(self.since, cpu)) {
            self.state = State::Unknown;
        }
    }

    /// Time in user space that turns out not to be known.
    pub fn forget(&mut self, ticks: u64) {
        let ticks = ticks.min(self.times[State::User as usize]);
        self.times[State::User as usize] -= ticks;
        let unknown = &mut self.times[State::Unknown as usize];
        *unknown = unknown.saturating_add(ticks);
    }

    /// It has a CPU, as far as is known.
    fn on_cpu(&self) -> bool {
        matches!(self.state, State::Guest | State::Kvm | State::Kernel | State::User)
    }

    /// Moves to a state, giving the time until now to the one before.
    pub fn enter(&mut self, state: State, now: u64) {
        let time = &mut self.times[self.state as usize];
        *time = time.saturating_add(now.saturating_sub(self.since));
        self.state = state;
        self.since = now;
    }

    /// The state it is in.
    pub fn state(&self) -> State {
        self.state
    }

    /// The thread is switched to. If it was running as far as is known, its last switch
    /// from a CPU was not recorded (events lost, or a recording of other threads only), so
    /// nobody knows what the time since then was.
    pub fn switched_to(&mut self, now: u64) {
        if self.on_cpu() {
            self.state = State::Unknown;
        }
        self.runs(now);
    }

    /// The thread is seen running: it was switched to, or an event says so.
    pub fn runs(&mut self, now: u64) {
        let state = match (self.in_guest, self.in_kvm, self.in_call) {
            (true, ..) => State::Guest,
            (_, true, _) => State::Kvm,
            (.., true) => State::Kernel,
            _ => State::User,
        };
        self.enter(state, now);
    }

    /// Says where in the layers it is now.
    pub fn layers(&mut self, guest: bool, kvm: bool, call: bool, now: u64) {
        (self.in_guest, self.in_kvm, self.in_call) = (guest, kvm, call);
        self.runs(now);
    }

    /// True while a system call is open.
    pub fn in_call(&self) -> bool {
        self.in_call
    }

    /// Remembers what the open VMEXIT is for; false if there is no room.
    pub fn remember(&mut self, access: Access) -> bool {
        let slot = self.accesses.get_mut(self.access_count);
        let room = slot.is_some();
        if let Some(slot) = slot {
            *slot = access;
            self.access_count += 1;
        }
        room
    }

    /// Takes what the VMEXIT was for.
    pub fn take_accesses(&mut self) -> ([Access; MAX_ACCESSES], usize) {
        (self.accesses, std::mem::take(&mut self.access_count))
    }
}

/// The threads of a trace.
#[derive(Debug, Default)]
pub struct Threads {
    index: FastMap<i32, u32>,
    list: Vec<Thread>,
    /// By CPU: the thread seen there last, and its index.
    last: Vec<(i32, u32)>,
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

    /// A thread by its index.
    #[inline]
    pub fn get(&mut self, index: u32) -> &mut Thread {
        &mut self.list[index as usize]
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Thread> {
        self.list.iter()
    }

    /// Adds other threads, closed like these, whose intervals are counted.
    pub fn absorb(&mut self, other: Threads) {
        for mut thread in other.list {
            (thread.call, thread.exit, thread.user_exit, thread.work) = (None, None, None, None);
            thread.access_count = 0;
            self.list.push(thread);
        }
    }

    /// Gives every thread the time until the trace's end.
    pub fn close(&mut self, now: u64) {
        for thread in &mut self.list {
            let state = thread.state;
            thread.enter(state, now);
        }
    }
}
