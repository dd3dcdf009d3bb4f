//! What a reader must know before believing the figures, and what to do next.

use super::why;
use super::{BootReport, Notices};
use crate::words::{grouped, run_list};
use vmeter_model::time::seconds;
use vmeter_render::document::{closing_notices, Notice, NoticeKind};
use vmeter_render::quantity::{compact_seconds, Quantity, Unit};

/// Steal above this share of the wall time is worth a warning.
const STEAL_SHARE: f64 = 0.01;

impl BootReport<'_> {
    /// Failures, warnings, hints, and where the runs are.
    pub(super) fn notices(&self) -> Notices {
        let runs = &self.result.runs;
        let failures = runs.iter().filter_map(|run| Some((run.record.index, why(&run.record)?)));
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
