//! Turning one of the host's clocks into another: between two readings of them all
//! ([`read`]), one before and one after a run, they are interpolated linearly.

use vmeter_model::time::ClockReading;
use vmeter_model::Ns;

pub use vmeter_base::clock::{monotonic, read, tsc};

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
        let rate = if span > 0.0 {
            last.monotonic_ns.saturating_sub(first.monotonic_ns) as f64 / span
        } else {
            1.0
        };
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
