//! The clocks that stamp a kernel's log, as its RAM had them.
//!
//! A record is stamped by `local_clock()` (kernel/sched/clock.c). Once the kernel trusts its
//! TSC that is the TSC itself, scaled (`cyc2ns` of arch/x86/kernel/tsc.c) and moved by
//! `__sched_clock_offset`; before, it follows the time of day, by `__gtod_offset`. The
//! timekeeper (kernel/time/timekeeping.c, `tk_core`) has the clocksource's cycles at the last
//! tick: so RAM says what the log would have been stamped with at a known TSC.

use crate::error::{Error, Result};
use crate::guest::Guest;
use serde::{Deserialize, Serialize};

/// `struct timekeeper` in `tk_core`, after a sequence count.
const TIMEKEEPER: u64 = 8;
/// Longest name of a clocksource, bytes.
const MAX_NAME: usize = 32;
/// Largest shift of a scale.
const MAX_SHIFT: u32 = 63;

/// A scale from cycles to ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scale {
    /// Multiplier.
    pub mult: u32,
    /// By which what was multiplied is shifted right.
    pub shift: u32,
}

impl Scale {
    /// ns of so many cycles, rounded down.
    pub fn ns(self, cycles: u64) -> u64 {
        let ns = (u128::from(cycles) * u128::from(self.mult)) >> self.shift.min(MAX_SHIFT);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// ns of a cycle.
    pub fn rate(self) -> f64 {
        f64::from(self.mult) / 2f64.powi(self.shift.min(MAX_SHIFT) as i32)
    }
}

/// A kernel's clocks at its last tick.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clocks {
    /// Name of the clocksource: `tsc`, `tsc-early`, `hpet`, `kvm-clock` …
    pub clocksource: String,
    /// Its cycles at the last tick.
    pub cycle_last: u64,
    /// `CLOCK_MONOTONIC` then, ns.
    pub monotonic_ns: u64,
    /// The timekeeper's scale.
    pub timekeeper: Scale,
    /// The scale of `sched_clock`, of CPU 0.
    pub sched_clock: Scale,
    /// What is added to it, ns.
    pub sched_clock_add: u64,
    /// `__sched_clock_offset`, ns.
    pub sched_clock_offset: i64,
    /// `__gtod_offset`, ns.
    pub gtod_offset: i64,
    /// `CLOCK_MONOTONIC` of the host when this was read, ns.
    #[serde(default)]
    pub read_ns: i64,
}

impl Clocks {
    /// Reads them out of a guest; `read_ns` is the host's `CLOCK_MONOTONIC`.
    ///
    /// # Errors
    /// [`Error::Missing`] when the kernel has no such symbols or types; [`Error::Ram`] when
    /// RAM does not hold them.
    pub fn take(guest: &Guest<'_>, read_ns: i64) -> Result<Self> {
        let keeper = guest.symbol("tk_core")?.wrapping_add(TIMEKEEPER);
        let number = |name: &str| guest.field(keeper, &format!("timekeeper.tkr_mono.{name}"));
        let source = number("clock")?;
        let name = guest.field(source, "clocksource.name")?;
        let timekeeper = scale(number("mult")?, number("shift")?)?;
        let fraction = number("xtime_nsec")? >> timekeeper.shift;
        // CPU 0's variables; of two copies the one that is not being written.
        let info = guest.info();
        let per_cpu = guest.u64(guest.symbol("__per_cpu_offset")?)?;
        let cyc2ns = guest.symbol("cyc2ns")?.wrapping_add(per_cpu);
        let size = info.sizes.get("cyc2ns_data").copied().unwrap_or(16);
        let copy = (guest.field(cyc2ns, "cyc2ns.seq")? & 1).wrapping_mul(size);
        let data = cyc2ns.wrapping_add(info.field("cyc2ns.data")?.offset()).wrapping_add(copy);
        let of_data = |name: &str| guest.field(data, &format!("cyc2ns_data.cyc2ns_{name}"));
        Ok(Clocks {
            clocksource: guest.text(name, MAX_NAME)?,
            cycle_last: number("cycle_last")?,
            monotonic_ns: number("base")?.wrapping_add(fraction),
            timekeeper,
            sched_clock: scale(of_data("mul")?, of_data("shift")?)?,
            sched_clock_add: of_data("offset")?,
            sched_clock_offset: guest.u64(guest.symbol("__sched_clock_offset")?)? as i64,
            gtod_offset: guest.u64(guest.symbol("__gtod_offset")?)? as i64,
            read_ns,
        })
    }

    /// True if the clocksource's cycles are the TSC's.
    pub fn counts_tsc(&self) -> bool {
        matches!(self.clocksource.as_str(), "tsc" | "tsc-early")
    }

    /// `sched_clock()` at the last tick, ns, where the clocksource is the TSC.
    pub fn raw_ns(&self) -> u64 {
        self.sched_clock.ns(self.cycle_last).wrapping_add(self.sched_clock_add)
    }

    /// What a record would have been stamped with at the last tick, ns; `stable` if the
    /// kernel trusted its TSC.
    pub fn log_ns(&self, stable: bool) -> u64 {
        if stable {
            self.raw_ns().wrapping_add_signed(self.sched_clock_offset)
        } else {
            self.monotonic_ns.wrapping_add_signed(self.gtod_offset)
        }
    }
}

fn scale(mult: u64, shift: u64) -> Result<Scale> {
    let scale = u32::try_from(mult).ok().zip(u32::try_from(shift).ok());
    scale
        .filter(|&(mult, shift)| mult > 0 && shift <= MAX_SHIFT)
        .map(|(mult, shift)| Scale { mult, shift })
        .ok_or_else(|| Error::Ram(format!("a clock has the scale {mult} >> {shift}")))
}
