//! What the name of a system call, an interrupt or a work function says.
//!
//! Each name is looked at once, when it is first seen; events ask for a bit. A new property is a
//! line of [`TABLE`].

use crate::detect::{polls, waits};
use std::ops::BitOr;

/// What a name says, as a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traits(u32);

impl BitOr for Traits {
    type Output = Traits;

    fn bitor(self, other: Traits) -> Traits {
        Traits(self.0 | other.0)
    }
}

impl Traits {
    /// It waits by design.
    pub const WAITS: Traits = Traits(1);
    /// It waits for one of several things, up to a time.
    pub const POLLS: Traits = Traits(1 << 1);
    /// It waits by design, or sends: its sleep may be ended by a soft interrupt.
    pub const LIGHT: Traits = Traits(1 << 2);
    /// It sleeps or wakes in a futex.
    pub const FUTEX: Traits = Traits(1 << 3);
    /// Only a timer or a signal ends it.
    pub const NANOSLEEP: Traits = Traits(1 << 4);
    /// It does not return.
    pub const EXITS: Traits = Traits(1 << 5);
    /// It sends to a socket, or makes room for what is sent to it.
    pub const SENDS: Traits = Traits(1 << 6);
    /// It may wake a thread that sleeps in a futex.
    pub const WAKES_FUTEX: Traits = Traits(1 << 7);
    /// It wakes no thread but one in a futex.
    pub const SILENT: Traits = Traits(1 << 8);
    /// It makes threads and returns their number.
    pub const FORKS: Traits = Traits(1 << 9);
    /// It returns how many bytes it has moved.
    pub const MOVES: Traits = Traits(1 << 10);
    /// It returns who has ended.
    pub const REAPS: Traits = Traits(1 << 11);
    /// A handler of a signal ends by it.
    pub const RETURNS: Traits = Traits(1 << 12);
    /// The soft interrupt that delivers packets.
    pub const NET_RX: Traits = Traits(1 << 13);
    /// The soft interrupt that completes block requests.
    pub const BLOCK: Traits = Traits(1 << 14);
    /// A timer's interrupt.
    pub const TIMER: Traits = Traits(1 << 15);
    /// A timer's function of a TCP connection.
    pub const TCP: Traits = Traits(1 << 16);
    /// The worker of a loop device.
    pub const LOOP: Traits = Traits(1 << 17);
    /// It lets block requests go that a cgroup's I/O limit held back.
    pub const THROTTLE: Traits = Traits(1 << 18);

    /// Of a name.
    pub fn of(name: &str) -> Traits {
        let matching = TABLE.iter().filter(|(_, holds)| holds(name));
        matching.fold(Traits::default(), |all, (one, _)| all | *one)
    }

    /// True if it has one of these.
    #[inline]
    pub fn has(self, these: Traits) -> bool {
        self.0 & these.0 != 0
    }

    /// True if a call that may wait returned since its time was up, whoever had the CPU when that
    /// was.
    pub fn timed_out(self, returned: i64) -> bool {
        const ETIMEDOUT: i64 = -110;
        match returned {
            0 => self.has(Traits::POLLS),
            ETIMEDOUT => self.has(Traits::WAITS),
            // strace writes -1 and a word; a futex returns that for no other reason when it has slept.
            -1 => self.has(Traits::FUTEX),
            _ => false,
        }
    }

    /// True if one in this call may wake one that sleeps in another.
    pub fn may_wake(self, asleep: Traits) -> bool {
        match asleep.has(Traits::FUTEX) {
            true => self.has(Traits::WAKES_FUTEX),
            false => !self.has(Traits::SILENT),
        }
    }
}

fn begins(name: &str, with: &[&str]) -> bool {
    with.iter().any(|begin| name.starts_with(begin))
}

/// A property, and whether a name has it.
type Row = (Traits, fn(&str) -> bool);

/// What names have which property.
static TABLE: &[Row] = &[
    (Traits::WAITS, waits),
    (Traits::POLLS, polls),
    (Traits::LIGHT, |name| waits(name) || name.starts_with("send")),
    (Traits::FUTEX, |name| name.starts_with("futex")),
    (Traits::NANOSLEEP, |name| name.contains("nanosleep")),
    (Traits::EXITS, |name| ["exit", "exit_group"].contains(&name)),
    (Traits::SENDS, |name| {
        [
            "write", "writev", "sendto", "sendmsg", "sendmmsg", "sendfile", "shutdown", "close",
            "read", "readv", "recvfrom", "recvmsg",
        ]
        .contains(&name)
    }),
    (Traits::WAKES_FUTEX, |name| {
        begins(
            name,
            &[
                "futex", "exit", "kill", "tkill", "tgkill", "rt_sig", "rt_tgsig", "clone", "vfork",
                "fork", "execve", "ptrace",
            ],
        )
    }),
    (Traits::SILENT, |name| {
        [
            "futex",
            "nanosleep",
            "clock_nanosleep",
            "sched_yield",
            "poll",
            "ppoll",
            "select",
            "pselect6",
            "epoll_wait",
            "epoll_pwait",
            "wait4",
            "waitid",
            "clock_gettime",
            "lseek",
        ]
        .contains(&name)
    }),
    (Traits::FORKS, |name| ["clone", "clone3", "fork", "vfork"].contains(&name)),
    (Traits::MOVES, |name| {
        ["read", "write", "pread64", "pwrite64", "sendto", "recvfrom"].contains(&name)
    }),
    (Traits::REAPS, |name| name == "wait4"),
    (Traits::RETURNS, |name| name == "rt_sigreturn"),
    (Traits::NET_RX, |name| name == "NET_RX"),
    (Traits::BLOCK, |name| name == "BLOCK"),
    (Traits::TIMER, |name| name.to_ascii_lowercase().contains("timer")),
    (Traits::TCP, |name| name.starts_with("tcp_")),
    (Traits::LOOP, |name| name.starts_with("loop")),
    (Traits::THROTTLE, |name| name.starts_with("blk_throtl_dispatch")),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_property_is_a_bit_of_its_own_and_a_line_of_the_table() {
        let all = TABLE.iter().fold(0_u32, |all, (one, _)| {
            assert_eq!((one.0.count_ones(), all & one.0), (1, 0), "{one:?}");
            all | one.0
        });
        assert_eq!(all.count_ones() as usize, TABLE.len());
        assert_eq!(all, (1 << TABLE.len()) - 1, "no bit without a line");
    }

    #[test]
    fn a_name_has_what_it_says() {
        assert!(Traits::of("futex").has(Traits::FUTEX | Traits::EXITS));
        assert!(!Traits::of("futex").has(Traits::EXITS));
        assert!(Traits::of("ppoll").timed_out(0) && !Traits::of("read").timed_out(0));
        assert!(!Traits::of("poll").may_wake(Traits::of("read")));
        assert!(Traits::of("write").may_wake(Traits::of("read")));
        assert!(!Traits::of("write").may_wake(Traits::of("futex")));
    }
}
