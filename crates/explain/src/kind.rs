//! What a finding is about: a cause in the words of the field, and what is special about it.

/// Where the time ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A lock that another thread holds.
    Lock,
    /// A sleep that a timer ends.
    TimerWait,
    /// Another thread has the CPU.
    CpuContention,
    /// A quota keeps it from a CPU.
    CpuThrottled,
    /// A disk, or what is called to reach one.
    BlockIo,
    /// The network.
    Network,
    /// Work items, grace periods, memory reclaim, functions on other CPUs.
    KernelWork,
    /// CPU time within system calls.
    SyscallCpu,
    /// CPU time in user space.
    UserCpu,
    /// A process or thread that is started for it.
    ChildProcess,
    /// Handing over to another and back.
    Handoff,
    /// Stopped by a signal or a tracer.
    Paused,
    /// Signals and interrupts.
    Interference,
    /// The trace does not tell.
    #[default]
    Unknown,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 14] = [
        Kind::Lock,
        Kind::TimerWait,
        Kind::CpuContention,
        Kind::CpuThrottled,
        Kind::BlockIo,
        Kind::Network,
        Kind::KernelWork,
        Kind::SyscallCpu,
        Kind::UserCpu,
        Kind::ChildProcess,
        Kind::Handoff,
        Kind::Paused,
        Kind::Interference,
        Kind::Unknown,
    ];

    /// Its word.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Lock => "lock",
            Kind::TimerWait => "timer-wait",
            Kind::CpuContention => "cpu-contention",
            Kind::CpuThrottled => "cpu-throttled",
            Kind::BlockIo => "block-io",
            Kind::Network => "network",
            Kind::KernelWork => "kernel-work",
            Kind::SyscallCpu => "syscall-cpu",
            Kind::UserCpu => "user-cpu",
            Kind::ChildProcess => "child-process",
            Kind::Handoff => "handoff",
            Kind::Paused => "paused",
            Kind::Interference => "interference",
            Kind::Unknown => "unknown",
        }
    }
}

/// What is special about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Modifier {
    /// Many small ones that one large one would replace.
    Unbatched,
    /// Each costs more than the one before.
    Superlinear,
    /// A long stretch in which nothing is recorded.
    Stall,
}

impl Modifier {
    /// All of them.
    pub const ALL: [Modifier; 3] = [Modifier::Unbatched, Modifier::Superlinear, Modifier::Stall];

    /// Its word.
    pub fn name(self) -> &'static str {
        match self {
            Modifier::Unbatched => "unbatched",
            Modifier::Superlinear => "superlinear",
            Modifier::Stall => "stall",
        }
    }
}

/// What was seen, finer than a [`Kind`]: what order and severity rest on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Why {
    /// A lock.
    Lock,
    /// A grace period of RCU or SRCU.
    Grace,
    /// A sleep that a timer ends.
    Timer,
    /// Without a CPU, which another has.
    NoCpu,
    /// Without a CPU by a quota.
    Throttled,
    /// For a device.
    Device,
    /// For the network.
    Network,
    /// On a CPU in a call.
    Busy,
    /// In a call; whether on a CPU is not known.
    InCall,
    /// A call of strace that has data on a disk.
    SlowSync,
    /// A call of strace that takes long.
    SlowCall,
    /// User space computes.
    Computes,
    /// On a CPU; in which calls is not recorded.
    OnCpu,
    /// Asleep; who ends that is not recorded.
    Asleep,
    /// Fresh memory is touched.
    Faults,
    /// The kernel's workers.
    Work,
    /// Work on every CPU.
    EveryCpu,
    /// The kernel takes memory back.
    Reclaim,
    /// Writers wait until others' data is on the disk.
    Dirty,
    /// Something is sent again.
    SentAgain,
    /// Threads that hand over to each other.
    HandOver,
    /// One wakes many.
    Herd,
    /// A process made each time.
    Child,
    /// Stopped.
    Stopped,
    /// Signals are handled.
    Signals,
    /// Many small calls.
    Burst,
    /// Many small accesses of a guest.
    Accesses,
    /// What exits to a device model of another domain cost.
    DeviceModel,
    /// Each takes longer than the one before.
    Grows,
    /// User space computes for longer each time.
    Walks,
    /// A single long stretch.
    Gap,
    /// Between two lines of a log, over and over.
    LogStands,
    /// Slower than its peers.
    #[default]
    Outlier,
    /// Slower than its peers, by a log.
    Logged,
}

impl Why {
    /// The kind that users see.
    pub fn kind(self) -> Kind {
        match self {
            Why::Lock => Kind::Lock,
            Why::Timer => Kind::TimerWait,
            Why::NoCpu => Kind::CpuContention,
            Why::Throttled => Kind::CpuThrottled,
            Why::Device | Why::SlowSync | Why::Dirty => Kind::BlockIo,
            Why::Network | Why::SentAgain => Kind::Network,
            Why::Grace | Why::Work | Why::EveryCpu | Why::Reclaim | Why::Faults => Kind::KernelWork,
            Why::Busy | Why::Burst | Why::Grows => Kind::SyscallCpu,
            Why::Computes | Why::Walks => Kind::UserCpu,
            Why::Child => Kind::ChildProcess,
            Why::HandOver | Why::Herd | Why::Accesses | Why::DeviceModel => Kind::Handoff,
            Why::Stopped => Kind::Paused,
            Why::Signals => Kind::Interference,
            Why::InCall | Why::SlowCall | Why::OnCpu | Why::Asleep => Kind::Unknown,
            Why::Gap | Why::LogStands | Why::Outlier | Why::Logged => Kind::Unknown,
        }
    }

    /// What is special about it.
    pub fn modifier(self) -> Option<Modifier> {
        match self {
            Why::Burst | Why::Accesses | Why::DeviceModel => Some(Modifier::Unbatched),
            Why::Grows | Why::Walks => Some(Modifier::Superlinear),
            Why::Gap | Why::LogStands => Some(Modifier::Stall),
            _ => None,
        }
    }

    /// A thread that is busy, or of which nothing is recorded: it says little.
    pub fn is_thread(self) -> bool {
        matches!(self, Why::Computes | Why::OnCpu | Why::Asleep)
    }

    /// It has no CPU.
    pub fn is_no_cpu(self) -> bool {
        matches!(self, Why::NoCpu | Why::Throttled)
    }

    /// What others hold or have to do first.
    pub fn is_lock(self) -> bool {
        matches!(self, Why::Lock | Why::Grace)
    }

    /// The end of a way that says more than what stands at its beginning.
    pub fn is_end(self) -> bool {
        self.is_lock() || self.is_no_cpu() || matches!(self, Why::Faults | Why::Child | Why::Work)
    }
}
