//! The times of a range by commit, build and block of the plan.

use super::added::{Added, Part};
use std::collections::BTreeMap;
use vmeter_model::range::RangeRecord;
use vmeter_session::{SavedRun, Session};
use vmeter_stats::hosts::HostSample;

/// A run's time, s, by its commit (the group) and block (the host).
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    /// Which of its commit's builds it is of.
    pub build: u32,
    /// What it was made for.
    pub part: Part,
    /// The time.
    pub of: HostSample,
}

/// The samples of a range.
pub(super) fn samples(
    (record, session): (&RangeRecord, &Session),
    finished: &[SavedRun],
    times: &BTreeMap<u32, f64>,
) -> Vec<Sample> {
    let added = Added::of(&session.record);
    let blocks = added.blocks(&session.record.plan);
    let sample = |run: u32, label: &str| {
        let (group, build) = record.of_label(label)?;
        let of = HostSample { host: *blocks.get(&run)?, group, value: *times.get(&run)? };
        Some(Sample { build, part: added.part(run), of })
    };
    finished.iter().filter_map(|(_, run)| sample(run.index, &run.label)).collect()
}
