//! How a search decides, and when it ends.

use std::collections::BTreeSet;
use vmeter_model::range::RangeRecord;
use vmeter_model::run::{PlannedRun, RunRecord, SessionRecord};
use vmeter_session::shares;
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

/// The numbers of the runs that one search may hold against each other, and what is to be said
/// of the others: those of the host that goes on with it now. A search is of few boots, so that
/// the factor between two hosts can't be told from the change that it is after; virtual time is
/// the same on both.
pub(super) fn comparable<'a>(
    session: &SessionRecord<PlannedRun>,
    runs: impl Iterator<Item = &'a RunRecord> + Clone,
) -> (BTreeSet<u32>, Option<String>) {
    let finished: BTreeSet<u32> = runs.clone().map(|run| run.index).collect();
    let virtual_time = runs.filter(|run| run.icount).map(|run| run.index);
    let mut own: BTreeSet<u32> = virtual_time.collect();
    let mut others = Vec::new();
    for (host, runs) in shares::hosts(session, &finished) {
        if shares::is_same(&host, &session.host) {
            own.extend(runs);
        } else {
            let left = runs.difference(&own).count();
            others.extend((left > 0).then(|| format!("{left} of {}", shares::name(&host))));
        }
    }
    let said = (!others.is_empty()).then(|| {
        format!(
            "runs of another host ({}) are not part of the search: times of two hosts are not held against each other, so it measures on {} what it needs",
            others.join(", "),
            shares::name(&session.host)
        )
    });
    (own, said)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_model::shard::HostShare;

    #[test]
    fn of_two_hosts_only_virtual_time_is_held_against_each_other() {
        let host = |name: &str| [("hostname".to_owned(), name.into())].into();
        let session = SessionRecord {
            host: host("here"),
            shares: vec![HostShare { host: host("there"), runs: vec![0, 1] }],
            ..SessionRecord::default()
        };
        let run = |index, icount| RunRecord { index, icount, ..RunRecord::default() };
        let runs = [run(0, false), run(1, true), run(2, false)];
        let (own, said) = comparable(&session, runs.iter());
        assert_eq!(own, [1, 2].into());
        assert!(said.expect("words").contains("(1 of there)"));
        let (own, said) = comparable(&session, runs[1..].iter());
        assert_eq!((own, said), ([1, 2].into(), None));
    }
}
