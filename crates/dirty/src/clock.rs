//! The time stamp counter, and how fast it runs.

use std::arch::x86_64::{_mm_lfence, _rdtsc};
use std::time::Instant;

/// Reads it after all that comes before is done, and before what comes after begins
/// (Intel SDM vol. 2, RDTSC; lfence serialises on AMD as the kernel sets it up).
#[inline(always)]
pub(crate) fn tsc() -> u64 {
    // SAFETY: both instructions exist on every x86-64 CPU and touch no memory.
    unsafe {
        _mm_lfence();
        let now = _rdtsc();
        _mm_lfence();
        now
    }
}

/// Its frequency, from one reading to another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Calibration {
    at: Instant,
    tsc: u64,
}

impl Calibration {
    pub(crate) fn begin() -> Self {
        Self { at: Instant::now(), tsc: tsc() }
    }

    /// Hz, by CLOCK_MONOTONIC since `begin`.
    pub(crate) fn hz(self) -> f64 {
        let seconds = self.at.elapsed().as_secs_f64();
        (tsc().wrapping_sub(self.tsc)) as f64 / seconds.max(1e-9)
    }
}
