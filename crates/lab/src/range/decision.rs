//! How a search decides, and when it ends.

use vmeter_model::range::RangeRecord;
use vmeter_stats::{bisect, Bisection};

/// How a search of this record decides.
pub(super) fn rule(record: &RangeRecord) -> bisect::Search {
    bisect::Search {
        confidence: record.confidence,
        max_samples: record.max_boots,
        max_end_samples: record.end_runs,
        ..bisect::Search::default()
    }
}

/// A search that has seen nothing yet.
pub(super) fn fresh(record: &RangeRecord) -> Bisection {
    Bisection::new(record.commits.len(), rule(record))
}
