//! Reading the host's clocks together, and turning one into another.
//!
//! `CLOCK_MONOTONIC`, `CLOCK_REALTIME` and the TSC are read one after another
//! between two readings of `CLOCK_MONOTONIC`; the tightest of several attempts
//! is kept, and its width is the error. Between two such readings, one before
//! and one after a run, the other clocks are interpolated linearly.

use vmeter_model::time::ClockReading;
use vmeter_model::Ns;

const ATTEMPTS: usize = 16;

/// Reads all clocks, keeping the tightest of several attempts.
pub fn read() -> ClockReading {
    (0..ATTEMPTS).map(|_| read_once()).min_by_key(|r| r.width_ns).unwrap_or_else(read_once)
}

fn read_once() -> ClockReading {
    let before = crate::stamped::monotonic();
    let tsc = tsc();
    let real = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let after = crate::stamped::monotonic();
    ClockReading {
        monotonic_ns: before + (after - before) / 2,
        realtime_ns: real.tv_sec * 1_000_000_000 + real.tv_nsec,
        tsc,
        width_ns: after - before,
    }
}

fn tsc() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: RDTSC reads a register; it is available in user mode on every
    // x86-64 Linux that has not set CR4.TSD, which Linux does only on request.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    0
}

/// A clock expressed in `CLOCK_MONOTONIC`, from readings at both ends of a run.
#[derive(Debug, Clone, Copy)]
pub struct Conversion {
    from: f64,
    to: Ns,
    rate: f64,
    /// Error of the conversion, ns: how wide the readings were.
    pub error_ns: Ns,
}

impl Conversion {
    /// Wall clock (ns since the epoch) to `CLOCK_MONOTONIC`; none without readings.
    pub fn from_realtime(clocks: &[ClockReading]) -> Option<Self> {
        // The wall clock may be stepped in between: then the rate is not to be
        // believed, and the first reading's offset is used for the whole run.
        let conversion = Self::new(clocks, |c| c.realtime_ns as f64)?;
        let stepped = (conversion.rate - 1.0).abs() > 1e-3;
        Some(if stepped { Self { rate: 1.0, ..conversion } } else { conversion })
    }

    /// Host TSC to `CLOCK_MONOTONIC`; none without two readings apart.
    pub fn from_tsc(clocks: &[ClockReading]) -> Option<Self> {
        let conversion = Self::new(clocks, |c| c.tsc as f64)?;
        (clocks.len() > 1 && conversion.rate.is_finite() && conversion.rate > 0.0)
            .then_some(conversion)
    }

    fn new(clocks: &[ClockReading], of: impl Fn(&ClockReading) -> f64) -> Option<Self> {
        let (first, last) = (clocks.first()?, clocks.last()?);
        let span = of(last) - of(first);
        let rate =
            if span > 0.0 { (last.monotonic_ns - first.monotonic_ns) as f64 / span } else { 1.0 };
        let error_ns = first.width_ns.max(last.width_ns);
        Some(Self { from: of(first), to: first.monotonic_ns, rate, error_ns })
    }

    /// The moment on `CLOCK_MONOTONIC`, ns.
    pub fn to_monotonic(&self, stamp: f64) -> Ns {
        self.to.saturating_add(((stamp - self.from) * self.rate).round() as Ns)
    }

    /// Nanoseconds of `CLOCK_MONOTONIC` per unit of the other clock.
    pub fn rate(&self) -> f64 {
        self.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_clock_is_found_again_from_the_others() {
        let first = read();
        let last = loop {
            let now = read();
            if now.monotonic_ns > first.monotonic_ns + 5_000_000 {
                break now;
            }
        };
        let middle = read();
        let clocks = [first, last];
        let allowed = middle.width_ns + first.width_ns + last.width_ns + 2_000;
        let real = Conversion::from_realtime(&clocks).unwrap();
        let tsc = Conversion::from_tsc(&clocks).unwrap();
        for found in
            [real.to_monotonic(middle.realtime_ns as f64), tsc.to_monotonic(middle.tsc as f64)]
        {
            assert!((found - middle.monotonic_ns).abs() <= allowed, "{found} {middle:?}");
        }
    }

    #[test]
    fn a_stepped_wall_clock_keeps_its_first_offset() {
        let reading = |monotonic_ns, realtime_ns| ClockReading {
            monotonic_ns,
            realtime_ns,
            tsc: 0,
            width_ns: 1,
        };
        let clocks = [reading(1_000, 50_000), reading(2_001_000, 9_000_000_000)];
        let real = Conversion::from_realtime(&clocks).unwrap();
        assert_eq!(real.to_monotonic(50_500.0), 1_500);
    }
}
