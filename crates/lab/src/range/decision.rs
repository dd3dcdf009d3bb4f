//! How a search decides, and when it ends.

use super::added::Added;
use std::collections::{BTreeMap, BTreeSet};
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
        builds: record.builds.max(1) as usize,
        smallest: record.detect.map_or(bisect::Search::default().smallest, |pct| pct / 100.0),
        ..bisect::Search::default()
    }
}

/// The runs that count, by number: commit, build, time.
pub(super) type Taken = BTreeMap<u32, (usize, u32, f64)>;

/// What the runs that search say, in the order in which they were made: commit, build, and the time, or
/// what it is beside the reference that was booted with it, by which the host's state cancels.
pub(super) fn observations(added: &Added, taken: &Taken) -> Vec<(usize, u32, f64)> {
    let reference = |run: &u32| added.references.iter().any(|[_, reference]| reference == run);
    let own = taken.iter().filter(|(run, _)| !reference(run) && !added.sizes(**run));
    own.filter_map(|(run, (commit, build, time))| {
        let pair = added.references.iter().find(|[sample, _]| sample == run);
        let unit = match pair {
            Some([_, reference]) => taken.get(reference)?.2,
            None => 1.0,
        };
        Some((*commit, *build, time / unit))
    })
    .collect()
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
            "the search ignores runs made on other hosts ({}), because durations on two hosts \
             cannot be compared; on host {}, the search makes all runs that it needs",
            others.join(", "),
            shares::name(&session.host)
        )
    });
    (own, said)
}

#[cfg(test)]
mod tests {
    use super::super::added::Sizing;
    use super::*;
    use vmeter_model::shard::HostShare;

    #[test]
    fn a_sample_is_taken_by_what_its_reference_took() {
        let added = Added { references: vec![[1, 0], [2, 3]], ..Added::default() };
        let taken = [(0, (0, 1, 2.0)), (1, (5, 2, 3.0)), (2, (4, 1, 9.0)), (4, (7, 1, 1.5))];
        let found = observations(&added, &taken.into());
        // The reference of run 2 is not there.
        assert_eq!(found, [(5, 2, 1.5), (7, 1, 1.5)]);
        let sizing = Sizing { runs: [4, 5], ..Sizing::default() };
        let added = Added { sizing: vec![sizing], ..added };
        assert_eq!(observations(&added, &taken.into()), [(5, 2, 1.5)], "run 4 tells a size");
    }

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
