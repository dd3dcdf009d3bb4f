//! System calls that wait for somebody else by design.

use vmeter_trace::ops::BETWEEN_TRIES;

/// What the names of calls begin with that wait for somebody else by design: how long they
/// take says nothing of themselves. `read` is among them: of a pipe, a socket or an eventfd.
const WAITS: &[&str] = &[
    "KVM_RUN",
    "accept",
    "clock_nanosleep",
    "epoll_",
    "exit",
    "futex",
    "io_getevents",
    "io_pgetevents",
    "io_uring_enter",
    "mq_",
    "msgrcv",
    "nanosleep",
    "pause",
    "poll",
    "ppoll",
    "pselect",
    "recv",
    "restart_syscall",
    "rt_sigsuspend",
    "rt_sigtimedwait",
    "select",
    "sem",
    "vfork",
    "wait",
];

/// True for calls that have data on a disk before they return.
pub fn syncs(call: &str) -> bool {
    ["fsync", "fdatasync", "sync", "msync", "syncfs", "sync_file_range"].contains(&call)
}

/// What begins the names of the threads and work functions of RCU and SRCU.
const GRACE: [&str; 5] = ["rcu", "srcu", "process_srcu", "synchronize", "wait_rcu"];

/// True for work functions that bring on a grace period.
pub fn is_grace(function: &str) -> bool {
    GRACE.iter().any(|begin| function.starts_with(begin))
}

/// True for calls that wait for one of several things, up to a time that they are given.
pub fn polls(call: &str) -> bool {
    ["poll", "ppoll", "epoll_", "select", "pselect"].iter().any(|begin| call.starts_with(begin))
}

/// True for calls that wait by design: not for naps between tries of a call that fails, which wait for what
/// that one asks for.
pub fn waits(call: &str) -> bool {
    let by_name = || WAITS.iter().any(|begin| call.starts_with(begin));
    matches!(call, "read" | "readv") || by_name() && !call.contains(BETWEEN_TRIES)
}
