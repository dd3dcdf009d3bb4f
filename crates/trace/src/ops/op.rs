//! What an event means, whatever format it came in.

use super::access::Access;
use super::names::NameId;
use super::sign::Sign;
use super::xen::XenOp;

/// What sends an interrupt without a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vector {
    /// Another CPU.
    Ipi,
    /// This CPU's timer.
    Timer,
    /// Something else on this CPU.
    Local,
}

/// A kind of lock in the kernel, by the flags of `contention_begin`
/// (`include/trace/events/lock.h`, since Linux 5.19).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lock {
    /// No flag.
    Semaphore,
    /// `SPIN`: the thread does not sleep.
    Spinlock,
    /// `SPIN` with `READ` or `WRITE`.
    Rwlock,
    /// `READ` or `WRITE`: mmap_lock, inodes' and superblocks' locks.
    Rwsem,
    /// `PERCPU`.
    PercpuRwsem,
    /// `RT`.
    RtMutex,
    /// `MUTEX`, spinning or asleep.
    Mutex,
}

impl Lock {
    /// Of flags: 1 spin, 2 read, 4 write, 8 rt, 16 percpu, 32 mutex.
    pub fn of_flags(flags: u64) -> Lock {
        match flags {
            f if f & 32 != 0 => Lock::Mutex,
            f if f & 16 != 0 => Lock::PercpuRwsem,
            f if f & 8 != 0 => Lock::RtMutex,
            f if f & 1 != 0 && f & 6 != 0 => Lock::Rwlock,
            f if f & 1 != 0 => Lock::Spinlock,
            f if f & 6 != 0 => Lock::Rwsem,
            _ => Lock::Semaphore,
        }
    }

    /// Of flags as they are printed: `SPIN|WRITE`.
    pub fn of_words(words: &str) -> Lock {
        const WORDS: [&str; 6] = ["SPIN", "READ", "WRITE", "RT", "PERCPU", "MUTEX"];
        let flag = |word: &str| WORDS.iter().position(|known| *known == word);
        let flags = words.split('|').filter_map(flag).fold(0, |flags, bit| flags | 1 << bit);
        Lock::of_flags(flags)
    }

    /// The kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            Lock::Semaphore => "semaphore",
            Lock::Spinlock => "spinlock",
            Lock::Rwlock => "rwlock",
            Lock::Rwsem => "rwsem",
            Lock::PercpuRwsem => "per-CPU rwsem",
            Lock::RtMutex => "rtmutex",
            Lock::Mutex => "mutex",
        }
    }
}

/// How a thread sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sleep {
    /// A signal would end it (`S`).
    #[default]
    Light,
    /// Only what it waits for ends it (`D`): a disk, or a lock in the kernel.
    Deep,
    /// It is stopped (`T`), or traced (`t`): another process lets it go on.
    Stopped,
    /// It has ended (`Z`, `X`).
    Dead,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Nothing that an op stands for.
    Other,
    /// Events are missing on this CPU.
    Lost,
    /// The thread's vCPU left the guest.
    VmExit {
        /// Why.
        reason: NameId,
    },
    /// The thread's vCPU enters the guest.
    VmEntry,
    /// KVM returns to user space to have something done.
    UserspaceExit {
        /// `KVM_EXIT_…`.
        reason: NameId,
    },
    /// KVM reports what the guest asks for.
    Access(Access),
    /// The device model's own log reports what the guest asked for: a write before it is
    /// served, a read after it. Nothing says when the guest goes on.
    Logged(Access),
    /// The same by the device, which says it again where the device model's memory regions are
    /// logged as well.
    LoggedByDevice(Access),
    /// The kernel does something that says why somebody waits.
    Sign(Sign),
    /// A system call begins.
    SyscallEnter {
        /// Its name.
        name: NameId,
        /// For ioctl: the request's name.
        request: Option<NameId>,
        /// True for `ioctl(KVM_RUN)`.
        kvm_run: bool,
    },
    /// A system call returns.
    SyscallExit {
        /// Its name.
        name: NameId,
        /// What it returned.
        returned: Option<i64>,
    },
    /// A new thread or process returns out of its parent's clone, whose call it is.
    ThreadStart,
    /// A whole system call (strace).
    Syscall {
        /// Its name.
        name: NameId,
        /// For ioctl: the request's name.
        request: Option<NameId>,
        /// Time inside it, ticks.
        duration: Option<u64>,
        /// What it returned.
        returned: Option<i64>,
    },
    /// An interrupt handler begins on this CPU.
    IrqEntry {
        /// `number name`.
        irq: NameId,
    },
    /// The interrupt handler returns.
    IrqExit,
    /// An interrupt without a number (local timer, IPI) begins on this CPU.
    VectorEntry {
        /// Kind: `reschedule`, `call_function`, `local_timer`, …
        name: NameId,
        /// What sends it.
        vector: Vector,
    },
    /// It returns.
    VectorExit {
        /// Kind.
        name: NameId,
    },
    /// A soft interrupt's handler begins on this CPU.
    SoftirqEntry {
        /// Its action: `TIMER`, `NET_RX`, `BLOCK`, …
        action: NameId,
        /// True for those of timers.
        timer: bool,
    },
    /// It returns.
    SoftirqExit,
    /// A page fault of the thread, from user space.
    PageFault,
    /// A thread begins, the child of the one that this happens in.
    Fork {
        /// The child.
        child: i32,
    },
    /// The handler of a timer begins on this CPU.
    TimerEntry {
        /// What it calls: `hrtimer_wakeup`, `tcp_delack_timer`.
        function: Option<NameId>,
    },
    /// It returns.
    TimerExit,
    /// The block layer says on this CPU that a request is done, and wakes whoever waits for it next.
    BlockDone {
        /// The soft interrupt whose work that is, by its name.
        action: NameId,
    },
    /// The thread begins to wait for a lock of the kernel.
    LockWait {
        /// Address of the lock.
        lock: u64,
        /// What kind it is.
        kind: Lock,
    },
    /// It has got the lock, or given up.
    LockWaited {
        /// Address of the lock.
        lock: u64,
    },
    /// An inter-processor interrupt is sent.
    IpiSend {
        /// What for.
        name: NameId,
    },
    /// Another CPU is asked to run a function (`csd_queue_cpu`); its IPI is an event of its own.
    CallCpu {
        /// The function.
        name: NameId,
    },
    /// Work was queued.
    WorkQueue {
        /// Address of the work item.
        work: u64,
        /// What it runs.
        function: NameId,
    },
    /// A worker begins to run a work item.
    WorkStart {
        /// Address of the work item.
        work: u64,
        /// What it runs.
        function: NameId,
    },
    /// The work item is done.
    WorkEnd {
        /// Address of the work item.
        work: u64,
    },
    /// The scheduler switches threads on this CPU.
    Switch {
        /// Thread that leaves.
        prev: i32,
        /// True if it could go on running.
        runnable: bool,
        /// How it sleeps, if it could not.
        sleep: Sleep,
        /// Its priority as the kernel counts it: real-time below 100, a nice of 0 is 120, lower goes first.
        prio: Option<i16>,
        /// Thread that comes.
        next: i32,
    },
    /// A thread was made runnable.
    Wake {
        /// Which.
        tid: i32,
        /// True if it has just been made, by the thread that this happens in.
        new: bool,
    },
    /// Something in Xen.
    Xen(XenOp),
}
