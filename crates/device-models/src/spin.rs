//! Passing time on the CPU without a system call, by the time stamp counter.
//!
//! Reading a clock may be a system call where the vDSO has none for the clock source.

use std::arch::x86_64::_rdtsc;
use std::time::{Duration, Instant};

const CALIBRATION: Duration = Duration::from_millis(5);

fn tsc() -> u64 {
    // SAFETY: every 64-bit x86 CPU has the instruction, and it touches no memory.
    unsafe { _rdtsc() }
}

/// Spins for given or for random times.
#[derive(Debug)]
pub(crate) struct Spin {
    per_us: u64,
    state: u64,
}

impl Spin {
    pub fn new(seed: u64) -> Self {
        let (begin, from) = (Instant::now(), tsc());
        while begin.elapsed() < CALIBRATION {}
        let ticks = tsc().wrapping_sub(from);
        let per_us = ticks / (begin.elapsed().as_micros() as u64).max(1);
        // Marsaglia's xorshift64 stays at 0 once there.
        Spin { per_us: per_us.max(1), state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 }
    }

    /// That many microseconds.
    pub fn us(&mut self, us: u64) {
        self.ticks(us.saturating_mul(self.per_us));
    }

    /// Between 0 and that many microseconds.
    pub fn up_to_us(&mut self, us: u64) {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let most = us.saturating_mul(self.per_us);
        self.ticks(self.state % most.saturating_add(1));
    }

    fn ticks(&self, ticks: u64) {
        let from = tsc();
        while tsc().wrapping_sub(from) < ticks {
            std::hint::spin_loop();
        }
    }
}
