//! The JSON body of a range. Field names are fixed by schema `vmeter/1`.

use crate::diff::report as diff;
use crate::json_common::Host;
use vmeter_model::range::{self, RangeResult};
use vmeter_render::exported;
use vmeter_render::exported::{Estimate, Word};

exported! {
    /// The fields after the envelope.
    pub(super) struct Body<'a> of RangeResult {
        repo: &'a str = |result| &result.record.repo,
        range: &'a str = |result| &result.record.range,
        bisect: bool = |result| result.record.bisect,
        verdict: Word,
        changes: Vec<Change<'a>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        seen_once: Vec<Change<'a>>,
        suspects: &'a [usize],
        probability: Option<f64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        excluded_pct: Option<f64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        detectable_pct: Option<f64>,
        ends: Option<Estimate>,
        hosts: Vec<Host<'a>>,
        effort: Effort,
        commits: Vec<Commit<'a>>,
        explained: Option<diff::Body<'a>>,
        warnings: &'a [String],
        hints: &'a [String],
        saved_in: &'a str,
    }

    struct Change<'a> of range::Change {
        commits: &'a [usize],
        before: usize,
        shape: Word,
        verdict: Word,
        ratio: Option<Estimate>,
        jump_s: f64,
        p_value: Option<f64>,
        probability: Option<f64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        sizing: Option<usize>,
        #[serde(skip_serializing_if = "Option::is_none")]
        mean: Option<Estimate>,
        #[serde(skip_serializing_if = "Option::is_none")]
        place: Option<[usize; 2]>,
        #[serde(skip_serializing_if = "Option::is_none")]
        slow: Option<Slow>,
    }

    struct Slow of range::SlowBoots {
        before: [usize; 2],
        since: [usize; 2],
        times: f64,
    }

    struct Effort of range::Effort {
        boots: usize,
        #[serde(skip_serializing_if = "is_none")]
        placing: usize,
        #[serde(skip_serializing_if = "is_none")]
        sizing: usize,
        #[serde(skip_serializing_if = "is_none")]
        slow: usize,
        builds: usize,
        linear_boots: usize,
        linear_builds: usize,
    }

    struct Commit<'a> of range::MeasuredCommit {
        index: usize,
        hash: &'a str,
        subject: &'a str,
        state: Word,
        failure: Option<&'a str>,
        samples_s: &'a [f64],
        estimate: Option<Estimate> = |commit| told(commit.estimate.as_ref()),
        probability: Option<f64>,
    }
}

/// One run has no interval, and so no estimate beside its sample.
fn told(estimate: Option<&vmeter_model::Estimate>) -> Option<Estimate> {
    estimate.filter(|estimate| estimate.n > 1).map(exported::exported)
}

fn is_none(count: &usize) -> bool {
    *count == 0
}
