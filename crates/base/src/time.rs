//! Time as the recordings keep it.

use serde::{Deserialize, Serialize};

/// Nanoseconds of `CLOCK_MONOTONIC`, or a difference of two such readings.
pub type Ns = i64;

/// Nanoseconds as seconds.
pub fn seconds(ns: Ns) -> f64 {
    ns as f64 / 1e9
}

/// One simultaneous reading of the clocks that recordings are stamped with.
///
/// Taken at the start and at the end of a run, two of these turn a TSC or wall
/// clock stamp into `CLOCK_MONOTONIC` by interpolation. The reading itself takes
/// `width_ns`, which bounds its error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockReading {
    /// `CLOCK_MONOTONIC`, ns.
    pub monotonic_ns: Ns,
    /// `CLOCK_REALTIME`, ns since the epoch.
    pub realtime_ns: Ns,
    /// The host's time stamp counter, cycles.
    pub tsc: u64,
    /// How long the reading took, ns: the clocks were read within this time.
    pub width_ns: Ns,
}
