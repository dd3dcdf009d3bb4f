//! What was found in the samples of a range.

use vmeter_model::range::Change;
use vmeter_model::RangeVerdict;
use vmeter_stats::step::Step;

/// What was found in the samples.
#[derive(Debug)]
pub(super) struct Found {
    pub changes: Vec<Change>,
    /// As in [`RangeResult`].
    pub seen_once: Vec<Change>,
    pub verdict: RangeVerdict,
    pub suspects: Vec<usize>,
    pub probability: Option<f64>,
    pub excluded_pct: Option<f64>,
    /// As in [`RangeResult`].
    pub detectable_pct: Option<f64>,
    /// How far a search's ends are apart.
    pub ends: Option<Step>,
}

impl Found {
    pub fn new(verdict: RangeVerdict) -> Self {
        Found {
            changes: Vec::new(),
            seen_once: Vec::new(),
            verdict,
            suspects: Vec::new(),
            probability: None,
            excluded_pct: None,
            detectable_pct: None,
            ends: None,
        }
    }
}
