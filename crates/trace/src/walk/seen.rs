//! Which kinds of event a trace has.

/// Which kinds of event there were: what figures can rest on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// `sched_switch`.
    pub switches: bool,
    /// `sys_enter_*` or `raw_syscalls`.
    pub syscalls: bool,
    /// `kvm_exit` and `kvm_entry`.
    pub kvm_exits: bool,
    /// `sched_waking` or `sched_wakeup`.
    pub wakes: bool,
    /// `workqueue_execute_start`.
    pub works: bool,
    /// `workqueue_queue_work`.
    pub queues: bool,
    /// Interrupts of devices, of timers and of other CPUs, or soft interrupts.
    pub interrupts: bool,
    /// `contention_begin`.
    pub locks: bool,
}

impl Seen {
    /// Adds what another part of the trace has.
    pub fn absorb(&mut self, other: Seen) {
        self.switches |= other.switches;
        self.syscalls |= other.syscalls;
        self.kvm_exits |= other.kvm_exits;
        self.wakes |= other.wakes;
        self.works |= other.works;
        self.queues |= other.queues;
        self.interrupts |= other.interrupts;
        self.locks |= other.locks;
    }
}
