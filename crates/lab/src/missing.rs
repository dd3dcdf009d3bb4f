//! Runs that were planned and are not there.

use std::collections::BTreeSet;
use vmeter_model::run::{Outcome, Planned, SessionRecord};
use vmeter_session::{SavedRun, Session};

/// What is said of a session that lacks planned runs, if it does.
pub(crate) fn warning(session: &Session, finished: &[SavedRun]) -> Option<String> {
    let runs = finished.iter().map(|(_, run)| (run.index, run.label.as_str(), &run.outcome));
    let missing = missing_runs(&session.record, runs);
    (!missing.is_empty()).then(|| {
        let listed = crate::diff::listed(missing.iter().map(String::as_str));
        format!(
            "not measured: {listed}; continue with --resume {}",
            vmeter_base::shell::path(&session.dir)
        )
    })
}

/// The measured runs of the plan that are not there, by point: `smp=2 (2 of 5 runs)`. A
/// point that fails is not run again, and its runs are not missed.
pub(crate) fn missing_runs<'a, P: Planned>(
    record: &SessionRecord<P>,
    finished: impl Iterator<Item = (u32, &'a str, &'a Outcome)> + Clone,
) -> Vec<String> {
    let there: BTreeSet<u32> = finished.clone().map(|(index, ..)| index).collect();
    let mut runs: Vec<(usize, usize)> = vec![(0, 0); record.machines.len()];
    for (index, planned) in record.plan.iter().enumerate().filter(|(_, p)| !p.warmup()) {
        let Some((all, found)) = runs.get_mut(planned.machine()) else { continue };
        *all += 1;
        *found += usize::from(u32::try_from(index).is_ok_and(|i| there.contains(&i)));
    }
    let failed = |label: &str| {
        finished.clone().any(|(_, of, outcome)| of == label && *outcome != Outcome::Done)
    };
    let short = record.machines.iter().zip(runs).filter(|(_, (all, found))| found < all);
    let short = short.filter(|(machine, _)| !failed(&machine.label));
    short
        .map(|(machine, (all, found))| format!("{} ({} of {all} runs)", machine.label, all - found))
        .collect()
}
