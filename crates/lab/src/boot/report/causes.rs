//! Known causes over the runs, with what they would give back at most.

use serde::Serialize;
use vmeter_model::time::seconds;
use vmeter_model::Timeline;
use vmeter_render::quantity::{Quantity, Unit};
use vmeter_render::table::{Cell, Column, Table};
use vmeter_render::tone::Tone;

/// Causes that would give back less, as a share of the total, are nobody's concern.
const WORTH_A_WORD: f64 = 0.01;

/// A known cause over some runs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Known {
    /// Its name.
    pub id: &'static str,
    /// What it is.
    pub what: &'static str,
    /// What ends it.
    pub remedy: &'static str,
    /// The most that this gives back: the mean over the runs, s.
    pub at_most_s: f64,
    /// Runs that show it.
    pub seen_in: usize,
}

/// How a cause is exported.
#[derive(Debug, Serialize)]
pub(super) struct CauseRow {
    id: &'static str,
    what: &'static str,
    remedy: &'static str,
    at_most_s: f64,
    seen_in: usize,
}

impl From<Known> for CauseRow {
    fn from(known: Known) -> Self {
        let Known { id, what, remedy, at_most_s, seen_in } = known;
        CauseRow { id, what, remedy, at_most_s, seen_in }
    }
}

/// The known causes that are worth a word, the most seconds first; a run without one
/// counts as 0.
pub(super) fn known_causes(timelines: &[&Timeline]) -> Vec<Known> {
    let mut all: Vec<Known> = Vec::new();
    let runs = timelines.len().max(1) as f64;
    for cause in timelines.iter().flat_map(|timeline| vmeter_timeline::causes(timeline)) {
        let at_most_s = seconds(cause.at_most) / runs;
        match all.iter_mut().find(|known| known.id == cause.cause.id) {
            Some(known) => {
                known.at_most_s += at_most_s;
                known.seen_in += 1;
            }
            None => {
                let (id, what, remedy) = (cause.cause.id, cause.cause.title, cause.remedy);
                all.push(Known { id, what, remedy, at_most_s, seen_in: 1 });
            }
        }
    }
    let mean: f64 = timelines.iter().map(|t| seconds(t.total)).sum::<f64>() / runs;
    all.retain(|known| known.at_most_s >= WORTH_A_WORD * mean);
    all.sort_by(|a, b| b.at_most_s.total_cmp(&a.at_most_s));
    all
}

/// The causes as a table.
pub(super) fn table(causes: &[Known]) -> Table {
    let mut table = Table::new(vec![
        Column { shrinks_to: Some(24), ..Column::name("known cause") },
        Column::number("at most", 0),
        Column { shrinks_to: Some(40), ..Column::text("what ends it", 1) },
    ]);
    for cause in causes {
        table.toned_row(
            Tone::Normal,
            vec![
                Cell::Text(cause.what.into()),
                Cell::Quantity(Quantity::exact(cause.at_most_s, Unit::Seconds)),
                Cell::Text(cause.remedy.into()),
            ],
        );
    }
    table
}
