//! Reading the host's clocks together.
//!
//! `CLOCK_MONOTONIC`, `CLOCK_REALTIME` and the TSC are read one after another between two
//! readings of `CLOCK_MONOTONIC`; the tightest of several attempts is kept, and its width is
//! the error.

use crate::time::{ClockReading, Ns};
use rustix::time::{clock_gettime, ClockId};

const ATTEMPTS: usize = 16;

/// Reads all clocks, keeping the tightest of several attempts.
pub fn read() -> ClockReading {
    (0..ATTEMPTS).map(|_| read_once()).min_by_key(|r| r.width_ns).unwrap_or_else(read_once)
}

/// `CLOCK_MONOTONIC` now, ns.
pub fn monotonic() -> Ns {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

fn read_once() -> ClockReading {
    let before = monotonic();
    let tsc = tsc();
    let real = clock_gettime(ClockId::Realtime);
    let after = monotonic();
    ClockReading {
        monotonic_ns: before + (after - before) / 2,
        realtime_ns: real.tv_sec * 1_000_000_000 + real.tv_nsec,
        tsc,
        width_ns: after - before,
    }
}

/// The TSC now; 0 where there is none.
pub fn tsc() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: RDTSC reads a register; it is available in user mode on every
    // x86-64 Linux that has not set CR4.TSD, which Linux does only on request.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_follow_each_other() {
        let (first, second) = (read(), read());
        assert!(second.monotonic_ns > first.monotonic_ns && first.width_ns >= 0);
    }
}
