//! What a reader must know before believing the figures, and what to do next.

use super::stages::is_dead;
use super::why;
use super::{BootReport, Notices};
use crate::phrases::{grouped, run_list};
use vmeter_model::result::AnalysedRun;
use vmeter_model::run::Outcome;
use vmeter_model::time::seconds;
use vmeter_render::document::{closing_notices, Notice, NoticeKind};
use vmeter_render::quantity::{compact_seconds, Quantity, Unit};
use vmeter_timeline::GAVE_WAY;

/// Steal above this share of the wall time is worth a warning.
const STEAL_SHARE: f64 = 0.01;

/// What is said of a guest's RAM that does not hold what was looked for in it.
const OF_RAM: &str = "guest RAM: ";

impl BootReport<'_> {
    /// What runs failed for, and which.
    fn failures(&self) -> Vec<(String, Vec<u32>)> {
        let runs = &self.result.runs;
        // Of several runs, each has its own.
        let when = |run: &AnalysedRun| {
            let dead = run.timeline.spans.iter().find(|s| s.parent.is_none() && is_dead(&s.name));
            let panicked = matches!(run.record.outcome, Outcome::Panicked { .. });
            let dead = dead.filter(|_| panicked && runs.len() == 1);
            dead.map_or_else(String::new, |s| format!(", at {:.3} s", seconds(s.start)))
        };
        grouped(
            runs.iter().filter_map(|run| Some((run.record.index, why(&run.record)? + &when(run)))),
        )
    }

    /// True if the screen's first sentence says already why all runs failed.
    pub(super) fn answer_has_failures(&self) -> bool {
        let first = self.result.runs.iter().find_map(|run| why(&run.record));
        matches!(self.failures().as_slice(), [(text, _)] if Some(text) == first.as_ref())
            && self.result.total.is_none()
    }

    /// Failures, warnings, hints, and where the runs are.
    pub(super) fn notices(&self) -> Notices {
        let runs = &self.result.runs;
        let mut notices: Notices = self
            .failures()
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
            let texts = told(&run.record.warnings, &run.timeline.warnings).into_iter();
            texts.map(move |text| (index, text.clone()))
        });
        for (text, affected, others) in alike(grouped(from_runs)) {
            let all = affected.len() >= runs.len();
            let text = if all { text } else { format!("{}: {text}", run_list(&affected)) };
            notices.push(warn(match others {
                0 => text,
                n => format!("{text} (and {n} more of this kind)"),
            }));
        }
        let result = self.result;
        notices.extend(result.said.iter().map(|text| Notice::new(NoticeKind::Note, text)));
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
                "outliers, included in all figures: {}; a quiet host or --pin reduces outliers",
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

/// What is told of a run. That what is in RAM is not the kernel that was begun with is said once.
fn told<'a>(of_record: &'a [String], of_timeline: &'a [String]) -> Vec<&'a String> {
    let other = of_timeline.iter().any(|text| text.contains(GAVE_WAY));
    let all = of_record.iter().chain(of_timeline);
    all.filter(|text| !(other && text.starts_with(OF_RAM))).collect()
}

/// Warnings of a kind are told once: the first, the runs of all, and how many others there are.
fn alike(groups: Vec<(String, Vec<u32>)>) -> Vec<(String, Vec<u32>, usize)> {
    let mut kinds: Vec<String> = Vec::new();
    let mut told: Vec<(String, Vec<u32>, usize)> = Vec::new();
    for (text, runs) in groups {
        let kind = kind(&text);
        match kinds.iter().position(|known| *known == kind) {
            Some(at) => {
                let (_, known, others) = &mut told[at];
                known.extend(runs);
                known.sort_unstable();
                known.dedup();
                *others += 1;
            }
            None => {
                kinds.push(kind);
                told.push((text, runs, 0));
            }
        }
    }
    told
}

/// A text without what differs among those of its kind: numbers, and what stands in quotes.
fn kind(text: &str) -> String {
    let mut kind = String::with_capacity(text.len());
    let mut quoted = false;
    for c in text.chars() {
        match c {
            '`' | '"' => quoted = !quoted,
            c if quoted || c.is_ascii_digit() || c == '.' => {}
            c => kind.push(c),
        }
    }
    kind
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_another_kernel_in_ram_is_told_once() {
        let unmapped = "guest RAM: virtual address 0xffff8e1dc1048280 is not mapped".to_owned();
        let gave_way = format!("at 13.848 s {GAVE_WAY} (kexec): its RAM");
        // A timeline repeats what its record says.
        let (record, timeline) = ([unmapped.clone()], [unmapped, gave_way.clone()]);
        assert_eq!(told(&record, &timeline), [&gave_way]);
        assert_eq!(told(&record, &timeline[..1]).len(), 2, "of its own kernel it is told");
    }

    #[test]
    fn warnings_of_a_kind_are_told_once() {
        let group = |text: &str, run| (text.to_owned(), vec![run]);
        let told = alike(vec![
            group("`a` began at 1.20 s", 0),
            group("`b` began at 3 s", 1),
            group("else", 1),
        ]);
        assert_eq!(told.len(), 2);
        assert_eq!(told[0], ("`a` began at 1.20 s".into(), vec![0, 1], 1));
        assert_eq!(told[1].2, 0);
    }
}
