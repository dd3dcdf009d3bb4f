//! Pictures as data: stretches on a time axis, samples on a common axis.
//!
//! The terminal draws them with block characters, HTML as SVG, Markdown as a
//! fenced block; what is in them is decided here, once.

use crate::palette::Colour;
use vmeter_base::{Estimate, Ns};

/// Lanes of stretches on one time axis.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Chart {
    /// What it shows, for a reader who cannot see it.
    pub caption: String,
    /// Right end of the axis, ns; the left end is 0.
    pub total: Ns,
    /// Lanes from top to bottom.
    pub lanes: Vec<Lane>,
    /// Moments with a word, ns.
    pub marks: Vec<(Ns, String)>,
    /// Phases and their colours, where the lanes do not name them.
    pub legend: Vec<(String, Colour)>,
}

/// A line of a [`Chart`].
#[derive(Debug, Clone, PartialEq)]
pub struct Lane {
    /// Name; empty for a lane that holds everything.
    pub name: String,
    /// 0, or 1 for a part of the lane above.
    pub depth: usize,
    /// Stretches in order of time, without overlaps.
    pub segments: Vec<Segment>,
}

/// A stretch of a [`Lane`].
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    /// Name.
    pub name: String,
    /// Begin, ns.
    pub start: Ns,
    /// End, ns.
    pub end: Ns,
    /// Guest instructions in it, where counted.
    pub insns: Option<u64>,
    /// Where its boundaries come from.
    pub source: String,
    /// How far off they can be, ns.
    pub error_ns: Ns,
    /// Colour.
    pub colour: Colour,
}

/// Samples of several series on one axis.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Strips {
    /// What it shows.
    pub caption: String,
    /// The series.
    pub strips: Vec<Strip>,
}

/// A series of [`Strips`], in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Strip {
    /// Name.
    pub label: String,
    /// Samples, s.
    pub samples: Vec<f64>,
    /// Their summary.
    pub estimate: Estimate,
    /// Indices of outliers among the samples.
    pub outliers: Vec<usize>,
}

/// Quantities over time, all on one axis and one scale.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Curves {
    /// What it shows.
    pub caption: String,
    /// Unit of the values.
    pub unit: String,
    /// The curves.
    pub curves: Vec<Curve>,
}

/// One of [`Curves`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Curve {
    /// Name.
    pub label: String,
    /// (s, value), in order of time.
    pub points: Vec<(f64, f64)>,
}

impl Curves {
    /// The latest moment, s, and the largest value.
    pub fn range(&self) -> (f64, f64) {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let most = |values: &mut dyn Iterator<Item = f64>| {
            values.filter(|value| value.is_finite()).fold(0.0, f64::max)
        };
        (most(&mut points().map(|point| point.0)), most(&mut points().map(|point| point.1)))
    }
}

/// A share from 0 to 1; what is no number is 0.
pub(crate) fn clean_share(share: f64) -> f64 {
    if share.is_finite() {
        share.clamp(0.0, 1.0)
    } else {
        0.0
    }
}

/// Positions of about `wanted` round numbers from 0 to `end`, which is positive.
pub fn ticks(end: f64, wanted: usize) -> Vec<f64> {
    if !(end.is_finite() && end > 0.0) || wanted == 0 {
        return vec![0.0];
    }
    let rough = end / wanted as f64;
    let magnitude = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * magnitude);
    let step = step.into_iter().find(|s| *s >= rough * 0.999).unwrap_or(magnitude * 10.0);
    let count = (end / step * 1.000_001).floor() as usize;
    (0..=count.min(wanted * 2)).map(|i| i as f64 * step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_end_inside() {
        assert_eq!(ticks(3.9, 4), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(ticks(100.0, 5), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(ticks(0.0, 5), [0.0]);
        assert_eq!(ticks(f64::INFINITY, 5), [0.0]);
    }
}
