//! How many cycles a second a clock counts, by the tick of the kernel whose trace it is.
//!
//! A CPU that is busy gets its timer's interrupt once a tick, and a kernel has one of a few ticks
//! a second (CONFIG_HZ). The distance most ticks have, times that, is the rate.

use std::collections::HashMap;
use vmeter_trace::ops::{Decoder, Op, Vector};
use vmeter_trace::NO_CPU;

/// Most distances that are kept.
const MAX_GAPS: usize = 1 << 14;
/// Fewest that tell.
const LEAST: usize = 50;
/// Ticks a second, the usual one first.
const HZ: [f64; 4] = [250.0, 300.0, 1000.0, 100.0];
/// Rates of TSCs, Hz.
const PLAUSIBLE: std::ops::Range<f64> = 0.9e9..7e9;

/// Distances between timer interrupts of a CPU, cycles.
#[derive(Debug, Default)]
pub(super) struct Ticks {
    last: HashMap<u32, u64>,
    gaps: Vec<u64>,
}

impl Ticks {
    /// Takes an event.
    pub(super) fn add(&mut self, cpu: u32, ts: u64, op: Op, decoder: &Decoder) {
        let timer = match op {
            Op::IrqEntry { irq } => decoder.names().name(irq).contains("timer"),
            Op::VectorEntry { vector, .. } => vector == Vector::Timer,
            _ => false,
        };
        if !timer || cpu == NO_CPU || self.gaps.len() >= MAX_GAPS {
            return;
        }
        if let Some(before) = self.last.insert(cpu, ts) {
            self.gaps.extend(ts.checked_sub(before));
        }
    }

    /// The distance that most have, within 5 %; none if there are few.
    pub(super) fn usual(mut self) -> Option<u64> {
        self.gaps.sort_unstable();
        let gaps = &self.gaps;
        let within = |at: usize| {
            let limit = gaps[at] + gaps[at] / 20;
            gaps.partition_point(|gap| *gap <= limit) - at
        };
        let most = (0..gaps.len()).max_by_key(|at| within(*at))?;
        let count = within(most);
        (count >= LEAST && count * 4 >= gaps.len()).then(|| gaps[most + count / 2])
    }
}

/// The rate that a distance between ticks stands for, Hz, and how that is known.
pub(super) fn of(gap: u64) -> Option<(f64, String)> {
    let rates = HZ.map(|hz| (hz, hz * gap as f64));
    let mut fits = rates.into_iter().filter(|(_, rate)| PLAUSIBLE.contains(rate));
    let (hz, rate) = fits.next()?;
    // To three digits: ticks are late by some cycles.
    let rate = (rate / 1e7).round() * 1e7;
    let others: Vec<String> =
        fits.map(|(hz, rate)| format!("{:.2} GHz if it is {hz}", rate / 1e9)).collect();
    let others =
        if others.is_empty() { String::new() } else { format!(" ({})", others.join(", ")) };
    let told = format!(
        "vmeter estimates the TSC's frequency from the kernel's tick: about {:.2} GHz if the tick \
         is {hz} Hz{others}; to set the frequency, use --cpu-hz HZ",
        rate / 1e9
    );
    Some((rate, told))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_most_ticks_have_is_the_tick() {
        let mut gaps: Vec<u64> = (0..400).map(|n| 8_000_000 + n * 10).collect();
        gaps.extend((0..200).map(|n| 16_000_000 + n * 100_000));
        let ticks = Ticks { gaps, ..Ticks::default() };
        let gap = ticks.usual().expect("a tick");
        let (rate, told) = of(gap).expect("a rate");
        assert_eq!(rate, 2e9);
        assert!(told.contains("2.40 GHz if it is 300"), "{told}");
        assert_eq!(Ticks::default().usual(), None);
        assert_eq!(of(1), None);
    }
}
