//! Moments that the user named (`--mark NAME=REGEX`), over the runs.

use serde::Serialize;
use vmeter_model::time::seconds;
use vmeter_model::{Estimate, Timeline};
use vmeter_render::exported;
use vmeter_render::quantity::Quantity;
use vmeter_render::table::{Cell, Column, Table};
use vmeter_stats::estimate;

/// A moment over the runs that have it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Mark {
    /// Its name.
    pub name: String,
    /// When it was, s after the exec.
    pub estimate: Estimate,
}

/// How a mark is exported.
#[derive(Debug, Serialize)]
pub(super) struct MarkRow {
    name: String,
    estimate: exported::Estimate,
}

impl From<Mark> for MarkRow {
    fn from(mark: Mark) -> Self {
        MarkRow { estimate: exported::exported(&mark.estimate), name: mark.name }
    }
}

/// The marks of some runs, in order of time.
pub(super) fn named_marks(timelines: &[&Timeline]) -> Vec<Mark> {
    let mut all: Vec<(String, Vec<f64>)> = Vec::new();
    for (name, at) in timelines.iter().flat_map(|timeline| &timeline.named_marks) {
        match all.iter_mut().find(|(known, _)| known == name) {
            Some((_, samples)) => samples.push(seconds(*at)),
            None => all.push((name.clone(), vec![seconds(*at)])),
        }
    }
    let mark = |(name, samples): (String, Vec<f64>)| Mark { name, estimate: estimate(&samples) };
    let mut marks: Vec<Mark> = all.into_iter().map(mark).collect();
    marks.sort_by(|a, b| a.estimate.mean.total_cmp(&b.estimate.mean));
    marks
}

/// The marks as a table.
pub(super) fn table(marks: &[Mark], runs: usize) -> Table {
    let mut table = Table::new(vec![
        Column::name("mark"),
        Column::number("at", 0),
        Column::number("in runs", 1),
    ]);
    for mark in marks {
        table.row(vec![
            Cell::Name(mark.name.clone()),
            Cell::Quantity(Quantity::duration(&mark.estimate)),
            Cell::Text(format!("{} of {runs}", mark.estimate.n)),
        ]);
    }
    table
}
