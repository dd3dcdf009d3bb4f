//! What a reader must know before believing the figures, and what to do next.

use super::{BootReport, Notices};
use std::collections::BTreeMap;
use vmeter_model::run::Outcome;
use vmeter_model::time::seconds;
use vmeter_render::document::{closing_notices, Notice, NoticeKind};
use vmeter_render::quantity::{compact_seconds, Quantity, Unit};

/// Steal above this share of the wall time is worth a warning.
const STEAL_SHARE: f64 = 0.01;

/// The outcome as JSON and CSV spell it.
pub(crate) fn outcome_word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Done => "done",
        Outcome::Panicked { .. } => "panicked",
        Outcome::NotReady => "not-ready",
        Outcome::VmmFailed { .. } => "vmm-failed",
        Outcome::TimedOut { .. } => "timed-out",
        Outcome::Interrupted => "interrupted",
    }
}

/// The outcome in words; `None` for one that needs none.
pub(crate) fn outcome_text(outcome: &Outcome) -> Option<String> {
    Some(match outcome {
        Outcome::Done => return None,
        Outcome::Panicked { line } => format!("the guest panicked: {line}"),
        Outcome::NotReady => "the VMM ended before the guest was ready".into(),
        Outcome::VmmFailed { status, stderr } => match stderr.trim().lines().last() {
            Some(last) => format!("the VMM failed ({status}): {last}"),
            None => format!("the VMM failed ({status})"),
        },
        Outcome::TimedOut { last } if last.is_empty() => "timed out without a sign of life".into(),
        Outcome::TimedOut { last } => format!("timed out; the last thing seen was: {last}"),
        Outcome::Interrupted => "interrupted".into(),
    })
}

/// Run numbers as a reader writes them: `run 3`, `runs 0, 2, 5 and 4 more`.
pub(crate) fn run_list(runs: &[u32]) -> String {
    const NAMED: usize = 5;
    let named: Vec<String> = runs.iter().take(NAMED).map(u32::to_string).collect();
    let plural = if runs.len() == 1 { "run" } else { "runs" };
    match runs.len().saturating_sub(NAMED) {
        0 => format!("{plural} {}", named.join(", ")),
        more => format!("{plural} {} and {more} more", named.join(", ")),
    }
}

/// Texts that several runs share, each once, with the runs.
pub(crate) fn grouped(texts: impl Iterator<Item = (u32, String)>) -> Vec<(String, Vec<u32>)> {
    let mut runs_of: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for (run, text) in texts {
        runs_of.entry(text).or_default().push(run);
    }
    let mut groups: Vec<_> = runs_of.into_iter().collect();
    groups.sort_by_key(|(_, runs)| runs[0]);
    groups
}

impl BootReport<'_> {
    /// Failures, warnings, hints, and where the runs are.
    pub(super) fn notices(&self) -> Notices {
        let runs = &self.result.runs;
        let failures = runs
            .iter()
            .filter_map(|run| Some((run.record.index, outcome_text(&run.record.outcome)?)));
        let mut notices: Notices = grouped(failures)
            .into_iter()
            .map(|(text, runs)| {
                Notice::new(NoticeKind::Failure, format!("{}: {text}", run_list(&runs)))
            })
            .collect();
        let warn = |text: String| Notice::new(NoticeKind::Warning, text);
        notices.extend(self.outlier_text().map(warn));
        notices.extend(self.steal_text().map(warn));
        let from_runs = runs.iter().flat_map(|run| {
            let index = run.record.index;
            let texts = run.record.warnings.iter().chain(&run.timeline.warnings);
            texts.map(move |text| (index, text.clone()))
        });
        for (text, affected) in grouped(from_runs) {
            let all = affected.len() >= runs.len();
            notices.push(warn(if all { text } else { format!("{}: {text}", run_list(&affected)) }));
        }
        let result = self.result;
        notices.extend(closing_notices(&result.warnings, &result.hints, &result.saved_in));
        notices
    }

    fn outlier_text(&self) -> Option<String> {
        let outliers = self.result.outliers.iter();
        let named: Vec<String> = outliers
            .filter_map(|at| self.result.runs.get(*at))
            .map(|run| {
                let total = compact_seconds(seconds(run.timeline.total));
                format!("run {} ({total})", run.record.index)
            })
            .collect();
        (!named.is_empty()).then(|| {
            format!(
                "outlying, and kept in all figures: {}; a quiet host or --pin helps",
                named.join(", ")
            )
        })
    }

    fn steal_text(&self) -> Option<String> {
        let steal: f64 = self.result.runs.iter().map(|run| run.record.steal_s).sum();
        let wall: f64 = self.result.runs.iter().map(|run| seconds(run.timeline.total)).sum();
        (steal > STEAL_SHARE * wall).then(|| {
            format!(
                "the host's hypervisor took {} of CPU time away during the runs; compare CPU time and \
                 instruction counts rather than wall time",
                Quantity::exact(steal, Unit::Seconds).inline()
            )
        })
    }
}
