//! The measured runs of a machine, analysed, with the counts of the boots that counted.

use crate::analysis::analyse_run;
use crate::counting;
use crate::figures::{Figures, INSNS};
use std::path::PathBuf;
use vmeter_model::result::AnalysedRun;
use vmeter_model::run::{Outcome, RunRecord, WatchLevel};

/// The figures of one machine's measured runs. Where boots of their own counted
/// instructions, their counts are joined to them.
pub fn of_machine(finished: &[(PathBuf, RunRecord)], label: &str) -> Vec<Figures> {
    analysed(finished, label).iter().map(Figures::of).collect()
}

/// The measured runs of one machine, analysed, and the warm-ups that failed.
pub fn analysed(finished: &[(PathBuf, RunRecord)], label: &str) -> Vec<AnalysedRun> {
    let own: Vec<&(PathBuf, RunRecord)> =
        finished.iter().filter(|(_, r)| r.label == label).collect();
    let level = timed_level(&own);
    let told = |r: &RunRecord| r.is_told() && (r.warmup || r.watch == level);
    let measured = own.iter().filter(|(_, r)| told(r));
    let mut runs: Vec<AnalysedRun> =
        measured.map(|(dir, record)| analyse_run(dir, record.clone())).collect();
    let counting = own
        .iter()
        .find(|(_, r)| r.warmup && r.watch == WatchLevel::Full && r.outcome == Outcome::Done)
        .map(|(dir, record)| analyse_run(dir, record.clone()))
        .filter(|counting| counting::is_separate(counting, &runs));
    for run in &mut runs {
        match &counting {
            Some(counting) => counting::join(&counting.timeline, &mut run.timeline),
            // Light watching counts up to the kernel's first initcalls only.
            None if run.record.watch == WatchLevel::Light && !run.record.icount => {
                run.timeline.counts.remove(INSNS);
            }
            None => {}
        }
    }
    if runs.is_empty() {
        runs.extend(own.iter().map(|(dir, record)| analyse_run(dir, record.clone())));
    }
    runs
}

/// How the runs that are timed are watched, where a session has several levels: the
/// lightest that sees anything.
fn timed_level(own: &[&(PathBuf, RunRecord)]) -> WatchLevel {
    let has = |level| own.iter().any(|(_, r)| !r.warmup && r.watch == level);
    let levels = [WatchLevel::Light, WatchLevel::Full];
    levels.into_iter().find(|level| has(*level)).unwrap_or(WatchLevel::None)
}
