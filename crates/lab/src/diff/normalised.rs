//! What a part of a boot took beside the rest of that boot.
//!
//! A host that is 4 % slower makes all of 600 activities longer, each beyond its noise: true,
//! and no finding. So each run has a speed, the median over its activities of how they compare
//! with the same activities of all runs, and a part is a finding only if it differs at the
//! speed of its run as well. The median hears nothing of the few that a change is about.

use super::Side;
use crate::figures::{ActivityKey, Figures};
use vmeter_stats::{mean, median};

/// A speed is told by so many activities, or not at all.
const FEWEST: usize = 8;
/// Activities of a smaller share of the boot say nothing of its speed.
const LEAST_SHARE: f64 = 1e-3;

/// How much longer than usual each run's parts took, side by side.
pub(super) struct Speeds([Vec<f64>; 2]);

impl Speeds {
    /// None where too few activities are in all runs.
    pub fn of(a: &Side, b: &Side) -> Option<Self> {
        let runs: Vec<&Figures> = a.runs.iter().chain(&b.runs).collect();
        let total = mean(&runs.iter().map(|f| f.run.total_s).collect::<Vec<_>>());
        let usual = |key: &ActivityKey| {
            let times = runs.iter().map(|f| f.activities.get(key).map(|(s, _)| *s));
            let usual = mean(&times.collect::<Option<Vec<f64>>>()?);
            (usual > LEAST_SHARE * total).then_some(usual)
        };
        let keys = runs.first()?.activities.keys();
        let common: Vec<(&ActivityKey, f64)> =
            keys.filter_map(|key| Some((key, usual(key)?))).collect();
        if common.len() < FEWEST {
            return None;
        }
        let speed = |run: &Figures| {
            let ratios = common.iter().filter_map(|(key, usual)| {
                Some(run.activities.get(*key)?.0 / usual).filter(|ratio| *ratio > 0.0)
            });
            Some(median(&ratios.collect::<Vec<_>>())).filter(|speed| *speed > 0.0).unwrap_or(1.0)
        };
        Some(Speeds([a, b].map(|side| side.runs.iter().map(speed).collect())))
    }

    /// Samples, one a run, at the usual speed; none where runs have no sample.
    pub fn level(&self, samples: &[Vec<f64>; 2]) -> Option<[Vec<f64>; 2]> {
        let [a, b] = &self.0;
        let level = |samples: &[f64], speeds: &[f64]| -> Option<Vec<f64>> {
            let each = samples.iter().zip(speeds).map(|(s, speed)| s / speed);
            (samples.len() == speeds.len()).then(|| each.collect())
        };
        Some([level(&samples[0], a)?, level(&samples[1], b)?])
    }
}
